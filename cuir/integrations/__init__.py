"""Attention of this package inside of other libraries, a module for each, imported on demand."""

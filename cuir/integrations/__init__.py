"""Attention of this package inside of other libraries, a module for each. None of them is imported before it is asked for."""

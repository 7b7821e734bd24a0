"""Printers of primitives that every target shares, one file for each family."""

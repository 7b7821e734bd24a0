"""Printers of primitives that every card shares, one file for each family."""

"""Layouts: which register of which lane, or which cell of memory, holds an element of a tile."""

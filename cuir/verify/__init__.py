"""Verification of a kernel against its specification. Owns the three questions; asks the checker and the interpreter."""

"""Calls over a cache and of packed sequences."""

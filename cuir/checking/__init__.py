"""Checking: from a tree to a checked kernel, from which running and lowering start.

Names, functions inlined, constants folded, types, capacities.
"""

"""Masks as predicates and as lists of key blocks, their costs, and orders of work items."""

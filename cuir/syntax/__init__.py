"""The language as text and as a tree: grammar, parser, printer, nodes and types.

Nothing here resolves names.
"""

"""Text that people read: sources with positions, errors with their codes, JSON and Markdown.

Independent of the language.
"""

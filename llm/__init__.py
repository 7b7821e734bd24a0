"""Passes that ask a language model: transfer, lift, tune.

They share one loop (loop.py): propose, parse, check, verify, report the fault, repeat. Nothing that a model says is
believed before it is checked, and none of it is evaluated, imported, compiled, or used as a name of a file.
"""

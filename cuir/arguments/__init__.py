"""Checks of a call of a kernel, on a CPU or a GPU.

Dims and consts out of its arguments, alignment, memory that arguments share, lengths that fit 32 bits.
"""

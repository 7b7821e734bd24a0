"""Rewrites of a program that preserve its results to the bit.

They test the compiler: it should make equally fast code of a program and of its rewritten form.
"""

from __future__ import annotations

from .chains import apply, chain, rewrites
from .rewrites_table import KINDS, Rewrite

__all__ = ["KINDS", "Rewrite", "apply", "chain", "rewrites"]

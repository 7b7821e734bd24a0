"""Rewrites of a program that preserve its meaning to the bit.

A compiler for which they cost nothing does not depend on how a program is written.
"""

from __future__ import annotations

from .chains import apply, chain, rewrites
from .rewrites_table import KINDS, Rewrite

__all__ = ["KINDS", "Rewrite", "apply", "chain", "rewrites"]

"""Other spellings of a program that mean the same, to the bit: a compiler for which they cost nothing does not depend on how a program is written. Owns no rule of the language."""

from __future__ import annotations

from .chains import apply, chain, rewrites
from .table import KINDS, Rewrite

__all__ = ["KINDS", "Rewrite", "apply", "chain", "rewrites"]

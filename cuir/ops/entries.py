"""Entries by constant names, for code that makes operations: `lowering/ir/make` and the evaluator.

Code that only asks what an operation is uses its traits.
"""

from __future__ import annotations

from . import compute, memory, operators  # noqa: F401  # enter what is looked up below
from .base import OPERATORS, TABLE

ADD, SUBTRACT, MULTIPLY, DIVIDE, NEGATE = (OPERATORS[name] for name in ("+", "-", "*", "/", "neg"))
FLOOR_DIVIDE, CEIL_DIVIDE, REMAINDER = OPERATORS["//"], TABLE["cdiv"], OPERATORS["%"]
AND, OR, EXCLUSIVE_OR = (OPERATORS[name] for name in ("&", "|", "^"))
JUNCTIONS = [op for op in OPERATORS.values() if op.traits.decided_by is not None]
# the junction decided by the opposite truth value
DUALS = {a.name: b for a in JUNCTIONS for b in JUNCTIONS if a.traits.lazy == b.traits.lazy and a is not b}
COMPARISONS = {op.traits.compares: op for op in OPERATORS.values() if op.traits.compares}  # by the signs of x - y
LEAST, GREATEST = TABLE["min"], TABLE["max"]
CHOOSE, CHOOSE_BY_ELEMENT = OPERATORS["ifexp"], TABLE["where"]
CAST, FULL = TABLE["cast"], TABLE["full"]
EXP2, LOG2, TANH = TABLE["exp2"], TABLE["log2"], TABLE["tanh"]

__all__ = [
    "ADD",
    "AND",
    "CAST",
    "CEIL_DIVIDE",
    "CHOOSE",
    "CHOOSE_BY_ELEMENT",
    "COMPARISONS",
    "DIVIDE",
    "DUALS",
    "EXCLUSIVE_OR",
    "EXP2",
    "FLOOR_DIVIDE",
    "FULL",
    "GREATEST",
    "LEAST",
    "LOG2",
    "MULTIPLY",
    "NEGATE",
    "OR",
    "REMAINDER",
    "SUBTRACT",
    "TANH",
]

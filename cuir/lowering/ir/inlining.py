"""The mark of inlined values, which are computed in their readers.

`passes/inline_elementwise.py` sets it.
"""

from __future__ import annotations

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation, OpResult, SSAValue

from . import ops

MARK = "inlined"
PLACELESS = (ops.Constant, ops.Parameter, ops.At)


def mark(op: Operation) -> None:
    """Mark the result of an operation as inlined."""
    op.attributes[MARK] = UnitAttr()


def unmark(op: Operation) -> None:
    """Remove the mark of an operation."""
    op.attributes.pop(MARK, None)


def is_inlined(value: SSAValue) -> bool:
    """Return whether a value is computed in its readers, without registers of its own."""
    if not isinstance(value, OpResult):
        return False
    op = value.op  # a hot path, and `isinstance` is slow to return False
    return MARK in op.attributes or type(op) in PLACELESS

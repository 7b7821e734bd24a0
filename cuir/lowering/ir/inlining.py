"""The mark of values that are written nowhere: they are worked out inside of what reads them. `passes/fusion.py` puts it."""

from __future__ import annotations

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation, OpResult, SSAValue

from . import ops

MARK = "inlined"
PLACELESS = (ops.Constant, ops.Parameter, ops.At)


def mark(op: Operation) -> None:
    op.attributes[MARK] = UnitAttr()


def unmark(op: Operation) -> None:
    op.attributes.pop(MARK, None)


def inlined(value: SSAValue) -> bool:
    """Whether a value has no place of its own."""
    if not isinstance(value, OpResult):
        return False
    op = value.op  # asked of all values, and `isinstance` takes long to say no
    return MARK in op.attributes or type(op) in PLACELESS

"""The mark of values that are written nowhere: they are worked out inside of what reads them. `passes/fusion.py` puts it."""

from __future__ import annotations

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation, SSAValue

from . import ops

MARK = "inlined"


def mark(op: Operation) -> None:
    op.attributes[MARK] = UnitAttr()


def unmark(op: Operation) -> None:
    op.attributes.pop(MARK, None)


def inlined(value: SSAValue) -> bool:
    """Whether a value has no place of its own."""
    owner = value.owner
    return isinstance(owner, (ops.Constant, ops.Parameter, ops.At)) or (isinstance(owner, Operation) and MARK in owner.attributes)

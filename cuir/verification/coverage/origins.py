"""Origins of a kernel's values: numbers of the launch, elements of read-only tensors, or data.

An index tile is computed element by element from rows, columns, and numbers that are known without a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Flag
from functools import partial, reduce
from operator import or_

from xdsl.ir import Block, SSAValue

from ...checking.checked import Checked
from ...checking.fact_solver import Rule, ValueFlow
from ...checking.kernel_results import keep_with_kernel
from ...lowering.analyses.memory import is_memory_effect_free
from ...lowering.analyses.value_flow import find_deciders, find_sources
from ...lowering.ir import ops
from ...lowering.ir.build_ir import build_for_analyses
from ...lowering.ir.ir_types import TileT, is_scalar
from ...syntax.nodes import Expr
from ...syntax.types import BOOL, I32, Scalar, TileType
from ...syntax.walk import IdentityKey

NUMBERS, INPUTS, RUN = 0, 1, 2  # the launch alone; also elements of read-only tensors; only a run


class _Origin(Flag):
    """Sources of a value, besides constants, rows and columns."""

    CONSTANTS = 0
    LAUNCH = 1  # dims and scalars, units of work, workers, turns
    ELEMENTS = 2  # scalars of tensors that the kernel does not write
    DATA = 4  # other memory, floats of tiles, reductions, products


class Origins:
    """The origins of the values of a kernel's expressions."""

    def __init__(self, checked: Checked):
        built = build_for_analyses(checked)
        self._values, flow = built.values, ValueFlow[SSAValue, _Origin](or_)
        flow.reach(built.values.values(), _describe)
        self._origins = flow.solve()

    def find_level(self, e: Expr) -> int:
        """Return what the value of an expression depends on: NUMBERS, INPUTS or RUN."""
        origin = self._find(e)
        return RUN if origin & _Origin.DATA else INPUTS if origin & _Origin.ELEMENTS else NUMBERS

    def is_index(self, e: Expr) -> bool:
        """Return whether an i32 or bool follows only from rows, columns and the launch's numbers."""
        return isinstance(e.type, (TileType, Scalar)) and e.type.dtype in (I32, BOOL) and self.find_level(e) < RUN

    def varies(self, e: Expr) -> bool:
        """Return whether the value may differ between launches, units or loop turns."""
        return self._find(e) != _Origin.CONSTANTS

    def _find(self, e: Expr) -> _Origin:
        value = self._values.get(IdentityKey(e))
        return _Origin.DATA if value is None else self._origins[value]  # the IR computes no index of a view that is measured


@keep_with_kernel
def find_origins(checked: Checked) -> Origins:
    """Return the origins of a kernel's values. Cached with the kernel."""
    return Origins(checked)


def _describe(value: SSAValue) -> tuple[Rule[_Origin], Sequence[SSAValue]]:
    """Return how the origin of a value follows from those of others."""
    op = value.owner
    if (sources := find_sources(value)) is not None:
        return _from(_Origin.CONSTANTS, [*sources, *find_deciders(value)])
    if isinstance(op, Block):  # a worker, a unit of work, or a turn
        return _from(_Origin.LAUNCH, find_deciders(value))
    if isinstance(op, ops.Apply):
        origin = _Origin.DATA if _holds_data(op) else _Origin.LAUNCH if op.kind.rank else _Origin.CONSTANTS
        return _from(origin, op.arguments)
    if isinstance(op, ops.Perform):
        is_known = is_scalar(value) and op.kind.indexed and is_memory_effect_free(op)
        return _from(_Origin.ELEMENTS, op.arguments) if is_known else _from(_Origin.DATA)
    return _from(_Origin.LAUNCH if isinstance(op, ops.Parameter) else _Origin.CONSTANTS, op.operands)


def _holds_data(op: ops.Apply) -> bool:
    """Return whether an operation gives floats of a tile, or is no function of each of its elements."""
    t, kind = op.result.type, op.kind
    if op.entry.reduces or kind.product:
        return True
    if not isinstance(t, TileT):
        return False
    return t.element.is_float or not (kind.index_of or (kind.elementwise and op.entry.evaluate is not None))


def _from(origin: _Origin, sources: Sequence[SSAValue] = ()) -> tuple[Rule[_Origin], Sequence[SSAValue]]:
    return partial(_join, origin), sources


def _join(origin: _Origin, inputs: Sequence[_Origin | None]) -> _Origin:
    """Return an origin and all those of sources that are known so far."""
    return reduce(or_, (o for o in inputs if o is not None), origin)


__all__ = ["INPUTS", "NUMBERS", "RUN", "Origins", "find_origins"]

"""Stages and parities of rings are carried along instead of divided out: `i % n` and `i // n % 2` of a counter i.

A counter starts at a known number that is not negative and goes up by one. A wait's address and a product's descriptor follow from its stage, so that a
division there is on the way of everything. Stage and parity are exact as long as the counter does not wrap.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from ...ops.traits import SUM
from ...syntax.types import BOOL, I32
from ..ir import make, ops
from ..ir.types import dtype_of, is_scalar, scalar
from ..ir.walk import every
from .rewriting import replace
from .webs import Companions, Web, webs


def run(kernel: ops.Kernel) -> None:
    for role in kernel.roles:
        while (ring := _next(role)) is not None:
            web, stages = ring
            beside = Companions(role, web, lambda c, v, n=stages: _make(c, v, n))  # type: ignore[misc]
            for op in list(every(role)):
                place = _place(op)
                if place is not None and place[1] == stages and place[0] in beside.known and op.parent is not None:
                    replace(op, [beside.known[place[0]][int(place[2])]])


def _next(role: ops.Role) -> tuple[Web, int] | None:
    """A counter with a ring that is still divided out, and the ring's stages."""
    places = [p for op in every(role) if (p := _place(op)) is not None]
    if not places:
        return None
    for web in webs(role, _counted):
        if not web.joined or not all(_start(v) or _counted(v) for v in web.made):
            continue
        for value, stages, _ in places:
            if value in web and any(_start(v) for v in web.made):
                return web, stages
    return None


def _place(op: Operation) -> tuple[SSAValue, int, bool] | None:
    """(counter, stages, whether it is the parity) of `i % n` and `i // n % 2`."""
    if not (isinstance(op, ops.Apply) and op.kind.remainder and is_scalar(op.result)):
        return None
    value, n = op.arguments[0], ops.known(op.arguments[1])
    inner = value.owner
    if isinstance(inner, ops.Apply) and inner.kind.rounds == "down" and n == 2:
        stages = ops.known(inner.arguments[1])
        return (inner.arguments[0], int(stages), True) if stages is not None and stages > 1 else None
    return (value, int(n), False) if n is not None and n > 1 else None


def _counted(value: SSAValue) -> list[SSAValue]:
    """x of x + 1."""
    op = value.owner
    if (
        isinstance(op, ops.Apply)
        and op.kind.linear == SUM
        and is_scalar(value)
        and dtype_of(value) == I32
        and ops.known(op.arguments[1]) == 1
    ):
        return [op.arguments[0]]
    return []


def _start(value: SSAValue) -> bool:
    number = ops.known(value)
    return number is not None and dtype_of(value) == I32 and number >= 0


def _make(beside: Companions, value: SSAValue, stages: int) -> list[SSAValue]:
    """Stage and parity of a counter's start, or of the counter one further."""

    def put(op: Operation) -> SSAValue:
        return beside.behind(value, op)

    def number(n: int) -> SSAValue:
        return put(ops.constant(n, I32))

    start = ops.known(value)
    if start is not None:
        return [number(int(start) % stages), number(int(start) // stages % 2)]
    stage, parity = beside.of(_counted(value)[0])
    one, zero = number(1), number(0)
    following = put(make.add(stage, one, scalar(I32)))
    full = put(make.equal(following, number(stages), scalar(BOOL)))
    turned = put(make.exclusive_or(parity, one, scalar(I32)))
    new = put(make.choose(full, zero, following, scalar(I32)))
    new.name_hint = "stage"
    flipped = put(make.choose(full, turned, parity, scalar(I32)))
    flipped.name_hint = "parity"
    return [new, flipped]

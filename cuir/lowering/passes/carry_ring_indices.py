"""Carry stages and parities of rings instead of dividing: `i % n` and `i // n % 2` of a counter i.

Dividing the loop counter to find a ring's stage and parity would delay the waits and products of the loop.

The counter starts at a nonnegative constant, goes up by one, and does not wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xdsl.ir import Operation, SSAValue

from ...ops.traits import SUM
from ...syntax.types import BOOL, I32
from ..ir import constructors, ops
from ..ir.ir_types import dtype_of, is_scalar, scalar
from ..ir.ir_walk import every
from .rewriting import replace
from .webs import Companions, Web, find_webs


def run(kernel: ops.Kernel) -> None:
    """Carry stage and parity beside each counter of a role until none is divided."""
    for role in kernel.roles:
        remainders = [op for op in every(role) if isinstance(op, ops.Apply) and op.kind.remainder and is_scalar(op.result)]
        while (ring := _find_counter(role, remainders)) is not None:
            web, stages = ring
            companions = Companions(role, web, lambda c, v, n=stages: _make_stage_and_parity(c, v, n))  # type: ignore[misc]
            for op in remainders:
                place = _match_ring_index(op)
                if place is not None and place.stages == stages and place.counter in companions.by_value:
                    replace(op, [companions.by_value[place.counter][int(place.is_parity)]])
            remainders = [op for op in remainders if op.parent is not None]


def _find_counter(role: ops.Role, remainders: Sequence[ops.Apply]) -> tuple[Web, int] | None:
    """Return a counter whose ring is still computed by division, and the ring's stages."""
    places = [p for op in remainders if (p := _match_ring_index(op)) is not None]
    if not places:
        return None
    for web in find_webs(role, _match_increment):
        if not web.joined or not all(_is_start(v) or _match_increment(v) for v in web.definitions):
            continue
        for value, stages, _ in places:
            if value in web and any(_is_start(v) for v in web.definitions):
                return web, stages
    return None


class _RingIndex(NamedTuple):
    """Index into a ring: the counter and the stages that it is divided by; its stage, or its parity."""

    counter: SSAValue
    stages: int
    is_parity: bool


def _match_ring_index(op: ops.Apply) -> _RingIndex | None:
    """Return the index that a remainder is: `i % n`, or `i // n % 2`."""
    value, n = op.arguments[0], ops.constant_value(op.arguments[1])
    inner = value.owner
    if isinstance(inner, ops.Apply) and inner.kind.rounds == "down" and n == 2:
        stages = ops.constant_value(inner.arguments[1])
        return _RingIndex(inner.arguments[0], int(stages), True) if stages is not None and stages > 1 else None
    return _RingIndex(value, int(n), False) if n is not None and n > 1 else None


def _match_increment(value: SSAValue) -> list[SSAValue]:
    """Return x of x + 1."""
    op = value.owner
    if (
        isinstance(op, ops.Apply)
        and op.kind.linear == SUM
        and is_scalar(value)
        and dtype_of(value) == I32
        and ops.constant_value(op.arguments[1]) == 1
    ):
        return [op.arguments[0]]
    return []


def _is_start(value: SSAValue) -> bool:
    number = ops.constant_value(value)
    return number is not None and dtype_of(value) == I32 and number >= 0


def _make_stage_and_parity(companions: Companions, value: SSAValue, stages: int) -> list[SSAValue]:
    """Return stage and parity of a counter's start, or of the counter one further."""

    def put(op: Operation) -> SSAValue:
        return companions.behind(value, op)

    def number(n: int) -> SSAValue:
        return put(ops.constant(n, I32))

    start = ops.constant_value(value)
    if start is not None:
        return [number(int(start) % stages), number(int(start) // stages % 2)]
    stage, parity = companions.of(_match_increment(value)[0])
    unit, zero = number(1), number(0)
    next_stage = put(constructors.add(stage, unit, scalar(I32)))
    full = put(constructors.equal(next_stage, number(stages), scalar(BOOL)))
    next_parity = put(constructors.exclusive_or(parity, unit, scalar(I32)))
    new = put(constructors.choose(full, zero, next_stage, scalar(I32)))
    new.name_hint = "stage"
    parity_after = put(constructors.choose(full, next_parity, parity, scalar(I32)))
    parity_after.name_hint = "parity"
    return [new, parity_after]

"""Derivatives of functions whose formula has other corners or poles, and conventions at ties."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ...syntax.types import F32
from .derivative_marks import mark_partials, mark_shared
from .proxy import Proxy, Scalar, lift, literal, to


def attach_partials(value: Proxy, partials: Callable[..., tuple[Scalar | None, ...]], *operands: object) -> Proxy:
    """Return the number with its derivatives.

    partials(value, *operands) returns one for each operand, None for 0.
    """
    inputs = [lift(x) for x in operands]
    if value.element != F32 or value.value is not None or not any(_may_learn(p) for p in inputs):
        return value
    # no derivative makes a captured number a constant
    bare = [p if literal(p) else Proxy(p.expr, p.element, p.varies) for p in inputs]
    derivatives = partials(Proxy(value.expr, F32, value.varies), *bare)
    pairs = [(p.expr, to(lift(d), F32).expr) for p, d in zip(inputs, derivatives, strict=True) if d is not None and _may_learn(p)]
    return replace(value, expr=mark_partials(value.expr, pairs))


def share_evenly(value: Proxy, operands: Iterable[Proxy]) -> Proxy:
    """Return the extremum with a derivative that equal operands share evenly."""
    return (
        value
        if value.element != F32 or value.value is not None
        else replace(value, expr=mark_shared(value.expr, (to(p, F32).expr for p in operands)))
    )


def _may_learn(p: Proxy) -> bool:
    return p.element == F32 and p.value is None


__all__ = ["attach_partials", "share_evenly"]

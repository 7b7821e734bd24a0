"""Checks of captured float64, which a kernel reads as float32, for roundings that change results.

A mask must be the same for every pair, and a score nearly so. Numbers that a score adds or multiplies smoothly, and
that are not large, need no look at the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch

from ...ops.expressions import operation
from ...spec.specification import LENGTHS, Lengths
from ...syntax.nodes import NOWHERE, Expr, IfExp, Literal, Name, Subscript
from ...syntax.types import F32
from ...syntax.walk import names_read, walk
from ...text.diagnostics import CuirError
from .mod_evaluator import Value, evaluate
from .refusal import describe_pair
from .traced_result import Traced

LARGEST = torch.finfo(torch.float32).max
SMALL = 256.0  # up to here a number of f64 is within 2 ** -17 of its f32
TOLERANCE = 2.0**-16  # of a logit, relative to it and one more
SCORES = (0.0, 1.0, -3.0)  # at which scores are compared
MOST_PAIRS = 2**26  # limit of the compared pairs where only the device has the lengths
_HINT = "take an offset off before the call, in float64 (times - times.min()), and capture the result in float32, or as integers of 32 bits"

Pieces = Callable[[Lengths, set[str], torch.device], Iterable[dict[str, torch.Tensor]]]


class Doubles:
    """Captured float64 tensors of a variant from `trace_without_clashes`."""

    def __init__(self, traced: Traced):
        self.parameters = traced.parameters
        self.names = traced.own_names
        self.keep, self.score, self.factor, self.sink = traced.keep, traced.score, traced.factor, traced.sink

    def check(self, values: Mapping[str, Value], at: Lengths | None, device: torch.device, pieces: Pieces) -> None:
        """Compare masks and scores of float64 with those of a kernel, for all pairs where that is needed.

        Waits for the device once, and again for a look at the pairs.

        Args:
            at: None where the lengths are unknown.
            pieces: returns index tensors of the pairs of lengths.

        Raises CuirError U417.
        """
        tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor) and v.dtype == torch.float64 and v.numel()}
        if not tensors:
            return
        rounded = self._round(tensors)
        numbers = {n for n, v in values.items() if isinstance(v, float) and not _survives(v)}
        if not rounded and not numbers:
            return
        judged = [
            e for e in (self.keep, self.score, self.factor, self.sink) if e is not None and self._matters(e, tensors, rounded, numbers)
        ]
        if not judged:
            return
        if at is None:
            at = _reach(values.values(), {n for e in judged for n in names_read(e)})
        if at is None or min(at.B, at.H, at.M, at.N) == 0:
            if at is None:
                self._refuse(judged[0], rounded or numbers, "and whether that changes which pairs count is too much to look at")
            return
        kinds = {p.name: p for p in self.parameters}
        lengths = {n: getattr(at, n) for n in LENGTHS}
        narrow = {n: kinds[n].on(v, device) for n, v in values.items()} | lengths | {"scale": 1.0}
        wide = {n: _wide(tensors[n], device) if n in tensors else v for n, v in narrow.items()}
        names = {n for e in (self.keep, *judged) if e is not None for n in names_read(e)}
        for place in pieces(at, names, device):
            self._compare(judged, narrow | place, wide | place, place, rounded or numbers)

    def _round(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return the tensors with values that f32 cannot represent, and their largest magnitudes.

        Raises CuirError U417 for numbers beyond f32.
        """
        statistics = []
        for t in (x.detach() for x in tensors.values()):
            size = torch.where(t.isfinite(), t, 0.0).abs().max()
            statistics.append(torch.stack([((t != t.float().double()) & ~t.isnan()).any().double(), size]).cpu())
        rounded = {}
        for name, (inexact, most) in zip(tensors, torch.stack(statistics).tolist(), strict=True):
            if most > LARGEST:
                raise CuirError.of(
                    "U417", f"`{self.names.get(name, name)}` holds {most:g}, and floats of a kernel are those of f32", hint="math.inf"
                )
            if inexact:
                rounded[name] = most
        return rounded

    def _matters(self, e: Expr, tensors: Mapping[str, torch.Tensor], rounded: Mapping[str, float], numbers: set[str]) -> bool:
        """Return True if rounding may change an expression by more than arithmetic in f32 does."""
        read = names_read(e)
        if not read & (rounded.keys() | (numbers if read & tensors.keys() else set())):
            return False
        return e is self.keep or max((rounded[n] for n in read & rounded.keys()), default=0.0) > SMALL or not _smooth(e, set(tensors))

    def _compare(
        self,
        judged: list[Expr],
        narrow: Mapping[str, Value],
        wide: Mapping[str, Value],
        place: Mapping[str, torch.Tensor],
        names: Iterable[str],
    ) -> None:
        kept_pairs: bool | torch.Tensor = True
        if self.keep is not None:
            kept_pairs = torch.as_tensor(evaluate(self.keep, wide, double=True))
            if self.keep in judged and (pair := _first(kept_pairs != evaluate(self.keep, narrow), place)) is not None:
                self._refuse(self.keep, names, f"which changes whether the pair {describe_pair(pair)} counts")
        logits = [e for e in (self.score, self.factor) if e in judged]
        if logits:
            for s in SCORES:
                a, b = (
                    torch.as_tensor(evaluate(self.score, {**values, "S": _score(s, place)}, double=double)).double()
                    * torch.as_tensor(evaluate(self.factor, {**values, "S": _score(s, place)}, double=double)).double()
                    for values, double in ((wide, True), (narrow, False))
                )
                if (pair := _first(_differ(a, b) & kept_pairs, place)) is not None:
                    self._refuse(logits[0], names, f"which changes the score of the pair {describe_pair(pair)}")
        if self.sink is not None and self.sink in judged:
            a, b = (
                torch.as_tensor(evaluate(self.sink, values, double=double)).double() for values, double in ((wide, True), (narrow, False))
            )
            if _first(_differ(a, b), place) is not None:
                self._refuse(self.sink, names, "which changes a sink")

    def _refuse(self, e: Expr, names: Iterable[str], consequence: str) -> None:
        read = names_read(e)
        user_names = ", ".join(f"`{self.names.get(n, n)}`" for n in sorted(read & set(names)))
        span = next(
            (
                n.span
                for n in walk(e)
                if isinstance(n, Subscript) and isinstance(n.value, Name) and n.value.id in names and n.span != NOWHERE
            ),
            None,
        )
        raise CuirError.of("U417", f"{user_names} of float64 is rounded to float32 in a kernel, {consequence}", span, _HINT)


def _score(s: float, place: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.full((1, 1, 1, 1), s, dtype=torch.float32, device=place["q"].device)


def _survives(x: float) -> bool:
    return not math.isfinite(x) or float(torch.tensor(x, dtype=torch.float32)) == x


def _wide(t: torch.Tensor, device: torch.device) -> torch.Tensor:
    moved = t.detach().to(device)
    return moved if moved.ndim else moved.view(1)


def _differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    same = (a == b) | (a.isnan() & b.isnan())
    return ~same & ~((a - b).abs() <= TOLERANCE * (1 + a.abs()))


def _smooth(e: Expr, tensors: set[str]) -> bool:
    """Return True if an expression applies only continuous functions to these tensors.

    None of these decides or indexes.
    """
    if not names_read(e) & tensors or isinstance(e, (Name, Literal)):
        return True
    if isinstance(e, Subscript):
        return not any(names_read(i) & tensors for i in e.indices)
    if isinstance(e, IfExp):
        return not names_read(e.cond) & tensors and _smooth(e.then, tensors) and _smooth(e.other, tensors)
    match = operation(e)
    if match is None:
        return False
    op, args = match
    op_traits = op.traits
    if op_traits.converts is not None:
        return args[1] == Name(F32.name) and _smooth(args[0], tensors)
    if op_traits.chooses is not None:
        return not names_read(args[0]) & tensors and all(_smooth(a, tensors) for a in args[1:])
    smooth_traits = (
        op_traits.linear,
        op_traits.multiplies,
        op_traits.extremum,
        op_traits.magnitude,
        op_traits.root,
        op_traits.quarters is not None,
        op_traits.logistic,
        op_traits.exponential,
        op_traits.logarithm,
        op_traits.divides_floats,
    )
    return any(smooth_traits) and all(_smooth(a, tensors) for a in args)


def _reach(values: Iterable[Value], names: set[str]) -> Lengths | None:
    """Return lengths for which mods read every element of their captured tensors.

    They stand in for a call's lengths that only the device has. None if they give more than MOST_PAIRS pairs.
    """
    longest = max((max(v.shape, default=1) for v in values if isinstance(v, torch.Tensor)), default=1)
    at = Lengths(longest if "b" in names else 1, longest if "h" in names else 1, 1, longest, longest)
    return at if at.B * at.H * at.M * at.N <= MOST_PAIRS else None


def _first(bad: torch.Tensor, place: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
    """Return b, h, q, k of the first bad pair."""
    shape = torch.broadcast_shapes(*(x.shape for x in place.values()))
    bad = torch.as_tensor(bad, device=place["q"].device).expand(torch.broadcast_shapes(shape, bad.shape))
    if not bool(bad.any()):
        return None
    first = bad.nonzero()[0].tolist()
    return {n: int(x[tuple(min(i, size - 1) for i, size in zip(first, x.shape))]) for n, x in place.items()}


__all__ = ["Doubles"]

"""Problems whose scores lie exactly on, or beside, numbers at which a score_mod decides.

A derivative or a value that is wrong there alone passes with any drawn queries and keys.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from ..calls.binding import TORCH
from ..checking.checked import Checked
from ..ops.derivatives import differentiate_op
from ..ops.expressions import operation
from ..spec.functions import FunctionSpecification, Value
from ..spec.specification import LENGTHS, Lengths, Specification, indices
from ..syntax.nodes import Expr, Literal, Node
from ..syntax.walk import Itself, NamesRead, children
from ..variants.arguments import sources_of
from ..variants.evaluate import evaluate
from ..variants.rebuilt import bounded, made_at
from ..variants.traced import Traced
from .draws import Draw, fitting
from .problems import Case, head_dims

PARTS = 3  # summands of a product, of so few bits that every dtype has them: together those of f32
BITS = 8
SPARE = 8  # columns in which queries are 0 and keys are not, so that dQ shows scores that are 0
KEYS = 45
MOST = 12  # decisions that are solved for
MOST_NODES = 400  # of one
SHIFTS = (2.0**-16, 2.0**-10, 2.0**-5)  # of a number, to its neighbours: the first at which f32 and f64 decide alike
_LEAST = 2.0**-6  # of a number of which a shift is taken
_STEPS = 3.0  # as far from 0 roundings are tried
_ELSEWHERE = 0.40625  # a score where no corner can be reached
_LARGEST = 2.0**14  # of an unscaled product
_LARGEST_LOGIT, _STEEPEST = 2.0**11, 2.0**10  # beyond these, errors of exponentials hide what is asked
_BETWEEN = [2.0**-4 + n / 4 for n in range(16)] + [2.0**n + 2.0**-4 for n in range(2, 15)]
_GRID = torch.tensor(sorted({sign * x for x in _BETWEEN for sign in (-1.0, 1.0)}), dtype=torch.float64)
Decision = tuple[Expr, ...]  # two operands that are compared, or a number that is rounded


@dataclass(frozen=True)
class ScoreInputs:
    """Queries [B, H, M, D], keys [B, HK, N, D] and the scale of a problem, in the dtype of a kernel."""

    q: torch.Tensor
    k: torch.Tensor
    scale: float
    reached: int  # numbers at which the score_mod decides, and that scores have exactly
    beside: int  # those of which they have neighbours alone
    total: int

    @property
    def words(self) -> str:
        beside = f", closely beside {self.beside} more" if self.beside else ""
        return f"scores at {self.reached} of {self.total} numbers at which the score_mod decides{beside}"


def make_forward_case(spec: Specification, traced: Traced, checked: Checked) -> tuple[str, Case] | None:
    """Return a problem of an attention kernel with scores at corners, and its name in words; None without corners."""
    D = head_dims(checked.consts)[0]
    lengths = Lengths(1, 2, 2, _count_queries(D), KEYS)
    found = make_score_inputs(spec, traced, lengths, D, _dtype(checked))
    return None if found is None else (found.words, Case("corners", lengths, fixed=(found.q, found.k, found.scale)))


def make_backward_case(
    spec: Specification, gradients: FunctionSpecification, traced: Traced, checked: Checked
) -> tuple[str, FunctionSpecification, Draw] | None:
    """Return a problem of a backward kernel with scores at corners, its name in words, and the gradients over its inputs."""
    D = int(checked.consts["D"])  # type: ignore[arg-type]
    wanted = {"B": 1, "H": 2, "HK": 2, "M": _count_queries(D), "N": KEYS}
    draws, _ = fitting(checked, gradients, [Draw("corners", {d: wanted.get(d, 3) for d in checked.dims}, corners=True)])
    if not draws:
        return None
    (draw,) = draws
    found = make_score_inputs(spec, traced, Lengths(*(draw.sizes[n] for n in LENGTHS)), D, _dtype(checked))
    return None if found is None else (found.words, _replace_inputs(gradients, found, draw), draw)


def _count_queries(D: int) -> int:
    """Return the number of queries of a head whose scores can be chosen one by one."""
    return max(1, min(24, (D - SPARE) // PARTS))


def _dtype(checked: Checked) -> torch.dtype:
    return next(TORCH[t.dtype] for t in checked.tensors if t.name == "Q")


def _replace_inputs(spec: FunctionSpecification, found: ScoreInputs, draw: Draw) -> FunctionSpecification:
    def inputs(sizes: dict[str, int], generator: torch.Generator, **drawn: Any) -> dict[str, Value]:
        if any(sizes[d] != n for d, n in draw.sizes.items()):
            return spec.made(sizes, generator, drawn)
        mine: dict[str, Value] = {"Q": found.q, "K": found.k, "scale": found.scale}
        return {**mine, **spec.made(sizes, generator, {**drawn, **mine})}

    return replace(spec, inputs=inputs)


def make_score_inputs(spec: Specification, traced: Traced, lengths: Lengths, D: int, dtype: torch.dtype) -> ScoreInputs | None:
    """Make queries and keys whose scores, as the score_mod sees them, lie at its corners; None for a score_mod without any.

    Each query has one corner, so that all its keys weigh alike; its keys lie below, on and above it in turn.
    """
    group = lengths.H // max(1, lengths.HK)
    if not lengths.HK or lengths.H % lengths.HK or group * lengths.M * PARTS > D:
        return None
    decisions = Decisions(traced, spec, lengths)
    corners = list(decisions.corners())
    if not corners:
        return None
    finite = torch.cat([c.at[c.at.isfinite()].flatten() for c in corners])
    size = 2 * finite.abs().max().item() if finite.numel() else 1.0
    scale = 2.0 ** max(math.floor(-math.log2(D) / 2), math.ceil(math.log2(max(size, _LEAST) / _LARGEST)))
    chosen = _choose_scores(decisions, corners, scale, dtype)
    kept = decisions.spec.mask(lengths)
    if bool((kept & ~chosen.good & ~decisions.decided(chosen.scores)).any()):
        return None
    rows = _assign_corners(lengths, len(corners))
    reached = [bool((chosen.on & kept & (rows == i)).any()) for i in range(len(corners))]
    beside = [bool((chosen.good & kept & (rows == i)).any()) and not reached[i] for i in range(len(corners))]
    if not any(reached) and not any(beside):
        return None
    q, k = _factor(chosen.scores / scale, lengths, D, dtype)
    return ScoreInputs(q, k, scale, sum(reached), sum(beside), len(corners))


@dataclass(frozen=True)
class Corner:
    """Scores at which one decision turns, broadcasting to [B, H, M, N] in float64. at: where both sides are equal, NaN where no f32 is so."""

    below: torch.Tensor
    at: torch.Tensor
    above: torch.Tensor

    def neighbours(self, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores below and above it, apart from it by a share of their size."""
        low, high = (torch.where(self.at.isnan(), x, self.at) for x in (self.below, self.above))
        low, high = (x + sign * shift * x.abs().clamp(min=_LEAST) for x, sign in ((low, -1), (high, 1)))
        return low.float().double(), high.float().double()


class Decisions:
    """Comparisons and roundings of a score that the product of query and key decides, for the pairs of one problem."""

    def __init__(self, traced: Traced, spec: Specification, lengths: Lengths) -> None:
        self.spec, self.lengths = made_at(bounded(spec), lengths), lengths
        self.decisions = _collect_decisions(traced.differentiated[0])
        given = sources_of(traced.parameters, self.spec, lengths)
        self.names: dict[str, Any] = {p.name: p.on(given[p.name], "cpu") for p in traced.parameters}
        self.names |= {n: getattr(lengths, n) for n in LENGTHS} | {n: x.int() for n, x in zip("bhqk", indices(lengths, "cpu"), strict=True)}

    def corners(self) -> Iterator[Corner]:
        """Find scores at which the decisions turn, each once: of each decision the one nearest to 0, the least and the largest."""
        known: list[Corner] = []
        for decision in self.decisions:
            for corner in self._solved(decision):
                if not any(_is_same(corner, other) for other in known):
                    known.append(corner)
                    yield corner

    def decided(self, scores: torch.Tensor) -> torch.Tensor:
        """Find scores of which f32 and f64 decide alike, and PyTorch's logits and derivatives are numbers, the same in both."""
        alike = torch.ones_like(scores, dtype=torch.bool)
        for decision in self.decisions:
            alike = alike & (self._sides(decision, scores.float()) == self._sides(decision, scores))
        exact, slopes = self._with_slopes(scores)
        single, slopes_single = (x.double() for x in self._with_slopes(scores.float()))
        masked = (exact == -torch.inf) & (single == -torch.inf)
        numbers = (
            (exact.abs() <= _LARGEST_LOGIT) & (slopes.abs() <= _STEEPEST) & _is_close(single, exact) & _is_close(slopes_single, slopes)
        )
        return alike & (masked | numbers)

    def _with_slopes(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute logits and their derivatives by the scores with PyTorch."""
        leaf = scores.clone().requires_grad_()
        with torch.enable_grad():
            logits = self.spec.scores(leaf, self.lengths)
        if not logits.requires_grad:
            return logits, torch.zeros_like(scores)
        (slopes,) = torch.autograd.grad(logits.sum(), leaf)
        return logits.detach(), slopes

    def _sides(self, decision: Decision, scores: torch.Tensor) -> torch.Tensor:
        """Compute what is decided, in the dtype of the scores: the sign of a difference, 2 for NaN, or a rounded number."""
        names, double = {**self.names, "S": scores, "scale": 1.0}, scores.dtype == torch.float64
        x, *others = (torch.as_tensor(evaluate(e, names, double=double)).double() for e in decision)
        if not others:
            return x.nan_to_num(math.inf)
        (y,) = others
        signs = (x > y).double() - (x < y).double()
        return torch.where(x.isnan() | y.isnan(), 2.0, signs)

    def _solved(self, decision: Decision) -> Iterator[Corner]:
        """Bisect between points of a grid over the numbers of f32."""
        sides = self._sides(decision, _GRID.view(-1, 1, 1, 1, 1))
        turns = sides[:-1] != sides[1:]
        if len(decision) == 1:  # one of many steps is as good as another
            turns &= (_GRID[:-1].abs() < _STEPS).view(-1, 1, 1, 1, 1)
        if not bool(turns.any()):
            return
        size = (_GRID[:-1] + _GRID[1:]).abs().view(-1, 1, 1, 1, 1).expand(turns.shape)
        last = len(turns) - 1 - turns.flip(0).int().argmax(0)
        first = torch.stack([size.where(turns, math.inf).argmin(0), turns.int().argmax(0), last])
        start, ranks = sides.gather(0, first), _ranks(_GRID)
        low, high = ranks[first], ranks[first + 1]
        while bool((high - low > 1).any()):
            middle = (low + high) // 2
            same = self._sides(decision, _from_ranks(middle)) == start
            low, high = torch.where(same, middle, low), torch.where(same, high, middle)
        below, above = _from_ranks(low), _from_ranks(high)
        if len(decision) == 1:  # the rounder one of the numbers on both sides
            at = torch.where(low % 2**8 == 0, below, torch.where(high % 2**8 == 0, above, math.nan))
        else:
            at = torch.where(self._sides(decision, above) == 0, above, torch.where(start == 0, below, math.nan))
        none = ~turns.any(0)
        for i in range(len(first)):
            yield Corner(*(x[i].masked_fill(none, math.nan) for x in (below, at, above)))


def _is_close(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.isclose(x, y, rtol=1e-3, atol=1e-4)


def _collect_decisions(score: Expr) -> list[Decision]:
    """Collect operands that are compared and numbers that are rounded, where the product of query and key decides."""
    names, seen, found = NamesRead(), set[Itself](), list[Decision]()
    left: list[Node] = [score]
    while left:
        node = left.pop()
        if Itself(node) in seen or "S" not in names(node):
            continue
        seen.add(Itself(node))
        left += children(node)
        match = operation(node)
        if match is None:
            continue
        op, args = match
        if op.traits.compares or op.traits.extremum:
            found += itertools.pairwise(args)
        elif op.traits.magnitude:
            found.append((args[0], Literal(0.0)))
        elif len(args) == 1 and differentiate_op(op, args, cast(Expr, node), lambda cond, x, y: x) == (None,):
            found.append((cast(Expr, node),))
    distinct = [d for d in dict.fromkeys(found) if any("S" in names(e) for e in d) and sum(map(_nodes, d)) <= MOST_NODES]
    return distinct[:MOST]


def _nodes(e: Expr) -> int:
    seen: set[Itself] = set()
    left: list[Node] = [e]
    while left:
        node = left.pop()
        if Itself(node) not in seen:
            seen.add(Itself(node))
            left += children(node)
    return len(seen)


def _is_same(x: Corner, y: Corner) -> bool:
    """Compare where they lie: a corner on a point of the grid is found from both sides."""
    places = [torch.where(c.at.isnan(), c.above, c.at).nan_to_num() for c in (x, y)]
    return places[0].shape == places[1].shape and torch.equal(*places)


def _ranks(x: torch.Tensor) -> torch.Tensor:
    """Number the values of f32 in their order."""
    bits = x.float().view(torch.int32).long()
    return torch.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def _from_ranks(ranks: torch.Tensor) -> torch.Tensor:
    size = ranks.abs().int().view(torch.float32).double()
    return torch.where(ranks < 0, -size, size)


@dataclass(frozen=True)
class Chosen:
    """Scores of all pairs; good: those that lie on a corner or beside it, on: those that lie on it."""

    scores: torch.Tensor
    good: torch.Tensor
    on: torch.Tensor


def _assign_corners(at: Lengths, corners: int) -> torch.Tensor:
    return torch.arange(at.H * at.M).view(1, at.H, at.M, 1) % corners


def _choose_scores(decisions: Decisions, corners: Sequence[Corner], scale: float, dtype: torch.dtype) -> Chosen:
    """Choose a score for each pair.

    A corner that products of the dtype do not reach, or of which f32 and f64 decide otherwise, gives way to a number beside it.
    """
    at = decisions.lengths
    shape = (at.B, at.H, at.M, at.N)
    row = _assign_corners(at, len(corners))
    side = (torch.arange(at.M).view(-1, 1) + torch.arange(at.N)) % 3

    def of_rows(values: Sequence[torch.Tensor]) -> torch.Tensor:
        nothing = torch.full(shape, math.nan, dtype=torch.float64)
        return functools.reduce(lambda x, i: torch.where(row == i, values[i], x), range(len(values)), nothing)

    exact = of_rows([c.at for c in corners])
    scores = _reach(torch.full(shape, _ELSEWHERE, dtype=torch.float64), scale, dtype)
    good, on = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))
    for shift in SHIFTS:
        below, above = (of_rows(values) for values in zip(*(c.neighbours(shift) for c in corners), strict=True))
        for wanted in (torch.where(side == 0, below, torch.where(side == 1, exact, above)), below, above):
            real = _reach(wanted.nan_to_num(_ELSEWHERE), scale, dtype)
            hits = wanted == exact
            use = ~good & wanted.isfinite() & (~hits | (real == exact))
            if not bool(use.any()):
                continue
            use &= decisions.decided(real)
            scores, on, good = torch.where(use, real, scores), on | (use & hits), good | use
    return Chosen(scores, good, on)


def _factors(dtype: torch.dtype) -> torch.Tensor:
    """Make the numbers of a query that its key's numbers are multiplied by: each key number then is about as large as the product."""
    return (2.0 ** -(BITS * torch.arange(PARTS, dtype=torch.float64))).to(dtype).double()


def _split(x: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Split products into numbers of a key, of few bits each, in float64."""
    numbers = []
    for factor in _factors(dtype):
        mantissa, exponent = torch.frexp(x)
        part = torch.ldexp(torch.trunc(mantissa * 2**BITS), exponent - BITS)
        number = (part / factor if factor else torch.zeros_like(part)).to(dtype).double()
        numbers.append(number)
        x = x - number * factor
    return numbers


def _reach(scores: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Compute the scores that such numbers give."""
    parts = zip(_split(scores / scale, dtype), _factors(dtype), strict=True)
    return sum((x * factor for x, factor in parts), torch.zeros_like(scores)) * scale


def _factor(products: torch.Tensor, lengths: Lengths, D: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Make queries and keys with these products: each query has columns of its own, and is 0 in all others."""
    group = lengths.H // lengths.HK
    q, k = (torch.zeros(lengths.B, heads, n, D, dtype=torch.float64) for heads, n in ((lengths.H, lengths.M), (lengths.HK, lengths.N)))
    rows = torch.arange(lengths.M)
    used = group * lengths.M * PARTS
    for i, (part, factor) in enumerate(zip(_split(products, dtype), _factors(dtype), strict=True)):
        for h in range(lengths.H):
            columns = ((h % group) * lengths.M + rows) * PARTS + i
            q[:, h, rows, columns] = factor
            k[:, h // group, :, columns] = part[:, h].mT
    k[..., used:] = torch.randn(k[..., used:].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return q.to(dtype), k.to(dtype)


__all__ = ["Decisions", "ScoreInputs", "make_backward_case", "make_forward_case", "make_score_inputs"]

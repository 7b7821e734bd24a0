"""Problems whose scores lie exactly on, or near, numbers at which a score_mod decides.

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

from ...arguments.binding import TORCH
from ...checking.checked import Checked
from ...ops.derivatives import differentiate_op
from ...ops.expressions import operation
from ...spec.function_specification import FunctionSpecification, Value
from ...spec.specification import LENGTHS, Lengths, Specification, indices
from ...syntax.nodes import Expr, Literal, Node
from ...syntax.walk import IdentityKey, NamesRead, children
from ...verification.values.cases import Draw, select_fitting
from ..splicing.captured_arguments import sources_of
from ..splicing.specification_copies import bound_reads, fix_lengths
from ..tracing.mod_evaluator import evaluate
from ..tracing.traced_result import Traced
from .problems import Case, get_head_dims

PARTS = 3  # summands of a product, each with so few bits that every dtype represents it: together those of f32
BITS = 8
SPARE = 8  # columns in which only keys are nonzero, so that dQ shows scores of 0
KEYS = 45
MOST = 12  # the largest number of decisions
MOST_NODES = 400  # the largest number of nodes of a decision
# relative distances of neighbours: the first at which f32 and f64 decide alike is used
SHIFTS = (2.0**-16, 2.0**-10, 2.0**-5)
_LEAST = 2.0**-6  # the least number that is shifted
_STEPS = 3.0  # roundings are tried up to this distance from 0
_ELSEWHERE = 0.40625  # the score of pairs whose corner cannot be reached
_LARGEST = 2.0**14  # the largest unscaled product
_LARGEST_LOGIT, _STEEPEST = 2.0**11, 2.0**10  # beyond these, errors of exponentials dominate
_BETWEEN = [2.0**-4 + n / 4 for n in range(16)] + [2.0**n + 2.0**-4 for n in range(2, 15)]
_GRID = torch.tensor(sorted({sign * x for x in _BETWEEN for sign in (-1.0, 1.0)}), dtype=torch.float64)
Decision = tuple[Expr, ...]  # two compared operands, or a rounded number


@dataclass(frozen=True)
class ScoreInputs:
    """Queries [B, H, M, D], keys [B, HK, N, D] and the scale of a problem, in the dtype of a kernel."""

    q: torch.Tensor
    k: torch.Tensor
    scale: float
    reached: int  # decision points that scores reach exactly
    near: int  # decision points of which scores reach only neighbours
    total: int

    @property
    def words(self) -> str:
        """Description for messages."""
        neighbours_text = f", closely beside {self.near} more" if self.near else ""
        return f"scores at {self.reached} of {self.total} numbers at which the score_mod decides{neighbours_text}"


def make_forward_case(spec: Specification, traced: Traced, checked: Checked) -> tuple[str, Case] | None:
    """Return a description and a problem of an attention kernel with scores at corners, or None."""
    D = get_head_dims(checked)[0]
    lengths = Lengths(1, 2, 2, _count_queries(D), KEYS)
    score_inputs = make_score_inputs(spec, traced, lengths, D, _dtype(checked))
    return (
        None
        if score_inputs is None
        else (score_inputs.words, Case("corners", lengths, fixed=(score_inputs.q, score_inputs.k, score_inputs.scale)))
    )


def make_backward_case(
    spec: Specification, gradients: FunctionSpecification, traced: Traced, checked: Checked
) -> tuple[str, FunctionSpecification, Draw] | None:
    """Return a problem of a backward kernel with scores at corners.

    With its description, and the gradients over its inputs.
    """
    D = int(checked.consts["D"])  # type: ignore[arg-type]
    sizes = {"B": 1, "H": 2, "HK": 2, "M": _count_queries(D), "N": KEYS}
    draws, _ = select_fitting(checked, gradients, [Draw("corners", {d: sizes.get(d, 3) for d in checked.dims}, corners=True)])
    if not draws:
        return None
    (draw,) = draws
    score_inputs = make_score_inputs(spec, traced, Lengths(*(draw.sizes[n] for n in LENGTHS)), D, _dtype(checked))
    return None if score_inputs is None else (score_inputs.words, _replace_inputs(gradients, score_inputs, draw), draw)


def _count_queries(D: int) -> int:
    """Return the number of queries of a head whose scores can be chosen one by one."""
    return max(1, min(24, (D - SPARE) // PARTS))


def _dtype(checked: Checked) -> torch.dtype:
    return next(TORCH[t.dtype] for t in checked.tensors if t.name == "Q")


def _replace_inputs(spec: FunctionSpecification, score_inputs: ScoreInputs, draw: Draw) -> FunctionSpecification:
    def inputs(sizes: dict[str, int], generator: torch.Generator, **drawn: Any) -> dict[str, Value]:
        if any(sizes[d] != n for d, n in draw.sizes.items()):
            return spec.make_inputs(sizes, generator, drawn)
        replaced: dict[str, Value] = {"Q": score_inputs.q, "K": score_inputs.k, "scale": score_inputs.scale}
        return {**replaced, **spec.make_inputs(sizes, generator, {**drawn, **replaced})}

    return replace(spec, inputs=inputs)


def make_score_inputs(spec: Specification, traced: Traced, lengths: Lengths, D: int, dtype: torch.dtype) -> ScoreInputs | None:
    """Make queries and keys whose scores, as the score_mod sees them, lie at its corners.

    None for a score_mod without any. Each query has one corner, so that all its keys weigh alike; its keys lie below,
    on and above it in turn.
    """
    group = lengths.H // max(1, lengths.HK)
    if not lengths.HK or lengths.H % lengths.HK or group * lengths.M * PARTS > D:
        return None
    decisions = Decisions(traced, spec, lengths)
    corners = list(decisions.find_corners())
    if not corners:
        return None
    finite = torch.cat([c.at[c.at.isfinite()].flatten() for c in corners])
    size = 2 * finite.abs().max().item() if finite.numel() else 1.0
    scale = 2.0 ** max(math.floor(-math.log2(D) / 2), math.ceil(math.log2(max(size, _LEAST) / _LARGEST)))
    chosen = _choose_scores(decisions, corners, scale, dtype)
    mask = decisions.spec.mask(lengths)
    if bool((mask & ~chosen.good & ~decisions.is_decided(chosen.scores)).any()):
        return None
    rows = _assign_corners(lengths, len(corners))
    reached = [bool((chosen.on & mask & (rows == i)).any()) for i in range(len(corners))]
    near = [bool((chosen.good & mask & (rows == i)).any()) and not reached[i] for i in range(len(corners))]
    if not any(reached) and not any(near):
        return None
    q, k = _factor_products(chosen.scores / scale, lengths, D, dtype)
    return ScoreInputs(q, k, scale, sum(reached), sum(near), len(corners))


@dataclass(frozen=True)
class Corner:
    """Scores at which one decision changes, broadcasting to [B, H, M, N] in float64.

    at: where both sides are equal, NaN where no f32 is.
    """

    below: torch.Tensor
    at: torch.Tensor
    above: torch.Tensor

    def make_neighbours(self, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores below and above it, at a distance relative to their size."""
        low, high = (torch.where(self.at.isnan(), x, self.at) for x in (self.below, self.above))
        low, high = (x + sign * shift * x.abs().clamp(min=_LEAST) for x, sign in ((low, -1), (high, 1)))
        return low.float().double(), high.float().double()


class Decisions:
    """Comparisons and roundings of a score that depend on the product of query and key, for one problem."""

    def __init__(self, traced: Traced, spec: Specification, lengths: Lengths) -> None:
        self.spec, self.lengths = fix_lengths(bound_reads(spec), lengths), lengths
        self.decisions = _collect_decisions(traced.differentiated[0])
        sources = sources_of(traced.parameters, self.spec, lengths)
        self.names: dict[str, Any] = {p.name: p.on(sources[p.name], "cpu") for p in traced.parameters}
        self.names |= {n: getattr(lengths, n) for n in LENGTHS} | {n: x.int() for n, x in zip("bhqk", indices(lengths, "cpu"), strict=True)}

    def find_corners(self) -> Iterator[Corner]:
        """Yield distinct scores at which the decisions change.

        For each decision the one nearest to 0, the least and the largest.
        """
        distinct: list[Corner] = []
        for decision in self.decisions:
            for corner in self._solve(decision):
                if not any(_is_same(corner, earlier) for earlier in distinct):
                    distinct.append(corner)
                    yield corner

    def is_decided(self, scores: torch.Tensor) -> torch.Tensor:
        """Return scores for which f32 and f64 decide alike, and PyTorch's logits and derivatives agree."""
        agrees = torch.ones_like(scores, dtype=torch.bool)
        for decision in self.decisions:
            agrees = agrees & (self._decide(decision, scores.float()) == self._decide(decision, scores))
        exact, slopes = self._differentiate(scores)
        single, slopes_single = (x.double() for x in self._differentiate(scores.float()))
        masked = (exact == -torch.inf) & (single == -torch.inf)
        numbers = (
            (exact.abs() <= _LARGEST_LOGIT) & (slopes.abs() <= _STEEPEST) & _is_close(single, exact) & _is_close(slopes_single, slopes)
        )
        return agrees & (masked | numbers)

    def _differentiate(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute logits and their derivatives by the scores with PyTorch."""
        leaf = scores.clone().requires_grad_()
        with torch.enable_grad():
            logits = self.spec.scores(leaf, self.lengths)
        if not logits.requires_grad:
            return logits, torch.zeros_like(scores)
        (slopes,) = torch.autograd.grad(logits.sum(), leaf)
        return logits.detach(), slopes

    def _decide(self, decision: Decision, scores: torch.Tensor) -> torch.Tensor:
        """Compute the decision in the dtype of the scores.

        The sign of a difference, 2 for NaN, or a rounded number.
        """
        names, double = {**self.names, "S": scores, "scale": 1.0}, scores.dtype == torch.float64
        x, *operands = (torch.as_tensor(evaluate(e, names, double=double)).double() for e in decision)
        if not operands:
            return x.nan_to_num(math.inf)
        (y,) = operands
        signs = (x > y).double() - (x < y).double()
        return torch.where(x.isnan() | y.isnan(), 2.0, signs)

    def _solve(self, decision: Decision) -> Iterator[Corner]:
        """Bisect between points of a grid over the numbers of f32."""
        sides = self._decide(decision, _GRID.view(-1, 1, 1, 1, 1))
        turns = sides[:-1] != sides[1:]
        if len(decision) == 1:  # a few steps suffice
            turns &= (_GRID[:-1].abs() < _STEPS).view(-1, 1, 1, 1, 1)
        if not bool(turns.any()):
            return
        size = (_GRID[:-1] + _GRID[1:]).abs().view(-1, 1, 1, 1, 1).expand(turns.shape)
        last = len(turns) - 1 - turns.flip(0).int().argmax(0)
        first = torch.stack([size.where(turns, math.inf).argmin(0), turns.int().argmax(0), last])
        start, ranks = sides.gather(0, first), _rank_values(_GRID)
        low, high = ranks[first], ranks[first + 1]
        while bool((high - low > 1).any()):
            middle = (low + high) // 2
            is_start = self._decide(decision, _convert_ranks(middle)) == start
            low, high = torch.where(is_start, middle, low), torch.where(is_start, high, middle)
        below, above = _convert_ranks(low), _convert_ranks(high)
        if len(decision) == 1:  # the number with fewer bits on either side
            at = torch.where(low % 2**8 == 0, below, torch.where(high % 2**8 == 0, above, math.nan))
        else:
            at = torch.where(self._decide(decision, above) == 0, above, torch.where(start == 0, below, math.nan))
        is_missing = ~turns.any(0)
        for i in range(len(first)):
            yield Corner(*(x[i].masked_fill(is_missing, math.nan) for x in (below, at, above)))


def _is_close(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.isclose(x, y, rtol=1e-3, atol=1e-4)


def _collect_decisions(score: Expr) -> list[Decision]:
    """Collect compared operands and rounded numbers that depend on the product of query and key."""
    names, visited, decisions = NamesRead(), set[IdentityKey](), list[Decision]()
    pending: list[Node] = [score]
    while pending:
        node = pending.pop()
        if IdentityKey(node) in visited or "S" not in names(node):
            continue
        visited.add(IdentityKey(node))
        pending += children(node)
        match = operation(node)
        if match is None:
            continue
        op, args = match
        if op.traits.compares or op.traits.extremum:
            decisions += itertools.pairwise(args)
        elif op.traits.magnitude:
            decisions.append((args[0], Literal(0.0)))
        elif len(args) == 1 and differentiate_op(op, args, cast(Expr, node), lambda cond, x, y: x) == (None,):
            decisions.append((cast(Expr, node),))
    distinct = [d for d in dict.fromkeys(decisions) if any("S" in names(e) for e in d) and sum(map(_count_nodes, d)) <= MOST_NODES]
    return distinct[:MOST]


def _count_nodes(e: Expr) -> int:
    visited: set[IdentityKey] = set()
    pending: list[Node] = [e]
    while pending:
        node = pending.pop()
        if IdentityKey(node) not in visited:
            visited.add(IdentityKey(node))
            pending += children(node)
    return len(visited)


def _is_same(x: Corner, y: Corner) -> bool:
    """Return whether two corners are one that was found from both sides of a grid point."""
    places = [torch.where(c.at.isnan(), c.above, c.at).nan_to_num() for c in (x, y)]
    return places[0].shape == places[1].shape and torch.equal(*places)


def _rank_values(x: torch.Tensor) -> torch.Tensor:
    """Number the values of f32 in their order."""
    bits = x.float().view(torch.int32).long()
    return torch.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def _convert_ranks(ranks: torch.Tensor) -> torch.Tensor:
    size = ranks.abs().int().view(torch.float32).double()
    return torch.where(ranks < 0, -size, size)


@dataclass(frozen=True)
class Chosen:
    """Scores of all pairs, and masks of the pairs at corners of the score function.

    Attributes:
        good: the score is near a corner or on it.
        on: the score is on a corner.
    """

    scores: torch.Tensor
    good: torch.Tensor
    on: torch.Tensor


def _assign_corners(lengths: Lengths, corners: int) -> torch.Tensor:
    return torch.arange(lengths.H * lengths.M).view(1, lengths.H, lengths.M, 1) % corners


def _choose_scores(decisions: Decisions, corners: Sequence[Corner], scale: float, dtype: torch.dtype) -> Chosen:
    """Choose a score for each pair.

    A corner that products of the dtype do not reach, or where f32 and f64 decide differently, is replaced by a
    neighbour.
    """
    lengths = decisions.lengths
    shape = (lengths.B, lengths.H, lengths.M, lengths.N)
    row = _assign_corners(lengths, len(corners))
    side = (torch.arange(lengths.M).view(-1, 1) + torch.arange(lengths.N)) % 3

    def of_rows(values: Sequence[torch.Tensor]) -> torch.Tensor:
        initial = torch.full(shape, math.nan, dtype=torch.float64)
        return functools.reduce(lambda x, i: torch.where(row == i, values[i], x), range(len(values)), initial)

    exact = of_rows([c.at for c in corners])
    scores = _reach(torch.full(shape, _ELSEWHERE, dtype=torch.float64), scale, dtype)
    good, on = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))
    for shift in SHIFTS:
        below, above = (of_rows(values) for values in zip(*(c.make_neighbours(shift) for c in corners), strict=True))
        for candidates in (torch.where(side == 0, below, torch.where(side == 1, exact, above)), below, above):
            reached = _reach(candidates.nan_to_num(_ELSEWHERE), scale, dtype)
            is_corner = candidates == exact
            is_usable = ~good & candidates.isfinite() & (~is_corner | (reached == exact))
            if not bool(is_usable.any()):
                continue
            is_usable &= decisions.is_decided(reached)
            scores, on, good = torch.where(is_usable, reached, scores), on | (is_usable & is_corner), good | is_usable
    return Chosen(scores, good, on)


def _make_factors(dtype: torch.dtype) -> torch.Tensor:
    """Return the numbers of a query by which its key's numbers are multiplied.

    Each key number then is about as large as the product.
    """
    return (2.0 ** -(BITS * torch.arange(PARTS, dtype=torch.float64))).to(dtype).double()


def _split(x: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Split products into numbers of a key, of few bits each, in float64."""
    numbers = []
    for factor in _make_factors(dtype):
        mantissa, exponent = torch.frexp(x)
        part = torch.ldexp(torch.trunc(mantissa * 2**BITS), exponent - BITS)
        number = (part / factor if factor else torch.zeros_like(part)).to(dtype).double()
        numbers.append(number)
        x = x - number * factor
    return numbers


def _reach(scores: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Compute the scores of the split numbers."""
    parts = zip(_split(scores / scale, dtype), _make_factors(dtype), strict=True)
    return sum((x * factor for x, factor in parts), torch.zeros_like(scores)) * scale


def _factor_products(products: torch.Tensor, lengths: Lengths, D: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Make queries and keys with these products: each query has separate columns, and is 0 in all others."""
    group = lengths.H // lengths.HK
    q, k = (torch.zeros(lengths.B, heads, n, D, dtype=torch.float64) for heads, n in ((lengths.H, lengths.M), (lengths.HK, lengths.N)))
    rows = torch.arange(lengths.M)
    used = group * lengths.M * PARTS
    for i, (part, factor) in enumerate(zip(_split(products, dtype), _make_factors(dtype), strict=True)):
        for h in range(lengths.H):
            columns = ((h % group) * lengths.M + rows) * PARTS + i
            q[:, h, rows, columns] = factor
            k[:, h // group, :, columns] = part[:, h].mT
    k[..., used:] = torch.randn(k[..., used:].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return q.to(dtype), k.to(dtype)


__all__ = ["Decisions", "ScoreInputs", "make_backward_case", "make_forward_case", "make_score_inputs"]

"""Attention problems of a given shape: seeded tensors, unmasked pairs, expected results in float64.

Expected gradients in float64 of some heads of an attention problem, and errors of half precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ...spec.gradients import forward
from ...spec.specification import Lengths, Mod, Specification, indices, lengths_of
from ...text.diagnostics import CuirError

FACTOR, SLACK = 1.5, 2e-5  # a relative error may exceed PyTorch's in half precision by this much
LSE_SLACK = 2e-3
PAIRS = 1 << 26  # query-key pairs of one piece: half a gigabyte of float64


@dataclass(frozen=True)
class Shape:
    """Batch, query heads, key heads, queries, keys, head dim, and the head dim of values.

    The head dim of values is that of keys if left out.
    """

    B: int
    H: int
    HK: int
    M: int
    N: int
    D: int
    DV: int = 0

    def __post_init__(self) -> None:
        if not self.DV:
            object.__setattr__(self, "DV", self.D)

    @property
    def consts(self) -> dict[str, int]:
        """The head dims that a kernel is compiled with; DV only if it differs from D."""
        return {"D": self.D} if self.DV == self.D else {"D": self.D, "DV": self.DV}

    @property
    def lengths(self) -> Lengths:
        """The lengths without head dims."""
        return Lengths(self.B, self.H, self.HK, self.M, self.N)

    @staticmethod
    def parse(text: str) -> Shape:
        """Parse `B,H,HK,M,N,D`, with an optional head dim of values at the end.

        Raises: CuirError U116.
        """
        try:
            numbers = [int(part) for part in text.split(",")]
            shape = Shape(*numbers)
        except (ValueError, TypeError):
            raise CuirError.of(
                "U116", f"a shape is B,H,HK,M,N,D or B,H,HK,M,N,D,DV, found `{text}`", hint="for example --shape 2,32,32,8192,8192,128"
            ) from None
        if min(numbers) < 1:
            raise CuirError.of("U116", f"every length of a shape is at least 1, found `{text}`")
        if shape.H % shape.HK:
            raise CuirError.of("U116", f"query heads are a multiple of key heads, found {shape.H} and {shape.HK}")
        return shape

    def __str__(self) -> str:
        return ",".join(map(str, self.as_tuple()))

    def as_tuple(self) -> tuple[int, ...]:
        """Return six numbers, or seven if values have another head dim than keys."""
        numbers = (self.B, self.H, self.HK, self.M, self.N, self.D)
        return numbers if self.DV == self.D else (*numbers, self.DV)


def make_tensors(shape: Shape, dtype: torch.dtype, device: torch.device | str = "cuda", seed: int = 0) -> dict[str, torch.Tensor]:
    """Return Q [B, H, M, D], K [B, HK, N, D] and V [B, HK, N, DV] with normal numbers from a seed."""
    generator = torch.Generator(device).manual_seed(seed)

    def random(heads: int, length: int, dim: int) -> torch.Tensor:
        return torch.randn(shape.B, heads, length, dim, generator=generator, device=device).to(dtype)

    return {"Q": random(shape.H, shape.M, shape.D), "K": random(shape.HK, shape.N, shape.D), "V": random(shape.HK, shape.N, shape.DV)}


def count_kept_pairs(spec: Specification, q: torch.Tensor, k: torch.Tensor) -> int:
    """Count the pairs that the mask keeps, over all heads and batches.

    The mask is computed once along dims on which it does not depend, in pieces that fit.
    """
    lengths = lengths_of(q, k)
    all_pairs = lengths.B * lengths.H * lengths.M * lengths.N
    mask_mod, _ = spec.mods(lengths, q.device)
    if mask_mod is None or all_pairs == 0:
        return all_pairs
    b, h, i, j = indices(lengths, q.device)
    total = evaluated = 0
    for rows in split_rows(lengths.M, lengths.N):
        mask = torch.as_tensor(mask_mod(b, h, i[:, :, rows], j), device=q.device)
        mask = mask.expand(torch.broadcast_shapes(mask.shape, (1, 1, i[:, :, rows].shape[2], lengths.N)))
        total += int(mask.sum(dtype=torch.int64))
        evaluated += mask.numel()
    return total * (all_pairs // evaluated)


@dataclass(frozen=True)
class Expectation:
    """Expected results of some heads in float64, with the error of PyTorch in half precision.

    Attributes:
        parts: (batch, head, O [M, D], LSE [M]) in float64.
        half_error: The largest relative error of half precision over the parts.
    """

    parts: tuple[tuple[int, int, torch.Tensor, torch.Tensor], ...]
    half_error: float

    @property
    def bound(self) -> float:
        """The greatest relative error that is accepted."""
        return FACTOR * self.half_error + SLACK

    def error(self, o: torch.Tensor) -> float:
        """Return the largest relative error of O [B, H, M, D] over the parts; NaN if O has one."""
        worst = 0.0
        for b, h, expected, _ in self.parts:
            error = compute_relative_error(o[b, h].double(), expected)
            worst = error if math.isnan(error) else max(worst, error)
            if math.isnan(worst):
                return worst
        return worst

    def judge(self, o: torch.Tensor, lse: torch.Tensor | None = None) -> str:
        """Return why the result is wrong; empty if it is right."""
        error = self.error(o)
        if not error <= self.bound:
            return f"relative error {error:.2e}, PyTorch in half precision has {self.half_error:.2e}"
        if not bool(torch.isfinite(o).all()):
            return "O has numbers that are not finite: part of it was not written"
        for b, h, expected, expected_lse in self.parts:
            is_empty = expected_lse == -math.inf
            if bool((o[b, h][is_empty] != 0).any()):
                return f"O is not 0 for a query without keys (batch {b}, head {h})"
            if lse is None or expected.numel() == 0:
                continue
            actual_lse = lse[b, h].double()
            if not bool((actual_lse[is_empty] == -math.inf).all()):
                return f"LSE is not -inf for a query without keys (batch {b}, head {h})"
            if not bool((actual_lse - expected_lse)[~is_empty].abs().le(LSE_SLACK).all()):
                return f"LSE is off by more than {LSE_SLACK} (batch {b}, head {h})"
        if lse is not None and bool(torch.isnan(lse).any()):
            return "LSE has NaNs: part of it was not written"
        return ""


def compute_expectation(spec: Specification, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Expectation:
    """Compute the expected results of the first head of the first batch and the last head of the last.

    They are computed for some queries at a time, as float64 scores of all would not fit.
    """
    B, H, group = q.shape[0], q.shape[1], q.shape[1] // k.shape[1]
    parts, half_error = [], 0.0
    for b, h in dict.fromkeys(((0, 0), (B - 1, H - 1))):
        keys = k[b : b + 1, h // group : h // group + 1], v[b : b + 1, h // group : h // group + 1]
        by_rows = []
        for rows in split_rows(q.shape[2], k.shape[2]):
            head_spec = select_head(spec, q, k, b, h, rows.start)
            part = q[b : b + 1, h : h + 1, rows]
            by_rows.append((*head_spec.reference(part, *keys, scale), head_spec.half(part, *keys, scale)[0].double().nan_to_num()))
        expected, lse, half = (torch.cat(pieces_of_rows, 2)[0, 0] for pieces_of_rows in zip(*by_rows, strict=True))
        parts.append((b, h, expected, lse))
        half_error = max(half_error, compute_relative_error(half, expected))
    return Expectation(tuple(parts), half_error)


def split_rows(M: int, N: int) -> list[slice]:
    """Split all queries into slices whose scores fit into memory."""
    rows = max(1, PAIRS // max(N, 1))
    return [slice(start, min(M, start + rows)) for start in range(0, max(M, 1), rows)]


def select_head(spec: Specification, q: torch.Tensor, k: torch.Tensor, b0: int, h0: int, i0: int) -> Specification:
    """Return the variant restricted to queries of one head from i0 on.

    Its mods get the batch, the head, the query and the lengths of the whole problem.
    """
    mask_mod, score_mod = spec.mods(lengths_of(q, k), q.device)
    mask: Mod | None = None
    score: Mod | None = None
    if mask_mod is not None:

        def mask(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            return mask_mod(b + b0, h + h0, i + i0, j)

    if score_mod is not None:

        def score(s: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            return score_mod(s, b + b0, h + h0, i + i0, j)

    sink = None if spec.sink is None else spec.sinks(lengths_of(q, k))[h0].item()
    return replace(spec, mask_mod=mask, score_mod=score, captured={}, sink=sink)


def compute_relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative error in the norm, or the largest magnitude if zeros are expected."""
    size = expected.norm().item()
    return (actual - expected).norm().item() / size if size > 0 else actual.abs().max().item() if actual.numel() else 0.0


NAMES = ("dQ", "dK", "dV")
Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class ExpectedGradients:
    """Gradients of some heads.

    Attributes:
        parts: (batch, key head, dQ [G, M, D] of its G query heads, dK [N, D], dV [N, DV]) in float64.
        half_errors: The largest relative error of half precision of each of the three.
    """

    parts: tuple[tuple[int, int, Part], ...]
    half_errors: tuple[float, float, float]

    @property
    def bounds(self) -> tuple[float, ...]:
        """Greatest relative errors that are accepted."""
        return tuple(FACTOR * error + SLACK for error in self.half_errors)

    def errors(self, grads: Sequence[torch.Tensor]) -> tuple[float, ...]:
        """Return the largest relative errors of dQ [B, H, M, D], dK [B, HK, N, D] and dV [B, HK, N, DV]."""
        part_errors = [
            [compute_relative_error(x.double(), y) for x, y in zip(_part(grads, b, h), part, strict=True)] for b, h, part in self.parts
        ]
        # a NaN is the largest
        return tuple(float(torch.tensor(values).max()) for values in zip(*part_errors, strict=True))

    def judge(self, grads: Sequence[torch.Tensor]) -> str:
        """Return why gradients are wrong; empty if they are right."""
        for name, error, bound, half_error, x in zip(NAMES, self.errors(grads), self.bounds, self.half_errors, grads, strict=True):
            if not error <= bound:
                return f"relative error of {name} {error:.2e}, PyTorch in half precision has {half_error:.2e}"
            if not bool(torch.isfinite(x).all()):
                return f"{name} has numbers that are not finite: part of it was not written"
        return ""


def compute_expected_gradients(
    spec: Specification, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, scale: float
) -> ExpectedGradients:
    """Compute gradients of the first key head of the first batch and the last of the last.

    They are computed for some queries at a time, as float64 scores of all would not fit.
    """
    problem = _Problem(spec, q, k, v, do, scale)
    parts, half_errors = [], [0.0, 0.0, 0.0]
    for b, h in dict.fromkeys(((0, 0), (q.shape[0] - 1, k.shape[1] - 1))):
        expected, half = (_compute_group(problem, b, h, dtype) for dtype in (torch.float64, q.dtype))
        parts.append((b, h, expected))
        half_errors = [max(a, compute_relative_error(x, y)) for a, x, y in zip(half_errors, half, expected, strict=True)]
    return ExpectedGradients(tuple(parts), (half_errors[0], half_errors[1], half_errors[2]))


class _Problem(NamedTuple):
    """Attention with its inputs and the gradient of its output."""

    spec: Specification
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    scale: float


def _compute_group(problem: _Problem, b: int, hk: int, dtype: torch.dtype) -> Part:
    """Return dQ of the query heads of a key head, and its dK and dV.

    They are computed in `dtype` and returned in float64.
    """
    spec, q, k, v, do, scale = problem
    group = q.shape[1] // k.shape[1]
    keys = [x[b : b + 1, hk : hk + 1].to(dtype) for x in (k, v)]
    dq, dk, dv = torch.zeros(group, *q.shape[2:], dtype=torch.float64, device=q.device), *(x[0, 0].double() * 0.0 for x in keys)
    for g in range(group):
        h = hk * group + g
        for rows in split_rows(q.shape[2], k.shape[2]):
            leaves = i, j, value = [x.detach().requires_grad_() for x in (q[b : b + 1, h : h + 1, rows].to(dtype), *keys)]
            with torch.enable_grad():
                o, _ = forward(select_head(spec, q, k, b, h, rows.start), i, j, value, scale)
            gradients = torch.autograd.grad(o, leaves, do[b : b + 1, h : h + 1, rows].to(dtype))
            dq[g, rows], dk, dv = gradients[0][0, 0].double(), dk + gradients[1][0, 0].double(), dv + gradients[2][0, 0].double()
    return dq, dk, dv


def _part(grads: Sequence[torch.Tensor], b: int, hk: int) -> Part:
    group = grads[0].shape[1] // grads[1].shape[1]
    return grads[0][b, hk * group : hk * group + group], grads[1][b, hk], grads[2][b, hk]


__all__ = [
    "FACTOR",
    "LSE_SLACK",
    "NAMES",
    "PAIRS",
    "SLACK",
    "Expectation",
    "ExpectedGradients",
    "Shape",
    "compute_expectation",
    "compute_expected_gradients",
    "compute_relative_error",
    "count_kept_pairs",
    "make_tensors",
    "select_head",
    "split_rows",
]

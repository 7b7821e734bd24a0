"""Inputs of a judgement: those of the reference's file, and others that users have, of the kinds that verification draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..arguments.binding import TORCH
from ..syntax.types import DType
from ..text.diagnostics import CuirError
from ..verification.values.input_kinds import draw_tensor
from .references import SizedProblem

KINDS = ("normal", "large", "tiny", "zero", "constant", "equal", "growing", "offset", "ties", "onehot", "spikes", "infinite")
FEW = 4  # distinct values: labels or signs, which stay
KEPT = 0.5  # share of the outputs that must stay numbers
NAMES: dict[torch.dtype, DType] = {torch_dtype: dtype for dtype, torch_dtype in TORCH.items()}


@dataclass(frozen=True)
class DrawnInputs:
    """Inputs of one run.

    Attributes:
        kind: "given" for those of the reference's file.
        values: Arguments of the reference.
        expected: The reference's outputs for them in their dtypes.
    """

    kind: str
    seed: int
    values: list[object]
    expected: list[torch.Tensor]

    def __str__(self) -> str:
        return f"{self.kind} inputs, seed {self.seed}"


def draw_inputs(problem: SizedProblem, kinds: Sequence[str], seeds: Sequence[int]) -> Iterator[DrawnInputs]:
    """Yield inputs as the file draws them, for each seed, then one of each kind that the reference takes."""
    for seed in seeds:
        values = problem.draw(seed)
        yield DrawnInputs("given", seed, values, problem.evaluate(values))
    free = find_free(problem)
    base, further = problem.draw(seeds[0]), problem.draw(seeds[0] + 1)
    usual = count_numbers(problem.evaluate(base))
    for turn, kind in enumerate(kinds):
        if not free:
            return
        generator = torch.Generator().manual_seed(turn)
        chosen = free[turn % len(free)]
        values = list(base)
        for i in free:
            values[i] = keep_structure(redraw(base[i], kind, generator, i == chosen), base[i], further[i])
        try:
            expected = problem.evaluate(values)
        except CuirError:
            continue
        if count_numbers(expected) >= (KEPT if kind == "infinite" else 1.0) * usual:
            yield DrawnInputs(kind, turn, values, expected)


def find_free(problem: SizedProblem) -> list[int]:
    """Return the inputs that may have any values: floats which are neither labels nor the same for every seed."""
    first, second = problem.draw(0), problem.draw(1)
    return [
        i
        for i, (a, b) in enumerate(zip(first, second))
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype in NAMES and a.is_floating_point() and a.numel()
        if (a.shape != b.shape or not torch.equal(a, b)) and len(a.unique()) > min(FEW, a.numel() - 1)
    ]


def mix_draws(problem: SizedProblem, first: Sequence[object], second: Sequence[object]) -> list[object]:
    """Return inputs that begin as the first and go on as the second, where they may have any values."""
    values = list(first)
    for i in find_free(problem):
        a, b = first[i], second[i]
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape and a.dim():
            half = a.shape[0] // 2
            values[i] = keep_structure(torch.cat([a[:half], b[half:]]), a, b)
    return values


def keep_structure(x: torch.Tensor, first: object, second: object) -> torch.Tensor:
    """Return a tensor that is zero, and symmetric, where two draws of the file both are: a solution may rely on it."""
    assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    if x.shape != first.shape or first.shape != second.shape:
        return x
    if x.dim() > 1 and x.shape[-1] == x.shape[-2] and torch.equal(first, first.mT) and torch.equal(second, second.mT):
        x = torch.where(torch.ones(x.shape[-2:], dtype=torch.bool).tril(), x, x.mT)
    return torch.where((first == 0) & (second == 0), torch.zeros((), dtype=x.dtype), x)


def redraw(given: object, kind: str, generator: torch.Generator, chosen: bool) -> torch.Tensor:
    """Return a tensor of a kind, with a sign as the given one has and rows that sum to 1 if its rows do."""
    assert isinstance(given, torch.Tensor)
    drawn_kind = "normal" if kind == "infinite" else kind
    x = draw_tensor(NAMES[given.dtype], given.shape, drawn_kind, generator, chosen).to(given.dtype)
    wide = given.double()
    if bool((wide >= 0).all()):
        x = x.abs()
    if given.dim() and given.shape[-1] > 1 and bool(((wide.sum(-1) - 1).abs() < 1e-3).all()) and bool((wide >= 0).all()):
        return x.double().clamp(-50, 50).softmax(-1).to(given.dtype)
    if kind == "infinite" and chosen:
        places = torch.rand(x.shape, generator=generator) < 1 / max(2, x.numel() // 3)
        x = torch.where(places, torch.where(x >= 0, math.inf, -math.inf).to(x.dtype), x)
    return x


def count_numbers(outputs: Sequence[torch.Tensor]) -> float:
    """Return the share of elements that are finite."""
    total = sum(x.numel() for x in outputs)
    return sum(float(x.isfinite().sum()) for x in outputs) / max(1, total)

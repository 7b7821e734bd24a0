"""Noise on results of inexact operations: offsets of values, orders of sums, fused multiply-adds.

noisy_operations.py decides where it enters. Invariant: equal values move equally far, as instructions are, and the same seed
gives the same run under the same schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..syntax.nodes import Expr
from ..syntax.walk import IdentityKey

Truth = tuple[Expr, Any]


@dataclass
class Noise:
    """The variation of a run by a seed.

    The same seed gives the same run under the same schedule; a seed and its negative vary every value to opposite
    sides. off: nothing is varied. truths: results of the comparisons and casts that floats decide, in order, if they
    are recorded. forced: results that replace computed ones. contractions: sums that round once with their product,
    where nothing else is varied; None: some of them, by the seed.
    """

    seed: int
    off: bool = False
    truths: list[Truth] | None = None
    forced: dict[IdentityKey, list[Any]] = field(default_factory=dict)
    orders: dict[int, torch.Tensor] = field(default_factory=dict)
    contractions: frozenset[IdentityKey] | None = None

    def of(self, t: Any, ulps: int) -> Any:
        """Return a float value moved by up to `ulps` units in the last place.

        Equal values move equally far, as instructions are. Zeros, infinities and NaNs stay.
        """
        if self.off:
            return t
        if not isinstance(t, torch.Tensor):
            noisy = self.of(torch.from_numpy(np.atleast_1d(np.asarray(t, np.float32)).copy()), ulps).numpy()
            return noisy if np.shape(t) else float(noisy[0])
        mixed = (t.contiguous().view(torch.int32).to(torch.int64) ^ (abs(self.seed) * 0x9E3779B1)) * 0x2545F4914F6CDD1D
        steps = 1 + (mixed >> 41 & 0xFFFF) % max(1, ulps // 2)
        side = (mixed >> 40 & 1) * 2 - 1 if self.seed > 0 else 1 - (mixed >> 40 & 1) * 2
        return t * (1 + (side * steps).to(torch.float32) * 2.0**-23)

    def order(self, n: int) -> torch.Tensor:
        """Return the order in which n numbers are added: sums of one kind have one order."""
        if self.off:
            return torch.arange(n)
        if n not in self.orders:
            self.orders[n] = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed + n))
        return self.orders[n]

    def fuses(self, e: Expr) -> bool:
        """Return whether a multiply-add rounds once, the same wherever its text is run."""
        if self.contractions is not None:
            return IdentityKey(e) in self.contractions
        return not self.off and bool((hash((abs(self.seed), e.span.line, e.span.column)) >> 3) % 2) == (self.seed > 0)

    def decide(self, e: Expr, value: Any) -> Any:
        forced = self.forced.get(IdentityKey(e))
        if forced:
            replacement = forced.pop(0)
            if np.shape(replacement) == np.shape(value):
                value = replacement.clone() if isinstance(replacement, torch.Tensor) else replacement
        if self.truths is not None:
            self.truths.append((e, value.clone() if isinstance(value, torch.Tensor) else value))
        return value


def contract_sums(sums: Iterable[Expr]) -> Noise:
    """Make a variation that contracts these sums with their products, and changes nothing else."""
    return Noise(1, off=True, contractions=frozenset(map(IdentityKey, sums)))


_NOW: ContextVar[Noise | None] = ContextVar("noise", default=None)


@contextmanager
def perturb_runs(noise: Noise | None) -> Iterator[None]:
    """Vary runs of the interpreter inside the context."""
    token = _NOW.set(noise)
    try:
        yield
    finally:
        _NOW.reset(token)


def get_noise() -> Noise | None:
    return _NOW.get()

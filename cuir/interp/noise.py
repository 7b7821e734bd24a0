"""Noise on results of operations that are not exact: how far each value moves, in which order numbers are added, what is fused. Where it enters is perturb.py's.

Invariant: equal values move equally far, as instructions are, and the same seed gives the same run under the same schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..syntax.nodes import Expr
from ..syntax.walk import Itself

Truth = tuple[Expr, Any]


@dataclass
class Noise:
    """What varies a run: the same seed gives the same run under the same schedule, and a seed and its negative vary every value to opposite sides. off: nothing is varied.

    truths: what each comparison and cast that floats decide gave, in order, if it is to be kept; forced: what they give instead of what they find.
    """

    seed: int
    off: bool = False
    truths: list[Truth] | None = None
    forced: dict[Itself, list[Any]] = field(default_factory=dict)
    orders: dict[int, torch.Tensor] = field(default_factory=dict)

    def of(self, t: Any, ulps: int) -> Any:
        """A float value, up to so many units in the last place away: equal ones equally far, as instructions are. Zeros, infinities and NaNs stay."""
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
        """In which order n numbers are added: sums of one kind have one order."""
        if self.off:
            return torch.arange(n)
        if n not in self.orders:
            self.orders[n] = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed + n))
        return self.orders[n]

    def fuses(self, e: Expr) -> bool:
        """Whether a multiply-add rounds once, wherever its text is run."""
        return not self.off and bool((hash((abs(self.seed), e.span.line, e.span.column)) >> 3) % 2) == (self.seed > 0)

    def decided(self, e: Expr, value: Any) -> Any:
        forced = self.forced.get(Itself(e))
        if forced:
            other = forced.pop(0)
            if np.shape(other) == np.shape(value):
                value = other.clone() if isinstance(other, torch.Tensor) else other
        if self.truths is not None:
            self.truths.append((e, value.clone() if isinstance(value, torch.Tensor) else value))
        return value


_NOW: ContextVar[Noise | None] = ContextVar("noise", default=None)


@contextmanager
def perturbing(noise: Noise | None) -> Iterator[None]:
    """Runs of the interpreter inside are varied."""
    token = _NOW.set(noise)
    try:
        yield
    finally:
        _NOW.reset(token)


def noise_now() -> Noise | None:
    return _NOW.get()

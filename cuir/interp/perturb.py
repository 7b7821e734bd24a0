"""Results of operations that are not exact, varied at random within their bounds: what a kernel's verdict must not hang on.

Owns the noise and where it enters: functions with a bound in the table, sums in another order (of rows, and of products), multiply-adds fused or not. What
decides a comparison is computed as written and left alone (cuir/checking/decisions.py), as sums of scalars that all roles share are. Costs nothing where it is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..checking.checked import Checked
from ..checking.decisions import deciders, expressions
from ..ops.base import Op
from ..ops.expressions import traits
from ..syntax.nodes import Binary, Expr
from ..syntax.types import F32, TileType
from ..syntax.walk import Itself

if TYPE_CHECKING:
    from .code import Compiler
    from .machine import Worker

Evaluate = Callable[["Worker"], Any]
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
            found = self.of(torch.from_numpy(np.atleast_1d(np.asarray(t, np.float32)).copy()), ulps).numpy()
            return found if np.shape(t) else float(found[0])
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


def perturbed(compiler: Compiler, op: Op, args: list[Expr], e: Expr, run: Evaluate) -> Evaluate:
    """An operation with its noise, which the launch holds."""
    checked, kind = compiler.checked, compiler.checked.find_type(e)
    tile = isinstance(kind, TileType)
    dtype = getattr(kind, "dtype", None)
    if Itself(e) in compiler.deciders:
        return lambda w: w.m.launch.noise.decided(e, run(w))
    if dtype != F32 or op.effects.accesses:
        return run
    exact = e.decides
    if op.sums and len(args) == 1:
        value = compiler.expr(args[0])

        def shuffled(w: Worker) -> torch.Tensor:
            t = value(w)
            return t[:, :, w.m.launch.noise.order(t.shape[2]).to(t.device)].sum(-1, keepdim=True)

        return shuffled
    if op.ulps and not (len(args) == 2 and exact):  # a quotient that decides is rounded correctly
        return lambda w: w.m.launch.noise.of(run(w), op.ulps)
    if not exact and isinstance(e, Binary) and op.traits.linear and (tile or Itself(e) not in _shared(checked)):
        return _multiply_add(compiler, e, run, tile)
    return run


def _shared(checked: Checked) -> frozenset[Itself]:
    """Expressions of the declarations."""
    if _shared not in checked.made:
        checked.made[_shared] = frozenset(map(Itself, expressions(checked.declarations)))
    found: frozenset[Itself] = checked.made[_shared]
    return found


def _multiply_add(compiler: Compiler, e: Binary, run: Evaluate, tile: bool) -> Evaluate:
    """x * y + z, rounded once or twice."""

    def product(x: Expr) -> bool:
        return isinstance(x, Binary) and "y" in traits(x).factors and not x.decides

    left, right = e.left, e.right
    if not product(left) and not product(right):
        return run
    factors, other = (left, right) if product(left) else (right, left)
    assert isinstance(factors, Binary)
    x, y, z = compiler.expr(factors.left), compiler.expr(factors.right), compiler.expr(other)
    sign = traits(e).linear if factors is left else traits(e).linear[::-1]

    def either(w: Worker) -> Any:
        if not w.m.launch.noise.fuses(e):
            return run(w)
        if not tile:
            p, q, r = (np.asarray(v(w), np.float64) for v in (x, y, z))
            found = (sign[0] * (p * q) + sign[1] * r).astype(np.float32)
            return found if found.shape else float(found)
        a, b, c = (_double(v(w)) for v in (x, y, z))
        return (sign[0] * (a * b) + sign[1] * c).to(torch.float32)

    return either


def _double(v: Any) -> torch.Tensor:
    if isinstance(v, torch.Tensor):
        return v.to(torch.float64)
    t = torch.as_tensor(v, dtype=torch.float64)
    return t.reshape(-1, 1, 1) if t.dim() else t


def deciding(checked: Checked) -> frozenset[Itself]:
    """The comparisons and casts that floats decide."""
    return frozenset(Itself(e) for e, _ in deciders(checked))


__all__ = ["Noise", "Truth", "deciding", "noise_now", "perturbed", "perturbing"]

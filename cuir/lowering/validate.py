"""Which pass changed what a kernel computes: the evaluator's results before and after each one.

A pass keeps every bit of the outputs (a NaN may look different), unless its module says `ROUNDING = True`: then sums and products may be rounded
otherwise, and results stay within a tolerance, from which the passes after it are judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..calls.binding import TORCH
from ..calls.requirements import padded
from ..checking.checked import Checked
from ..checking.tensor_modes import tensor_modes
from ..syntax.types import BOOL, F32, I32
from .ir import ops
from .ir.evaluate import Argument, evaluate

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest element
LONG, SHORT = 160, 2  # lengths that are drawn: of what a tile goes along, and of batches and heads


@dataclass(frozen=True)
class Outcome:
    """What a pass did to results. `tensors`: share of the elements that differ and the largest difference, by name; `within`: these are roundings that the pass
    declares; `error`: why nothing could be compared."""

    name: str
    tensors: Mapping[str, tuple[float, float]]
    within: bool = False
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and (self.within or not self.tensors)

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return "fails" if self.error else "same" if not self.tensors else "within roundings" if self.within else "differs"

    def __str__(self) -> str:
        lines = [f"{n}: {share:.2%} of the elements differ, by up to {most:.3g}" for n, (share, most) in self.tensors.items()]
        return f"{self.name}: {self.error or '; '.join(lines)}"


class Judge:
    """Runs passes over a kernel, in place, and holds the results of each against those before it."""

    def __init__(self, kernel: ops.Kernel, arguments: Mapping[str, Argument], ctas: int = 1):
        """Raises Fault if the kernel cannot be run as it is."""
        self.kernel, self.arguments, self.ctas = kernel, arguments, ctas
        self.before = _results(kernel, arguments, ctas)
        self.seconds = 0.0  # that the last pass took

    def judge(self, one: Any) -> Outcome:
        """Runs a pass (a module, a function, or an entry of the pipeline). Behind one that fails, nothing can be judged."""
        one = getattr(one, "module", one)
        name = getattr(one, "__name__", str(one)).rpartition(".")[2]
        run: Callable[[ops.Kernel], None] = getattr(one, "run", one)
        start, self.seconds = time.perf_counter(), 0.0
        try:
            run(self.kernel)
            self.seconds = time.perf_counter() - start
            self.kernel.verify()
            after = _results(self.kernel, self.arguments, self.ctas)
        except Exception as error:  # whatever a pass or its IR raises is the verdict on the pass
            return Outcome(name, {}, error=f"{type(error).__name__}: {error}")
        before, self.before = self.before, after
        changed = {n: said for n, x in after.items() if (said := _differing(x, before[n], False)) is not None}
        within = getattr(one, "ROUNDING", False) and all(_differing(after[n], before[n], True) is None for n in changed)
        return Outcome(name, changed, bool(changed) and within)


def validate(kernel: ops.Kernel, passes: Sequence[Any], arguments: Mapping[str, Argument], *, ctas: int = 1) -> Outcome | None:
    """Runs passes (modules, functions, or entries of the pipeline) over a kernel in place. The first that makes invalid IR or changes results, None if all keep them."""
    judge = Judge(kernel, arguments, ctas)
    return next((outcome for p in passes if not (outcome := judge.judge(p)).ok), None)


def _results(kernel: ops.Kernel, arguments: Mapping[str, Argument], ctas: int) -> dict[str, torch.Tensor]:
    given = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    evaluate(kernel, given, ctas=ctas)
    written = [d.symbol.data for d in kernel.body.block.ops if isinstance(d, ops.Tensor) and d.written is not None]
    return {n: x for n in written if isinstance(x := given[n], torch.Tensor)}


def _differing(result: torch.Tensor, wanted: torch.Tensor, rounds: bool) -> tuple[float, float] | None:
    """The share of the elements that differ, and the largest difference; None if there is none."""
    if not result.is_floating_point():
        same = result == wanted
    else:
        bits = {2: torch.int16, 4: torch.int32}[result.element_size()]
        same = (result.view(bits) == wanted.view(bits)) | (result.isnan() & wanted.isnan())
    apart = (result.double() - wanted.double()).abs()
    if rounds and result.is_floating_point():
        most = wanted.double().abs().where(wanted.isfinite(), 0.0).amax() if wanted.numel() else 0.0
        same |= apart <= TOLERANCE[result.dtype] * most
    if bool(same.all()):
        return None
    return 1 - same.double().mean().item(), apart[~same].nan_to_num(torch.inf, torch.inf).max().item()


# ---- arguments
def random_arguments(checked: Checked, rng: torch.Generator, lengths: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Arguments for a kernel of which nothing but its signature is known: normal floats, NaN where it only writes; integers are 0, since
    what they mean is not known. lengths: of some dims; the others are drawn, batches and heads alike."""

    def draw(most: int) -> int:
        return 1 + int(torch.randint(most, (), generator=rng))

    short, known = draw(SHORT), dict(lengths or {})
    for d in checked.dims:
        known.setdefault(d, draw(LONG) if d in _long(checked) else short)
    made: dict[str, Any] = {}
    for s in checked.scalars:
        kinds = {I32: lambda: draw(4) - 1, F32: lambda: float(torch.rand((), generator=rng)) + 0.1, BOOL: lambda: draw(2) == 1}
        made[s.name] = kinds[s.dtype]()
    modes = tensor_modes(checked)
    for t in checked.tensors:
        shape = [known[d] if isinstance(d, str) else d for d in t.dims]
        if t.dtype == I32 or t.scratch:
            made[t.name] = torch.zeros(shape, dtype=TORCH[t.dtype])
        elif t.written and not modes[t.name] & {"read", "add"}:
            made[t.name] = torch.full(shape, torch.nan, dtype=TORCH[t.dtype])
        else:
            made[t.name] = torch.randn(shape, generator=rng).to(TORCH[t.dtype])
    return padded(checked, made)


def ctas_for(checked: Checked) -> int:
    """How many CTAs (or clusters) to run: one where they add to the same elements, since the order of additions is nobody's promise."""
    return 1 if any("add" in modes for modes in tensor_modes(checked).values()) else 2


def _long(checked: Checked) -> set[str]:
    """Dims that tiles go along: the innermost of a tensor, and the one before it where the innermost is known or there is no other."""
    dims = {t.dims[-1] for t in checked.tensors if t.dims}
    dims |= {t.dims[-2] for t in checked.tensors if len(t.dims) == 2 or (len(t.dims) > 2 and isinstance(t.dims[-1], int))}
    return {d for d in dims if isinstance(d, str)}

"""Validation of passes: the evaluator's results before and after each one.

A pass keeps every bit of the outputs (a NaN may look different), unless its module says `ROUNDING = True`: then sums
and products may be rounded differently, and results stay within a tolerance. Later passes are compared with the results
after it.

The lowering pass by pass: the IR after each, its cost, and the comparison of results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from xdsl.dialects.builtin import FileLineColLoc

from ..arguments.binding import TORCH
from ..arguments.requirements import pad_arguments
from ..checking.checked import Checked
from ..checking.tensor_modes import find_tensor_modes
from ..ops.base import PRODUCTS
from ..ops.meaning.tiles import view_bits
from ..syntax.types import BOOL, F32, I32
from ..text.diagnostics import CuirError
from .analyses.uniformity import runs_on_one_lane
from .analyses.variables import Variables, iterate_early_copies
from .compiler import Source, print_kernel, to_checked
from .ir import ops
from .ir.build_ir import build
from .ir.evaluator_state import Fault
from .ir.ir_evaluator import Argument, evaluate
from .ir.ir_text import State, show, show_file
from .ir.ir_walk import every
from .lowered import Cuda
from .passes.pipeline import BUILD, select_passes
from .select.explanation import name_operation

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest element
LONG, SHORT = 160, 2  # upper limits of drawn lengths: of dims that tiles go along; of batches and heads


@dataclass(frozen=True)
class Outcome:
    """The effect of a pass on results.

    Attributes:
        tensors: Share of the elements that differ and the largest difference, by name.
        within: The differences are roundings that the pass declares.
        error: The reason why results could not be compared.
    """

    name: str
    tensors: Mapping[str, tuple[float, float]]
    within: bool = False
    error: str = ""

    @property
    def ok(self) -> bool:
        """The pass kept all results, or changed them by declared roundings alone."""
        return not self.error and (self.within or not self.tensors)

    @property
    def verdict(self) -> str:
        """The outcome in a word or two."""
        return "fails" if self.error else "same" if not self.tensors else "within roundings" if self.within else "differs"

    def __str__(self) -> str:
        lines = [f"{n}: {share:.2%} of the elements differ, by up to {most:.3g}" for n, (share, most) in self.tensors.items()]
        return f"{self.name}: {self.error or '; '.join(lines)}"


R = TypeVar("R")  # what a run gives to compare
Differences = Mapping[str, tuple[float, float]]  # share of the elements, and the largest difference, by name


class EvaluationError(Exception):
    """Error of a run in another process, by its class and message there."""


class Runs(Protocol[R]):
    """Runner of a kernel's IR that compares two runs."""

    def run(self, kernel: ops.Kernel, follows_lanes: bool) -> R:
        """Return the result of a run; any exception is a verdict on the IR."""

    def compare(self, after: R, before: R) -> tuple[Differences, bool]:
        """Return what differs, and whether all of it may be roundings."""


class TensorRuns:
    """Runs of the IR in this process.

    Attributes:
        arguments: Inputs, which stay as they are.
        ctas: Number of CTAs (or clusters).
    """

    def __init__(self, arguments: Mapping[str, Argument], ctas: int = 1):
        self.arguments, self.ctas = arguments, ctas

    def run(self, kernel: ops.Kernel, follows_lanes: bool) -> dict[str, torch.Tensor]:
        """Run the kernel on copies of the arguments and return the tensors that it writes."""
        values = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in self.arguments.items()}
        single = None
        if follows_lanes:
            require_finished_copies(kernel)
            single = [role.symbol.data for role in kernel.roles if runs_on_one_lane(role)]
        evaluate(kernel, values, ctas=self.ctas, single_lane_roles=single)
        written = [d.symbol.data for d in kernel.body.block.ops if isinstance(d, ops.Tensor) and d.written is not None]
        return {n: x for n in written if isinstance(x := values[n], torch.Tensor)}

    def compare(self, after: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> tuple[Differences, bool]:
        """Return what differs, and whether all of it is within the tolerance."""
        changed = {n: difference for n, x in after.items() if (difference := _compare(x, before[n], False)) is not None}
        return changed, all(_compare(after[n], before[n], True) is None for n in changed)


class Judge(Generic[R]):
    """Check of passes: runs a kernel after each, and compares the results with those before it."""

    def __init__(self, kernel: ops.Kernel, runs: Runs[R]):
        """Run the kernel before any pass.

        Raises: Fault if the kernel cannot be run.
        """
        self.kernel, self.runs = kernel, runs
        self.follows_lanes = False
        self.text, self.before = show(kernel), runs.run(kernel, False)
        self.seconds = 0.0  # time of the last pass

    def judge(self, entry: Any) -> Outcome:
        """Run a pass and compare the results; after a pass that fails, no other can be judged.

        `entry` is a module, a function, or an entry of the pipeline.

        Raises: CuirError if the target cannot do what the kernel does: no pass is to blame.
        """
        entry = getattr(entry, "module", entry)
        name = getattr(entry, "__name__", str(entry)).rpartition(".")[2]
        run: Callable[[ops.Kernel], None] = getattr(entry, "run", entry)
        start, self.seconds = time.perf_counter(), 0.0
        followed, text = self.follows_lanes, self.text
        try:
            run(self.kernel)
            self.seconds = time.perf_counter() - start
            self.kernel.verify()
            self.follows_lanes |= getattr(entry, "SYNCHRONISES", False)
            self.text = show(self.kernel)
            is_same = self.text == text and self.follows_lanes == followed
            after = self.before if is_same else self.runs.run(self.kernel, self.follows_lanes)
        except CuirError:
            raise
        except EvaluationError as error:
            return Outcome(name, {}, error=str(error))
        except Exception as error:  # any exception of a pass or its IR is the verdict on the pass
            return Outcome(name, {}, error=f"{type(error).__name__}: {error}")
        before, self.before = self.before, after
        changed, within = self.runs.compare(after, before)
        return Outcome(name, changed, bool(changed) and within and getattr(entry, "ROUNDING", False))

    def judge_lanes(self) -> Outcome:
        """Run the kernel with its lanes in any order, though no pass has inserted synchronisation."""
        self.follows_lanes, self.text = True, ""
        return self.judge(run_lanes)


def require_finished_copies(kernel: ops.Kernel) -> None:
    """Check that no registers are copied which a product in flight still writes. Raises Fault: copies have no operation."""
    for role in kernel.roles:
        if not any(isinstance(op, ops.Perform) and op.entry.effects.group == PRODUCTS for op in every(role)):
            continue
        for op, values in iterate_early_copies(role, Variables(role)):
            names = ", ".join(f"`{v.name_hint or 'a product'}`" for v in values)
            line = f" in line {op.location.line.data}" if isinstance(op.location, FileLineColLoc) else ""
            raise Fault(f"{names} is copied to other registers at `{name_operation(op)}`{line}: no wait for the product comes before")


def run_lanes(kernel: ops.Kernel) -> None:
    """Change nothing: the kernel that no pass has synchronised is run."""


def validate(kernel: ops.Kernel, passes: Sequence[Any], arguments: Mapping[str, Argument], *, ctas: int = 1) -> Outcome | None:
    """Run passes over a kernel in place and return the first faulty outcome, None if there is none.

    A pass is faulty if it makes invalid IR or changes results; from the pass that inserts synchronisation on, also if
    lanes access memory in no certain order. `passes` are modules, functions, or entries of the
    pipeline.
    """
    judge = Judge(kernel, TensorRuns(arguments, ctas))
    return next((outcome for p in passes if not (outcome := judge.judge(p)).ok), None)


def _compare(result: torch.Tensor, expected: torch.Tensor, rounds: bool) -> tuple[float, float] | None:
    """Return the share of the elements that differ and the largest difference; None if all agree."""
    if not result.is_floating_point():
        equal = result == expected
    else:
        equal = (view_bits(result) == view_bits(expected)) | (result.isnan() & expected.isnan())
    distance = (result.double() - expected.double()).abs()
    if rounds and result.is_floating_point():
        largest = expected.double().abs().where(expected.isfinite(), 0.0).amax() if expected.numel() else 0.0
        equal |= distance <= TOLERANCE[result.dtype] * largest
    if bool(equal.all()):
        return None
    return 1 - equal.double().mean().item(), distance[~equal].nan_to_num(torch.inf, torch.inf).max().item()


# ---- arguments
def random_arguments(checked: Checked, rng: torch.Generator, lengths: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Draw arguments for a kernel from its signature alone.

    Floats are normal, and NaN in tensors that are only written; integers are 0, since their meaning is unknown.
    `lengths` gives some dims; the others are drawn, batches and heads alike.
    """

    def draw(most: int) -> int:
        return 1 + int(torch.randint(most, (), generator=rng))

    short, sizes = draw(SHORT), dict(lengths or {})
    for d in checked.dims:
        sizes.setdefault(d, draw(LONG) if d in _find_long_dims(checked) else short)
    arguments: dict[str, Any] = {}
    for s in checked.scalars:
        kinds = {I32: lambda: draw(4) - 1, F32: lambda: float(torch.rand((), generator=rng)) + 0.1, BOOL: lambda: draw(2) == 1}
        arguments[s.name] = kinds[s.dtype]()
    modes = find_tensor_modes(checked)
    for t in checked.tensors:
        shape = [sizes[d] if isinstance(d, str) else d for d in t.dims]
        if t.dtype == I32 or t.scratch:
            arguments[t.name] = torch.zeros(shape, dtype=TORCH[t.dtype])
        elif t.written and not modes[t.name] & {"read", "add"}:
            arguments[t.name] = torch.full(shape, torch.nan, dtype=TORCH[t.dtype])
        else:
            arguments[t.name] = torch.randn(shape, generator=rng).to(TORCH[t.dtype])
    return pad_arguments(checked, arguments)


def ctas_for(checked: Checked) -> int:
    """Return the number of CTAs (or clusters) to run.

    It is one where they add to the same elements, since the order of additions is undefined.
    """
    return 1 if any("add" in modes for modes in find_tensor_modes(checked).values()) else 2


def _find_long_dims(checked: Checked) -> set[str]:
    """Return the dims that tiles go along.

    These are the innermost dim of a tensor, and the one before it where the innermost is a constant or the tensor has
    two dims.
    """
    dims = {t.dims[-1] for t in checked.tensors if t.dims}
    dims |= {t.dims[-2] for t in checked.tensors if len(t.dims) == 2 or (len(t.dims) > 2 and isinstance(t.dims[-1], int))}
    return {d for d in dims if isinstance(d, str)}


@dataclass(frozen=True)
class Stage:
    """A pass that has run, or (number 0) the building of the IR.

    Attributes:
        before: Operations of the IR before the pass.
        after: Operations of the IR after it.
        text: The IR after the pass, None if the pass changed nothing.
        outcome: The comparison of results, None if it was not requested.
    """

    number: int
    name: str
    purpose: str
    before: int
    after: int
    seconds: float
    text: str | None
    outcome: Outcome | None = None


class Lowering:
    """A kernel on its way through the passes, which change its IR in place."""

    def __init__(self, source: Source, without: Collection[str] = ()):
        """Build the IR of a kernel.

        Args:
            source: A checked kernel, a program, or the path of its file.
            without: Names of passes to leave out.
        """
        self.checked, self.without = to_checked(source), without
        start = time.perf_counter()
        self.kernel = build(self.checked)
        self.kernel.verify()
        self.seconds = time.perf_counter() - start

    def stages(self, runs: Runs[Any] | None = None) -> Iterator[Stage]:
        """Run the passes and yield each after it ran, the building of the IR first.

        Ends after a pass whose IR cannot be run.

        Args:
            runs: Runs the IR before and after each pass.

        Raises: Fault if the IR cannot be run before any pass.
        """
        judge = Judge(self.kernel, runs) if runs is not None else None
        text, count = self._show(0, BUILD), count_operations(self.kernel)
        yield Stage(0, BUILD, "the IR as the checked kernel gives it", 0, count, self.seconds, text)
        for number, p in select_passes(self.without):
            previous, before, outcome = text, count, None
            if judge is not None:
                outcome, seconds = judge.judge(p), judge.seconds
            else:
                start = time.perf_counter()
                p.run(self.kernel)
                seconds = time.perf_counter() - start
            if outcome is not None and outcome.error:
                yield Stage(number, p.name, p.purpose, before, before, seconds, None, outcome)
                return
            text, count = self._show(number, p.name), count_operations(self.kernel)
            changed = text.partition("\n")[2] != previous.partition("\n")[2]
            yield Stage(number, p.name, p.purpose, before, count, seconds, text if changed else None, outcome)
        if judge is not None and not judge.follows_lanes:
            outcome = judge.judge_lanes()
            yield Stage(number + 1, run_lanes.__name__, "run the lanes of workers in any order", count, count, judge.seconds, None, outcome)

    def _show(self, number: int, name: str) -> str:
        """Return the IR behind a pass as the text of a file."""
        return show_file(self.kernel, State(number, name, tuple(sorted(self.without))))

    def cuda(self) -> Cuda:
        """Return the CUDA of the IR in its present state, after all passes."""
        self.kernel.verify()
        return Cuda.of(print_kernel(self.kernel), self.checked)


def count_operations(kernel: ops.Kernel) -> int:
    """Count the operations of a kernel, the kernel itself among them."""
    return 1 + sum(1 for _ in every(kernel))

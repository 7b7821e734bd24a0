"""Tasks of `cuir lower --validate`: runs of the IR by its text, and differences between runs that differ."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch

from ..campaigns.campaign import Executor, run_campaign
from ..campaigns.journal import Journal, JournalKind
from ..campaigns.tasks import Json, Result, Task, make_task
from ..checking.checked import Checked
from ..checking.checker import check
from ..lowering.ir import ops
from ..lowering.ir.evaluator_state import Fault
from ..lowering.ir.ir_text import State, read, show_file
from ..lowering.validate import Differences, EvaluationError, Lowering, TensorRuns, ctas_for, random_arguments
from ..ops.meaning.tiles import view_bits
from ..performance.search.space import from_plain, plain
from ..syntax.nodes import Program
from ..syntax.parser import parse as parse_program
from ..syntax.printer import show as show_program

JOURNAL = JournalKind("U122", "cuir lower --validate", "the kernel and its inputs", "--journal")


@dataclass(frozen=True)
class ValidationInputs:
    """Inputs of a validation: a kernel by its text, and how its arguments are drawn."""

    program: str
    kernel: str
    consts: Mapping[str, Any]
    seed: int
    lengths: Mapping[str, int]


@dataclass(frozen=True)
class _Step:
    """IR that is run: its text, and whether lanes go in any order."""

    text: str
    follows_lanes: bool


def _describe_step(kernel: ops.Kernel, follows_lanes: bool) -> _Step:
    """Return a step by its text, with the places that errors name, and without the pass that made it."""
    return _Step(show_file(kernel, State(0, "")).partition("\n")[2], follows_lanes)


class _Listing:
    """Runs that only list the steps."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []

    def run(self, kernel: ops.Kernel, follows_lanes: bool) -> None:
        self.steps.append(_describe_step(kernel, follows_lanes))

    def compare(self, after: None, before: None) -> tuple[Differences, bool]:
        return {}, True


class FinishedRuns:
    """Runs that tasks have finished.

    Attributes:
        results: What `run_step` returned, by step.
        differences: What `compare_steps` returned, by both steps.
    """

    def __init__(self, results: Mapping[_Step, Any], differences: Mapping[tuple[_Step, _Step], Any]):
        self.results, self.differences = results, differences

    def run(self, kernel: ops.Kernel, follows_lanes: bool) -> _Step:
        """Return the step. Raises Fault or EvaluationError if its run failed."""
        step = _describe_step(kernel, follows_lanes)
        if "error" in self.results[step]:
            kind, message = self.results[step]["error"]
            raise Fault(message) if kind == Fault.__name__ else EvaluationError(f"{kind}: {message}")
        return step

    def compare(self, after: _Step, before: _Step) -> tuple[Differences, bool]:
        """Return what differs, and whether all of it is within the tolerance."""
        found = self.differences.get((after, before))
        return ({}, True) if found is None else ({n: tuple(d) for n, d in found["tensors"].items()}, found["within"])


def validate_in_tasks(
    checked: Checked,
    program: Program,
    without: Collection[str],
    words: tuple[int, Mapping[str, int]],
    executor: Executor,
    path: Path | None,
    progress: Callable[[int, int], None],
) -> FinishedRuns:
    """Run the IR before and behind each pass in tasks; equal texts run once.

    words: seed and lengths of the inputs. path: of the journal. Raises CuirError U122, U108.
    """
    inputs = ValidationInputs(show_program(program), checked.name, plain(checked.consts), *words)
    record, listing = json.dumps(asdict(inputs)), _Listing()
    list(Lowering(checked, without).stages(listing))
    journal = Journal(path, {"validate": checked.name, "content": hashlib.sha256(record.encode()).hexdigest()[:16]}, JOURNAL)
    steps = list(dict.fromkeys(listing.steps))

    def finish(tasks: Sequence[Task]) -> list[Any]:
        return [_require_value(result) for result in run_campaign(tasks, executor, journal, progress)]

    first = [make_task(run_step, record, s.text, s.follows_lanes) for s in steps]
    results = dict(zip(steps, finish(first), strict=True))
    pairs = [(b, a) for a, b in pairwise(listing.steps) if "error" not in results[a] | results[b] and results[a] != results[b]]
    second = [make_task(compare_steps, record, *((s.text, s.follows_lanes) for s in pair)) for pair in pairs]
    differences = dict(zip(pairs, finish(second), strict=True)) if pairs else {}
    journal.sort([task.key for task in (*first, *second)])
    return FinishedRuns(results, differences)


def _require_value(result: Result) -> object:
    if result.error is not None:
        raise result.error
    return result.value


def run_step(record: str, text: str, follows_lanes: bool) -> Json:
    """Run IR; return a hash of each tensor that it writes, or the error."""
    try:
        written = _open(record).run(read(text)[0], follows_lanes)
    except Exception as error:  # any exception of a run is the verdict on the IR
        return {"error": [type(error).__name__, str(error)]}
    return {"outputs": {name: hash_values(x) for name, x in written.items()}}


def compare_steps(record: str, after: tuple[str, bool], before: tuple[str, bool]) -> Json:
    """Run two IRs; return what differs, and whether all of it is within the tolerance."""
    runs = _open(record)
    tensors, within = runs.compare(*(runs.run(read(text)[0], follows_lanes) for text, follows_lanes in (after, before)))
    return {"tensors": {n: list(d) for n, d in tensors.items()}, "within": within}


@functools.lru_cache(maxsize=1)
def _open(record: str) -> TensorRuns:
    inputs = ValidationInputs(**json.loads(record))
    checked = check(parse_program(inputs.program), inputs.kernel, from_plain(cast(Any, inputs.consts)))
    return TensorRuns(random_arguments(checked, torch.Generator().manual_seed(inputs.seed), inputs.lengths), ctas_for(checked))


def hash_values(x: torch.Tensor) -> str:
    """Return a hash of a tensor's bits, in which any NaN is alike."""
    bits = view_bits(x.contiguous()).clone()
    unordered = x.isnan() if x.is_floating_point() else torch.zeros(x.shape, dtype=torch.bool)
    bits[unordered] = 0
    digest = hashlib.sha256(bits.numpy().tobytes())
    digest.update(unordered.numpy().tobytes())
    return digest.hexdigest()[:16]


__all__ = ["FinishedRuns", "ValidationInputs", "compare_steps", "hash_values", "run_step", "validate_in_tasks"]

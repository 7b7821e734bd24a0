"""Comparison of calls of one problem: each result judged, then all right calls timed in turns.

It serves suites in which a contender is a call that is ready to run.

Comparison of one kernel with PyTorch's, for the last step of `cuir bridge`.

It is a cell of a benchmark on the problem of Llama2-7B.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import torch

from ...arguments.binding import TORCH
from ...checking.checked import Checked
from ...text.diagnostics import CuirError
from ..search.candidate_runs import PreparedProblem, make_ragged_shape
from ..timing.problem import Shape
from ..timing.timing_protocol import Call, Outputs, describe_error, median_ms, raise_if_lost, time_in_turns
from .cell_benchmark import BUILD_SECONDS, OURS, RUN_SECONDS, Cell, Contenders, Timing, family, measure_cell
from .result_rows import ComparedRow, Comparison, Entry

if TYPE_CHECKING:
    from ...attn.splicing.splice import TransferResult

R = TypeVar("R")
Judge = Callable[[Outputs], tuple[float, str]]  # returns the error of a call's outputs, and why they are wrong


def contest(
    calls: Mapping[str, Callable[[], R]],
    judge: Callable[[R], tuple[float, str]],
    figures: Callable[[float], Entry],
    timing: Timing,
    *,
    seconds: Callable[[str], float] = lambda name: BUILD_SECONDS,
    prepared: Callable[[Call], Call] = lambda call: call,
) -> dict[str, Entry]:
    """Judge and time calls; return the contenders' entries of a row.

    Raises RuntimeError when the CUDA context is lost.

    Args:
        calls: Calls by contender; each may prepare itself in its first call, for which `seconds` gives its time.
        judge: Returns the error of a call's outputs, and why they are wrong, "" if they are right.
        figures: Returns figures for milliseconds.
        timing: Rounds of timing, contenders not to run, and the progress.
        prepared: Returns what is timed of a call that was right.
    """
    tell, lost = timing.tell, timing.lost
    entries: dict[str, Entry] = {}
    right: dict[str, Call] = {}
    for name, call in calls.items():
        if name in lost:
            entries[name] = {"failed": lost[name]}
            continue
        try:
            tell(name, seconds(name))
            outputs = call()
            tell(name, RUN_SECONDS)
            error, why = judge(outputs)
            entries[name] = {"error": error, **({"wrong": why} if why else {})}
            del outputs
        except (
            Exception
        ) as error:  # PyTorch's compilers and other packages raise whatever they meet; one contender that does not run ends no suite
            raise_if_lost(error)
            entries[name] = {"failed": describe_error(error)}
            continue
        if not why:
            right[name] = prepared(call)
    times, failed = time_in_turns(right, timing.rounds, timing.measure or median_ms, family, lambda name: tell(name, RUN_SECONDS))
    for name, samples in times.items():
        milliseconds = statistics.median(samples)
        entries[name] |= {"milliseconds": round(milliseconds, 5), **figures(milliseconds), "rounds": len(samples)}
    for name, why in failed.items():
        entries[name] |= {"failed": why}
    return entries


def judge_of(error: Callable[[torch.Tensor], float], judge: Callable[[torch.Tensor], str]) -> Judge:
    """Return the judge that `contest` takes, for calls that return O, or O and more."""

    def of(outputs: Outputs) -> tuple[float, str]:
        o = outputs[0] if isinstance(outputs, tuple) else outputs
        return error(o), judge(o)

    return of


BATCH, HEADS, LENGTH = 2, 32, 8192  # Llama2-7B with 16k tokens
PEERS = ("cudnn", "fa2", "dense", "flex")


def compare(
    checked: Checked,
    transferred: TransferResult,
    timing: Timing = Timing(),
    *,
    prepare: Callable[..., PreparedProblem] = PreparedProblem,
    launch: Callable[..., object] | None = None,
) -> Comparison:
    """Check a kernel against float64, and time it beside PyTorch's.

    It is checked on a ragged problem with grouped heads and on the problem that is timed. `launch` is the kernel (None:
    compile it); `prepare` and `timing` are those of `measure_cell`. Raises CuirError V401 if the numbers are wrong.

    Returns:
        Rows of what ran, milliseconds (median) and TFLOP/s of unmasked pairs.
    """
    from ...runtime.compiled import compile

    kernel: Callable[..., object] = launch or compile(checked)
    dtype, dim = checked.consts["T"], int(checked.consts["D"])  # type: ignore[arg-type]
    shape = Shape(BATCH, HEADS, HEADS, LENGTH, LENGTH, dim)
    small = prepare(transferred, make_ragged_shape(shape), TORCH[dtype])  # type: ignore[index]
    _demand(small.judge(kernel, checked.consts), checked)
    cell = Cell(transferred.spec.name, {}, "llama2-7b", shape)
    row = measure_cell(
        cell,
        transferred,
        dtype.name,  # type: ignore[union-attr]
        Contenders([checked.consts], PEERS),
        timing,
        prepare=prepare,
        launch=lambda _: kernel,
    )
    (mine,) = (n for n in row["contenders"] if n.startswith(OURS))
    entry = row["contenders"].pop(mine)
    _demand(entry.get("wrong", ""), checked)
    if "failed" in entry:
        raise CuirError.of("V401", f"the kernel runs on the GPU, found: {entry['failed']}", checked.origin.span)
    peers = row["contenders"]
    best = min((c["milliseconds"] for c in peers.values() if "milliseconds" in c), default=None)
    relative_speed = f", {best / entry['milliseconds']:.2f} x the best of PyTorch's" if best else ""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "problem": f"{BATCH} x {HEADS} heads x {LENGTH} x {dim}, {dtype.name}",  # type: ignore[union-attr]
        "rows": [_row("this kernel", entry), *(_row(name, c) for name, c in peers.items())],
        "error": entry["error"],
        "yardstick": row["own_error"],
        "summary": f"right (error {entry['error']:.2e}, PyTorch's own {row['own_error']:.2e}); {entry['tflops']:.0f} TFLOP/s{relative_speed}",
    }


def _demand(wrong: str, checked: Checked) -> None:
    """Raise CuirError V401 for a wrong result."""
    if wrong:
        raise CuirError.of(
            "V401",
            f"the kernel computes on the GPU what float64 gives, found: {wrong}",
            checked.origin.span,
            "the interpreter agrees with float64, so this is a fault of the lowering: please report it with the .cu file",
        )


def _row(name: str, entry: Entry) -> ComparedRow:
    """Return a row of the table."""
    timed = "tflops" in entry
    row: ComparedRow = {
        "what": name,
        "milliseconds": entry["milliseconds"] if timed else None,
        "tflops": entry["tflops"] if timed else None,
    }
    if not timed:
        row["why"] = entry.get("wrong") or entry.get("failed", "")
    return row


__all__ = ["BATCH", "HEADS", "LENGTH", "PEERS", "compare", "contest", "judge_of"]

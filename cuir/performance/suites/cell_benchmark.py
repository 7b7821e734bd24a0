"""Benchmark of one problem on a GPU: contenders checked against float64, then timed in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ...arguments.binding import TORCH
from ...checking.checked import Const
from ...syntax.types import DTYPES
from ..search.candidate_runs import PreparedProblem
from ..search.space import label, plain
from ..timing.problem import Expectation, Shape, count_kept_pairs
from ..timing.timing_protocol import Call, describe_error, median_ms, raise_if_lost, time_in_turns
from ..timing.worker import Tell
from .result_rows import CellRow, Entry, Row

if TYPE_CHECKING:
    from ...attn.splicing.splice import TransferResult
    from .reference import Reference

OURS = "cuir"
BUILD_SECONDS = 120.0  # until a contender's first call returns, in which it may compile itself; of a row, until its first contender
RUN_SECONDS = 30.0  # after that nothing compiles: a check and a turn of timing are a few launches, milliseconds each


@dataclass(frozen=True)
class Cell:
    """Problem of a suite: a variant with its parameters, a model's name and the shape."""

    variant: str
    parameters: Mapping[str, int | float]
    model: str
    shape: Shape

    @property
    def name(self) -> str:
        """Name of the cell in tables."""
        s = self.shape
        return f"{self.variant} {self.model} " + (str(s.M) if s.M == s.N else f"{s.B} x {s.N}, {queries(s.M)}")

    @property
    def arguments(self) -> list[str]:
        """Parameters as the command line takes them."""
        return [f"{k}={v}" for k, v in self.parameters.items()]

    def as_json(self) -> CellRow:
        """Return the cell as JSON data."""
        return {"variant": self.variant, "parameters": dict(self.parameters), "model": self.model, "shape": list(self.shape.as_tuple())}

    @staticmethod
    def from_json(data: CellRow) -> Cell:
        """Return the cell of JSON data."""
        return Cell(data["variant"], data["parameters"], data["model"], Shape(*data["shape"]))


def queries(M: int) -> str:
    """Format a number of queries."""
    return f"{M} {'query' if M == 1 else 'queries'}"


def family(name: str) -> str:
    """Return the family of a contender.

    Settings of our kernel are one family, configurations of a reference another, each peer is a separate one.
    """
    return name.partition(" ")[0]


@dataclass(frozen=True)
class Timing:
    """Rules by which the contenders of a cell are timed.

    Attributes:
        rounds: Rounds of timing, all contenders in turns.
        lost: Contenders not to run, and why.
        tell: Called with the contender that begins, and the seconds within which it must finish.
        measure: Returns the milliseconds of a call; None: the suite's way.
    """

    rounds: int = 3
    lost: Mapping[str, str] = field(default_factory=dict)
    tell: Tell = lambda doing, seconds: None
    measure: Callable[[Call], float] | None = None


@dataclass(frozen=True)
class Contenders:
    """Contenders of a cell: our kernel with each setting, the peers, and a kernel of the user's."""

    settings: Sequence[Mapping[str, Const]]
    peers: Sequence[str]
    reference: Reference | None = None


def measure_cell(
    cell: Cell,
    transferred: TransferResult,
    dtype: str,
    entrants: Contenders,
    timing: Timing = Timing(),
    *,
    prepare: Callable[..., PreparedProblem] = PreparedProblem,
    launch: Callable[[Mapping[str, Const]], Callable[..., object]] | None = None,
) -> Row:
    """Measure our kernel with each setting, the peers and the reference; return the cell's row.

    tflops count 4 D for each unmasked pair. A contender with a wrong result is not timed; one that does not compile,
    run or fit in memory has its reason in the row. Raises RuntimeError when the CUDA context is lost.

    Args:
        prepare: Function that makes the problem and its expectation.
        launch: Function that returns a kernel for a setting; None: compile it.
    """
    from .peers import causal_flag, contenders

    lost, tell, reference = timing.lost, timing.tell, entrants.reference
    case = prepare(transferred, cell.shape, TORCH[DTYPES[dtype]])
    expected = case.expected  # before any contender, so that it counts to no contender's time
    flops = 2.0 * (cell.shape.D + cell.shape.DV) * count_kept_pairs(transferred.spec, case.problem["Q"], case.problem["K"])
    calls: dict[str, Call] = {}
    rows: dict[str, Entry] = {}
    for consts in entrants.settings:
        tunable = {k: v for k, v in consts.items() if k not in ("T", "D")}
        name = f"{OURS} {label(tunable)}".strip()
        if name in lost:
            rows[name] = {"failed": lost[name], "consts": plain(tunable)}
            continue
        try:
            tell(name, BUILD_SECONDS)
            kernel = launch(consts) if launch is not None else _compile_transferred(transferred, consts)
            tell(name, RUN_SECONDS)
            rows[name] = _verdict(expected, case.judge(kernel, consts), case.outputs["O"])
        except Exception as error:  # goes into the row: a setting that does not run must not end the suite
            rows[name] = _make_failed_entry(error)
        rows[name] |= {"consts": plain(tunable)}
        if "error" in rows[name] and "wrong" not in rows[name]:
            calls[name] = lambda kernel=kernel, arguments=case.arguments(consts): kernel(**arguments)  # type: ignore[misc]
    tell("", BUILD_SECONDS)
    peer_calls = contenders(entrants.peers, transferred.spec, case.problem, case.scale)
    flag = causal_flag(transferred.spec, case.problem["Q"], case.problem["K"]) if reference is not None else None
    if reference is not None and flag is not None:
        peer_calls |= reference.contenders(flag, case.problem)
    for name, call in peer_calls.items():
        if name in lost:
            rows[name] = {"failed": lost[name]}
            continue
        try:
            tell(name, BUILD_SECONDS)
            outputs = call()
            tell(name, RUN_SECONDS)
            o, lse = outputs if isinstance(outputs, tuple) else (outputs, None)
            rows[name] = _verdict(expected, expected.judge(o, lse), o)
            del outputs, o, lse
        except Exception as error:  # PyTorch's compilers and a file from outside raise whatever they meet
            rows[name] = _make_failed_entry(error)
            continue
        if "wrong" not in rows[name]:
            calls[name] = call
    times, failed = time_in_turns(calls, timing.rounds, timing.measure or median_ms, family, lambda name: tell(name, RUN_SECONDS))
    for name, samples in times.items():
        milliseconds = statistics.median(samples)
        rows[name] |= {"milliseconds": round(milliseconds, 5), "tflops": round(flops / milliseconds / 1e9, 2), "rounds": len(samples)}
    for name, why in failed.items():
        rows[name] |= {"failed": why}
    return {
        **cell.as_json(),
        "dtype": dtype,
        "flops": flops,
        "own_error": expected.half_error,
        "bound": expected.bound,
        "contenders": rows,
    }


def _verdict(expected: Expectation, why: str, o: torch.Tensor) -> Entry:
    """Return the entry of a contender that ran."""
    return {"error": expected.error(o), **({"wrong": why} if why else {})}


def _make_failed_entry(error: Exception) -> Entry:
    """Return the entry of a contender that did not run, and release its GPU memory."""
    raise_if_lost(error)
    why = describe_error(error)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return {"failed": why}


def _compile_transferred(transferred: TransferResult, consts: Mapping[str, Const]) -> Callable[..., object]:
    """Compile the kernel for a setting."""
    from ...runtime.compiled import compile

    return compile(transferred.program, kernel=transferred.kernel, consts=consts)

"""Run of one kernel on random tensors, for `cuir run`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

import torch

from ..arguments.binding import TORCH, Argument, bind
from ..checking.checked import Checked, Const
from ..checking.checker import check, pick_kernel
from ..checking.const_defaults import PlainConsts, consts_as_json, describe_consts
from ..checking.fold import literal, specialise
from ..syntax.nodes import Expr, Literal, Program
from ..syntax.types import I32
from ..text.diagnostics import CuirError, Note
from ..text.phrases import count_noun, make_singular
from ..verification.inputs import find_overwritten
from ..verification.resource_limits import require_memory

if TYPE_CHECKING:
    from ..interp import RunReport, Schedule

Number = int | float | bool
# NaN with a payload that no arithmetic yields, as integers of the same size: it marks elements that were never stored
_UNSTORED = {torch.float32: (torch.int32, 0x7FC0DEAD), torch.float16: (torch.int16, 0x7E2A), torch.bfloat16: (torch.int16, 0x7FEA)}


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Attributes:
        schedule: Order of the agents, as text.
        grid: CTAs (or clusters).
        data_seed: Of the random tensors.
        trace: File for a trace.
        on: "interpreter" or "gpu".
        loader: Loader of compiled kernels.
        typed: Options of the command line that ask for a GPU.
        command: The command line without schedule and grid, for the replay in a trace.
    """

    schedule: str
    grid: int | None
    data_seed: int
    trace: Path | None
    on: str
    loader: str
    typed: str = "--on gpu"
    command: Sequence[str] = ("cuir", "run")


class OutputRow(TypedDict):
    """Statistics of an output: its finite numbers, and counts of elements not finite or never stored."""

    name: str
    shape: str
    dtype: str
    mean: float
    largest: float
    not_finite: int
    elements: int
    never_stored: int | None


class RunResult(TypedDict, total=False):
    """Description of a run.

    Attributes:
        kernel: Its name.
        consts: Consts that it was compiled with.
        on: Where it ran.
        seconds: Duration.
        events: Events that were counted.
        outputs: Descriptions of the outputs.
        note: Warnings and remarks.
        trace: The file with the trace.
        replay: The command that runs it again.
    """

    kernel: str
    consts: PlainConsts
    on: str
    seconds: float
    events: str
    outputs: list[OutputRow]
    note: str
    trace: str | None
    replay: str


def run_kernel(
    program: Program,
    kernel: str | None,
    consts: Mapping[str, Const],
    dims: Mapping[str, Number],
    scalars: Mapping[str, Number],
    options: RunOptions,
) -> RunResult:
    """Run a kernel on random tensors, and describe its outputs.

    Floats are normal, integers zero, outputs NaN. Raises CuirError.
    """
    on, loader, trace = options.on, options.loader, options.trace
    if on not in ("interpreter", "gpu"):
        raise CuirError.of("U100", f"--on is interpreter or gpu, found `{on}`")
    if on == "gpu":
        from ..performance.timing.gpu import require_gpu
        from ..runtime.loader import require_loader

        require_loader(loader)
        require_gpu(f"leave out {options.typed} to run it in the interpreter")
        _require_package(loader)
        lengths = [dims.get(name) for name in ("B", "H", "HK", "M", "N")]
        if all(type(n) is int for n in lengths):
            from ..performance.selection import Evidence, choose
            from ..spec.specification import Lengths
            from .judged_kernel import remember_judged_kernel

            consts = choose(program, consts, Lengths(*lengths), Evidence(sources=("tuned",)), numbers=scalars, kernel=kernel).consts  # type: ignore[arg-type]
            remember_judged_kernel(pick_kernel(program, kernel), consts)
    checked = check(program, pick_kernel(program, kernel).name, consts)
    arguments = make_arguments(checked, dims, scalars, options.data_seed, "cuda" if on == "gpu" else "cpu")
    bind(checked.origin, arguments, checked.consts)
    start = time.perf_counter()
    events, note = _on_gpu(checked, arguments, loader) if on == "gpu" else _interpret(checked, arguments, options)
    seconds = time.perf_counter() - start
    blank = find_overwritten(checked)
    outputs = [_describe(t.name, cast(torch.Tensor, arguments[t.name]), t.name in blank) for t in checked.outputs]
    note = "; ".join(filter(None, (_describe_unstored(outputs), note)))
    return {
        "kernel": checked.name,
        "consts": consts_as_json(checked.consts),
        "on": on,
        "seconds": seconds,
        "events": events,
        "outputs": outputs,
        "note": note,
        "trace": str(trace) if trace else None,
    }


def replayable(error: CuirError, command: Sequence[str]) -> CuirError:
    """Return the error with the whole command line in the note that says how to replay it.

    `command` lacks schedule and grid.
    """
    head = f"replay: {shlex.join(command)} "

    def whole(note: Note) -> Note:
        """Complete a note."""
        return replace(note, message=head + note.message.removeprefix("replay: ")) if note.message.startswith("replay: ") else note

    return CuirError(replace(d, notes=tuple(map(whole, d.notes))) for d in error.diagnostics)


def make_arguments(
    checked: Checked, dims: Mapping[str, Number], scalars: Mapping[str, Number], seed: int, device: str
) -> dict[str, Argument]:
    """Return arguments by name.

    Raises CuirError for dims and scalars that are missing, unknown or unusable.
    """
    missing = [d for d in checked.dims if d not in dims]
    if missing:
        raise CuirError.of(
            "U113", f"the length of {', '.join(missing)} is not known", checked.origin.span, f"-d {','.join(f'{d}=...' for d in missing)}"
        )
    unknown = [d for d in dims if d not in checked.dims]
    if unknown:
        raise CuirError.of(
            "U113",
            f"`{checked.name}` has no run-time dim {', '.join(unknown)}",
            checked.origin.span,
            f"it has: {', '.join(checked.dims) or 'none'}",
        )
    wrong = [d for d, n in dims.items() if type(n) is not int or n < 0]
    if wrong:
        raise CuirError.of(
            "U113", f"the length of `{wrong[0]}` is an integer >= 0, found {dims[wrong[0]]}", hint=f"for example -d {wrong[0]}=128"
        )
    require_memory(checked, dims)
    needed = [s.name for s in checked.scalars]
    absent = [s for s in needed if s not in scalars]
    if absent:
        raise CuirError.of(
            "U114", f"the scalar {', '.join(absent)} has no value", checked.origin.span, f"-s {','.join(f'{s}=...' for s in absent)}"
        )
    generator = torch.Generator().manual_seed(seed)
    arguments: dict[str, Argument] = dict(scalars)
    blank = find_overwritten(checked)
    for t in checked.tensors:
        if t.scratch:
            continue
        shape = [int(dims[d]) if isinstance(d, str) else d for d in t.dims]
        if t.name in blank and TORCH[t.dtype] in _UNSTORED:
            bits, value = _UNSTORED[TORCH[t.dtype]]
            arguments[t.name] = torch.full(shape, value, dtype=bits, device=device).view(TORCH[t.dtype])
        elif t.dtype == I32 or t.written:
            arguments[t.name] = torch.zeros(shape, dtype=TORCH[t.dtype], device=device)
        else:
            arguments[t.name] = torch.randn(shape, generator=generator).to(TORCH[t.dtype]).to(device)
    return arguments


def _interpret(checked: Checked, arguments: dict[str, Argument], options: RunOptions) -> tuple[str, str]:
    """Run in the interpreter; return what the run did, and what it cannot show."""
    schedule, grid, trace = options.schedule, options.grid, options.trace
    from ..interp import Trace, run

    if schedule == "all":
        from ..verification.schedules import run_under_all

        if trace is not None:
            raise CuirError.of("U100", "a trace is of one schedule, found --schedule all")
        reports = run_under_all(checked, arguments, grid)
        return f"{len(reports)} runs under different schedules, free of faults and with the same results", describe_short_rings(
            checked, arguments, reports[0]
        )
    from ..interp.trace_files import write_trace

    recorded = Trace() if trace is not None else None
    title = f"{checked.name} with {describe_consts(checked.consts)}"
    try:
        report = run(checked, arguments, grid=grid, schedule=_read_schedule(schedule), trace=recorded)
    except CuirError as error:
        if recorded is None or trace is None or not recorded.events:
            raise
        recorded.fault = replayable(error, options.command).diagnostics[0]
        write_trace(recorded, trace, title)
        first, *rest = error.diagnostics
        note = Note(f"the trace, up to this fault, is in {trace}")
        raise CuirError([replace(first, notes=(*first.notes, note)), *rest]) from None
    if recorded is not None and trace is not None:
        write_trace(recorded, trace, title)
    counts = [count_noun(count, make_singular(kind)) for kind, count in sorted(report.events.items())]
    units, ctas, workers = (count_noun(n, kind) for n, kind in ((report.units, "unit"), (report.grid, "CTA"), (report.workers, "worker")))
    return ", ".join([f"{units} of work on {ctas} of {workers}", *counts]), describe_short_rings(checked, arguments, report)


def _read_schedule(text: str) -> Schedule:
    """Parse one schedule. Raises CuirError U111, whose hint adds `all`, which `cuir run` also takes."""
    from ..interp import Schedule

    try:
        return Schedule.parse(text)
    except CuirError as error:
        raise CuirError(replace(d, hint=f"{d.hint}, all") for d in error.diagnostics) from None


def describe_short_rings(checked: Checked, arguments: Mapping[str, Argument], report: RunReport) -> str:
    """Name rings of barriers that no CTA took to their third round, and a grid that would; "" if none.

    A wrong parity or an early reuse shows in the third round at the latest.
    """
    stages = {b.name: b.stages for b in checked.barriers.values() if b.stages is not None}
    short = [name for name, rounds in report.rounds.items() if name in stages and rounds < 3]
    needed = 2 * max((stages[name] for name in short), default=0) + 1
    each = -(-report.units // report.grid)
    if not short or (checked.tiles is not None and each >= needed):  # a ring that is used once in many units of work
        return ""
    finding = f"no CTA came to the third round of {', '.join(f'`{name}`' for name in short)}, where a wrong parity or a buffer used again too early may first show"
    if checked.tiles is None:
        return f"{finding}: longer lengths do, where the kernel loops over them; `cuir verify` tries them"
    if report.units >= needed:
        return f"{finding}: --grid {report.units // needed} gives each {needed} units of work"
    longer = _lengths_for(checked, checked.tiles.count, arguments, needed)
    return f"{finding}: {longer or 'other lengths'} with --grid 1 may give it {needed} units of work or more"


def _lengths_for(checked: Checked, count: Expr, arguments: Mapping[str, Argument], needed: int) -> str:
    """Return `-d NAME=LENGTH` for the dim that has to grow least for so many units of work.

    "" if growing one dim does not suffice.
    """
    tensors = [(t.dims, cast(torch.Tensor, arguments[t.name]).shape) for t in checked.tensors if t.name in arguments]
    dims = {d: n for names, shape in tensors for d, n in zip(names, shape) if isinstance(d, str)}
    for times in range(2, 1025):
        for name in (d for d in dims if d != "HK"):  # query heads are a multiple of them
            longer_dims = {**dims, name: times * max(1, dims[name])}
            with suppress(ZeroDivisionError):
                units = literal(
                    specialise(count, {n: Literal(v) for n, v in {**arguments, **longer_dims}.items() if isinstance(v, (int, float))})
                )
                if units is not None and units >= needed:
                    return f"-d {name}={longer_dims[name]}"
    return ""


def _require_package(loader: str) -> None:
    """Raise CuirError for a loader whose package is not installed."""
    from ..runtime.loader import PYCUDA

    if loader == PYCUDA:
        from ..runtime.pycuda_loader import import_pycuda

        import_pycuda()


def _on_gpu(checked: Checked, arguments: dict[str, Argument], loader: str) -> tuple[str, str]:
    """Run on a GPU; return what the run did, and warnings."""
    from ..runtime.compiled import compile
    from ..runtime.launchable import describe_spills
    from ..verification.on_gpu import make_fault

    try:
        kernel = compile(checked, loader=loader)
        kernel.launch(arguments)
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise make_fault(checked, error, "cuir run --on gpu") from error
    spilled = describe_spills(kernel.compiled.cuda, kernel.compiled.resources)
    return "compiled and launched", f"warning: {spilled}" if spilled else ""


def _describe(name: str, tensor: torch.Tensor, blank: bool) -> OutputRow:
    """Describe an output in numbers.

    `blank`: it began as NaN, so that elements that were never stored can be counted.
    """
    values = tensor.float()
    finite = values[torch.isfinite(values)]
    some = finite.numel() > 0
    bits, value = _UNSTORED.get(tensor.dtype, (None, 0))
    unstored = int((tensor.view(bits) == value).sum()) if blank and bits is not None else None
    return {
        "name": name,
        "shape": str(list(tensor.shape)),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "mean": float(finite.mean()) if some else float("nan"),
        "largest": float(finite.abs().max()) if some else float("nan"),
        "not_finite": int(tensor.numel() - finite.numel()) - (unstored or 0),
        "elements": tensor.numel(),
        "never_stored": unstored,
    }


def _describe_unstored(outputs: Sequence[OutputRow]) -> str:
    """Return a warning about elements that were never stored, "" if none."""
    parts = [f"{o['never_stored']:,} of {o['elements']:,} elements of `{o['name']}`" for o in outputs if o["never_stored"]]
    return f"warning: {' and '.join(parts)} were never stored: the caller finds there what was in memory before" if parts else ""

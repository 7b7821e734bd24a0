"""Launches in the interpreter: binding, choice of grid and batches, and the report of a run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch

from ..arguments.aliasing import Place, refuse_shared_memory
from ..arguments.binding import Argument, add_scratch, bind
from ..arguments.index_ranges import require_index_ranges
from ..arguments.requirements import find_copied_tensors, require_layout
from ..checking.checked import Checked, Const
from ..checking.checker import check, pick_kernel
from ..checking.kernel_results import ResultKey
from ..checking.tensor_modes import find_exchanged, find_tensor_modes
from ..ops.expressions import get_declaration
from ..ops.meaning.tiles import force_exact_products, force_one_thread
from ..syntax.caller_values import plain_number, program_of
from ..syntax.nodes import For, Name, Stmt
from ..syntax.nodes import Program as CuirProgram
from ..syntax.types import F32
from ..syntax.walk import walk
from ..text.diagnostics import CuirError
from . import main_loop
from .code import Compiler, TripCounts
from .event_trace import Trace
from .expression_watches import get_watch
from .machine import Evaluate, Instruction, Launch, Machine, Program, Worker
from .noise import Noise, get_noise, perturb_runs
from .ops import RUNS
from .schedule import Schedule
from .step_budget import UNIT, Budget
from .tensors import TensorArg
from .trace_times import record_fault
from .values import Diverge, f32, require_uniform

IDLE = 1024  # most CTAs or clusters of a grid beyond its work items
LANES = 32  # CTAs that run as one batch at first: enough to amortise an instruction, few enough for the caches


Grid = int | Callable[[int], int]  # number of CTAs or clusters, or a function of the number of work items


@dataclass(frozen=True)
class RunReport:
    """The result of a run, with events counted in every CTA."""

    events: Mapping[str, int]  # bulk copies, products, arrivals, waits, ...
    units: int  # work items that tiles(...) gave out
    blocks: float  # products by volume, in QK^T and PV of a 128 x 128 block with 128 columns: 2 * 128^3 multiply-adds
    grid: int  # CTAs, or clusters
    workers: int  # of a CTA
    batches: int
    splits: int
    schedule: str
    seconds: float
    rounds: Mapping[str, int]  # of each ring of mbarriers, in the CTA that goes round it most

    def __repr__(self) -> str:
        return f"RunReport({self.units} units of work on {self.grid} CTAs of {self.workers} workers, {self.schedule}, {self.seconds:.2f} s)"


def run(
    checked: Checked | CuirProgram | str | os.PathLike[str],
    arguments: Mapping[str, Argument],
    *,
    consts: Mapping[str, Const] | None = None,
    grid: Grid | None = None,
    schedule: Schedule | str | None = None,
    trace: Trace | None = None,
    detect: bool = True,
    lanes: int = LANES,
    budget: float | None = None,
    perturb: int | None = None,
    undefined: Collection[str] = (),
) -> RunReport:
    """Run a checked kernel on tensors, which it writes in place (on their device, "cpu" or "cuda").

    Args:
        checked: a checked kernel, or a program of one kernel (or the path of its file), which is checked for the dims
            and dtypes of the tensors and `consts`.
        arguments: a tensor or number for each parameter, by name.
        consts: constants that the tensors do not determine.
        grid: number of CTAs (or clusters), or a function that returns it for a number of work items; by default chosen
            from the work, at most IDLE beyond the work items.
        schedule: who acts when, or its text as reports and `--schedule` have it ("random:7"); by default in order.
        trace: records the first batch.
        detect: if False, no error for races, undefined reads and values in flight, so that their consequences show in
            the results.
        lanes: CTAs of a batch at first.
        budget: seconds of processor time, 60 by default: a loop that takes longer, or will at its pace, is an error
            (D402).
        perturb: a seed; results that are not exact vary at random within their bounds.
        undefined: tensors that hold nothing before the launch, as Scratch does: an element that is read before it is
            written is an error (M415).

    Raises:
        CuirError: a bad call (U...), or the first fault of the program (M, R, S, D: memory, races, barrier protocol,
            deadlock).
    """
    begin = time.perf_counter()
    schedule = Schedule.parse(schedule) if isinstance(schedule, str) else schedule or Schedule()
    with (
        np.errstate(all="ignore"),
        torch.inference_mode(),
        force_exact_products(),
        force_one_thread(),
        perturb_runs(get_noise() if perturb is None else Noise(perturb)),
    ):
        launch, units, _ = prepare(checked, arguments, LaunchOptions(grid, schedule, trace, detect, budget, undefined), consts=consts)
        if schedule.cluster is not None:
            if schedule.cluster >= launch.grid:
                raise CuirError.of(
                    "U111",
                    f"the schedule is of cluster {schedule.cluster}, and the launch has {launch.grid}",
                    None,
                    "replay it with the dims and the grid that it was made with",
                )
            _finish(Machine(launch, np.array([schedule.cluster])))
        else:
            run_batches(launch, lanes)
    return report_of(launch, units, time.perf_counter() - begin)


@dataclass(frozen=True)
class LaunchOptions:
    """Options of a launch, as `run` has them; `schedule` None is in order."""

    grid: Grid | None = None
    schedule: Schedule | None = None
    trace: Trace | None = None
    detect: bool = True
    budget: float | None = None
    undefined: Collection[str] = ()


class PreparedLaunch(NamedTuple):
    """Launch that is ready to run, with the number of its work items, and the compiler of its code."""

    launch: Launch
    units: int
    compiler: Compiler


def prepare(
    checked: Checked | CuirProgram | str | os.PathLike[str],
    arguments: Mapping[str, Argument],
    options: LaunchOptions = LaunchOptions(),
    *,
    consts: Mapping[str, Const] | None = None,
    compiler: type[Compiler] = Compiler,
) -> PreparedLaunch:
    """Prepare a launch: bind the arguments, compile the code, choose the grid.

    Raises CuirError for a bad call.
    """
    arguments = {name: plain_number(value) for name, value in arguments.items()}
    if not isinstance(checked, Checked):
        program = program_of(checked, "run")
        kernel = pick_kernel(program, None)
        checked = check(program, kernel.name, bind(kernel, arguments, consts).consts)
    arguments = add_scratch(checked.tensors, arguments, fill=math.nan)
    bound = bind(checked.origin, arguments, dict(checked.consts))
    require_layout(checked, find_copied_tensors(checked), arguments)
    device = bound.device or torch.device("cpu")
    noise = get_noise()
    if options.trace is not None:
        options.trace.source = checked.origin.span.source
    code = _compile_code(checked, device, options.trace is not None, noise is not None, compiler)
    modes, handed = find_tensor_modes(checked), find_exchanged(checked)
    refuse_shared_memory(checked.tensors, {p.name: Place.of(cast(torch.Tensor, arguments[p.name])) for p in checked.tensors})
    tensors = {
        p.name: TensorArg(
            p,
            cast(torch.Tensor, arguments[p.name]).detach(),
            modes[p.name],
            options.detect,
            p.name in handed,
            "read" in modes[p.name] and (p.scratch or p.name in options.undefined),
        )
        for p in checked.tensors
    }
    values: dict[str, object] = dict(bound.dims)
    for p in checked.scalars:
        argument = arguments[p.name]
        values[p.name] = f32(float(argument)) if p.dtype == F32 else argument
    require_index_ranges(checked, bound.dims, arguments)
    launch = Launch(
        checked,
        tensors,
        values,
        code.programs,
        device,
        options.schedule or Schedule(),
        1,
        [range(1)],
        options.detect,
        options.trace,
        noise=noise,
        budget=Budget(options.budget),
        data=compiler.data,
    )
    return PreparedLaunch(launch, _plan_work(launch, code, options.grid), code.compiler)


@dataclass(frozen=True)
class _Code:
    """The compiled code of a kernel, for all its launches on a device."""

    compiler: Compiler
    before: list[Instruction]  # the declarations
    programs: list[Program]
    count: Evaluate | None  # of units of work


_CODE = ResultKey[_Code]("interpreted code")


def run_batches(launch: Launch, lanes: int = LANES) -> None:
    """Run a prepared launch, `lanes` CTAs (or clusters) at once."""
    for first in range(0, launch.grid, max(1, lanes)):
        _finish(Machine(launch, np.arange(first, min(launch.grid, first + max(1, lanes)))))


def run_chosen(launch: Launch, clusters: Sequence[int]) -> None:
    """Run only some CTAs (or clusters) of a prepared launch, one after the other."""
    for cluster in clusters:
        _finish(Machine(launch, np.array([cluster])))


def report_of(launch: Launch, units: int, seconds: float) -> RunReport:
    """Build the report of a completed launch."""
    workers = sum(p.workers for p in launch.programs)
    return RunReport(
        dict(launch.counts),
        units,
        launch.area / 2,
        launch.grid,
        workers,
        launch.batches,
        launch.splits,
        str(launch.schedule),
        seconds,
        dict(launch.rounds),
    )


def run_each(launch: Launch) -> None:
    """Run a prepared launch, one CTA (or cluster) after the other."""
    with np.errstate(all="ignore"), torch.inference_mode(), force_exact_products(), force_one_thread():
        run_chosen(launch, range(launch.grid))


def _compile_code(checked: Checked, device: torch.device, costs: bool, perturbs: bool, kind: type[Compiler] = Compiler) -> _Code:
    watch = get_watch(checked)
    key = (device, costs, perturbs, kind, None if watch is None else watch.key)
    compiled = checked.results.find(_CODE, key)
    if compiled is None:
        compiler = kind(checked, device, costs, perturbs)
        compiler.observer = watch if kind.data else None  # a run without data has no values to observe
        before = compiler.compile_body(checked.declarations)
        programs = []
        for role in checked.roles:
            code = list(before)
            compiler.compile_block(role.body, code)
            loops = tuple(s is stmt for stmt in role.body for s in walk(stmt) if isinstance(s, For) and isinstance(s.iter, Name))
            programs.append(Program(role.name, role.workers, role.threads, role.index, code, loops))
        count = None if checked.tiles is None else compiler.compile_expr(checked.tiles.count)
        compiled = checked.results.store(_CODE, _Code(compiler, before, programs, count), key)
    return compiled


class LoopCounts(NamedTuple):
    """Trip counts of a loop: least and most for one entry, the total, and every one that occurred."""

    least: int
    most: int
    total: int
    counts: set[int]


class Entered(NamedTuple):
    """Numbers of the blocks that runs have entered, and the trip counts of loops by their numbers."""

    blocks: set[int]
    turns: dict[int, LoopCounts]


def list_entered_blocks(checked: Checked) -> list[Sequence[Stmt]]:
    """Return the blocks of a kernel's roles that runs of it have entered since forget_entered().

    Blocks are bodies of roles, branches and loops.
    """
    return [block for c in _list_compilers(checked) for number, block in enumerate(c.blocks) if number in c.entered]


def list_loop_turns(checked: Checked) -> list[TripCounts]:
    """Return the trip counts of the loops of a kernel's roles in its runs since forget_entered()."""
    return [turns for c in _list_compilers(checked) for turns in c.turns.values()]


def forget_entered(checked: Checked) -> None:
    """Forget the entered blocks and trip counts of a checked kernel, which all checks of its text share."""
    for compiler in _list_compilers(checked):
        compiler.entered.clear()
    for turns in list_loop_turns(checked):
        turns.least, turns.most, turns.total = -1, -1, 0
        turns.counts.clear()


def prepare_code(checked: Checked) -> None:
    """Make the code of a kernel's runs on the CPU, so that forked processes need not."""
    _compile_code(checked, torch.device("cpu"), False, False)


def export_entered_blocks(checked: Checked) -> Entered:
    """Return blocks entered and trip counts since forget_entered(), for another process."""
    blocks: set[int] = set()
    turns: dict[int, LoopCounts] = {}
    for compiler in _list_compilers(checked):
        blocks |= compiler.entered
        for number, t in compiler.turns.items():
            if t.most >= 0:
                n = turns.get(number, LoopCounts(t.least, t.most, 0, set()))
                turns[number] = LoopCounts(min(n.least, t.least), max(n.most, t.most), n.total + t.total, n.counts | t.counts)
    return Entered(blocks, turns)


def merge_entered(checked: Checked, entered: Entered) -> None:
    """Add the coverage of runs in another process to the coverage of this one.

    Args:
        entered: blocks that were entered, and trip counts of loops; both are numbered as in the kernel's text.
    """
    prepare_code(checked)
    compiler = _list_compilers(checked)[0]
    blocks, turns = entered
    compiler.entered |= blocks
    for number, (least, most, total, counts) in turns.items():
        local_turns = compiler.turns[number]
        local_turns.least = least if local_turns.least < 0 else min(local_turns.least, least)
        local_turns.most, local_turns.total = max(local_turns.most, most), local_turns.total + total
        local_turns.counts |= counts


def _list_compilers(checked: Checked) -> list[Compiler]:
    return [code.compiler for code in checked.results.values(_CODE) if code.compiler.data]


def _finish(machine: Machine) -> None:
    """Run a batch and all batches that it splits into."""
    waiting = [machine]
    while waiting:
        batch = waiting.pop()
        try:
            main_loop.run(batch)
        except Diverge as diverged:
            waiting.extend(reversed(batch.split(diverged)))
        except CuirError as error:
            record_fault(batch, error)
            raise
        batch.release()


def _plan_work(launch: Launch, code: _Code, requested: Grid | None) -> int:
    """Choose the grid and distribute the work items; return their number.

    A kernel without tiles(...) is launched as one CTA or cluster.
    """
    tiles = launch.checked.tiles
    grid = None if callable(requested) else requested
    if grid is not None and (not isinstance(grid, int) or isinstance(grid, bool) or grid < 1):
        raise CuirError.of("U112", f"grid must be a positive integer, found {grid!r}", hint="left out, the grid follows the units of work")
    if tiles is None or code.count is None:
        if grid is not None and grid > 1:
            kind = "cluster" if launch.checked.cluster > 1 else "CTA"
            raise CuirError.of(
                "U112",
                f"a grid of {grid:,} for a kernel without units of work, which is launched as one {kind}",
                launch.checked.origin.span,
                "declare the work, and share it: work = tiles(n), and for t in work in each role",
            )
        launch.grid = 1
        launch.work = [range(0)] * launch.grid
        return launch.grid
    scratch = Machine(launch, np.zeros(1, dtype=np.int64))
    launch.batches = 0
    launch.counts.clear()
    w: Worker = scratch.workers[0]
    for instruction in code.before:
        instruction(w)
    count = max(0, require_uniform(code.count(w)))
    launch.budget.require(count, UNIT, tiles.span)
    grid = requested(count) if callable(requested) else grid
    launch.grid = _admit_grid(grid, count) or choose_grid(count, launch.checked.longest_ring)
    launch.work = RUNS[get_declaration("units").name](launch.schedule, count, launch.grid, tiles.dynamic)
    return count


def _admit_grid(grid: int | None, count: int) -> int | None:
    """Return the grid as it is.

    Raises CuirError U112 if far more CTAs than work items would run, all alike.
    """
    if grid is not None and grid > count + IDLE:
        work = f"{count:,} unit{'s' if count > 1 else ''} of work" if count else "no work to give out"
        raise CuirError.of(
            "U112",
            f"a grid of {grid:,} for a kernel with {work}: at most {IDLE:,} CTAs or clusters run that have none, and all of them do the same",
            hint=f"a grid of at most {count + IDLE}; left out, one is chosen",
        )
    return grid


def choose_grid(count: int, ring: int) -> int:
    """Choose a power of two up to 32 as the grid.

    Where there is enough work, each CTA gets so many work items that it comes to the third round of a ring of `ring`
    stages.
    """
    grid = 1
    while grid < 32 and grid * 2 * (2 * ring + 1) <= count:
        grid *= 2
    return grid


def _read_tensors(checked: Checked) -> set[str]:
    """Return the names of tensors that the kernel reads somewhere."""
    return {name for name, modes in find_tensor_modes(checked).items() if "read" in modes}

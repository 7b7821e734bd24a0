"""Options `--exhaustive` and `--replay` of verify and run.

They explore every schedule of small launches, or run one from a file. The exploration is in the library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..checking.checked import Checked, Const
from ..checking.const_defaults import consts_as_json, describe_consts
from ..interp import run
from ..text.diagnostics import CuirError, Diagnostic
from ..text.phrases import ProgressMessage
from .command_inputs import agreeing, read_consts, read_program_consts
from .live_view import ProgressLine
from .output import exit_code, print_errors, print_json, stdout
from .process_setup import goes_on_from
from .task_places import TaskWords, use_executor

if TYPE_CHECKING:
    from ..arguments.binding import Argument
    from ..explore import Exploration, Written
    from ..spec.function_specification import AnySpecification
    from ..syntax.nodes import Program
    from .gpu_stage import Verified
    from .kernel_run import Number


@dataclass(frozen=True)
class ExplorationOptions:
    """Options of an exploration: its time limit, the file for a failing schedule, the form of output.

    page: the file of --html. tasks: options for tasks.
    """

    seconds: float
    out: Path | None
    as_json: bool
    page: Path | None = None
    tasks: TaskWords = TaskWords()


@dataclass(frozen=True)
class SmallLaunches:
    """Sizes of launches that are explored: tiles of a CTA, and key blocks of a tile."""

    tiles: int
    blocks: int


SMALL = SmallLaunches(2, 4)


@dataclass(frozen=True)
class LaunchWords:
    """Arguments of the command line that describe a launch.

    Attributes:
        kernel: Name of the kernel, if the program has several.
        file_name: Name of the program.
        items: Values of consts, as NAME=VALUE.
        dims: Lengths by name.
        scalars: Scalars by name.
        grid: CTAs (or clusters).
        data_seed: Seed of the random tensors.
    """

    kernel: str | None
    file_name: str
    items: Sequence[str]
    dims: Mapping[str, Number]
    scalars: Mapping[str, Number]
    grid: int | None
    data_seed: int


def explore_variant(title: str, verified: Verified, launches: SmallLaunches, options: ExplorationOptions) -> int:
    """Run `cuir verify ... --exhaustive`; return the exit code."""
    from ..bridging import Step
    from ..verification.exhaustive import Explored, check_exhaustively
    from ..verification.spec_dispatch import prepare_launch, require_judgeable
    from .job_views import Steps

    program, checked, spec = verified.program, verified.checked, verified.specification
    require_judgeable(checked, spec)
    as_json, words = options.as_json, options.tasks
    step, explorations = Step("explore"), list[Explored]()
    diagnostics: Sequence[Diagnostic] = ()
    with goes_on_from(words.journal), Steps(title, quiet=as_json) as steps, use_executor(words.on, words.jobs, steps) as executor:

        def tell(detail: str) -> None:
            step.detail = detail
            steps(step)

        def count(done: int, of: int) -> None:
            tell(ProgressMessage(f"{done} of {of} launches", done / of))

        tell("")
        try:
            if words.wanted:
                from .verification_tasks import ExplorationWords, explore_in_tasks

                extent = ExplorationWords(launches.tiles, launches.blocks, options.seconds)
                explorations = explore_in_tasks(verified, extent, executor, words.journal, count)
            else:
                explorations = check_exhaustively(
                    program, checked, spec, launches.tiles, launches.blocks, seconds=options.seconds, progress=tell
                )
            diagnostics = explorations[-1].result.diagnostics
        except CuirError as error:
            if exit_code(error.diagnostics) == 2:  # --tiles, --blocks
                raise
            diagnostics = error.diagnostics
        step.status, step.detail = "failed" if diagnostics else "done", ""
        step.seconds = sum(e.result.seconds for e in explorations)
        steps(step)
    saved = save(explorations[-1].result if explorations else None, options.out)
    if options.page is not None:
        from ..pages.exploration_page import render_exploration_page
        from ..pages.page import write_page

        failing = explorations[-1].case if explorations and explorations[-1].result.schedule is not None else None
        arguments = prepare_launch(program, checked, spec, failing).arguments() if failing is not None else None
        write_page(options.page, render_exploration_page(checked, explorations, diagnostics, arguments))
    if as_json:
        listed = [{"case": str(e.case), "grid": e.grid, **e.result.as_json()} for e in explorations]
        print_json(
            {
                "ok": not diagnostics,
                "diagnostics": [d.as_json() for d in diagnostics],
                "kernel": checked.name,
                "consts": consts_as_json(checked.consts),
                "explorations": listed,
                "written": saved,
                "not_asked": ["contracts", "mask", "numbers"],
            }
        )
        return 1 if diagnostics else 0
    _print_launches(checked, [(e.case.name, e.result) for e in explorations])
    stdout().print("not asked: contracts, mask and numbers; the same command without --exhaustive asks them", style="dim")
    _print_findings(diagnostics, saved)
    return 1 if diagnostics else 0


def explore_or_replay(program: Program, words: LaunchWords, file: Path | None, options: ExplorationOptions) -> int:
    """Run `cuir run ... --exhaustive`, or `--replay` of a file, on random tensors; return the exit code."""
    from ..arguments.binding import bind
    from ..checking.checker import check, pick_kernel
    from ..explore import explore, read_schedule
    from .judged_kernel import remember_judged_kernel
    from .kernel_run import make_arguments

    as_json, dims = options.as_json, words.dims
    written = read_schedule(file) if file is not None else None
    if written is not None and file is not None:
        consts = read_consts(words.items)
        _require_same(written, file, words.kernel, consts, dims, words.grid)
        kernel, consts, dims = written.kernel, {**written.consts, **consts}, {**written.dims, **dims}
        remember_judged_kernel(pick_kernel(program, kernel), consts)
    else:
        picked, consts = read_program_consts(program, words.file_name, words.kernel, words.items)
        kernel = picked.name
    checked = check(program, kernel, consts)

    def make(lengths: Mapping[str, Number]) -> dict[str, Argument]:
        arguments = make_arguments(checked, lengths, words.scalars, words.data_seed, "cpu")
        bind(checked.origin, arguments, checked.consts)
        return arguments

    if written is not None and file is not None:
        return replay(checked, make(dims), written, file, as_json)
    launches = [(dims, words.grid)] if dims or not checked.dims else choose_launches(checked, words.grid)
    of = {"kernel": checked.name, "consts": consts_as_json(checked.consts)}
    explored: list[tuple[str, Exploration]] = []
    for lengths, grid in launches:
        with ProgressLine(f"every schedule of a launch of {checked.name}", as_json) as view:
            result = explore(checked, make(lengths), grid=grid, seconds=options.seconds, progress=view.update)
        explored.append((f"-d {','.join(f'{d}={n}' for d, n in lengths.items())} --grid {grid}", result))
        if not result.ok:
            break
    saved = save(result, options.out)
    if as_json:
        print_json(
            {
                "ok": result.ok,
                "diagnostics": [d.as_json() for d in result.diagnostics],
                **of,
                "exploration": result.as_json(),
                "explorations": [{"launch": launch, **each.as_json()} for launch, each in explored],
                "written": saved,
            }
        )
        return 0 if result.ok else 1
    if len(launches) > 1:
        _print_launches(checked, explored)
    else:
        stdout().print(
            f"{checked.name} with {describe_consts(checked.consts)}: {result.summary()}, {result.seconds:.1f} s",
            style="bold green" if result.ok else "bold red",
            soft_wrap=True,
        )
    _print_findings(result.diagnostics, saved)
    return 0 if result.ok else 1


def _print_launches(checked: Checked, explored: Sequence[tuple[str, Exploration]]) -> None:
    """Print a table of the launches, and that all of them are clean if they are."""
    from .tables import print_table

    rows = [
        (launch, r.verdict, f"{r.seconds:.1f} s", *(f"{n:,}" for n in (r.agents, r.steps, r.states, r.classes))) for launch, r in explored
    ]
    print_table(
        f"every schedule of small launches of {checked.name} with {describe_consts(checked.consts)}",
        ("launch", "verdict", "time", "agents", "steps", "states", "classes"),
        rows,
    )
    if explored and all(r.ok for _, r in explored):
        alike = "; all schedules of a launch are alike" if all(r.alike for _, r in explored) else ""
        stdout().print(f"no deadlock, race, overrun or lapped wait in any schedule of these launches{alike}", style="bold green")


def choose_launches(checked: Checked, grid: int | None) -> list[tuple[dict[str, int], int]]:
    """Choose lengths and grids of small launches, as `cuir verify ... --exhaustive` does.

    The smallest launches come first, since a fault is read most easily there.

    grid: one for all launches.
    """
    from ..attn.verification.problems import Case
    from ..spec.function_specification import FunctionSpecification
    from ..verification.spec_dispatch import make_small_launches

    unjudged = FunctionSpecification(checked.name, lambda: {})  # lengths are drawn from the kernel, numbers are not judged
    launches = make_small_launches(checked, unjudged, SMALL.tiles, SMALL.blocks)
    sizes = [(c.lengths if isinstance(c, Case) else c.sizes, g) for c, g in launches]
    chosen = [({d: n[d] if isinstance(n, Mapping) else getattr(n, d) for d in checked.dims}, grid or g) for n, g in sizes]
    distinct = [x for i, x in enumerate(chosen) if x not in chosen[:i]]
    return sorted(distinct, key=lambda x: math.prod(x[0].values()))


def save(result: Exploration | None, out: Path | None) -> str | None:
    """Write a schedule that fails, if there is one and `out` names a file for it."""
    if result is None or result.schedule is None or out is None:
        return None
    result.schedule.save(out)
    return str(out)


def _print_findings(diagnostics: Sequence[Diagnostic], saved: str | None) -> None:
    """Print errors, and how to replay a schedule."""
    print_errors(diagnostics, False)
    if saved is not None:
        stdout().print(
            f"the schedule is in {saved}; see it fail with data: the same command with --replay {saved} in place of --exhaustive and --out",
            soft_wrap=True,
        )


def replay_variant(
    program: Program,
    kernel: str | None,
    spec: AnySpecification,
    named_consts: Mapping[str, Const],
    file: Path,
    as_json: bool,
    page: Path | None = None,
) -> int:
    """Run `cuir verify ... --replay FILE`; return the exit code.

    `named_consts` are the consts that the command line names, `page` is the file of --html.
    """
    from ..attn.verification.problems import Case
    from ..checking.checker import check, pick_kernel
    from ..explore import read_schedule
    from ..spec.function_specification import FunctionSpecification
    from ..spec.specification import LENGTHS, Lengths
    from ..verification.lengths import Draw
    from ..verification.spec_dispatch import AnyCase, prepare_launch, require_judgeable
    from .judged_kernel import remember_judged_kernel

    written = read_schedule(file)
    _require_same(written, file, kernel, named_consts)
    consts = {**written.consts, **named_consts}
    remember_judged_kernel(pick_kernel(program, written.kernel), consts)
    checked = check(program, written.kernel, consts)
    require_judgeable(checked, spec)
    missing = [d for d in checked.dims if d not in written.dims]
    if missing:
        raise CuirError.of("U124", f"{file} knows no length of {', '.join(missing)}", hint="it is a schedule of another program")
    case: AnyCase
    if isinstance(spec, FunctionSpecification):
        case = Draw("replayed", {d: written.dims[d] for d in checked.dims})
    else:
        case = Case("replayed", Lengths(*(written.dims[d] for d in LENGTHS)))
    launch = prepare_launch(program, checked, spec, case)
    if page is not None:
        from ..pages.exploration_page import render_schedule_page
        from ..pages.page import write_page

        write_page(page, render_schedule_page(checked, written, launch.fresh().arguments(), file.name))
    return replay(checked, launch.arguments(), written, file, as_json)


def _require_same(
    written: Written,
    file: Path,
    kernel: str | None,
    consts: Mapping[str, Const],
    dims: Mapping[str, Number] | None = None,
    grid: int | None = None,
) -> None:
    """Check that the command line names the launch of the file, for which the steps were found.

    Raises CuirError U103 or U124.
    """
    if kernel is not None and kernel != written.kernel:
        raise CuirError.of(
            "U124", f"{file} holds a schedule of the kernel `{written.kernel}`, not of `{kernel}`", hint=f"-k {written.kernel}"
        )
    agreeing(written.consts, consts, str(file))
    agreeing(written.dims, dims or {}, str(file), "-d")
    if grid is not None and grid != written.grid:
        raise CuirError.of("U103", f"--grid {grid} contradicts {file}: the grid is {written.grid} there", hint="leave out --grid")


def replay(checked: Checked, arguments: Mapping[str, Argument], written: Written, file: Path, as_json: bool) -> int:
    """Run a schedule with data. A fault is shown as of any run (exit code 1)."""
    run(checked, arguments, schedule=written.schedule(str(file)), grid=written.grid)
    steps = len(written.steps)
    if as_json:
        of = {"kernel": checked.name, "consts": consts_as_json(checked.consts)}
        print_json({"ok": True, "diagnostics": [], **of, "steps": steps, "expected": written.code})
    else:
        stdout().print(
            f"no fault under this schedule of {steps} step{'s' * (steps != 1)}, which was written for {written.code}: {written.message}",
            soft_wrap=True,
        )
    return 0

"""Command `mutate`: faulty programs made from a right one, and which of them verification refuses.

The work is in cuir/mutation.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...text.diagnostics import CuirError
from ...text.phrases import count_noun
from ..completion import complete_program, complete_specification
from ..live_view import ProgressLine
from ..options import KERNEL, Consts, GivenDtype, HtmlReport, Json, KernelName, Level, On, Parameters, Processes, read_level
from ..output import print_json, stdout
from ..process_setup import configure_process

if TYPE_CHECKING:
    from ...mutation import Judged, MutateReport


def mutate(
    program: Annotated[
        str, typer.Argument(help="a .cuir or .py file, or a name out of `cuir corpus`", autocompletion=complete_program, show_default=False)
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="SPEC",
            help="what the program computes: a variant, or FILE.py with a function `reference` (known for programs of the corpus)",
            autocompletion=complete_specification,
            show_default=False,
        ),
    ] = None,
    param: Parameters = None,
    kernel: KernelName = None,
    dtype: GivenDtype = None,
    head_dim: Annotated[
        int | None,
        typer.Option(
            "--head-dim",
            metavar="N",
            help="length of a head; 64 takes half the time of 128",
            show_default="the file's, else 128",
            rich_help_panel=KERNEL,
        ),
    ] = None,
    const: Consts = None,
    level: Level = "quick",
    fault: Annotated[
        list[int] | None,
        typer.Option("--class", metavar="N", help="only faults of this class, 1 to 15; several allowed", show_default=False),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, metavar="N", help="at most so many mutants, drawn from all classes alike", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="with --limit: seed of the choice")] = 0,
    jobs: Processes = None,
    on: On = "local",
    seconds: Annotated[float, typer.Option("--time-limit", min=1, metavar="SECONDS", help="processor time for one mutant")] = 60,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="a file of JSON lines, from which an interrupted run goes on", show_default=False),
    ] = None,
    page: HtmlReport = None,
    as_json: Json = False,
) -> None:
    """Measure the verification: plant faults in a right program, and show those that no stage refuses.

    Examples:
        cuir mutate gemm --limit 20
        cuir mutate flash_fwd_sm90 --head-dim 64 --class 3 --out mutants.jsonl
    """
    from ...checking.checker import pick_kernel
    from ...checking.const_defaults import consts_as_json, describe_consts, parenthesise_consts, with_defaults
    from ...mutation import FAULTS, Job, MutateReport, choose_mutants, mutants, run
    from ...syntax.printer import show
    from ..command_inputs import (
        find_computed,
        find_corpus_consts,
        make_unspecified_error,
        read_kernel_consts,
        read_program,
        read_specification,
    )
    from ..process_setup import goes_on_from
    from ..task_places import use_executor

    configure_process()
    wrong = [f for f in fault or () if f not in FAULTS]
    if wrong:
        raise CuirError.of(
            "U123", f"there is no class of faults {wrong[0]}", hint="; ".join(f"{n}: {description}" for n, description in FAULTS.items())
        )
    source, corpus_entry = read_program(program), find_computed(program, kernel)
    picked = pick_kernel(source, kernel or (corpus_entry[0] if corpus_entry is not None else None))
    if corpus_entry is None and against is None:
        raise make_unspecified_error(program)
    variant = against or (corpus_entry[1].specification if corpus_entry is not None else "")
    load = partial(read_specification, variant, tuple(param or ()))
    consts = read_kernel_consts(picked, dtype, head_dim, const or (), find_corpus_consts(program, picked))
    job = Job(load, picked.name, consts, read_level(level), seconds)
    specialised = with_defaults(picked, consts)
    todo = choose_mutants(mutants(source, job.kernel), fault or (), limit, seed)
    title = f"{count_noun(len(todo), 'mutant')} of {program} against {variant}{parenthesise_consts(specialised)}"
    with goes_on_from(out), _MutantsView(title, quiet=as_json) as bar, use_executor(on, jobs, bar) as executor:
        report = MutateReport(run(source, todo, job, out, executor, bar))
    of = {"kernel": job.kernel, "against": variant, "consts": consts_as_json(specialised), "level": job.level}
    if page is not None:
        from ...pages.mutation_page import render_mutation_page
        from ...pages.page import write_page

        write_page(page, render_mutation_page(report, {**of, "consts": describe_consts(specialised), "seed": seed}))
    if as_json:
        print_json({"ok": True, "diagnostics": [], **of, "seed": seed, "original": show(source), **report.as_json()})
    else:
        _print(report, describe_consts(specialised))


def _print(report: MutateReport, consts: str) -> None:
    """Print the table of mutants, and those that no stage refuses."""
    from ...mutation import FAULTS
    from ...mutation.mutation_report import SHORT
    from ..tables import print_diff, print_table

    rows = report.rows()
    columns = [
        c for c in range(len(SHORT) - 1) if SHORT[c] not in ("every", "same", "time", "crash") or rows[-1][c]
    ]  # the fault stands below
    print_table(
        f"mutants of the kernel with {consts}, by class, and what refused them",
        [NAMES.get(SHORT[c], SHORT[c]) for c in columns],
        [[row[c] for c in columns] for row in rows],
    )
    for fault in sorted({r.fault for r in report.results}):
        stdout().print(f"{fault:>5}  {FAULTS[fault]}", style="dim", soft_wrap=True)
    stdout().print()
    for verdict, style in (("survived", "bold yellow"), ("crashed", "bold red"), ("out of time", "bold yellow")):
        for r in report.of(verdict):
            head = f"{verdict}: class {r.fault}, {r.operator} at {r.place[0]}:{r.place[1]}: {r.what}"
            stdout().print(f"{head} {r.reason}".rstrip(), style=style, soft_wrap=True)
            print_diff(r.diff.splitlines()[2:])
            stdout().print()
    stdout().print(report.summary(), style="bold", soft_wrap=True)


NAMES = {  # of columns, in full
    "form": "well-formed",
    "contr.": "contracts",
    "sched.": "schedules",
    "numb.": "numbers",
    "surv.": "survived",
    "equiv.": "equivalent",
    "same": "same result",
    "time": "out of time",
    "crash": "crashed",
}


class _MutantsView(ProgressLine):
    """View of mutants as they are judged."""

    finished = 0

    def __call__(self, finished: int, total: int, judged: Judged) -> None:
        self.finished = finished
        verdict = f"{judged.verdict} {judged.stage} {judged.code}".strip()
        self.update(f"{finished} of {total}; the last of class {judged.fault}: {verdict}", finished / total)

    def get_step(self) -> str:
        """Return the mutant that was under way."""
        return f"mutant {self.finished + 1}"

    def list_interrupted(self) -> list[str]:
        """Return the number of mutants that are judged."""
        return [f"interrupted after {self.finished} mutants"]

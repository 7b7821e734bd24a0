"""Command `eval`: success rates of models that adapt a kernel, and reasons of failures.

Requests and counts are in llm/; here are the options and the output.
"""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...text.diagnostics import CuirError
from ..command_defaults import EXPERT
from ..completion import complete_specification
from ..live_view import ProgressLine
from ..model_options import ASKING, MODEL, Attempts, Money, Temperature, Timeout, Tokens
from ..options import Consts, GivenDtype, HeadDim, HtmlReport, Json, Level, On, Origin, read_level
from ..output import print_json, stderr, stdout
from ..process_setup import configure_process

if TYPE_CHECKING:
    from llm.evaluate import Cell, Evaluated, ProgressCount
    from llm.limited_processes import LimitedProcesses
    from llm.messages import Asks
    from llm.passes.transfer import Transfer
    from llm.scores import Row
    from llm.transcript import Recorder

SAMPLES = 5


def evaluate(
    context: typer.Context,
    variants: Annotated[
        list[str] | None,
        typer.Argument(
            help="what the kernel is adapted to; left out: every variant of `cuir corpus`",
            autocompletion=complete_specification,
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="PROVIDER/NAME",
            help="a model to ask, as litellm names it; several allowed",
            show_default=f"the variable {MODEL}",
            rich_help_panel=ASKING,
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            "-k", "--samples", min=1, max=64, metavar="N", help="conversations for each variant and model", rich_help_panel=ASKING
        ),
    ] = SAMPLES,
    attempts: Attempts = 5,
    origin: Origin = EXPERT,
    origin_spec: Annotated[
        str | None,
        typer.Option("--from", metavar="SPEC", help="what the origin computes (known for programs of the corpus)", show_default=False),
    ] = None,
    dtype: GivenDtype = None,
    head_dim: HeadDim = None,
    const: Consts = None,
    level: Level = "quick",
    budget: Money = None,
    tokens: Tokens = None,
    temperature: Temperature = None,
    timeout: Timeout = 600,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=64, metavar="N", help="conversations at a time")] = 1,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1, metavar="SECONDS", help="processor time to judge one answer", rich_help_panel=ASKING)
    ] = 240,
    on: On = "local",
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FOLDER",
            help="write every exchange there, a file for each sample",
            show_default=False,
            rich_help_panel=ASKING,
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="FOLDER",
            help="judge the answers of these transcripts, ask no model",
            show_default=False,
            rich_help_panel=ASKING,
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="FOLDER",
            help="a folder for answers: the same request is asked once",
            show_default=False,
            rich_help_panel=ASKING,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="the results file", show_default="benchmarks/results/eval-DATE.jsonl")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="ask nothing: the results in --out, with table and plot where there are none yet")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="forget what an earlier run has found")] = False,
    page: HtmlReport = None,
    as_json: Json = False,
) -> int:
    """Measure how often language models adapt kernels rightly.

    The results are pass@1, 3 and 5 by variant and model, cost, and why attempts failed.

    Examples:
        cuir eval prefix_lm sliding_window --model PROVIDER/NAME --samples 3
        cuir eval --replay transcripts
    """
    from llm.budget import Budget
    from llm.evaluate import Rows, read
    from llm.evaluate import evaluate as run

    from ..command_inputs import results_file
    from ..conversation_pages import write_evaluation_page
    from ..options import not_beside
    from ..process_setup import goes_on_from

    if show:
        if out is None:
            raise CuirError.of("U100", "--show needs the results file", hint="--out FILE")
        not_beside(
            context,
            "show",
            "asks nothing",
            "variants",
            "model",
            *(() if page is not None else ("replay", "record")),  # the page shows the conversations
            "samples",
            "attempts",
            "origin",
            "origin_spec",
            "dtype",
            "head_dim",
            "const",
            "level",
            "budget",
            "tokens",
            "temperature",
            "timeout",
            "cache",
            "jobs",
            "on",
            "time_limit",
            "fresh",
        )
        head, results = read(out)
        if page is not None:
            write_evaluation_page(page, head, results, record or replay)
        return _finish(head, results, out, True, as_json, anew=False)
    not_beside(
        context,
        "replay",
        "takes answers and settings from its files",
        "model",
        "record",
        "samples",
        "attempts",
        "origin",
        "origin_spec",
        "dtype",
        "head_dim",
        "const",
        "level",
        "budget",
        "tokens",
        "temperature",
        "timeout",
        "cache",
    )
    configure_process()
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    path = results_file(out or Path("benchmarks") / "results" / f"eval-{today}.jsonl")
    with _use_processes(on) as processes:
        if replay is not None:
            of, cells, head = _judge_recorded(replay, variants or (), processes, time_limit)
        else:
            requested = _TransferTask(
                origin,
                origin_spec,
                dtype,
                head_dim,
                list(const or ()),
                read_level(level),
                attempts,
                temperature,
                timeout,
                time_limit,
                cache,
                record,
                processes,
                samples,
            )
            cells = requested.cells(variants or (), model or ())
            of, head = requested, requested.head()
        rows = Rows(path, {**head, "date": today, "command": _command(sys.argv[1:])}, fresh)
        with goes_on_from(path, fresh), _EvalView(f"{len(cells)} samples of {len({c.variant for c in cells})} variants", as_json) as view:
            complete = run(cells, of, rows, Budget(usd=budget, tokens=tokens), jobs, view)
    if page is not None:
        write_evaluation_page(page, rows.head, rows.rows, record or replay)
    return _finish(rows.head, rows.rows, path, complete, as_json)


@contextmanager
def _use_processes(on: str) -> Iterator[LimitedProcesses]:
    """Return a context with the processes that judge answers: of this machine, or of a cluster. Raises CuirError U100, U514, U515."""
    from llm.limited_processes import ClusterProcesses, LimitedProcesses

    from ...campaigns.executors import make_executor
    from ...campaigns.ray_executor import RayExecutor

    executor = make_executor(on)
    if not isinstance(executor, RayExecutor):
        with LimitedProcesses() as processes:
            yield processes
        return
    with executor:
        stderr().print(executor.describe(), soft_wrap=True)
        yield ClusterProcesses(executor)


@dataclass
class _TransferTask:
    """Variants as tasks for models to ask (see llm.evaluate.Evaluated)."""

    origin: str
    origin_spec: str | None  # required for an origin outside of the corpus
    dtype: str | None
    head_dim: int | None
    const: list[str]
    level: Any
    most: int
    temperature: float | None
    timeout: float
    seconds: float
    cache: Path | None
    record: Path | None
    processes: LimitedProcesses
    samples: int
    _tasks: dict[str, Transfer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from ...checking.checker import pick_kernel
        from ..command_inputs import find_computed, find_corpus_consts, read_kernel_consts, read_program

        self.program = read_program(self.origin)
        picked = pick_kernel(self.program, None)
        self.consts = read_kernel_consts(picked, self.dtype, self.head_dim, self.const, find_corpus_consts(self.origin, picked))
        self.kernel = picked.name
        table = find_computed(self.origin, self.kernel)
        self.specification = self.origin_spec or (table[1].specification if table is not None else None)

    def cells(self, variants: Sequence[str], models: Sequence[str]) -> list[Cell]:
        """Return the samples: the first of all variants and models, then the second of all, and so on.

        An evaluation that is cut short then has as many of each. Raises CuirError for unknown names.
        """
        import corpus
        from llm.client import library
        from llm.evaluate import Cell

        from ..model_options import find_model_name

        names = list(variants) or [v for v in corpus.variants() if v != self.specification]
        model_names = list(models) or [find_model_name(None)]
        library()
        for name in names:
            self._task(name)
        return [Cell(name, m, sample) for sample in range(self.samples) for name in names for m in model_names]

    def head(self) -> dict[str, Any]:
        """Return the head of the results file."""
        from llm.prompting import prompts_hash

        from ...performance.search.space import plain

        return {
            "pass": "transfer",
            "origin": self.origin,
            "consts": plain(self.consts),
            "attempts": self.most,
            "level": self.level,
            "temperature": self.temperature,
            "prompts": prompts_hash(),
            "replayed": False,
        }

    def _task(self, variant: str) -> Transfer:
        """Return the task of a variant."""
        if variant not in self._tasks:
            self._tasks[variant] = _transfer(self.as_task(variant), self.processes, self.seconds)
        return self._tasks[variant]

    def as_task(self, variant: str) -> dict[str, Any]:
        """Return a task as transcripts hold it."""
        from ...performance.search.space import plain

        return {
            "pass": "transfer",
            "origin": self.origin,
            "kernel": self.kernel,
            "to": variant,
            "parameters": [],
            "from": self.specification,
            "consts": plain(self.consts),
            "level": self.level,
            "samples": self.samples,
            "attempts": self.most,
            "temperature": self.temperature,
        }

    # ---- Evaluated
    def task(self, cell: Cell) -> Transfer:
        """Return the task of a sample."""
        return self._tasks[cell.variant]

    def attempts(self, cell: Cell) -> int:
        """Return the number of attempts of a sample."""
        return self.most

    def asks(self, cell: Cell) -> Asks:
        """Return the client for a sample."""
        from llm.client import Client

        return Client(cell.model, self.temperature, timeout_s=self.timeout, cache=self.cache)

    def recorder(self, cell: Cell) -> Recorder | None:
        """Return the recorder of a sample, None without --record."""
        from llm.transcript import Recorder

        if self.record is None:
            return None
        name = "-".join([_slug(cell.variant), _slug(cell.model), str(cell.sample)])
        return Recorder(self.record / f"{name}.jsonl", self.as_task(cell.variant), cell.model)


def _transfer(task: Mapping[str, Any], processes: LimitedProcesses, seconds: float) -> Transfer:
    """Return the pass of a task as transcripts hold it.

    Raises CuirError for a missing program or specification.
    """
    from llm.passes.transfer import Job, Transfer

    from ...performance.search.space import from_plain
    from ..command_inputs import read_program, read_specification

    load = partial(read_specification, task["to"], tuple(task["parameters"]))
    origin_specification = read_specification(task["from"], ()) if task["from"] is not None else None
    return Transfer(
        Job(read_program(task["origin"]), task["kernel"], load, from_plain(task["consts"]), task["level"]),
        origin_specification,
        processes,
        seconds,
    )


def _judge_recorded(
    folder: Path, variants: Sequence[str], processes: LimitedProcesses, seconds: float
) -> tuple[Evaluated, list[Cell], dict[str, Any]]:
    """Return the samples of recorded transcripts, and the head of the results."""
    from llm.recorded_samples import Recorded

    of = Recorded(folder, "transfer", lambda task: _transfer(task, processes, seconds), variants)
    as_recorded = "as recorded"
    tasks = [replayed.transcript.task for replayed, _ in of.cells.values()]
    head = {
        "pass": "transfer",
        "origin": _common([t.get("origin") for t in tasks], as_recorded),
        "consts": _common([t.get("consts") for t in tasks], as_recorded),
        "attempts": as_recorded,
        "level": as_recorded,
        "temperature": as_recorded,
        "prompts": as_recorded,
        "replayed": True,
    }
    return of, list(of.cells), head


def _common(values: Sequence[Any], otherwise: str) -> Any:
    """Return the value that all have, or `otherwise`."""
    return values[0] if all(v == values[0] for v in values) else otherwise


class _EvalView(ProgressLine):
    """View of an evaluation."""

    def __call__(self, progress: ProgressCount) -> None:
        if progress.row is not None:
            self.estimate.update(progress.finished / progress.of)
            self.log(f"{progress.finished:3d} of {progress.of}  {_line(progress.row)}")
        elif progress.event is not None:
            self.update(
                f"{progress.finished} of {progress.of}; {progress.cell}, attempt {progress.event.attempt}: {progress.event.kind}; {progress.event.budget.summary()}"
            )


def _line(row: Row) -> str:
    """Format a sample as a line."""
    from llm.scores import right

    came = f"right at attempt {row['right_at']}" if right(row) else f"cut short: {row['incomplete']}" if "incomplete" in row else "failed"
    stages = " ".join(a["stage"] + (f"({a['codes'][0]})" if a["codes"] else "") for a in row["attempts"])
    return f"{row['variant']} {row['model']} #{row['sample']}: {came}  [{stages}]  {row['tokens']:,} tokens"


def _describe_origin(head: Mapping[str, Any]) -> str:
    """Name the adapted kernel and its consts."""
    from ...checking.const_defaults import describe_consts

    consts = head.get("consts")
    if isinstance(consts, Mapping):
        return f"{head['origin']} with {describe_consts(consts)}"
    return "origins and consts as each transcript names them"


def _finish(head: Mapping[str, Any], rows: Sequence[Row], path: Path, complete: bool, as_json: bool, anew: bool = True) -> int:
    """Write table and plot beside the results file; return the exit code.

    `anew`: existing ones are overwritten.
    """
    from llm.scores import HEAD, KS, REASONS, SOURCE, by_variant, drift, entries, markdown, plot, scores, why_failed

    from ..tables import print_table

    model_scores, missing = scores(rows), ""
    page, picture = path.with_suffix(".md"), path.with_suffix(".svg")
    try:
        if anew or not page.exists():
            page.write_text(markdown(head, rows), encoding="utf-8")
    except OSError as error:
        raise CuirError.of("U108", f"cannot write {page}: {error.strerror}", hint="name another file with --out") from None
    try:
        if model_scores and (anew or not picture.exists()):
            plot(model_scores, picture)
    except CuirError as error:
        if error.diagnostics[0].code != "U120":
            raise
        missing = error.diagnostics[0].message
    if as_json:
        print_json(
            {
                "ok": complete,
                "diagnostics": [],
                "complete": complete,
                "missing": missing or None,
                **head,
                "requests_that_drifted": sum(r.get("drifted", 0) for r in rows),
                "drift": drift(rows) or None,
                "rows": [dict(r) for r in rows],
                "scores": [s.as_json() for s in model_scores],
                "files": [str(p) for p in (path, page, picture) if p.exists()],
            }
        )
        return 0
    console = stdout()
    console.print(_describe_origin(head), highlight=False, soft_wrap=True)
    half, lines = 1 + 2 * len(KS), entries(model_scores)
    print_table("models", ("model", *(f"@{k}" for k in KS), *(f"first @{k}" for k in KS)), [line[:half] for line in lines])
    console.print(f"pass@k with repairs, and of first answers alone. {SOURCE}", style="dim", highlight=False, soft_wrap=True)
    print_table("what it took", ("model", *HEAD[half:]), [(line[0], *line[half:]) for line in lines[:-1]])
    print_table("variants", ("variant", "model", "right", "attempts of each sample", "why attempts failed"), by_variant(rows))
    reason_columns = [i for i, r in enumerate(REASONS, 1) if any(s.reasons.get(r) for s in model_scores)]
    if reason_columns:
        print_table(
            "why attempts failed",
            ("model", *(REASONS[i - 1] for i in reason_columns), "most frequent codes"),
            [(w[0], *(w[i] for i in reason_columns), w[-1]) for w in why_failed(model_scores)],
        )
    if note := drift(rows):
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    console.print(f"in {path}, {page}" + (f"; left out: {missing}" if missing else f", {picture}"), soft_wrap=True)
    if not complete:
        stderr().print("not all samples came to their end (budget, or no answer): the same command goes on from here", soft_wrap=True)
    return 0


def _command(words: Sequence[str]) -> str:
    """Return the command line without options that do not matter to the figures: output files and formats."""
    places = ("--out", "--record", "--cache")
    relevant = [
        w
        for w, before in zip(words, ("", *words))
        if w not in (*places, "--fresh", "--json") and before not in places and not w.startswith(tuple(f"{p}=" for p in places))
    ]
    return shlex.join(["cuir", *relevant])


def _slug(name: str) -> str:
    """Return a name as part of a file name."""
    return "".join(c if c.isalnum() or c in "._" else "_" for c in name)

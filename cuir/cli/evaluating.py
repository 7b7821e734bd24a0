"""`cuir eval`: how often models adapt a kernel rightly, and why they fail. What is asked and counted is in llm/; here is what the command takes and shows."""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..text.diagnostics import CuirError
from .asking import MODEL, Attempts, Money, Temperature, Timeout, Tokens
from .completion import complete_specification
from .defaults import EXPERT
from .jobs import Consts, GivenDtype, HeadDim, Json, Level, Origin, _level, _one_thread
from .measuring_view import _View
from .output import print_json, stderr, stdout

if TYPE_CHECKING:
    from llm.apart import Apart
    from llm.evaluate import Cell, Evaluated, Told
    from llm.messages import Asks
    from llm.passes.transfer import Transfer
    from llm.scores import Row
    from llm.transcript import Recorder

SAMPLES = 5


def evaluate(
    context: typer.Context,
    variants: Annotated[list[str] | None, typer.Argument(help="what the kernel is adapted to (left out: every variant of `cuir corpus`)", autocompletion=complete_specification, show_default=False)] = None,
    model: Annotated[list[str] | None, typer.Option("--model", help=f"a model to ask, as litellm names it; several allowed; else the variable {MODEL}", show_default=False)] = None,
    samples: Annotated[int, typer.Option("-k", "--samples", min=1, max=64, help="conversations for each variant and model")] = SAMPLES,
    attempts: Attempts = 5, origin: Origin = EXPERT,
    origin_spec: Annotated[str | None, typer.Option("--from", help="what the origin computes (known for programs of the corpus)", show_default=False)] = None,
    dtype: GivenDtype = None, head_dim: HeadDim = None, const: Consts = None, level: Level = "quick",
    budget: Money = None, tokens: Tokens = None, temperature: Temperature = None, timeout: Timeout = 600,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=64, help="conversations at a time")] = 1,
    time_limit: Annotated[float, typer.Option("--time-limit", min=1, help="seconds of processor time to judge one answer")] = 240,
    record: Annotated[Path | None, typer.Option("--record", help="a folder: write every exchange there, a file for each sample", show_default=False)] = None,
    replay: Annotated[Path | None, typer.Option("--replay", help="a folder of transcripts: judge their answers, ask no model", show_default=False)] = None,
    cache: Annotated[Path | None, typer.Option("--cache", help="a folder for answers: the same request is asked once", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("--out", help="the results file (left out: benchmarks/results/eval-DATE.jsonl)", show_default=False)] = None,
    show: Annotated[bool, typer.Option("--show", help="ask nothing: the results in --out, with table and plot where there are none yet")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="forget what an earlier run has found")] = False,
    as_json: Json = False,
) -> int:  # fmt: skip
    """Measure models: variants x models, several conversations each: pass@1, 3 and 5, cost, and why attempts failed."""
    from llm.apart import Apart
    from llm.budget import Budget
    from llm.evaluate import Rows, read
    from llm.evaluate import evaluate as run

    from .inputs import results_file
    from .interruption import goes_on_from
    from .together import not_beside

    if show:
        if out is None:
            raise CuirError.of("U100", "--show needs the results file", hint="--out FILE")
        not_beside(context, "show", "asks nothing", "variants", "model", "replay", "record", "samples", "attempts", "origin", "origin_spec", "dtype", "head_dim", "const", "level", "budget",
                   "tokens", "temperature", "timeout", "cache", "jobs", "time_limit", "fresh")  # fmt: skip
        return _finish(*read(out), out, True, as_json, anew=False)
    not_beside(context, "replay", "takes answers and settings from its files", "model", "record", "samples", "attempts", "origin", "origin_spec", "dtype", "head_dim", "const", "level",
               "budget", "tokens", "temperature", "timeout", "cache")  # fmt: skip
    _one_thread()
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    path = results_file(out or Path("benchmarks") / "results" / f"eval-{today}.jsonl")
    with Apart() as apart:
        if replay is not None:
            of, cells, head = _recorded(replay, variants or (), apart, time_limit)
        else:
            asked = _Asked(
                origin,
                origin_spec,
                dtype,
                head_dim,
                list(const or ()),
                _level(level),
                attempts,
                temperature,
                timeout,
                time_limit,
                cache,
                record,
                apart,
                samples,
            )
            cells = asked.cells(variants or (), model or ())
            of, head = asked, asked.head()
        rows = Rows(path, {**head, "date": today, "command": _command(sys.argv[1:])}, fresh)
        with goes_on_from(path, fresh), _EvalView(f"{len(cells)} samples of {len({c.variant for c in cells})} variants", as_json) as view:
            complete = run(cells, of, rows, Budget(usd=budget, tokens=tokens), jobs, view)
    return _finish(rows.head, rows.rows, path, complete, as_json)


@dataclass
class _Asked:
    """Variants as tasks for models that are asked (see llm.evaluate.Evaluated)."""

    origin: str
    origin_spec: str | None  # what it computes, if its file is none of the corpus
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
    apart: Apart
    samples: int
    _tasks: dict[str, Transfer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from ..checking.checker import pick_kernel
        from .inputs import computed, known_consts, read_kernel_consts, read_program

        self.program = read_program(self.origin)
        picked = pick_kernel(self.program, None)
        self.consts = read_kernel_consts(picked, self.dtype, self.head_dim, self.const, known_consts(self.origin, picked))
        self.kernel = picked.name
        table = computed(self.origin, self.kernel)
        self.known = self.origin_spec or (table[1].specification if table is not None else None)

    def cells(self, variants: Sequence[str], models: Sequence[str]) -> list[Cell]:
        """Sample after sample, each of all variants and models, so that an evaluation that is cut short has as many of each. Raises CuirError for what is not there."""
        import corpus
        from llm.client import library
        from llm.evaluate import Cell

        from .asking import configured

        names = list(variants) or [v for v in corpus.variants() if v != self.known]
        asked = list(models) or [configured(None)]
        library()
        for name in names:
            self._task(name)
        return [Cell(name, m, sample) for sample in range(self.samples) for name in names for m in asked]

    def head(self) -> dict[str, Any]:
        from llm.prompting import prompts_hash

        from ..tuning.space import plain

        return {"pass": "transfer", "origin": self.origin, "consts": plain(self.consts), "attempts": self.most, "level": self.level,
                "temperature": self.temperature, "prompts": prompts_hash(), "replayed": False}  # fmt: skip

    def _task(self, variant: str) -> Transfer:
        if variant not in self._tasks:
            self._tasks[variant] = _transfer(self.written(variant), self.apart, self.seconds)
        return self._tasks[variant]

    def written(self, variant: str) -> dict[str, Any]:
        """A task as transcripts hold it."""
        from ..tuning.space import plain

        return {"pass": "transfer", "origin": self.origin, "kernel": self.kernel, "to": variant, "parameters": [], "from": self.known, "consts": plain(self.consts),
                "level": self.level, "samples": self.samples, "attempts": self.most, "temperature": self.temperature}  # fmt: skip

    # ---- Evaluated
    def task(self, cell: Cell) -> Transfer:
        return self._tasks[cell.variant]

    def attempts(self, cell: Cell) -> int:
        return self.most

    def asks(self, cell: Cell) -> Asks:
        from llm.client import Client

        return Client(cell.model, self.temperature, timeout_s=self.timeout, cache=self.cache)

    def recorder(self, cell: Cell) -> Recorder | None:
        from llm.transcript import Recorder

        if self.record is None:
            return None
        name = "-".join([_slug(cell.variant), _slug(cell.model), str(cell.sample)])
        return Recorder(self.record / f"{name}.jsonl", self.written(cell.variant), cell.model)


def _transfer(task: Mapping[str, Any], apart: Apart, seconds: float) -> Transfer:
    """The pass of a task as transcripts hold it. Raises CuirError for a program or a specification that is not there."""
    from llm.passes.transfer import Job, Transfer

    from ..tuning.space import from_plain
    from .inputs import read_program, read_specification

    load = partial(read_specification, task["to"], tuple(task["parameters"]))
    known = read_specification(task["from"], ()) if task["from"] is not None else None
    return Transfer(
        Job(read_program(task["origin"]), task["kernel"], load, from_plain(task["consts"]), task["level"]), known, apart, seconds
    )


def _recorded(folder: Path, variants: Sequence[str], apart: Apart, seconds: float) -> tuple[Evaluated, list[Cell], dict[str, Any]]:
    from llm.recorded import Recorded

    of = Recorded(folder, "transfer", lambda task: _transfer(task, apart, seconds), variants)
    said = "as recorded"
    head = {
        "pass": "transfer",
        "origin": said,
        "consts": said,
        "attempts": said,
        "level": said,
        "temperature": said,
        "prompts": said,
        "replayed": True,
    }
    return of, list(of.cells), head


class _EvalView(_View):
    def __call__(self, told: Told) -> None:
        if told.row is not None:
            self.note(f"{told.done:3d} of {told.of}  {_line(told.row)}")
        elif told.event is not None:
            self.update(
                f"{told.done} of {told.of}; {told.cell}, attempt {told.event.attempt}: {told.event.kind}; {told.event.budget.summary()}"
            )


def _line(row: Row) -> str:
    """A sample in a line."""
    from llm.scores import right

    came = f"right at attempt {row['right_at']}" if right(row) else f"cut short: {row['incomplete']}" if "incomplete" in row else "failed"
    stages = " ".join(a["stage"] + (f"({a['codes'][0]})" if a["codes"] else "") for a in row["attempts"])
    return f"{row['variant']} {row['model']} #{row['sample']}: {came}  [{stages}]  {row['tokens']:,} tokens"


def _finish(head: Mapping[str, Any], rows: Sequence[Row], path: Path, complete: bool, as_json: bool, anew: bool = True) -> int:
    """Table and plot beside the results file; returns the exit code. anew: those that are there are written again."""
    from llm.figures import plot
    from llm.scores import HEAD, KS, REASONS, SOURCE, by_variant, drift, entries, markdown, scores, why_failed

    from .tables import print_table

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
        print_json({"ok": complete, "diagnostics": [], "complete": complete, "missing": missing or None, **head,
                    "requests_that_drifted": sum(r.get("drifted", 0) for r in rows), "drift": drift(rows) or None, "rows": [dict(r) for r in rows],
                    "scores": [s.as_json() for s in model_scores],
                    "files": [str(p) for p in (path, page, picture) if p.exists()]})  # fmt: skip
        return 0
    console = stdout()
    half, lines = 1 + 2 * len(KS), entries(model_scores)
    print_table("models", ("model", *(f"@{k}" for k in KS), *(f"first @{k}" for k in KS)), [line[:half] for line in lines])
    console.print(f"pass@k with repairs, and of first answers alone. {SOURCE}", style="dim", highlight=False, soft_wrap=True)
    print_table("what it took", ("model", *HEAD[half:]), [(line[0], *line[half:]) for line in lines[:-1]])
    print_table("variants", ("variant", "model", "right", "attempts of each sample", "why attempts failed"), by_variant(rows))
    shown = [i for i, r in enumerate(REASONS, 1) if any(s.reasons.get(r) for s in model_scores)]
    if shown:
        print_table(
            "why attempts failed",
            ("model", *(REASONS[i - 1] for i in shown), "most frequent codes"),
            [(w[0], *(w[i] for i in shown), w[-1]) for w in why_failed(model_scores)],
        )
    if said := drift(rows):
        console.print(f"note: {said}", highlight=False, soft_wrap=True)
    console.print(f"in {path}, {page}" + (f"; left out: {missing}" if missing else f", {picture}"), soft_wrap=True)
    if not complete:
        stderr().print("not all samples came to their end (budget, or no answer): the same command goes on from here", soft_wrap=True)
    return 0


def _command(words: Sequence[str]) -> str:
    """The command line without what does not matter to the figures: where they and the answers went, how they were shown."""
    places = ("--out", "--record", "--cache")
    kept = [
        w
        for w, before in zip(words, ("", *words))
        if w not in (*places, "--fresh", "--json") and before not in places and not w.startswith(tuple(f"{p}=" for p in places))
    ]
    return shlex.join(["cuir", *kept])


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "_" for c in name)

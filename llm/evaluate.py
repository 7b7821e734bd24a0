"""Evaluation of models: variants x models x samples, each sample a separate conversation.

Rows go to a file from which an interrupted run continues. A pass makes a variant a task; scores.py computes the
figures.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from cuir.text.diagnostics import CuirError
from cuir.text.jsontext import append_line, has_content

from .budget import Budget
from .loop import Attempt, Event, Outcome, Pass, Progress, Records, improve
from .messages import Answer, Asks, Message
from .scores import RIGHT, Row


@dataclass(frozen=True)
class Cell:
    """Sample of an evaluation: a variant, a model, the sample's number."""

    variant: str
    model: str
    sample: int

    def __str__(self) -> str:
        return f"{self.variant} {self.model} #{self.sample}"


class Evaluated(Protocol):
    """Source of tasks and answers."""

    def task(self, cell: Cell) -> Pass: ...

    def attempts(self, cell: Cell) -> int: ...

    def asks(self, cell: Cell) -> Asks: ...

    def recorder(self, cell: Cell) -> Records | None: ...


@dataclass(frozen=True)
class ProgressCount:
    """Progress of an evaluation.

    Attributes:
        finished: Number of finished samples.
        of: Number of all samples.
        cell: The sample concerned.
        row: Row of a sample that has finished.
        event: Event of the loop of a sample under way.
    """

    finished: int
    of: int
    cell: Cell
    row: Row | None = None
    event: Event | None = None


class Rows:
    """File of JSON lines: a head (settings, versions, command), then a row for each finished sample.

    With `path` None the rows are kept in memory.
    """

    SAME = ("pass", "origin", "consts", "attempts", "level", "temperature", "prompts", "replayed")  # of a head, for a run to go on

    def __init__(self, path: Path | None, head: Mapping[str, Any], fresh: bool = False):
        self.path, self.head, self.rows = path, dict(head), list[Row]()
        self._lock = threading.Lock()
        previous = read(path, "--out names another file") if path is not None and has_content(path) else None
        if previous is not None and not fresh:  # a file of something else is not begun anew, either
            self.head, self.rows = previous
            differing = [name for name in self.SAME if self.head.get(name) != head.get(name)]
            if differing:
                raise CuirError.of(
                    "U131",
                    f"{path} holds an evaluation with another {', '.join(differing)}",
                    hint="--out names another file, --fresh starts it anew",
                )
        elif path is not None:
            self._append(self.head, fresh=True)

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells without a complete row."""
        complete = {cell_of(r) for r in self.rows if "incomplete" not in r}
        return [c for c in cells if c not in complete]

    def add(self, row: Row) -> None:
        """Record a row in place of an earlier one of its cell."""
        with self._lock:
            self.rows = [r for r in self.rows if cell_of(r) != cell_of(row)] + [row]
            self._append(row)

    def _append(self, line: Mapping[str, Any], fresh: bool = False) -> None:
        """Append a line to the file. Raises CuirError U108."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                self.path.unlink(missing_ok=True)
            append_line(self.path, json.dumps(line))
        except OSError as error:
            raise CuirError.of("U108", f"cannot write {self.path}: {error.strerror}", hint="name another file with --out") from None


def read(path: Path, hint: str = "name a file that `cuir eval --out` has written") -> tuple[dict[str, Any], list[Row]]:
    """Return head and rows of a file.

    Raises CuirError U131 with the hint. Lines that an interruption cut short are left out; of a sample's rows the last
    counts.
    """
    lines = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                if not lines:
                    break
    except (OSError, UnicodeDecodeError) as error:
        message = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CuirError.of("U131", f"{path} cannot be read: {message}", hint=hint) from None
    columns = {"variant", "model", "sample", "right_at", "attempts", "tokens", "usd", "seconds"}
    if not lines or not all(isinstance(r, dict) for r in lines) or "pass" not in lines[0] or not all(columns <= set(r) for r in lines[1:]):
        raise CuirError.of("U131", f"{path} holds no results of `cuir eval`", hint=hint)
    last = {cell_of(r): number for number, r in enumerate(lines[1:])}
    return lines[0], [r for number, r in enumerate(lines[1:]) if last[cell_of(r)] == number]


def cell_of(row: Row) -> Cell:
    """Return the cell of a row."""
    return Cell(row["variant"], row["model"], row["sample"])


def evaluate(
    cells: Sequence[Cell],
    of: Evaluated,
    rows: Rows,
    budget: Budget,
    jobs: int = 1,
    tell: Callable[[ProgressCount], None] = lambda progress_event: None,
) -> bool:
    """Evaluate every cell without a row, `jobs` at a time; return whether all cells have a row now.

    Each sample runs to its end, whatever the results of others. A provider that does not answer cuts a sample short;
    its row says so, and the next run repeats it. The result is False if the budget ended before. Raises CuirError for
    what would fail every sample alike: an unknown variant, no key, a file that cannot be written.
    """
    todo, lock, finished, stop = rows.missing(cells), threading.Lock(), [len(cells)], threading.Event()
    finished[0] -= len(todo)

    def evaluate_cell(cell: Cell) -> bool:
        """Evaluate a cell; return whether it has a complete row."""
        if budget.exhausted:
            return False

        def progress(event: Event) -> None:
            """Pass an event on, or end the conversation if the evaluation is over."""
            if stop.is_set():
                raise _Stopped
            with lock:
                tell(ProgressCount(finished[0], len(cells), cell, event=event))

        row = sample(cell, of.task(cell), of.asks(cell), budget, of.attempts(cell), progress, of.recorder(cell))
        if "incomplete" in row and budget.exhausted:
            return False
        rows.add(row)
        with lock:
            finished[0] += 1
            tell(ProgressCount(finished[0], len(cells), cell, row))
        return "incomplete" not in row

    if jobs == 1:
        whole = list(map(evaluate_cell, todo))  # all of them, also after one that was cut short
        return all(whole)
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="cell")
    try:
        return all(list(pool.map(evaluate_cell, todo)))
    finally:  # after an interruption nobody waits: conversations under way end at their next step
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)


class _Stopped(Exception):
    """Exception that ends a conversation under way when the evaluation is over; it leaves no row."""


def sample(
    cell: Cell, task: Pass, asks: Asks, budget: Budget, attempts: int, progress: Progress | None = None, recorder: Records | None = None
) -> Row:
    """Return the row of one sample: a conversation of at most `attempts` requests.

    Raises CuirError unless the error concerns the model or its record (U604, U607).
    """
    begin = time.monotonic()
    numbered = _Numbered(asks, cell.sample)
    try:
        outcome = improve(task, numbered, budget, 1, attempts, progress, _Renumbered(recorder, cell.sample) if recorder else None)
        records, why = outcome.samples[0].attempts, outcome.samples[0].why
    except CuirError as error:
        if error.diagnostics[0].code not in ("U604", "U607"):
            raise
        records, why = [], error.diagnostics[0].message
    stages, seconds = (
        [a.verdict.stage for a in records],
        time.monotonic() - begin + sum(a.answer.seconds for a in records if a.answer.cached),
    )
    right_at = next((number for number, stage in enumerate(stages, 1) if stage in RIGHT), None)
    row: dict[str, Any] = {
        "variant": cell.variant,
        "model": cell.model,
        "sample": cell.sample,
        "right_at": right_at,
        "why": why,
        "attempts": [{"stage": a.verdict.stage, "codes": [d.code for d in a.verdict.diagnostics]} for a in records],
        "tokens": sum(a.answer.tokens for a in records),
        "usd": _sum([a.answer.cost_usd for a in records]),
        "seconds": round(seconds, 3),
    }
    if drifted := getattr(asks, "drifted", 0):
        row["drifted"] = drifted
    over = len(records) == attempts or (records and records[-1].verdict.ok)
    return row if over else {**row, "incomplete": why}


def _sum(prices: Sequence[float | None]) -> float | None:
    """Return the sum of prices, None if one is unknown."""
    return None if None in prices else sum(p for p in prices if p is not None)


@dataclass(frozen=True)
class _Numbered:
    """Client that asks under a fixed sample number, for a loop that runs a single sample."""

    inner: Asks
    sample: int

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.inner.model

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        """Ask the inner client under the fixed sample number."""
        return self.inner.ask(messages, self.sample)


@dataclass(frozen=True)
class _Renumbered:
    """Recorder that writes a sample's exchanges under a fixed sample number."""

    inner: Records
    sample: int

    def exchange(self, attempt: Attempt) -> None:
        """Record an exchange under the fixed sample number."""
        self.inner.exchange(replace(attempt, sample=self.sample))

    def outcome(self, outcome: Outcome) -> None:
        """Record an outcome."""
        self.inner.outcome(outcome)

"""Transcripts of transfers in a folder as samples of an evaluation.

Their answers are judged again, and no model is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cuir.text.diagnostics import CuirError

from .evaluate import Cell
from .loop import Pass, Records
from .messages import Answer, Asks, Message
from .transcript import Replayed, read_transcript


@dataclass
class Recorded:
    """Samples of all transcripts of `passed` in a folder.

    A variant from another origin is a separate variant; its samples are numbered through its files.

    Attributes:
        make: Function from a recorded task to the pass that judges its answers.
        cells: Samples in the transcripts.
        left_out: Number of files with other content.
    """

    folder: Path
    passed: str
    make: Callable[[Mapping[str, Any]], Pass]
    variants: Collection[str] = ()
    models: Collection[str] = ()
    cells: dict[Cell, tuple[Replayed, int]] = field(default_factory=dict, init=False)
    left_out: int = field(default=0, init=False)
    _passes: dict[Path, Pass] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Read the transcripts. Raises CuirError U606 for a folder without such transcripts."""
        for path in sorted(self.folder.glob("*.jsonl")):
            transcript = read_transcript(path)
            variant = str(transcript.task.get("to"))
            selected = transcript.task.get("pass") == self.passed and (not self.variants or variant in self.variants)
            if not selected or (self.models and transcript.model not in self.models):
                self.left_out += 1
                continue
            replayed = Replayed(path)
            named = f"{variant} from {transcript.task.get('origin')}"
            before = sum(c.variant == named and c.model == transcript.model for c in self.cells)
            numbers = sorted({e.sample for e in transcript.exchanges})
            self.cells |= {Cell(named, transcript.model, before + i): (replayed, number) for i, number in enumerate(numbers)}
        if not self.cells:
            raise CuirError.of(
                "U606",
                f"{self.folder} holds no transcript of a {self.passed}" + (" of these variants and models" if self.left_out else ""),
                hint="`cuir eval --record DIR` and `cuir transfer --record FILE` write them",
            )

    def task(self, cell: Cell) -> Pass:
        """Return the pass that judges a sample."""
        replayed, _ = self.cells[cell]
        if replayed.path not in self._passes:
            self._passes[replayed.path] = self.make(replayed.transcript.task)
        return self._passes[replayed.path]

    def asks(self, cell: Cell) -> Asks:
        """Return the source of a sample's answers."""
        return _OfSample(*self.cells[cell])

    def attempts(self, cell: Cell) -> int:
        """Return the number of attempts that the record allows."""
        return int(self.cells[cell][0].transcript.task["attempts"])

    def recorder(self, cell: Cell) -> Records | None:
        """Return None: nothing is recorded anew."""
        return None


@dataclass
class _OfSample:
    """Answers of one sample of a transcript, with the seconds that the model took.

    `drifted` counts requests that differ from those on record.
    """

    replayed: Replayed
    number: int
    count: int = 0
    drifted: int = 0

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.replayed.model

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        """Return the next recorded answer, whatever the sample's number in the evaluation."""
        answer = self.replayed.ask(messages, self.number)
        recorded = [e for e in self.replayed.transcript.exchanges if e.sample == self.number][self.count]
        self.count += 1
        self.drifted += tuple(messages) != recorded.request
        return replace(answer, seconds=recorded.answer.seconds)

"""Transcripts of transfers in a folder as samples of an evaluation: their answers are judged again, and no model is asked. Owns which file holds which sample."""

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
    """The samples of all transcripts of `passed` in a folder; a variant from an origin is a variant of its own, its samples are numbered through its files.

    make: a recorded task -> the pass that judges its answers. cells: those found. left_out: how many files hold something else.
    """

    folder: Path
    passed: str
    make: Callable[[Mapping[str, Any]], Pass]
    variants: Collection[str] = ()
    models: Collection[str] = ()
    cells: dict[Cell, tuple[Replayed, int]] = field(default_factory=dict, init=False)
    left_out: int = field(default=0, init=False)
    _made: dict[Path, Pass] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Raises CuirError U606 for a folder without such transcripts."""
        for path in sorted(self.folder.glob("*.jsonl")):
            transcript = read_transcript(path)
            variant = str(transcript.task.get("to"))
            wanted = transcript.task.get("pass") == self.passed and (not self.variants or variant in self.variants)
            if not wanted or (self.models and transcript.model not in self.models):
                self.left_out += 1
                continue
            replayed = Replayed(path)
            named = f"{variant} from {transcript.task.get('origin')}"
            before = sum(c.variant == named and c.model == transcript.model for c in self.cells)
            numbers = sorted({e.sample for e in transcript.exchanges})
            self.cells |= {Cell(named, transcript.model, before + i): (replayed, number) for i, number in enumerate(numbers)}
        if not self.cells:
            raise CuirError.of("U606", f"{self.folder} holds no transcript of a {self.passed}" + (" of these variants and models" if self.left_out else ""),
                               hint="`cuir eval --record DIR` and `cuir transfer --record FILE` write them")  # fmt: skip

    def task(self, cell: Cell) -> Pass:
        replayed, _ = self.cells[cell]
        if replayed.path not in self._made:
            self._made[replayed.path] = self.make(replayed.transcript.task)
        return self._made[replayed.path]

    def asks(self, cell: Cell) -> Asks:
        return _OfSample(*self.cells[cell])

    def attempts(self, cell: Cell) -> int:
        return int(self.cells[cell][0].transcript.task["attempts"])

    def recorder(self, cell: Cell) -> Records | None:
        return None


@dataclass
class _OfSample:
    """A transcript's answers of one sample, whatever number the evaluation gives it; with the seconds that the model took then.

    drifted: how many of its requests are not those on record.
    """

    replayed: Replayed
    number: int
    given: int = 0
    drifted: int = 0

    @property
    def model(self) -> str:
        return self.replayed.model

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        answer = self.replayed.ask(messages, self.number)
        recorded = [e for e in self.replayed.transcript.exchanges if e.sample == self.number][self.given]
        self.given += 1
        self.drifted += tuple(messages) != recorded.request
        return replace(answer, seconds=recorded.answer.seconds)

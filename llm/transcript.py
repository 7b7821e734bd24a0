"""Transcripts: every exchange with a model as JSON lines, and their replay without a network.

No secret gets into a transcript. Lines: a head (`kind: "head"`: the task, the model, versions), each message once
(`"message"`), each exchange (`"exchange"`: ids of the messages of the request, the answer, the verdict), and at the end
the result (`"outcome"`).
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cuir.text.diagnostics import CuirError

from .client import library_version, scrub
from .loop import Attempt, Outcome
from .messages import Answer, Message
from .prompting import prompts_hash

FORMAT = 1
SHARED = "messages.json"  # of a folder: texts of messages by id, which its transcripts leave out


def versions() -> dict[str, str]:
    """Return the versions that an answer depends on besides the model.

    These are the versions of this package and of litellm, and a hash of the prompts.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        package_version = version("cubridge")
    except PackageNotFoundError:
        package_version = ""
    return {"cubridge": package_version, "litellm": library_version(), "prompts": prompts_hash()}


class Recorder:
    """Writer of a transcript as it happens; an existing file is replaced.

    May be used from several threads. Raises CuirError U108.
    """

    def __init__(self, path: Path, task: Mapping[str, Any], model: str, withheld: bool = False):
        """Write the head of a transcript.

        Args:
            path: File.
            task: The task as JSON data, enough to repeat it.
            model: Name of the model.
            withheld: Of requests (all but the system's message) only hashes are kept, as they hold text of other
                authors.
        """
        self.path, self.withheld = path, withheld
        self._lock, self._recorded = threading.Lock(), set[str]()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("", encoding="utf-8")
        except OSError as error:
            raise CuirError.of("U108", f"cannot write {path}: {error.strerror}", hint="name another file with --record") from None
        self._write({"kind": "head", "format": FORMAT, "task": dict(task), "model": model, "versions": versions()})

    def exchange(self, attempt: Attempt) -> None:
        """Record a request, its answer and the verdict."""
        with self._lock:
            for message in attempt.request:
                if (name := message_id(message)) not in self._recorded:
                    self._recorded.add(name)
                    text = {} if self.withheld and message.role != "system" else {"text": message.text}
                    self._write({"kind": "message", "id": name, "role": message.role, **text})
            self._write(
                {
                    "kind": "exchange",
                    "sample": attempt.sample,
                    "attempt": attempt.number,
                    "request": [message_id(m) for m in attempt.request],
                    "answer": attempt.answer.as_json(),
                    "verdict": attempt.verdict.as_json(),
                }
            )

    def outcome(self, outcome: Outcome) -> None:
        """Record the result."""
        with self._lock:
            stage = outcome.verdict.stage if outcome.verdict else None
            self._write({"kind": "outcome", "ok": outcome.ok, "stage": stage, "why": outcome.why, "spent": outcome.spent})

    def _write(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(scrub(json.dumps(line, ensure_ascii=False)) + "\n")


@dataclass(frozen=True)
class Exchange:
    """Recorded exchange; `verdict` as it was written (see Verdict.as_json).

    `ids` are those of the request's messages; withheld ones have no text.
    """

    sample: int
    attempt: int
    request: tuple[Message, ...]
    answer: Answer
    verdict: Mapping[str, Any]
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Transcript:
    """Transcript that was read; `outcome` is None if the job did not come to its end."""

    task: Mapping[str, Any]
    model: str
    versions: Mapping[str, str]
    exchanges: tuple[Exchange, ...]
    outcome: Mapping[str, Any] | None = None


def read_transcript(path: Path) -> Transcript:
    """Read a file of `Recorder`; a last line that was cut short is left out.

    Raises CuirError U606 for another file.
    """
    hint = "a transcript is written by --record"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CuirError.of("U606", f"{path} cannot be read: {message}", hint=hint) from None
    head: Mapping[str, Any] | None = None
    messages, exchanges, outcome = dict[str, Message](), list[Exchange](), None
    shared = read_shared_texts(path.parent)
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            if line["kind"] == "head":
                head = line
            elif line["kind"] == "message":
                messages[line["id"]] = Message(line["role"], line.get("text") or shared.get(line["id"], ""))
            elif line["kind"] == "exchange":
                request = tuple(messages[name] for name in line["request"])
                exchanges.append(
                    Exchange(line["sample"], line["attempt"], request, Answer(**line["answer"]), line["verdict"], tuple(line["request"]))
                )
            elif line["kind"] == "outcome":
                outcome = line
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError) and head is not None:
                break
            raise CuirError.of("U606", f"line {number} of {path} is no line of a transcript", hint=hint) from None
    if head is None or head.get("format") != FORMAT:
        raise CuirError.of("U606", f"{path} is no transcript of format {FORMAT}", hint=hint)
    return Transcript(head["task"], head["model"], head["versions"], tuple(exchanges), outcome)


def read_shared_texts(folder: Path) -> dict[str, str]:
    """Return the texts of messages, by id, that transcripts of a folder share.

    Raises CuirError U606 for another file.
    """
    path = folder / SHARED
    try:
        texts = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): str(text) for name, text in texts.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise CuirError.of("U606", f"{path} holds no texts of messages: {error}", hint=f"{SHARED} is an object of texts by id") from None


def share_texts(folder: Path) -> None:
    """Move the texts of system messages from a folder's transcripts to one file.

    `read_transcript` reads that file.

    The system's message is the language with its primitives: the same in all transcripts of one version.
    """
    texts = read_shared_texts(folder)
    for path in sorted(folder.glob("*.jsonl")):
        lines = []
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if line["kind"] == "message" and line["role"] == "system" and line.get("text"):
                texts[line["id"]] = line.pop("text")
                text = json.dumps(line, ensure_ascii=False)
            lines.append(f"{text}\n")
        path.write_text("".join(lines), encoding="utf-8")
    (folder / SHARED).write_text(json.dumps(texts, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


@dataclass
class Replayed:
    """Answers from a transcript, each sample's in their order, without a network.

    A request beyond the record is always refused.

    Attributes:
        exact: A request other than the recorded one is refused (U607), with the difference. Otherwise the recorded
            answer is returned.
        task: The current task, as `Recorder` has it; differences from the record's task are reported for requests
            that differ.
        drifted: Number of requests that had changed, as they do when prompts, reports or the language have.
    """

    path: Path
    exact: bool = False
    task: Mapping[str, Any] = field(default_factory=dict)
    drifted: int = 0
    _counts: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.transcript = read_transcript(self.path)

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.transcript.model

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        """Return the recorded answer. Raises CuirError U607 if the request is not on record."""
        with self._lock:
            of_sample = [e for e in self.transcript.exchanges if e.sample == sample]
            number = self._counts.get(sample, 0)
            if number >= len(of_sample):
                raise CuirError.of(
                    "U607",
                    f"request {number + 1} of sample {sample} is not on record: {self.path} holds {len(of_sample)} of this sample",
                    hint="ask the model itself (--model M), and record that",
                )
            recorded = of_sample[number]
            if tuple(map(message_id, messages)) != recorded.ids:
                if self.exact:
                    raise CuirError.of(
                        "U607",
                        f"request {number + 1} of sample {sample} is not on record: {_difference(messages, recorded.request)}",
                        hint=self._describe_changes(),
                    )
                self.drifted += 1
            self._counts[sample] = number + 1
        return replace(recorded.answer, cached=True, seconds=0.0)

    def drift(self) -> str:
        """Describe how many requests differed from those on record and why; "" if none did."""
        if not self.drifted:
            return ""
        how_many = f"{self.drifted} request differs from that" if self.drifted == 1 else f"{self.drifted} requests differ from those"
        difference = self.other_task()
        return f"{how_many} on record: " + (
            f"{self.path} is of another task: {difference}" if difference else "prompts, reports or the language have changed since"
        )

    def other_task(self) -> str:
        """Describe the differences of the current task from that on record."""
        was, now = self.transcript.task, self.task
        pairs = [(name, _format_value(was[name]), _format_value(now[name])) for name in now if name in was and name not in _MANNER]
        return "; ".join(f"{name}: {before} then, {current} now" for name, before, current in pairs if before != current)

    def _describe_changes(self) -> str:
        """Describe what may have changed since the record."""
        now = versions()
        differences = [
            f"{name}: {was or 'none'} then, {now.get(name, 'none')} now"
            for name, was in self.transcript.versions.items()
            if now.get(name) != was
        ]
        return (
            self.other_task()
            or "; ".join(differences)
            or "the versions are those of the record: the origin, the specification or the options differ"
        )


_MANNER = ("samples", "attempts", "temperature", "level")  # of a task: how it is led and judged, not what is asked for


def _format_value(value: Any) -> str:
    """Format a value of a task."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={value[name]}" for name in sorted(value)) or "none"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def message_id(message: Message) -> str:
    """Return the id of a message in a transcript: a hash of its role and text."""
    return hashlib.sha256(f"{message.role}\n{message.text}".encode()).hexdigest()[:16]


def _difference(request: Sequence[Message], recorded: Sequence[Message]) -> str:
    """Describe the first difference between a request and the recorded one."""
    for number, (message, recorded_message) in enumerate(zip(request, recorded), 1):
        if message != recorded_message:
            at = next(
                (i for i, (a, b) in enumerate(zip(message.text, recorded_message.text)) if a != b),
                min(len(message.text), len(recorded_message.text)),
            )
            return f"message {number} ({message.role}) differs from character {at} on: {message.text[at : at + 40]!r}, recorded {recorded_message.text[at : at + 40]!r}"
    return f"it has {len(request)} messages, the recorded one {len(recorded)}"

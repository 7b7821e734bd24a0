"""Option `--html` of eval and transfer: conversations with a model, and what they gave, as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..text.diagnostics import CuirError

if TYPE_CHECKING:
    from llm.loop import Attempt, Outcome
    from llm.messages import Message
    from llm.scores import Row
    from llm.transcript import Exchange as Recorded

    from ..checking.checked import Const
    from ..pages.evaluation_page import Exchange
    from ..spec.function_specification import AnySpecification
    from ..syntax.nodes import Program

_Key = tuple[str, str, int]  # variant, model, sample


def write_evaluation_page(path: Path, head: Mapping[str, Any], rows: Sequence[Row], folder: Path | None) -> None:
    """Write the page. folder: of transcripts, None if there is none. Raises CuirError U108 and U606."""
    from llm.scores import HEAD, REASONS, by_variant, drift, entries, scores, why_failed

    from ..pages.evaluation_page import SampleOutcome, Table, render_evaluation_page
    from ..pages.page import write_page

    model_scores, conversations = scores(rows), _read_conversations(folder) if folder is not None else {}
    tables = [
        Table("Models", HEAD, entries(model_scores)),
        Table("Variants", ("variant", "model", "right", "attempts of each sample", "why attempts failed"), by_variant(rows)),
        Table("Why attempts failed", ("model", *REASONS, "most frequent codes"), why_failed(model_scores)),
    ]
    samples = [
        SampleOutcome(
            r["variant"],
            r["model"],
            r["sample"],
            r["right_at"],
            r.get("incomplete", r.get("why", "")),
            [(a["stage"], a["codes"]) for a in r["attempts"]],
            r["tokens"],
            r["seconds"],
            conversations.get((r["variant"], r["model"], r["sample"]), ()),
        )
        for r in rows
    ]
    write_page(path, render_evaluation_page(head, tables, samples, drift(rows)))


def _read_conversations(folder: Path) -> dict[_Key, list[Exchange]]:
    """Read the transcripts of a folder, by variant, model and sample; those of other passes are left out.

    A sample of a replay is named by its origin too, and numbered through its files (see llm.recorded_samples). Raises
    CuirError U606.
    """
    from llm.transcript import read_transcript

    if not folder.is_dir():
        raise CuirError.of("U606", f"there is no folder {folder}", hint="`cuir eval --record DIR` writes one")
    conversations: dict[_Key, list[Exchange]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        transcript = read_transcript(path)
        variant = str(transcript.task.get("to"))
        replayed = f"{variant} from {transcript.task.get('origin')}"
        numbers = sorted({e.sample for e in transcript.exchanges})
        before = sum(name == replayed and model == transcript.model for name, model, _ in conversations)
        for place, number in enumerate(numbers):
            exchanges = _make_exchanges([e for e in transcript.exchanges if e.sample == number])
            conversations[replayed, transcript.model, before + place] = exchanges
            conversations[variant, transcript.model, number] = exchanges
    return conversations


def _make_exchanges(recorded: Sequence[Recorded]) -> list[Exchange]:
    from ..pages.evaluation_page import Exchange

    exchanges, earlier = [], set[str]()
    for e in recorded:
        fresh = [m for m, name in zip(e.request, e.ids) if name not in earlier and m.role != "assistant"]
        earlier |= set(e.ids)
        question = "\n\n".join(f"{m.role}:\n{m.text or 'The text of this message is not in the transcript.'}" for m in fresh)
        reports = [_format_diagnostic(d) for d in e.verdict.get("diagnostics", ())]
        exchanges.append(Exchange(e.attempt, question, e.answer.text, e.verdict["stage"], reports, e.answer.tokens))
    return exchanges


def _format_diagnostic(d: Mapping[str, Any]) -> str:
    """Format a diagnostic of a transcript, which holds no text of its line."""
    span = d.get("span")
    place = f"line {span['line']}, column {span['column']}: " if span else ""
    notes = [f"note: {n['message']}" for n in d.get("notes", ())] + ([f"hint: {d['hint']}"] if d.get("hint") else [])
    return "\n  = ".join([f"{place}{d['code']}: {d['message']}", *notes])


def write_transfer_page(
    path: Path, title: str, outcome: Outcome, origin: Program, spec: AnySpecification, kernel: str, consts: Mapping[str, Const]
) -> None:
    """Write the page. Raises CuirError U108."""
    from ..pages.evaluation_page import render_transfer_page
    from ..pages.page import write_page

    verdict = outcome.verdict
    samples = {f"Conversation {s.number + 1}": _collect_exchanges(s.attempts) for s in outcome.samples}
    right = (kernel, consts) if verdict is not None and verdict.right else None
    adapted = verdict.program if verdict is not None else None
    write_page(path, render_transfer_page(title, outcome.why, samples, origin, adapted, spec, right))


def _collect_exchanges(attempts: Sequence[Attempt]) -> list[Exchange]:
    """Return the attempts of a sample, each with the new messages of its request."""
    from ..pages.evaluation_page import Exchange

    exchanges: list[Exchange] = []
    earlier: list[Message] = []
    for a in attempts:
        fresh = [m for m in a.request if m not in earlier and m.role != "assistant"]
        earlier += fresh
        question = "\n\n".join(f"{m.role}:\n{m.text}" for m in fresh)
        reports = [d.render() for d in a.verdict.diagnostics]
        exchanges.append(Exchange(a.number, question, a.answer.text, a.verdict.stage, reports, a.answer.tokens))
    return exchanges

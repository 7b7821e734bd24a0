"""Option `--html` of transfer: conversations with a model and the program they gave, as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm.loop import Attempt, Outcome
    from llm.messages import Message

    from ..checking.checked import Const
    from ..pages.evaluation_page import Exchange
    from ..spec.function_specification import AnySpecification
    from ..syntax.nodes import Program


def write_transfer_page(
    path: Path, title: str, outcome: Outcome, origin: Program, spec: AnySpecification, kernel: str, consts: Mapping[str, Const]
) -> None:
    """Write the page. Raises CuirError U108."""
    from ..pages.page import write_page
    from ..pages.transfer_page import render_transfer_page

    verdict = outcome.verdict
    samples = {f"Conversation {s.number + 1}": _make_exchanges(s.attempts) for s in outcome.samples}
    right = (kernel, consts) if verdict is not None and verdict.right else None
    adapted = verdict.program if verdict is not None else None
    write_page(path, render_transfer_page(title, outcome.why, samples, origin, adapted, spec, right))


def _make_exchanges(attempts: Sequence[Attempt]) -> list[Exchange]:
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

"""Outcome of conversations with a model, for `--json` and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .output import stdout

if TYPE_CHECKING:
    from llm.loop import Outcome
    from llm.messages import Asks


def drift(asks: Asks) -> str:
    """Describe a replay whose requests are not those on record; "" if they are, or a model was asked."""
    from llm.transcript import Replayed

    return asks.drift() if isinstance(asks, Replayed) else ""


def print_drift(asks: Asks) -> None:
    """Print a note on the drift of a replay, if there is any."""
    if note := drift(asks):
        stdout().print(f"note: {note}", soft_wrap=True)


def as_data(outcome: Outcome, asks: Asks) -> dict[str, Any]:
    """Return the outcome of a loop for --json."""
    verdict = outcome.verdict
    return {
        "ok": outcome.ok,
        "diagnostics": [d.as_json() for d in verdict.diagnostics] if verdict else [],
        "why": outcome.why,
        "stage": verdict.stage if verdict else None,
        "attempts": [
            {
                "sample": a.sample,
                "attempt": a.number,
                "stage": a.verdict.stage,
                "codes": [d.code for d in a.verdict.diagnostics],
                "tokens": a.answer.tokens,
                "cost_usd": a.answer.cost_usd,
                "seconds": round(a.answer.seconds, 3),
                "cached": a.answer.cached,
            }
            for s in outcome.samples
            for a in s.attempts
        ],
        "spent": outcome.spent,
        "requests_that_drifted": getattr(asks, "drifted", 0),
        "drift": drift(asks) or None,
        "extra": verdict.extra if verdict else {},
    }

"""Diagnostics of faults of a running program: worker, place in the text, CTAs, and how to replay."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..sync.accesses import Finding
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.source import Span
from .machine import Machine


def make_fault(
    m: Machine, code: str, message: str, span: Span | None, hint: str | None = None, notes: Iterable[tuple[str, Span | None]] = ()
) -> CuirError:
    """Make the error to raise for one fault of a batch."""
    return CuirError([make_diagnostic(m, code, message, span, hint, notes)])


def make_finding_fault(
    m: Machine, finding: Finding, hint: str | None = None, notes: Iterable[tuple[str, Span | None]] | None = None
) -> CuirError:
    """Make the error of a broken rule; hint, notes: what the run tells of its cause, instead of the rule's."""
    return make_fault(
        m, finding.code, finding.message, finding.span, finding.hint if hint is None else hint, finding.notes if notes is None else notes
    )


def make_diagnostic(
    m: Machine, code: str, message: str, span: Span | None, hint: str | None = None, notes: Iterable[tuple[str, Span | None]] = ()
) -> Diagnostic:
    schedule = m.launch.schedule
    replay = f"replay: {schedule.replay_option}" + (f" --grid {m.launch.grid}" if schedule.kind != "replay" else "")
    return Diagnostic(code, message, span, (*(Note(*n) for n in notes), Note(describe_ctas(m)), Note(replay)), hint)


def describe_ctas(m: Machine) -> str:
    """Describe the CTAs or clusters that the batch holds."""
    kind = "cluster" if m.launch.checked.cluster > 1 else "CTA"
    numbers = format_ranges(m.clusters)
    return f"seen in {kind} {numbers}" if len(m.clusters) == 1 else f"seen in {kind}s {numbers}, which run as one batch"


def format_ranges(numbers: np.ndarray) -> str:
    """Format sorted numbers as ranges: 0-3, 7."""
    parts: list[list[int]] = []
    for n in sorted(int(x) for x in numbers):
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)

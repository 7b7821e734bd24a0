"""Pages of models' answers: an evaluation's scores and samples, and a transfer's conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ..checking.checked import Const
from ..checking.checker import check
from ..spec.function_specification import AnySpecification
from ..syntax.nodes import Program
from ..syntax.printer import show
from .html_table import Html, render_cell, render_fields, render_table
from .page import Section, render_page
from .program_html import render_diff, render_text
from .verification_page import make_kernel_sections

_BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
_PASSED = ("passed", "speed")  # stages of right answers


@dataclass(frozen=True)
class Exchange:
    """One question to a model, its answer, and the verdict on it.

    Attributes:
        question: Text that was new in the request.
        answer: Text of the model.
        stage: Stage that ended the judging, "passed" for a right answer.
        reports: Rendered diagnostics, or the reason.
        tokens: Of request and answer.
    """

    attempt: int
    question: str
    answer: str
    stage: str
    reports: Sequence[str]
    tokens: int


@dataclass(frozen=True)
class SampleOutcome:
    """Sample of an evaluation.

    Attributes:
        right_at: Number of the first right attempt, None if none is.
        why: Reason for the end.
        stages: Stage and codes of each attempt.
        exchanges: Conversation; empty where no transcript is at hand.
    """

    variant: str
    model: str
    number: int
    right_at: int | None
    why: str
    stages: Sequence[tuple[str, Sequence[str]]]
    tokens: int
    seconds: float
    exchanges: Sequence[Exchange] = ()

    @property
    def anchor(self) -> str:
        """Name by which a table links to the sample."""
        return "sample-" + re.sub(r"\W+", "-", f"{self.variant}-{self.model}-{self.number}")


@dataclass(frozen=True)
class Table:
    """Table of figures: a title, a head and rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def render_evaluation_page(head: Mapping[str, object], tables: Sequence[Table], samples: Sequence[SampleOutcome], note: str = "") -> str:
    """Render the page. tables: scores; note: remark on the whole evaluation."""
    failures = [s for s in samples if s.right_at is None]
    sections = [Section(t.title, render_table(t.head, t.rows)) for t in tables if t.rows]
    sections += [
        Section("Samples", render_table(("sample", "verdict", "attempts", "tokens", "seconds"), [_summarise(s) for s in samples])),
        Section("Failures", "".join(_render_sample(s, True) for s in failures) or "<p>No sample failed.</p>"),
        Section("Right samples", "".join(_render_sample(s, False) for s in samples if s.right_at is not None) or "<p>None.</p>"),
        Section("Settings", render_fields((k, v) for k, v in head.items()) + (f"<p>{escape(note)}</p>" if note else "")),
    ]
    right = len(samples) - len(failures)
    return render_page(f"cuir eval: {head.get('pass', 'models')}", f"{right} of {len(samples)} samples are right", sections)


def render_exchange(e: Exchange) -> str:
    """Render a question (folded), the answer with its programs highlighted, and the verdict."""
    right = e.stage in _PASSED
    reports = "".join(f'<pre class="{"" if right else "diagnostic"}">{escape(text)}</pre>' for text in e.reports)
    return (
        f'<div class="exchange"><h4>Attempt {e.attempt}: <span class="{"good" if right else "bad"}">{escape(e.stage)}</span></h4>'
        f"<details><summary>question, {len(e.question.split()):,} words</summary>{_render_message(e.question)}</details>"
        f"<details{'' if right else ' open'}><summary>answer, {e.tokens:,} tokens with its request</summary>{_render_message(e.answer)}</details>"
        f"{reports}</div>"
    )


def _summarise(s: SampleOutcome) -> Sequence[str | Html]:
    verdict = f"right at attempt {s.right_at}" if s.right_at is not None else f"failed: {s.why}"
    attempts = " ".join(stage + (f"({codes[0]})" if codes else "") for stage, codes in s.stages)
    link = f'<a href="#{s.anchor}">{render_cell(f"{s.variant} {s.model} #{s.number}")}</a>'
    return Html(link), verdict, attempts, f"{s.tokens:,}", f"{s.seconds:.0f}"


def _render_sample(s: SampleOutcome, is_open: bool) -> str:
    attempts = "; ".join(stage + (f" {', '.join(codes)}" if codes else "") for stage, codes in s.stages)
    body = "".join(map(render_exchange, s.exchanges)) or (
        "<p>No transcript is at hand: --record DIR of the run, or --replay DIR, shows questions and answers.</p>"
    )
    title = f"{escape(s.variant)} {escape(s.model)} #{s.number}: {escape(attempts) or escape(s.why)}"
    return f'<details class="sample" id="{s.anchor}"{" open" if is_open else ""}><summary>{title}</summary>{body}</details>'


def _render_message(text: str) -> str:
    """Render a message: fenced blocks as highlighted code, the rest as it stands."""
    parts, last = [], 0
    for block in _BLOCK.finditer(text):
        parts += [_render_prose(text[last : block.start()]), render_text(block[2], block[1])]
        last = block.end()
    return "".join([*parts, _render_prose(text[last:])])


def _render_prose(text: str) -> str:
    return f'<pre class="prose">{escape(text.strip())}</pre>' if text.strip() else ""


def render_transfer_page(
    title: str,
    subtitle: str,
    samples: Mapping[str, Sequence[Exchange]],
    origin: Program,
    adapted: Program | None,
    spec: AnySpecification,
    right: tuple[str, Mapping[str, Const]] | None,
) -> str:
    """Render the page.

    Args:
        title: Of the page.
        subtitle: Result in words.
        samples: Conversations by name.
        origin: The kernel that was to be adapted.
        adapted: Program of the best answer, None if none holds one.
        spec: What it is to compute.
        right: Kernel and consts of a program that was found right; None for a wrong one, which is not run.
    """
    sections = [Section(name, "".join(map(render_exchange, exchanges)) or "<p>No answer.</p>") for name, exchanges in samples.items()]
    if adapted is not None:
        sections.append(Section("Beside the origin", render_diff(show(origin), show(adapted))))
        checked = check(adapted, right[0], right[1]) if right is not None else None
        sections += make_kernel_sections(adapted, checked, spec, None)
    return render_page(title, subtitle, sections)

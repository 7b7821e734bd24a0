"""Page of a transfer by a model: questions, answers and verdicts, then the program of the best answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..checking.checked import Const
from ..checking.checker import check
from ..spec.function_specification import AnySpecification
from ..syntax.nodes import Program
from ..syntax.printer import show
from .diff_html import render_diff
from .evaluation_page import Exchange, render_exchange
from .page import Section, render_page
from .verification_page import make_kernel_sections


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

"""Reports about sides of conditions that no run has taken."""

from __future__ import annotations

from collections.abc import Iterable

from ...checking.checked import Checked
from ...text.diagnostics import CuirError, Diagnostic, Note
from ...text.source import Source
from .drive import Coverage
from .figure import Figure, OneSided
from .origins import NUMBERS
from .targets import Target
from .waivers import MARK, useless_waivers, waivers_of


def report_coverage(checked: Checked, coverage: Coverage) -> tuple[Figure, list[str]]:
    """The figure of a verification, and what is wrong with waivers."""
    left, told = describe_left(checked, coverage)
    waived = len(coverage.left()) - _unwaived(checked, coverage, coverage.left())
    return Figure(len(coverage.observed.conditions), coverage.total - waived, coverage.seen, tuple(left)), told


def describe_left(checked: Checked, coverage: Coverage) -> tuple[list[OneSided], list[str]]:
    """The sides that stayed unseen, by lines, one of those that are written alike in a line; and what is wrong with waivers."""
    waivers = waivers_of(_sources(checked, coverage))
    found: dict[tuple[int, str], OneSided] = {}
    left, seen = coverage.left(), coverage.observed.masks()
    for t in left:
        c, case = t.condition, coverage.case_of(t)
        why = f"{case} would show it" if case is not None else "data decide it" if c.level > NUMBERS else "no problem was found for it"
        side = c.describe(t.number) if seen[c.number] else f"`{c.text}` is evaluated"
        if case is not None or (c.span.line, side) not in found:
            found[c.span.line, side] = OneSided(c.span.line, c.text, side, why, waivers.get((c.span.source, c.span.line), ""))
    told = useless_waivers(waivers, ((t.condition.span.source, t.condition.span.line) for t in left))
    return sorted(found.values(), key=lambda one: (bool(one.waived), one.line, one.side)), told


def require_both_sides(checked: Checked, coverage: Coverage) -> None:
    """Raises CuirError V310 for sides that a problem is known to take, and that no run has taken, unless the text waives them."""
    waivers = waivers_of(_sources(checked, coverage))
    errors: dict[tuple[int, str], Diagnostic] = {}
    for t in coverage.left():
        c, case = t.condition, coverage.case_of(t)
        if case is None or waivers.get((c.span.source, c.span.line)):
            continue
        notes = (Note(f"in the case {case}"), *((Note(f"it was not run: {why}"),) if (why := coverage.refused.get(str(case))) else ()))
        hint = f"let `sizes` or smaller consts admit a problem that can be run, or say why nothing is to be known of it at the end of the line: # {MARK}: reason"
        errors.setdefault(
            (c.span.line, c.describe(t.number)),
            Diagnostic("V310", f"no run has taken this side: {c.describe(t.number)}", c.span, notes, hint),
        )
    if errors:
        raise CuirError(errors.values())


def _sources(checked: Checked, coverage: Coverage) -> Iterable[Source]:
    """Collect the user's files that conditions stand in."""
    return dict.fromkeys(
        [
            checked.origin.span.source,
            *(c.span.source for c in coverage.observed.conditions if c.span.source.name == checked.origin.span.source.name),
        ]
    )


def _unwaived(checked: Checked, coverage: Coverage, targets: Iterable[Target]) -> int:
    """Count the sides that no comment waives."""
    waivers = waivers_of(_sources(checked, coverage))
    return sum(not waivers.get((t.condition.span.source, t.condition.span.line)) for t in targets)


__all__ = ["describe_left", "report_coverage", "require_both_sides"]

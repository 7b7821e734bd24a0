"""Reports about sides of conditions that no run has taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...checking.checked import Checked
from ...text.diagnostics import CuirError, Diagnostic, Note
from ...text.source import Source
from .conditions import Condition
from .coverage_figure import Figure, OneSided
from .coverage_loop import Coverage
from .sides import Side, collect_sides, make_place_key
from .waivers import MARK, collect_waivers, describe_useless_waivers


def report_coverage(checked: Checked, coverage: Coverage) -> tuple[Figure, list[str]]:
    """Compute the figure of a verification, and messages about useless waivers."""
    waivers, sides = collect_waivers(_collect_sources(checked, coverage)), collect_sides(coverage)
    counted = [s for s in sides if s.is_seen or not waivers.get(_line_of(s.condition))]
    plain, of_data = [s for s in counted if not s.by_data], [s for s in counted if s.by_data]
    places = {make_place_key(s.condition) for s in sides}
    unseen = describe_unseen(coverage, sides, waivers)
    messages = describe_useless_waivers(waivers, (_line_of(s.condition) for s in sides if s.unseen))
    return Figure(
        len(places), len(plain), sum(s.is_seen for s in plain), len(of_data), sum(s.is_seen for s in of_data), tuple(unseen)
    ), messages


def describe_unseen(coverage: Coverage, sides: Iterable[Side], waivers: Mapping[tuple[Source, int], str]) -> list[OneSided]:
    """Describe the unseen sides by lines, in order: those that sizes decide first, waived ones last."""
    ranked_sides: dict[tuple[Source, int, str], tuple[int, OneSided]] = {}
    masks = coverage.observed.masks()
    for s in sides:
        for t in s.unseen[:1]:
            c, case = t.condition, coverage.case_of(t)
            reason = f"{case} would show it" if case is not None else "data decide it" if s.by_data else "no problem was found for it"
            is_never_evaluated = all(not masks[i.condition.number] for i in s.instances)
            text = f"`{c.source_text}` is evaluated" if is_never_evaluated else c.describe(t.number)
            waived = waivers.get(_line_of(c), "")
            rank = 3 if waived else 0 if case is not None else 2 if s.by_data else 1
            side = OneSided(c.span.line, c.source_text, text, reason, waived)
            key = (*_line_of(c), text)
            if key not in ranked_sides or rank < ranked_sides[key][0]:
                ranked_sides[key] = rank, side
    return [side for _, side in sorted(ranked_sides.values(), key=lambda ranked: (ranked[0], ranked[1].line, ranked[1].side))]


def require_both_sides(checked: Checked, coverage: Coverage) -> None:
    """Raise CuirError V310 for sides that a known problem takes, and no run has taken, unless waived."""
    waivers = collect_waivers(_collect_sources(checked, coverage))
    errors: dict[tuple[int, str], Diagnostic] = {}
    for t in coverage.list_unseen():
        c, case = t.condition, coverage.case_of(t)
        if case is None or waivers.get(_line_of(c)):
            continue
        notes = (
            Note(f"in the case {case}"),
            *((Note(f"it was not run: {reason}"),) if (reason := coverage.refused.get(str(case))) else ()),
        )
        hint = f"let `sizes` or smaller consts admit a problem that can be run, or say why nothing is to be known of it at the end of the line: # {MARK}: reason"
        errors.setdefault(
            (c.span.line, c.describe(t.number)),
            Diagnostic("V310", f"no run has taken this side: {c.describe(t.number)}", c.span, notes, hint),
        )
    if errors:
        raise CuirError(errors.values())


def _collect_sources(checked: Checked, coverage: Coverage) -> Iterable[Source]:
    """Collect the user's files that contain conditions."""
    return dict.fromkeys(
        [
            checked.origin.span.source,
            *(c.span.source for c in coverage.observed.conditions if c.span.source.name == checked.origin.span.source.name),
        ]
    )


def _line_of(c: Condition) -> tuple[Source, int]:
    return c.span.source, c.span.line


__all__ = ["report_coverage", "require_both_sides"]

"""Reports about sides of conditions that no run has taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...checking.checked import Checked
from ...text.diagnostics import CuirError, Diagnostic, Note
from ...text.source import Source
from .conditions import Condition
from .drive import Coverage
from .figure import Figure, OneSided
from .sides import Side, collect_sides, place_of
from .waivers import MARK, collect_waivers, describe_useless_waivers


def report_coverage(checked: Checked, coverage: Coverage) -> tuple[Figure, list[str]]:
    """Compute the figure of a verification, and say what is wrong with waivers."""
    waivers, sides = collect_waivers(_collect_sources(checked, coverage)), collect_sides(coverage)
    counted = [s for s in sides if s.seen or not waivers.get(_line_of(s.condition))]
    plain, of_data = [s for s in counted if not s.by_data], [s for s in counted if s.by_data]
    places = {place_of(s.condition) for s in sides}
    left = describe_left(coverage, sides, waivers)
    told = describe_useless_waivers(waivers, (_line_of(s.condition) for s in sides if s.left))
    return Figure(len(places), len(plain), sum(s.seen for s in plain), len(of_data), sum(s.seen for s in of_data), tuple(left)), told


def describe_left(coverage: Coverage, sides: Iterable[Side], waivers: Mapping[tuple[Source, int], str]) -> list[OneSided]:
    """Describe the sides that stayed unseen by lines: those first that sizes decide, those last that are waived."""
    found: dict[tuple[Source, int, str], tuple[int, OneSided]] = {}
    seen = coverage.observed.masks()
    for s in sides:
        for t in s.left[:1]:
            c, case = t.condition, coverage.case_of(t)
            why = f"{case} would show it" if case is not None else "data decide it" if s.by_data else "no problem was found for it"
            never = all(not seen[i.condition.number] for i in s.instances)
            words = f"`{c.source_text}` is evaluated" if never else c.describe(t.number)
            waived = waivers.get(_line_of(c), "")
            rank = 3 if waived else 0 if case is not None else 2 if s.by_data else 1
            one = OneSided(c.span.line, c.source_text, words, why, waived)
            key = (*_line_of(c), words)
            if key not in found or rank < found[key][0]:
                found[key] = rank, one
    return [one for _, one in sorted(found.values(), key=lambda ranked: (ranked[0], ranked[1].line, ranked[1].side))]


def require_both_sides(checked: Checked, coverage: Coverage) -> None:
    """Raises CuirError V310 for sides that a problem is known to take, and that no run has taken, unless the text waives them."""
    waivers = collect_waivers(_collect_sources(checked, coverage))
    errors: dict[tuple[int, str], Diagnostic] = {}
    for t in coverage.left():
        c, case = t.condition, coverage.case_of(t)
        if case is None or waivers.get(_line_of(c)):
            continue
        notes = (Note(f"in the case {case}"), *((Note(f"it was not run: {why}"),) if (why := coverage.refused.get(str(case))) else ()))
        hint = f"let `sizes` or smaller consts admit a problem that can be run, or say why nothing is to be known of it at the end of the line: # {MARK}: reason"
        errors.setdefault(
            (c.span.line, c.describe(t.number)),
            Diagnostic("V310", f"no run has taken this side: {c.describe(t.number)}", c.span, notes, hint),
        )
    if errors:
        raise CuirError(errors.values())


def _collect_sources(checked: Checked, coverage: Coverage) -> Iterable[Source]:
    """Collect the user's files that conditions stand in."""
    return dict.fromkeys(
        [
            checked.origin.span.source,
            *(c.span.source for c in coverage.observed.conditions if c.span.source.name == checked.origin.span.source.name),
        ]
    )


def _line_of(c: Condition) -> tuple[Source, int]:
    return c.span.source, c.span.line


__all__ = ["report_coverage", "require_both_sides"]

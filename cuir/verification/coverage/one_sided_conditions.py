"""Reports about sides of conditions that no run has taken.

Waivers of one-sided conditions: comments `# one-sided: reason` at the end of a line.

Sides of conditions by their place in the text: what inlining and unrolling repeat counts once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...checking.checked import Checked
from ...text.diagnostics import CuirError, Diagnostic, Note
from ...text.source import Source
from .conditions import Condition
from .coverage_figure import Figure, OneSided
from .coverage_loop import Coverage
from .origins import NUMBERS
from .targets import Target

MARK = "one-sided"
_WAIVER = re.compile(rf"#\s*{MARK}\b\s*:?\s*(?P<reason>.*)$")
_STRINGS = re.compile(r"\"[^\"]*\"|'[^']*'")


def collect_waivers(sources: Iterable[Source]) -> dict[tuple[Source, int], str]:
    """Collect the reasons that lines give, by source and line; "" for a waiver without one."""
    waivers: dict[tuple[Source, int], str] = {}
    for source in sources:
        for number, line in enumerate(source.lines, source.first_line):
            if MARK in line and (match := _WAIVER.search(_STRINGS.sub("", line))) is not None:
                waivers[source, number] = match["reason"].strip()
    return waivers


def describe_useless_waivers(waivers: Mapping[tuple[Source, int], str], used: Iterable[tuple[Source, int]]) -> list[str]:
    """Describe useless waivers: without a reason, or on lines where no condition stayed one-sided."""
    messages, places = [], set(used)
    for (source, line), reason in waivers.items():
        if not reason:
            messages.append(
                f"line {line} of {source.name}: `# {MARK}` without a reason waives nothing: `# {MARK}: why no launch takes the other side`"
            )
        elif (source, line) not in places:
            messages.append(f"line {line} of {source.name}: `# {MARK}` waives nothing: no condition of this line stayed one-sided")
    return messages


Place = tuple[object, ...]


@dataclass(frozen=True)
class Side:
    """A side of a condition at its place in the text.

    instances: those that a launch may take. unseen: those that no run has taken.
    """

    instances: tuple[Target, ...]
    unseen: tuple[Target, ...]

    @property
    def condition(self) -> Condition:
        """The condition of the first instance."""
        return self.instances[0].condition

    @property
    def by_data(self) -> bool:
        """Return whether data decide every instance."""
        return all(t.condition.level > NUMBERS for t in self.instances)

    @property
    def is_seen(self) -> bool:
        """True if no instance is unseen."""
        return not self.unseen


def collect_sides(coverage: Coverage) -> list[Side]:
    """Collect the sides that a launch may take, each place of the text once.

    A side is seen if a run has taken one of its instances, and no other instance has a problem that was found and not
    run.
    """
    masks, instances = coverage.observed.masks(), dict[Place, list[Target]]()
    for c in coverage.observed.conditions:
        possible = c.all_sides & ~(coverage.impossible[c.number] & ~masks[c.number])
        for side in range(len(c.sides)):
            if possible >> side & 1:
                instances.setdefault((*make_place_key(c), side), []).append(Target("side", c, side))
    return [Side(tuple(targets), _list_unseen_instances(coverage, masks, targets)) for targets in instances.values()]


def _list_unseen_instances(coverage: Coverage, masks: list[int], targets: Sequence[Target]) -> tuple[Target, ...]:
    unseen = [t for t in targets if not masks[t.condition.number] >> t.number & 1]
    with_problem = [t for t in unseen if coverage.case_of(t) is not None]
    return tuple(with_problem or unseen) if with_problem or len(unseen) == len(list(targets)) else ()


def make_place_key(c: Condition) -> Place:
    """Return the key of the place in the text of a condition, the same for all inlined copies."""
    span = c.span
    return span.source, span.line, span.column, span.end_line, span.end_column, c.kind


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


__all__ = [
    "MARK",
    "Side",
    "collect_sides",
    "collect_waivers",
    "describe_useless_waivers",
    "make_place_key",
    "report_coverage",
    "require_both_sides",
]

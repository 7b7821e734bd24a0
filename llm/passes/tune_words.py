"""Descriptions for a model of programs and settings that were tried: resources, differences, times."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence

from cuir.checking.checked import Const
from cuir.performance.search.search import Outcome
from cuir.performance.search.settings_contest import Contender
from cuir.performance.search.space import label

DIFF_LINES = 40  # of each proposal
FASTEST, REASONS, REASON = 5, 5, 160  # settings of an earlier search that are told; reasons why others failed, and letters of each


def resources(contender: Contender) -> str:
    """Describe shared memory, registers, spills, and the places of exponentials in the machine code."""
    shared, build = f"{contender.shared_bytes:,} bytes of shared memory", contender.built
    if build is None:
        return shared
    parts = [shared, f"{build.registers} registers a thread at launch", f"{build.spills} bytes of spills" if build.spills else "no spills"]
    if build.serialised:
        parts.append(f"ptxas of its products: {'; '.join(build.warnings)}")
    if build.exponentials:
        parts.append(
            f"exponentials in the machine code before, between and after its waits for products: {', '.join(map(str, build.exponentials))}"
        )
    return ", ".join(parts)


def difference(before: str, after: str) -> str:
    """Return a proposal's change, in at most DIFF_LINES lines."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), "best", "proposal", lineterm="", n=1))[2:]
    return "\n".join([*lines[:DIFF_LINES], *([f"({len(lines) - DIFF_LINES} more lines)"] if len(lines) > DIFF_LINES else [])])


def describe_search(outcomes: Sequence[Outcome], start: Mapping[str, Const]) -> str:
    """Describe the settings of the first program that a search has tried; "" if there are none.

    These are the values, the fastest settings, and why others failed. `start` is the first program's setting, relative
    to which settings are named.
    """
    timed = sorted((o for o in outcomes if o.status == "timed" and o.milliseconds), key=lambda o: o.median)
    failed = sorted((o for o in outcomes if o.status != "timed"), key=_reason)
    if not timed and not failed:
        return ""

    def name_setting(o: Outcome) -> str:
        """Name a setting by its difference from the start."""
        return label({n: v for n, v in o.consts.items() if start.get(n) != v}) or "the first program as it is"

    lines = [
        f"A search over consts of the first program has timed {len(timed)} settings for this problem{_values([*timed, *failed])}. This is known, so propose no such change alone:"
    ]
    lines += [f"* {name_setting(o)}: {o.median:.4f} ms" for o in timed[:FASTEST]]
    if len(timed) > FASTEST:
        lines.append(f"* the other {len(timed) - FASTEST}: {timed[FASTEST].median:.4f} to {timed[-1].median:.4f} ms")
    groups = [(reason, list(alike)) for reason, alike in itertools.groupby(failed, _reason)]
    for reason, alike in groups[:REASONS]:
        more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        lines.append(f"* {name_setting(alike[0])}{more}: not timed, {reason}")
    if len(groups) > REASONS:
        lines.append(f"* {sum(len(alike) for _, alike in groups[REASONS:])} more failed for other reasons")
    return "\n".join(lines)


def _reason(o: Outcome) -> str:
    """Return the status of a setting with its reason, shortened."""
    why = " ".join(o.why.split())
    return f"{o.status}{f': {why}' if why else ''}"[:REASON]


def _values(outcomes: Sequence[Outcome]) -> str:
    """Describe the values of consts that had more than one."""
    values_of: dict[str, list[Const]] = {}
    for o in outcomes:
        for name, value in o.consts.items():
            if value not in values_of.setdefault(name, []):
                values_of[name].append(value)
    several = [f"{name} {' '.join(map(str, sorted(values)))}" for name, values in values_of.items() if len(values) > 1]  # type: ignore[type-var]
    return f" (of {'; '.join(several)})" if several else ""

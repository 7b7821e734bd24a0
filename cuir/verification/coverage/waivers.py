"""Waivers of one-sided conditions: comments `# one-sided: reason` at the end of a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ...text.source import Source

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


__all__ = ["MARK", "collect_waivers", "describe_useless_waivers"]

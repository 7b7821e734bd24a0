"""Named barriers: hardware counts warps, a program counts arrivals, and both must agree (S406)."""

from __future__ import annotations

from typing import Protocol

from ..text.phrases import count_noun
from ..text.source import Span
from .accesses import Finding


class Meeting(Protocol):
    """The current phase of a named barrier.

    Attributes:
        count: Arrivals that end it.
        warps: Warps of these arrivals, as the hardware counts.
        arrivals: Labels of the workers that have arrived.
        warps_here: Their warps.
    """

    @property
    def text(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def warps(self) -> int: ...
    @property
    def warps_here(self) -> int: ...
    @property
    def arrivals(self) -> list[str]: ...


def is_full(bar: Meeting) -> bool:
    """Return True if all have arrived."""
    return len(bar.arrivals) == bar.count


def find_wrong_warps(bar: Meeting, span: Span, seen: bool) -> Finding | None:
    """Report S406 where the hardware opens the barrier for other arrivals than its count requires.

    span: the last arrival. seen: True if it came in a run, False if it can come in some schedule.
    """
    here, warps = len(bar.arrivals), bar.warps_here
    if (warps < bar.warps) == (here < bar.count) and warps <= bar.warps:
        return None
    found = (
        f", found {count_noun(here, 'arrival')} of {count_noun(warps, 'warp')} ({', '.join(bar.arrivals)})"
        if seen
        else f"; here {here} of {count_noun(warps, 'warp')} can come, the last from {bar.arrivals[-1]}"
    )
    return Finding(
        "S406",
        f"`{bar.text}` opens at {count_noun(bar.count, 'arrival')} of {count_noun(bar.warps, 'warp')} in all{found}",
        span,
        "each worker comes once a phase; warps= is the sum over those that come, four for a warpgroup",
    )

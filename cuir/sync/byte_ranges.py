"""Sets of bytes, or of elements, as ranges: increasing, disjoint, and merged where they touch."""

from __future__ import annotations

Intervals = tuple[tuple[int, int], ...]  # (first, last + 1), at least one


def is_overlapping(a: Intervals, b: Intervals) -> bool:
    """Return True if both contain a byte."""
    if a[0][0] >= b[-1][1] or b[0][0] >= a[-1][1]:  # the common case: different arrays
        return False
    i = j = 0
    while i < len(a) and j < len(b):
        (x, y), (u, v) = a[i], b[j]
        if x < v and u < y:
            return True
        if y <= u:
            i += 1
        else:
            j += 1
    return False


def covers(a: Intervals, b: Intervals) -> bool:
    """Return True if `a` contains all bytes of `b`."""
    return all(any(x <= u and v <= y for x, y in a) for u, v in b)

"""Which CTAs of a cluster a copy goes to, or an arrival, as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....checking.checked import Checked

OWN = "int(cute::block_rank_in_cluster())"


@dataclass(frozen=True)
class Line:
    """count: of the CTAs. rank: the text of the rank of the i-th of them, for the text of i. mask: of a bit for each."""

    count: int
    rank: Callable[[str], str]
    mask: str


def line_of_ctas(checked: Checked, along: bool | str) -> Line | None:
    """The CTAs that `along` names; None if it is the CTA itself alone."""
    size, across = checked.cluster, checked.cluster_x
    count = {"x": across, "y": size // across}.get(str(along), size if along else 1)
    if count == 1:
        return None
    if count == size:
        return Line(size, lambda i: i, str((1 << size) - 1))
    if along == "x":
        first = f"{OWN} / {across} * {across}"
        return Line(count, lambda i: f"{first} + {i}", f"{(1 << count) - 1} << ({first})")
    bits = sum(1 << across * y for y in range(count))
    return Line(count, lambda i: f"{OWN} % {across} + {across} * {i}", f"{bits} << {OWN} % {across}")

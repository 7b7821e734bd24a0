"""CTAs of a cluster that a copy or an arrival addresses, as texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....checking.checked import Checked

CTA_RANK = "int(cute::block_rank_in_cluster())"


@dataclass(frozen=True)
class CtaLine:
    """CTAs of a cluster along an axis.

    `count` is their number, `rank` maps the text of i to the rank of the i-th, and `mask` has a bit for each.
    """

    count: int
    rank: Callable[[str], str]
    mask: str


def select_ctas(checked: Checked, along: bool | str) -> CtaLine | None:
    """Return the CTAs that `along` names, or None for the CTA itself."""
    size, across = checked.cluster, checked.cluster_x
    count = {"x": across, "y": size // across}.get(str(along), size if along else 1)
    if count == 1:
        return None
    if count == size:
        return CtaLine(size, lambda i: i, str((1 << size) - 1))
    if along == "x":
        first = f"{CTA_RANK} / {across} * {across}"
        return CtaLine(count, lambda i: f"{first} + {i}", f"{(1 << count) - 1} << ({first})")
    bits = sum(1 << across * y for y in range(count))
    return CtaLine(count, lambda i: f"{CTA_RANK} % {across} + {across} * {i}", f"{bits} << {CTA_RANK} % {across}")

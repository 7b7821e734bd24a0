"""The settings of kernels of selected blocks, which follow from the heads that share a list and the queries that do."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ...checking.checked import Const
from ...spec.specification import Lengths
from ..splicing.splice import TransferResult
from .decoding import ROOM
from .serving_settings import make_captured_arguments
from .settings import Numbers, Settings

if TYPE_CHECKING:
    from ...performance.selection import Choice
    from ...spec.function_specification import AnySpecification

ROWS = 64  # of a warpgroup: queries times heads
NARROW = 128  # head dim up to which two warpgroups share a tile, or two CTAs a multiprocessor
LEAST_STEP = 64  # keys that a product takes at once
MOST_STAGES = 4


def tile_rows(per: int, span: int, most: int) -> tuple[int, int]:
    """Return the queries and the heads of a tile of `most` rows, and of 64 where these suffice.

    Args:
        per: heads that share a list.
        span: queries that share a list: a tile has queries of one list.
    """
    queries = min(most, span & -span)  # the largest power of two that divides span
    rows = most if queries * power_of_two(per) >= most else ROWS
    queries = min(queries, rows)
    return queries, rows // queries


def power_of_two(n: int) -> int:
    """Return the least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


class SelectedSettings(Settings):
    """The settings of the forward kernel."""

    @functools.cached_property
    def start(self) -> dict[str, Const]:
        return self.choose_untuned(Lengths(1, 16, 1, 1, 1))

    def choose_untuned(self, at: Lengths) -> dict[str, Const]:
        span, block, D, DV = (int(self.fixed[n]) for n in ("SPAN", "BLOCK", "D", "DV"))  # type: ignore[arg-type]
        wide = max(D, DV) > NARROW
        queries, heads = tile_rows(at.H // max(1, at.HK), span, ROWS if wide else 2 * ROWS)
        step = max(block, LEAST_STEP)
        panels = [-(-n // 64) * 128 for n in (D, DV)]  # bytes of a row
        fixed_bytes, stage = queries * heads * panels[0], step * sum(panels)
        alone = wide or queries * heads > ROWS or fixed_bytes + 2 * stage > ROOM // 2
        stages = max(1, min(MOST_STAGES, ((ROOM if alone else ROOM // 2) - fixed_bytes) // stage))
        return {"BM": queries, "GROUP": heads, "WG": queries * heads // ROWS, "BN": step, "STAGES": stages, **self.fixed}

    def choice(self, at: Lengths, numbers: Numbers = ()) -> Choice:
        from ...performance.selection import Choice

        return Choice(self.choose_untuned(at), "given", "a tile has the heads and the queries that share a list")

    def specification(self, transferred: TransferResult) -> AnySpecification:
        from ..verification.selected_specifications import make_selected_specification

        return make_selected_specification(transferred.spec, make_captured_arguments(self.program, transferred))


__all__ = ["LEAST_STEP", "NARROW", "ROWS", "SelectedSettings", "power_of_two", "tile_rows"]

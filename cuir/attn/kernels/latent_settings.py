"""The settings of decode kernels whose warpgroups share a tile of 64 rows: of wide heads, and over a latent cache.

The values of a latent cache are the first columns of its keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...checking.checked import Const
from ...spec.function_specification import AnySpecification
from ...spec.specification import Lengths
from ...syntax.types import F32
from ..splicing.splice import TransferResult
from . import decoding
from .serving_settings import CacheSettings, make_captured_arguments
from .settings import Numbers

PANELS = 64  # columns of 128 bytes, the least that are copied
# Time of a unit of work beside its blocks (queries, first block, result), of the launch that joins shares, and of what each unit leaves to
# it, in blocks.
UNIT, JOIN, JOINED_UNIT = 4, 3, 1 / 32
SHARES = (1, 2, 4, 8, 16, 32, 64)  # of the keys of a sequence
LEAST_BLOCKS = 2  # of a share
# Keys of a share whose order of sums must not depend on other sequences: a share costs a result that is written and read once more.
FIXED_SHARE = 4096
WHOLE_BLOCK = 1600  # columns of queries, keys and values of which shared memory holds 64 rows
SMALL_BLOCK = 32  # keys of a block of wider heads
NARROW_BLOCK = 32  # keys of a block of 8-bit numbers: shared memory holds it as it lies in the cache, and twice widened


def choose_block(keys: int, values: int) -> int:
    """Return the keys of a block over a cache with these head dims: those for which shared memory has room."""
    columns = 2 * -(-keys // PANELS) * PANELS + -(-values // (2 * PANELS)) * 2 * PANELS
    return decoding.BLOCK if columns <= WHOLE_BLOCK else SMALL_BLOCK


class SplitCacheSettings(CacheSettings):
    """The settings of a decode kernel whose columns of O are split over warpgroups: each CTA has a tile of 64 rows.

    Attributes:
        block: keys of a block, unless the const BN says how many.
    """

    block = decoding.BLOCK

    @classmethod
    def fix_share(cls, fixed: Mapping[str, Const]) -> int:
        return FIXED_SHARE // cls._count_block_keys(fixed)

    @classmethod
    def _count_block_keys(cls, fixed: Mapping[str, Const]) -> int:
        return int(fixed.get("BN", cls.block))  # type: ignore[arg-type]

    def choose_untuned(self, at: Lengths, numbers: Numbers = ()) -> dict[str, Const]:
        """Return the setting for lengths: as many shares of the keys as shorten the last wave of CTAs."""
        share = int(self.fixed.get("SHARE", 0))  # type: ignore[arg-type]
        at = at if share else self.limit_to_kept_keys(at, dict(numbers))
        tile = decoding.make_tile(at, decoding.ROWS, self.packed)
        blocks = -(-at.N // decoding.BLOCK)
        if share:
            splits = decoding.count_fixed_shares(at, share, self._count_block_keys(self.fixed)) if self.joins else 1
        else:
            splits = self._choose_splits(tile.units, blocks)
        alone: dict[str, Const] = {"DYNAMIC": False} if tile.units * splits <= decoding.count_processors() else {}
        shared: dict[str, Const] = {"SPLITS": splits, "G": F32} if splits > 1 else {}
        ordered = at.B > 1 and not alone
        return {"BM": tile.queries, "GROUP": tile.group, **alone, "ORDERED": ordered, **shared, **self.fixed}

    def _choose_splits(self, units: int, blocks: int) -> int:
        """Return the number of shares of each sequence's keys with the least estimated time."""

        def estimate(splits: int) -> float:
            waves = -(-units * splits // decoding.count_processors())
            return waves * (-(-blocks // splits) + UNIT) + (JOIN + JOINED_UNIT * units * splits if splits > 1 else 0)

        return min((s for s in SHARES if s == 1 or (self.joins and s * LEAST_BLOCKS <= blocks)), key=estimate)

    def choose_judged(self, consts: Mapping[str, Const]) -> Mapping[str, Const]:
        """Return the setting to verify: with one share, as no other launch joins shares there."""
        return {**consts, "SPLITS": 1, "G": consts["T"]}


class LatentSettings(SplitCacheSettings):
    """The settings of the decode kernel over a latent cache."""

    def choose_untuned(self, at: Lengths, numbers: Numbers = ()) -> dict[str, Const]:
        """Return the setting for lengths, with the pieces in which a block's columns are fetched."""
        half = int(self.fixed["DV"]) // 2  # type: ignore[arg-type]
        pieces = next(n for n in (4, 2, 1) if half % (n * PANELS) == 0)
        return {"PIECES": pieces, **super().choose_untuned(at, numbers)}

    def specification(self, transferred: TransferResult) -> AnySpecification:
        from ..verification.serving_specifications import make_cached_specification

        return make_cached_specification(transferred.spec, make_captured_arguments(self.program, transferred), latent=True)


class NarrowLatentSettings(SplitCacheSettings):
    """The settings of the decode kernel over a latent cache of 8-bit numbers."""

    block = NARROW_BLOCK

    def specification(self, transferred: TransferResult) -> AnySpecification:
        from ..verification.serving_specifications import make_cached_specification

        return make_cached_specification(transferred.spec, make_captured_arguments(self.program, transferred), scaled=True, latent=True)


class SelectedTokensSettings(SplitCacheSettings):
    """The settings of the kernel of selected tokens of a latent cache.

    A tile has the heads of one query. In `Lengths`, N is the number of entries of a list.
    """

    def choose_untuned(self, at: Lengths, numbers: Numbers = ()) -> dict[str, Const]:
        """Return the setting for lengths: as many shares of the lists as shorten the last wave of CTAs."""
        units = at.B * at.M * at.HK * -(-at.H // max(1, at.HK) // decoding.ROWS)
        blocks, share = -(-at.N // self.block), int(self.fixed.get("SHARE", 0))  # type: ignore[arg-type]
        splits = 1
        if share and self.joins:
            splits = max(1, -(-blocks // share))
        elif not share:
            splits = self._choose_splits(units, blocks)
        alone: dict[str, Const] = {"DYNAMIC": False} if units * splits <= decoding.count_processors() else {}
        shared: dict[str, Const] = {"SPLITS": splits, "G": F32} if splits > 1 else {}
        return {**alone, **shared, **self.fixed}

    def specification(self, transferred: TransferResult) -> AnySpecification:
        from ..verification.serving_specifications import make_selected_tokens_specification

        return make_selected_tokens_specification(transferred.spec, make_captured_arguments(self.program, transferred))


__all__ = [
    "FIXED_SHARE",
    "NARROW_BLOCK",
    "LatentSettings",
    "NarrowLatentSettings",
    "SelectedTokensSettings",
    "SplitCacheSettings",
    "choose_block",
]

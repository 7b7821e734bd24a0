"""Block counts of masks without a closed form that read no data, from strips of their queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ...attn.tracing.mod_evaluator import evaluate
from ...spec.specification import LENGTHS, Lengths
from ...syntax.nodes import Expr
from ...syntax.walk import names_read

ROWS = 384  # rows of a strip: whole tiles of 64, 128, 192 and 384 queries
GROUP, UNIT = 64, 16  # queries and keys of the parts of tiles, of which any or all pairs are kept
MAX_PAIRS = 1 << 24  # pairs that are evaluated at most: tenths of a second
MAX_STRIPS = 8  # strips of a head at most
HEADS = 2  # heads that are evaluated if they differ


@dataclass(frozen=True)
class Strips:
    """Evaluated strips of a mask.

    Queries and keys beyond the lengths are no pairs; a unit that is cut off by the last key is not `whole`.

    Attributes:
        first: First row of each strip.
        some: Bool [heads, strips, groups, units], whether a group of queries keeps a pair of a unit of keys.
        whole: Bool of the same shape, whether a group of queries keeps all pairs of a unit of keys.
    """

    first: np.ndarray
    some: np.ndarray
    whole: np.ndarray

    @staticmethod
    def of(mask: Expr, at: Lengths, numbers: Mapping[str, int | float]) -> Strips | None:
        """Evaluate a mask in strips.

        Returns: The strips, or None if a strip has too many keys, or no pair.

        Raises: CuirError for a mask that reads more than indices, lengths and numbers.
        """
        by_head = "h" in names_read(mask)
        heads = np.unique(np.linspace(0, at.H - 1, HEADS).astype(int)) if by_head else np.zeros(1, int)
        total = -(-at.M // ROWS)
        number = min(total, MAX_STRIPS, MAX_PAIRS // (ROWS * max(1, at.N) * len(heads)))
        if number == 0 or at.N == 0:
            return None
        first = ROWS * ((np.arange(number) + 0.5) * total / number).astype(int)
        units = -(-at.N // UNIT)
        with torch.device("cpu"):  # overrides the caller's default device
            some, whole = _evaluate_strips(mask, at, numbers, heads, first, units)
        return Strips(first, some, whole)

    def count_blocks(self, tiles: np.ndarray, BM: int, BN: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (blocks that need the mask, all blocks) of tiles of BM queries, [heads, tiles].

        Each tile has the counts of the nearest strip's tile. The result is None for tiles that do not divide strips and units.
        """
        if ROWS % BM or BM % GROUP or BN % UNIT:
            return None
        heads, strips, _, units = self.some.shape
        blocks = -(-units * UNIT // BN)
        padding = [(0, 0)] * 3 + [(0, blocks * BN // UNIT - units)]
        shape = (heads, strips, ROWS // BM, BM // GROUP, blocks, BN // UNIT)
        some = np.pad(self.some, padding).reshape(shape).any((3, 5))
        whole = np.pad(self.whole, padding).reshape(shape).all((3, 5))
        rows = tiles * BM
        strip = np.abs(self.first[:, None] - rows // ROWS * ROWS).argmin(0)
        return tuple(x.sum(-1)[:, strip, rows % ROWS // BM] for x in (some & ~whole, some))


def _evaluate_strips(
    mask: Expr, at: Lengths, numbers: Mapping[str, int | float], heads: np.ndarray, first: np.ndarray, units: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return `some` and `whole` of the strips that begin at `first`."""
    k = torch.arange(units * UNIT, dtype=torch.int32)
    bindings = {**numbers, **{name: getattr(at, name) for name in LENGTHS}, "b": 0}
    some, whole = (np.zeros((len(heads), len(first), ROWS // GROUP, units), bool) for _ in range(2))
    for i, h in enumerate(heads):
        for j, g in np.ndindex(len(first), ROWS // GROUP):
            q = int(first[j]) + g * GROUP + torch.arange(GROUP, dtype=torch.int32)[:, None]
            is_kept = torch.as_tensor(evaluate(mask, {**bindings, "h": int(h), "q": q, "k": k}), dtype=torch.bool)
            pairs, rows = (is_kept & (k < at.N)).expand(GROUP, len(k)).view(GROUP, units, UNIT), (q < at.M)[..., None]
            some[i, j, g], whole[i, j, g] = (pairs & rows).any(2).any(0).numpy(), (pairs | ~rows).all(2).all(0).numpy()
    return some, whole


__all__ = ["Strips"]

"""The picture of a kernel's mask: blocks in the order of visits, tiles in the order of units."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import corpus
import cuir
from cuir.pages.mask_picture import BlockMap, count_blocks, find_visits, render_blocks
from cuir.spec.specification import Lengths

KERNEL = Path(__file__).parents[2] / "corpus/kernels/flash_fwd_sm90.cuir"


def test_visits_and_units_are_those_of_the_kernel() -> None:
    program, spec, lengths = cuir.load(KERNEL), corpus.variant("causal")(), Lengths(1, 1, 1, 512, 512)
    checked = cuir.check(program, consts={"T": cuir.f16, "D": 64})
    BM, BN = int(checked.consts["BM"]), int(checked.consts["BN"])  # type: ignore[arg-type]
    blocks = find_visits(program, checked, spec, lengths, count_blocks(spec.compute_kept(lengths)[0, 0], BM, BN))
    assert blocks.visits is not None and blocks.order is not None
    for shares, visits in zip(blocks.shares, blocks.visits):
        ranks = sorted(visits[visits >= 0])
        assert ranks == list(range(len(ranks))) and (visits[shares > 0] >= 0).all()
    longest_first = np.argsort(blocks.order)
    assert (np.diff((blocks.shares > 0).sum(1)[longest_first]) <= 0).all()
    assert f">unit {len(blocks.order) - 1}<" in render_blocks(blocks)


def test_without_an_order_no_units_are_named() -> None:
    assert "unit" not in render_blocks(BlockMap(np.ones((2, 2))))

"""Counts of the sm_75 kernels' instructions are those that tile sizes give; bounds follow from them."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.turing_roofline import CARDS, KERNELS, Turn, format_table, read_turn
from cuir.runtime.nvcc import Resources

FORWARD = [kernel for kernel in KERNELS if kernel[1] == "flash_fwd"]


@pytest.mark.sweep
@pytest.mark.nvcc
@pytest.mark.parametrize("kernel", FORWARD, ids=lambda k: f"d{k[2]['D']}")
def test_products_of_a_turn(kernel: tuple[str, str, dict[str, int]]) -> None:
    turn = read_turn(*kernel)
    d, bn, rows = kernel[2]["D"], 64, 16  # of a block of keys; rows of a warp
    dv = kernel[2].get("DV", d)
    assert turn.pipes["tensor"] == (rows // 16) * (bn // 8) * (d + dv) // 8  # m16n8k8: scores, and weights by values
    assert turn.pipes["special"] >= rows * bn // 32  # an exponential for each score
    assert (turn.resources.spill_stores == turn.resources.spill_loads == 0) == (d <= 128)
    assert turn.instructions > turn.pipes["issue"] > turn.pipes["tensor"]


def test_bounds_are_the_peak_where_products_decide() -> None:
    resources = Resources("k", 100, 0, 0, 0, 0, 128, 0.0, "")
    turn = Turn("k", 64, resources, 300, Counter(tensor=100, special=100, shared=10, issue=250))
    for multiprocessors, gigahertz in CARDS.values():
        at_once, in_turns = turn.find_bounds(multiprocessors, gigahertz)
        assert at_once == pytest.approx(multiprocessors * gigahertz * 1024e-3)  # 1024 operations a cycle
        assert in_turns == pytest.approx(at_once / 2)  # as many cycles of exponentials
    assert list(format_table([turn]))[-1].startswith("| k | 64 | 100, 0 | 300 | 250 | 100 | 100 | 10 | 65, 33 |")

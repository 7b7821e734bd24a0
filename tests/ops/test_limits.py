"""Limits of a multiprocessor: how many CTAs it holds at a time."""

from __future__ import annotations

import pytest

from cuir.ops.limits import TARGETS, count_resident_ctas


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "count"),
    [
        (128, 128 * 128, 40_000, 2),
        (256, 256 * 128, 40_000, 2),  # half of the 65,536 registers each
        (256, 256 * 136, 40_000, 1),
        (128, 128 * 128, 115_712, 2),  # with 1 KB that each CTA has besides, 228 KB
        (128, 128 * 128, 115_713, 1),
    ],
)
def test_two_ctas_need_registers_and_shared_memory_for_both(threads: int, registers: int, shared: int, count: int) -> None:
    assert count_resident_ctas(TARGETS["sm_90a"], threads, registers, shared) == count

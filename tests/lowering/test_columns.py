"""Gathers along the columns: each column is read once a warp, whatever else the expression does; other gathers are read where they are used."""

from __future__ import annotations

import re

import pytest

from tests.lowering.conftest import text


def kept(condition: str) -> str:
    return text(f"S = zeros(f32, [64, 80])\nk = n * 80 + cols(80)\nq = rows(64)\nS = where({condition}, S, 1.0)\nstore(Y[q], row_sum(S))")


@pytest.mark.parametrize("condition", ["I[k] == I[q]", "(I[k] == I[q]) & (k < n)", "(I[k - 3] > 0) | (I[k] > q)", "I[n + cols(80)] == n"])
def test_a_warp_reads_each_column_once(condition: str) -> None:
    source = kept(condition)
    own = re.findall(r"int (own__\d+)\[3\], (columns__\d+)\[20\];", source)
    assert len(own) == condition.count("I[k") + condition.count("I[n")
    for mine, columns in own:
        assert f"{columns}[c_] = __shfl_sync(~0u, {mine}[k_ / 32], k_ % 32 + col);" in source
        assert source.count(f"{columns}[c_]") == 2  # filled, and read in the loop over the elements
    body = source[source.index("S = where(") :]
    assert "k_) < unsigned(M)" not in body, "no bounds check for each element"


@pytest.mark.parametrize("condition", ["I[2 * k] == n", "I[k + q] == n", "I[k * k] == n"])
def test_other_gathers_are_read_in_place(condition: str) -> None:
    source = kept(condition)
    assert "own__" not in source and "unsigned(M)" in source


def test_lanes_and_columns_meet() -> None:
    """The lane that a thread asks holds the column that it has: columns 2 (lane % 4) + 8 i and the next, of lanes that hold 32 x + lane."""
    for lane in range(32):
        col = 2 * (lane % 4)
        for c in range(32):
            k = 8 * (c // 2) + c % 2
            x, asked = k // 32, k % 32 + col
            assert asked < 32 and 32 * x + asked == k + col

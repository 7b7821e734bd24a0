"""Registers that tiles take: which loops are unrolled, and the estimate and the warning of `cuir check`."""

from __future__ import annotations

import pytest

from cuir import check, f16, parse
from cuir.lowering.compiler import lower
from cuir.lowering.lowered import Cuda
from cuir.runtime.launchable import find_large_tiles

ROWS = """@kernel(arch="sm_90a")
def sums(X: Global[T, M, N], Y: Global[f32, M, 1], *, T: const, N: const = 1024, C: const = 128, WARPS: const = 4):
    buf = shared(T, [WARPS, 16, N])
    work = tiles(cdiv(M, 16 * WARPS))
    with role("all", warps=WARPS) as w:
        for t in work:
            r = (t * WARPS + w) * 16
            for d in range(N // 32):
                store(buf[w, :, d * 32 : d * 32 + 32], load(X[r : r + 16, d * 32 : d * 32 + 32]))
            total = zeros(f32, [16, 1])
            for c in range(N // C):
                total += row_sum(cast(load(buf[w, :, c * C : c * C + C]), f32))
            store(Y[r : r + 16, :], total)
"""


def lower_rows(**consts: int) -> Cuda:
    return lower(check(parse(ROWS, "sums.cuir"), None, {"T": f16, **consts}))


@pytest.mark.parametrize(
    ("consts", "unrolled"),
    [
        ({"N": 256, "C": 64}, True),  # 4 turns of 16 registers
        ({"N": 1024, "C": 128, "WARPS": 4}, False),  # 8 turns of 32 registers, of 255
        ({"N": 512, "C": 128, "WARPS": 4}, True),  # 4 turns of 32 registers, of 255
        ({"N": 512, "C": 32, "WARPS": 12}, True),  # 16 turns of 8 registers, of 168
        ({"N": 512, "C": 128, "WARPS": 14}, False),  # 4 turns of 32 registers, of 128
    ],
)
def test_loops_are_unrolled_if_all_loads_fit(consts: dict[str, int], unrolled: bool) -> None:
    lines = lower_rows(**consts).source.split("\n")
    heads = [lines[i - 1] for i, line in enumerate(lines) if "for (int c = 0;" in line]
    assert heads == ["#pragma unroll" if unrolled else "#pragma unroll 1"]


@pytest.mark.parametrize(("columns", "least"), [(64, 32), (128, 64), (256, 128)])
def test_the_estimate_holds_the_largest_tile(columns: int, least: int) -> None:
    """The f32 operand of row_sum: R * C / threads registers, beside those of its operand as halves or less."""
    (estimate,) = lower_rows(C=columns).tile_registers
    assert least <= estimate.count <= 300 and estimate.limit == 255 and estimate.role == "all"


def test_tiles_beyond_the_registers_are_a_warning() -> None:
    assert find_large_tiles(lower_rows(N=256, C=64)) == []
    (warning,) = find_large_tiles(lower_rows(C=1024))
    assert warning.code == "M307" and warning.severity == "warning" and "about 51" in warning.message
    assert warning.span is not None and str(warning).startswith("sums.cuir:12:") and ": warning[M307]: " in str(warning)

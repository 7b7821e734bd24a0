"""Asynchronous stores that each warp does for the rows that it wrote itself."""

from __future__ import annotations

import pytest

from cuir.lowering.analyses.stores import find_warp_rows, stores_by_warps
from tests.lowering.tile_ir import clean, program

TEXT = """
@kernel(arch="sm_90a")
def f(X: Global[f16, B, 128, 64], Y: Global[f16, B, 128, 64], n: i32):
    o = shared(f16, [128, 64])
    over = shared(f16, [128, 64], over=o)
    wide = shared(f16, [2, 128, 64])
    full = mbarrier(1)
    with role("all", warpgroups=2) as w:
        x = cast(load(X[0, w * 64 : w * 64 + 64, :]), f16)
"""
STORE = "store(o[w * 64 : w * 64 + 64], x)"
SEND = "fence_async()\nstore_async(o[w * 64 : w * 64 + 64], Y[n, w * 64 : w * 64 + 64, :])\nstore_wait()"


def kernel_text(body: str) -> str:
    return TEXT + "".join(f"        {line}\n" for line in body.split("\n"))


@pytest.mark.parametrize(
    ("body", "by_warps"),
    [
        (f"{STORE}\n{SEND}", True),
        (f"for i in range(n):\n    {STORE}\n" + "\n".join(f"    {line}" for line in SEND.split("\n")), True),
        (f"if n > 0:\n    {STORE}\nelse:\n    store(o[w * 64 : w * 64 + 64], x + x)\n{SEND}", True),  # the same rows, made twice
        (f"r = w * 64\nstore(o[r : r + 64], x)\n{SEND}", True),  # by another name
        (STORE, False),  # nothing is sent
        (SEND, False),  # nothing is written
        (f"store(o[64 - w * 64 : 64 - w * 64 + 64], x)\n{SEND}", False),  # others' rows
        (f"{STORE}\nstore(o[0:64], x)\n{SEND}", False),
        (f"{STORE}\nstore(over[0:64], x)\n{SEND}", False),  # the same memory
        (f"store(o[w * 64 : w * 64 + 64], x, mask=rows(64) < n)\n{SEND}", False),
        (f"{STORE}\n{SEND}\nstore(Y[n, 0:64, :], x)", True),  # by lanes of the same warp
        (f"{STORE}\n{SEND}\nstore(Y[n, n : n + 64, :], x)", False),  # by those of another one
        (
            f"{STORE}\n{SEND}\ny = load(Y[n, 0:64, :])\nstore(o[w * 64 : w * 64 + 64], y)",
            False,
        ),  # others may have read what a warp overwrites
        (
            f"{STORE}\nfence_async()\nstore_async(o[w * 64 : w * 64 + 64], Y[n, w * 64 : w * 64 + 64, :], add=True)\nstore_wait()\n{SEND}",
            False,
        ),
        (f"{STORE}\n{SEND}".replace("Y[n, w * 64 : w * 64 + 64", "Y[n, n : n + 64"), False),  # a row may be another warp's the next time
        (f"{STORE}\n{SEND}".replace("Y[n, w * 64 : w * 64 + 64", "Y[n, n * 64 : n * 64 + 64"), True),
        (
            "for i in range(n):\n    store(wide[i % 2, w * 64 : w * 64 + 64], x)\n    fence_async()\n    store_async(wide[i % 2, w * 64 : w * 64 + 64], Y[n, w * 64 : w * 64 + 64, :])\n    store_wait()",
            True,
        ),
        (
            "for i in range(n):\n    store(o[i % 2 * 64 : i % 2 * 64 + 64], x)\n    fence_async()\n    store_async(o[i % 2 * 64 : i % 2 * 64 + 64], Y[n, w * 64 : w * 64 + 64, :])\n    store_wait()",
            False,
        ),
    ],
)
def test_rows_of_a_warps_own(body: str, by_warps: bool) -> None:
    kernel = clean(program(kernel_text(body)))
    assert stores_by_warps(kernel.roles[0]) == by_warps


def test_the_array_is_named() -> None:
    result = find_warp_rows(clean(program(kernel_text(f"{STORE}\n{SEND}"))).roles[0])
    assert result is not None and result.symbol.data == "o"


def test_a_warp_alone_has_no_others() -> None:
    text = kernel_text(f"{STORE}\n{SEND}").replace("warpgroups=2", "warps=2")
    assert not stores_by_warps(clean(program(text)).roles[0])

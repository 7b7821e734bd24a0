"""Reads that stand behind a wait for a product, issued in front of it."""

from __future__ import annotations

import re

import cuir
from cuir.checking.checker import check
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import show
from cuir.lowering.passes import hoist_loads_above_waits
from tests.lowering.passes.lowering import clean

KERNEL = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], D: Global[i32, M], W: Global[i32, M], Y: Global[f32, M, 64], n: i32):
    a = shared(f16, [64, 64])
    with role("one", warpgroups=1):
        x = zeros(f16, [64, 64])
        store(a, x)
        fence_async()
        S = mma_async(x, a)
        mma_wait(S)
        {body}
        store(Y[0:64, :], S)
"""


def after(body: str) -> list[str]:
    ir = build(check(cuir.parse(KERNEL.format(body=body.replace("\n", "\n        ")))))
    clean(ir)
    hoist_loads_above_waits.run(ir)
    ir.verify()
    clean(ir)
    return [line.strip() for line in show(ir).splitlines()]


def place(lines: list[str], text: str) -> int:
    results = [i for i, line in enumerate(lines) if re.search(text, line)]
    assert results, text
    return results[0]


def test_numbers_a_row_are_read_before_the_wait() -> None:
    lines = after("S = S + cast(D[n + rows(64)], f32)")
    assert place(lines, r'"gather"\(') < place(lines, '"mma_wait"')


def test_what_a_branch_reads_is_read_in_a_branch_before_the_wait() -> None:
    lines = after("if n > 3:\n    S = S + cast(D[D[n] + rows(64)], f32)")
    wait = place(lines, '"mma_wait"')
    assert place(lines, r"tile.if") < place(lines, r'"gather"\(') < wait
    assert len([line for line in lines if "tile.if" in line]) == 2 and not any('"gather"' in line for line in lines[wait:])


def test_what_follows_from_the_product_or_is_written_stays() -> None:
    lines = after("S = S + cast(D[cast(row_max(S), i32)], f32)")
    assert place(lines, '"mma_wait"') < place(lines, r'"gather"\(')
    lines = after("store(W[rows(64)], rows(64))\nS = S + cast(W[rows(64)], f32)")
    assert place(lines, '"mma_wait"') < place(lines, r'"gather"\(')

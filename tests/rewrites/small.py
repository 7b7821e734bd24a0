"""A kernel that has a place for every kind of rewrite, and the comparison of programs by written bits."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from cuir.checking.checked import Const
from cuir.checking.checker import check
from cuir.interp import run
from cuir.syntax.nodes import Program
from tests.strategies.typed import arguments

TEXT = """\
LIMIT = 0.5

@func
def scaled(x, factor, shift):
    y = x * factor
    shift = shift + LIMIT
    return y + shift, factor + 1.0

@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], I: Global[i32, M], Y: Global[f32, M, 64], Z: Global[f32, M], n: i32, scale: f32):
    half = (n + 1) // 2
    s = shared(f32, [2, 64, 64])
    turn = named_barrier(1, stages=2)
    work = tiles(cdiv(M, 64))

    with role("all", warpgroups=1) as w:
        turns, top = 0, full(f32, [64, 1], -1.0)
        for t in work:
            q = t * 64 + rows(64)
            first = I[t]
            limit = first + half - w
            key = cols(64) * 3
            x = X[q, cols(64)]
            a, b = scaled(x, scale, 0.25)
            turn[turns % 2].sync()
            store(s[turns % 2], a)
            bound = max(top, row_max(a), LIMIT)
            weight = exp2(min(b, 4.0))
            kept = (key + q + n > limit) & (a < bound)
            a = where(kept, a, 0.0)
            if n < 7 and first > 0:
                top = bound * weight
            else:
                top = bound + (1.0 if limit != half else 2.0)
            store(Y[q, cols(64)], a + b)
            store(Z[q], top)
            turns += 1
"""

Bits = dict[str, torch.Tensor]


def bits(program: Program, dims: Mapping[str, int], consts: Mapping[str, Const] | None = None, schedule: str = "in_order") -> Bits:
    """Return the written bits of a program on the tensors of `arguments`."""
    checked = check(program, consts=consts or {})
    inputs = arguments(checked, dims)
    run(checked, inputs, schedule=schedule)
    return {t.name: inputs[t.name] for t in checked.tensors if t.written}


def same(item: Bits, second: Bits) -> bool:
    """Return whether two runs gave the same bits, whatever their NaNs look like."""
    return item.keys() == second.keys() and all(torch.equal(item[n].nan_to_num(7e4), second[n].nan_to_num(7e4)) for n in item)

"""Zeros that only a product takes over are not written, unless something may read them: behind a loop that may not run, above all."""

from __future__ import annotations

import pytest

from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.row_parts import Nothing
from cuir.lowering.passes import elide_zero_accumulators
from cuir.lowering.validate import validate
from tests.lowering.conftest import HEAD, kernel
from tests.lowering.passes.lowering import clean
from tests.strategies.typed import arguments

FILL = "k = rows(64) % 3 - cols(64) % 2\nstore(s[0], cast(k, f16))\nstore(s[1], cast(k + 1, f16))\nfence_async()\n"
PRODUCT, END = "acc = mma_async(s[0], s[1].T, acc)\nmma_wait(acc)\n", "store(Z[rows(64), cols(64)], acc)"


@pytest.mark.sweep(4)
@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize(
    ("body", "empty"),
    [
        ("acc = zeros(f32, [64, 64])\n" + PRODUCT + END, 0),  # the product starts anew: there is no accumulator at all
        (
            "acc = zeros(f32, [64, 64])\nfor i in range(1, 3):\n    acc = mma_async(s[0], s[1].T, acc)\n    mma_wait(acc)\n" + END,
            0,
        ),  # a loop may not run
        (
            "acc = zeros(f32, [64, 64])\nfor i in range(n):\n    before = acc\n    acc = mma_async(s[0], s[1].T, acc)\n    mma_wait(before)\nmma_wait(acc)\n"
            + END,
            0,
        ),
        ("acc = zeros(f32, [64, 64])\nfor i in range(n):\n    acc = mma_async(s[0], s[1].T, acc)\n    mma_wait(acc)\n" + PRODUCT + END, 1),
        ("acc = zeros(f32, [64, 64])\nif n > 0:\n    acc = acc * 2.0\n" + PRODUCT + END, 0),  # zeros on both paths
        ("acc = zeros(f32, [64, 64])\nif n > 0:\n    acc = acc + scale\n" + PRODUCT + END, 1),
        ("acc = zeros(f32, [64, 64])\nif n > 0:\n    acc = full(f32, [64, 64], 1.0)\n" + PRODUCT + END, 1),
        ("acc = full(f32, [64, 64], 1.0)\n" + PRODUCT + END, 0),
        (
            "z = zeros(f32, [64, 64])\nacc = full(f32, [64, 64], 1.0)\nfor i in range(n):\n    acc = z\nb = mma_async(s[0], s[1])\nmma_wait(b, acc)\n"
            + PRODUCT
            + END,
            1,
        ),
        ("acc = zeros(f32, [64, 64])\n" + END, 0),
        ("acc = zeros(f32, [64, 64])\nb = acc\n" + PRODUCT + END + "\nstore(Z[rows(64), cols(64)], b)", 0),
        (
            "acc = zeros(f32, [64, 64])\nfor t in work:\n    " + PRODUCT.replace("\n", "\n    ") + END + "\n    acc = zeros(f32, [64, 64])",
            2,
        ),
    ],
)
def test_zeros_that_only_a_product_takes_over_are_not_written(body: str, empty: int, n: int) -> None:
    checked = kernel(FILL + body, HEAD)
    inputs = arguments(checked, {"M": 64}) | {"n": n, "scale": 0.5}
    result = build(checked)
    clean(result)
    assert validate(result, [elide_zero_accumulators], inputs) is None  # registers that hold nothing are NaN to the evaluator
    assert sum(isinstance(op, Nothing) for op in every(result)) == empty

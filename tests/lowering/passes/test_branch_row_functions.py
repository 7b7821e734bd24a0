"""1 / x and log2(x) of numbers a row: which are taken by warps, and that an array that is its own result is read before it is written."""

from __future__ import annotations

import numpy as np
import pytest

from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.passes import branch_row_functions
from tests.lowering.conftest import HEAD, kernel
from tests.lowering.host import GXX, on_cpu
from tests.lowering.passes.lowering import cuda, role


def after(body: str) -> str:
    ir = parse(role("%one = tile.constant 1.0 : !tile.scalar<f32>\n%two = tile.constant 2.0 : !tile.scalar<f32>\n" + body))
    branch_row_functions.run(ir)
    ir.verify()
    return show(ir)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('%y = tile.apply "log2"(%x) : !tile.reg<f32, 64, 1>', '%y = tile.by_rows "log2"(%x) : !tile.reg<f32, 64, 1>'),
        ('%y = tile.apply "log2"(%x) exact : !tile.reg<f32, 64, 1>', '%y = tile.by_rows "log2"(%x) : !tile.reg<f32, 64, 1>'),
        ('%y = tile.apply "/"(%one, %x) : !tile.reg<f32, 64, 1>', '%y = tile.by_rows "one_over"(%x) : !tile.reg<f32, 64, 1>'),
        (
            '%o = tile.apply "full"(%one) : !tile.reg<f32, 64, 1>\n%y = tile.apply "/"(%o, %x) : !tile.reg<f32, 64, 1>',
            '%y = tile.by_rows "one_over"(%x)',
        ),
    ],
)
def test_what_a_warp_takes_a_branch_for(body: str, expected: str) -> None:
    assert expected in after(body)


@pytest.mark.parametrize(
    "body",
    [
        '%y = tile.apply "/"(%one, %x) exact : !tile.reg<f32, 64, 1>',  # correctly rounded
        '%y = tile.apply "/"(%two, %x) : !tile.reg<f32, 64, 1>',
        '%y = tile.apply "/"(%one, %S) : !tile.reg<f32, 64, 64>',
        '%y = tile.apply "log2"(%f) : !tile.scalar<f32>',
        '%y = tile.apply "exp2"(%x) : !tile.reg<f32, 64, 1>',
    ],
)
def test_what_stays(body: str) -> None:
    assert "by_rows" not in after(body)


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
def test_a_row_may_be_its_own_inverse(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The function reads its argument again where a row is near an end of the range."""
    head = HEAD.replace("X: Global[f16, M, 64]", "X: Global[f32, M]")
    head = head.split("    s = shared")[0] + '    with role("all", warpgroups=1) as w:\n'
    result = cuda(
        kernel(
            "x = X[rows(64)]\nfor i in range(n):\n    x = 1.0 / x\nstore(Y[rows(64)], x)\nstore(Z[rows(64), cols(64)], zeros(f32, [64, 64]))",
            head,
        )
    )
    assert "cuir::one_over(" in result.source
    x = np.linspace(0.5, 3, 64).astype(np.float32)
    x[3], x[60] = 1e-39, 2.0**127
    y = np.full(64, np.nan, np.float32)
    inputs = {"X": (x,), "Y": (y,), "Z": (np.zeros((64, 64), np.float32), 64)}
    call = on_cpu(result, tmp_path_factory.mktemp("host"))
    call(*[a for name in result.tensors for a in inputs[name]], 1, 0.0, 64)
    with np.errstate(over="ignore"):
        assert np.allclose(y, 1 / x, rtol=3e-7, atol=2.0**-126)

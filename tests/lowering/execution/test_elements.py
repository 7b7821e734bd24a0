"""Elements of tensors, by whatever indices: what is printed reads and writes those that the program says, and none outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cuir.lowering import lower
from tests.lowering.conftest import kernel
from tests.lowering.host import GXX, on_cpu

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], Z: Global[f32, M, 64], n: i32):
    with role("all", warpgroups=1):
"""
ROWS, COLS = np.arange(64)[:, None], np.arange(64)[None, :]
X = (ROWS * 64 + COLS + 1).astype(np.float32)
inside = (ROWS + COLS < 64) & (COLS >= 1)


@pytest.mark.sweep
@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x = X[rows(64), where(cols(64) > n, cols(64), 0)]", np.where(COLS > 5, X, X[:, :1])),  # an index that is a choice
        ("x = X[cols(64), rows(64)]", X.T),
        ("x = X[rows(64) + cols(64), cols(64) - 1]", np.where(inside, X[(ROWS + COLS) % 64, (COLS - 1) % 64], 0)),
        ("x = X[rows(64), cols(64) + (0 if n > 9 else n)]", np.where(COLS < 59, X[:, (np.arange(64) + 5) % 64], 0)),
        ("x = X[n, cols(64)] + zeros(f32, [64, 64])", np.broadcast_to(X[5], (64, 64))),
        ("x = X[0 - n, cols(64)] + zeros(f32, [64, 64])", np.zeros((64, 64))),  # a number outside
        ("x = cast(full(i32, [64, 64], 5) + rows(1) + cols(1), f32)", np.full((64, 64), 5.0)),  # one row and one column have number 0
        (
            "P = X[rows(64), cols(64)]\nx = P\nif n > 0:\n    P = P * 2.0\n    x = x + row_sum(P)\nx = x + row_sum(P)",
            X + 4 * X.sum(1, keepdims=True),
        ),  # the sum in a branch, and the one behind it
        ("m = cast(n, f32)\nP = X[rows(64), cols(64)]\nx = P + row_sum(P) / m", X + X.sum(1, keepdims=True) / 5),
    ],
    ids=range(9),
)
def test_elements(tmp_path: Path, body: str, expected: np.ndarray) -> None:
    actual = lower(kernel(body + "\nstore(Z[rows(64), cols(64)], x)", HEAD))
    z = np.full((64, 64), np.nan, np.float32)
    inputs = {"X": (X.copy(), 64), "Z": (z, 64)}
    on_cpu(actual, tmp_path, level="-O0")(*(a for name in actual.tensors for a in inputs[name]), 5, 64)
    assert np.allclose(z, expected, rtol=1e-6)


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
def test_what_lies_outside_is_not_written(tmp_path: Path) -> None:
    cuda = lower(kernel("store(Z[rows(64) - n, cols(64) * 2], X[rows(64), cols(64)])", HEAD))
    z = np.full((66, 64), np.nan, np.float32)  # with a row before the tensor, and one behind it
    inputs = {"X": (X.copy(), 64), "Z": (z[1:65], 64)}
    on_cpu(cuda, tmp_path, level="-O0")(*(a for name in cuda.tensors for a in inputs[name]), 5, 64)
    assert (z[1:60, ::2] == X[5:, :32]).all() and np.isnan(z[:, 1::2]).all() and np.isnan(z[[0, *range(60, 66)]]).all()

"""Whole tiles go to tensors many bytes at once, to the places and with the values that the language says, whatever the tensor's rows and strides."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cuir.lowering import Cuda, lower
from tests.lowering.conftest import kernel
from tests.lowering.host import GXX, on_cpu

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[{dtype}, M, C], Y: Global[{dtype}, R, {columns}], first: i32):
    with role("all", warpgroups=1):
"""
SHAPES = [(64, 8), (64, 16), (64, 24), (64, 64), (128, 40)]
START = 16
STORES = {
    "scatter": (0, "store(Y[first + rows({rows}), cols({cols})], x)"),
    "from a column": (START, "store(Y[first + rows({rows}), 16 + cols({cols})], x)"),
    "box": (START, "store(Y[first : first + {rows}, 16 : 16 + {cols}], x)"),
}
DTYPES = {"f16": np.float16, "f32": np.float32, "i32": np.int32}


def text(store: str, dtype: str = "f16", shape: tuple[int, int] = (64, 80), columns: str = "E") -> Cuda:
    """The CUDA of a kernel that stores a tile of X."""
    rows, cols = shape
    body = f"x = X[rows({rows}), cols({cols})]\n" + store.format(rows=rows, cols=cols)
    return lower(kernel(body, HEAD.format(dtype=dtype, columns=columns)))


@cache
def compile_stores(kind: str, dtype: str, shape: tuple[int, int]) -> Callable[..., None]:
    cuda = text(STORES[kind][1], dtype, shape)
    assert "cuir::put_wide(" in cuda.source
    return on_cpu(cuda, Path(mkdtemp()))


@pytest.mark.thorough
@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@given(
    st.sampled_from(sorted(STORES)),
    st.sampled_from(sorted(DTYPES)),
    st.sampled_from(SHAPES),
    st.integers(-70, 200),
    st.integers(1, 130),
    st.integers(1, 12).map(lambda n: 8 * n) | st.integers(1, 96),
    st.sampled_from([0, 8, 1, 2]),
    st.sampled_from([0, 0, 1]),
)
@example("box", "f16", (128, 40), -3, 130, 56, 0, 0)
@example("scatter", "f16", (64, 24), 5, 60, 24, 8, 0)
@example("from a column", "f32", (64, 16), 0, 64, 40, 8, 0)
@example("from a column", "f16", (64, 64), 0, 64, 96, 0, 1)
def test_each_element_and_nothing_else(
    kind: str, dtype: str, shape: tuple[int, int], first: int, rows: int, length: int, padding: int, shift: int
) -> None:
    """Rows of any length, any distance, aligned and not; rows and columns of the tile that lie outside of the tensor."""
    x = (np.arange(shape[0] * shape[1]) % 2039 + 1).reshape(shape).astype(DTYPES[dtype])
    memory = np.full(rows * (length + padding) + 32, -1, DTYPES[dtype])
    begin = -memory.ctypes.data // memory.itemsize % 16 + shift

    def matrix(of: np.ndarray) -> np.ndarray:
        return of[begin : begin + rows * (length + padding)].reshape(rows, length + padding)[:, :length]

    expected, start = memory.copy(), STORES[kind][0]
    for r in range(max(0, -first), min(shape[0], rows - first)):
        remote = matrix(expected)[first + r, start : start + shape[1]]
        remote[:] = x[r, : len(remote)]
    compile_stores(kind, dtype, shape)(x, shape[1], matrix(memory), length + padding, first, *shape, rows, length)
    assert (memory == expected).all()


@pytest.mark.parametrize(
    ("store", "columns"),
    [
        ("store(Y[first + rows(64), first + cols(80)], x)", "E"),  # starts anywhere
        ("store(Y[first + rows(64), 4 + cols(80)], x)", "E"),
        ("store(Y[first + rows(64), cols(80) * 2], x)", "E"),  # no neighbours
        ("store(Y[first + cols(80), rows(64)], x)", "E"),
        ("store(Y[first + rows(64), cols(80)], x)", "100"),  # the last piece of a row would stick out
        ("store(Y[first + rows(64), cols(80)], x, mask=rows(64) < first)", "E"),
    ],
)
def test_where_there_are_no_whole_pieces(store: str, columns: str) -> None:
    assert "cuir::put_wide(" not in text(store, columns=columns).source
    assert "cuir::put_wide(" in text("store(Y[first + rows(64), 8 * first + cols(80)], x)", columns="104").source


def test_sums_go_in_pairs_where_a_card_adds_pairs() -> None:
    """tests/gpu/test_backward.py runs them."""
    adds = "store(Y[first + rows(64), cols(80)], x, add=True)"
    assert "cuir::add_wide(&Y[" in text(adds, "f32").source and "cuir::put_wide(" not in text(adds, "f32").source
    for source in (
        text(adds.replace("cols(80)]", "first + cols(80)]"), "f32"),
        text(adds.replace("add=True", "add=True, mask=rows(64) < first"), "f32"),
        text(adds, "i32"),
        lower(
            kernel(
                f"x = X[rows(64), cols(80)]\n{adds}",
                HEAD.format(dtype="f32", columns="E").replace("sm_90a", "sm_80").replace("warpgroups=1", "warps=4"),
            )
        ),
    ):
        assert "_wide(&" not in source.source


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
def test_rows_that_meet_in_a_vector(tmp_path: Path) -> None:
    head = '@kernel(arch="sm_90a")\ndef k(Y: Global[i32, 40], n: i32):\n    with role("all", warpgroups=1):\n'
    cuda = lower(kernel("x = (zeros(i32, [64, 1]) + n) + cols(24)\nstore(Y[8 + cols(24) + zeros(i32, [64, 1])], x)", head))
    assert "cuir::put_wide(" in cuda.source
    y = np.zeros(40, np.int32)
    on_cpu(cuda, tmp_path)(y, 5)
    assert (y == [0] * 8 + [5 + i for i in range(24)] + [0] * 8).all()

"""Elements of scratch are read two neighbours at a time where they lie so, with the values that the language says; its strides are the text's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.lowering import lower
from tests.lowering.conftest import kernel
from tests.lowering.host import GXX, on_cpu

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[{dtype}, M, {cols}], Y: Global[{dtype}, M, {cols}], S: Scratch[{dtype}, 3, M, {width}], first: i32):
    with role("all", warpgroups=1):
"""
ROUND_TRIP = """\
store(S[first, rows(64), {column} + cols({cols})], X[rows(64), cols({cols})])
store(Y[rows(64), cols({cols})], S[first, rows(64), {column} + cols({cols})] + S[first, rows(64), {column} + cols({cols})])
"""


def text(dtype: str = "f32", cols: int = 16, width: int = 40, column: str = "8") -> str:
    return lower(kernel(ROUND_TRIP.format(cols=cols, column=column), HEAD.format(dtype=dtype, cols=cols, width=width))).source


def test_neighbours_are_read_at_once() -> None:
    assert "cuir::read_pair<2>(" in text() and "cuir::read_pair<1>(" in text("i32", 8)


@pytest.mark.parametrize(
    "inputs",
    [{"width": 41}, {"column": "first"}, {"column": "3"}, {"dtype": "f16"}],
    ids=["odd rows", "any column", "an odd column", "halves"],
)
def test_what_may_lie_otherwise_is_read_alone(inputs: dict[str, str]) -> None:
    assert "read_pair" not in text(**inputs)  # type: ignore[arg-type]


def test_even_columns_that_a_number_gives() -> None:
    assert "cuir::read_pair<2>(" in text(column="4 * first")


def test_only_scratch_is() -> None:
    """Strides of a caller's tensor are unknown."""
    result = lower(
        kernel(ROUND_TRIP.format(cols=16, column="8"), HEAD.format(dtype="f32", cols=16, width=40).replace("Scratch[", "Global["))
    ).source
    assert "read_pair" not in result and "const int64_t S_stride0," in result
    ours = text()
    assert (
        "S_stride0," not in ours.split("{")[0]
        and "const int64_t S_stride1 = 40;" in ours
        and "const int64_t S_stride0 = M * S_stride1;" in ours
    )


@cache
def compile_round_trip(dtype: str, cols: int, width: int, column: str) -> Callable[..., None]:
    """A function of arrays X, Y, S, and numbers."""
    cuda = lower(kernel(ROUND_TRIP.format(cols=cols, column=column), HEAD.format(dtype=dtype, cols=cols, width=width)))
    call = on_cpu(cuda, Path(mkdtemp()))

    def run(first: int, M: int, **arrays: np.ndarray) -> None:
        inputs = [(arrays[name],) if name == "S" else (arrays[name], cols) for name in cuda.tensors]
        call(*(x for pair in inputs for x in pair), first, M)

    return run


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@given(
    st.sampled_from(["f32", "i32"]),
    st.sampled_from([(8, 8, "0"), (16, 40, "8"), (24, 16, "8"), (16, 41, "8"), (16, 40, "4 * first")]),
    st.integers(1, 70),
    st.integers(0, 2),
)
def test_the_values(dtype: str, lie: tuple[int, int, str], M: int, first: int) -> None:
    """Elements beyond a row are dropped when written, and 0 when read."""
    cols, width, column = lie
    x = np.random.default_rng(M).integers(-99, 99, (M, cols)).astype({"f32": np.float32, "i32": np.int32}[dtype])
    y, s = np.full_like(x, 7), np.zeros((3, M, width), x.dtype)
    compile_round_trip(dtype, *lie)(first, M, X=x, Y=y, S=s)
    at = 4 * first if "first" in column else int(column)
    retained = np.arange(cols) + at < width
    assert (y[:64] == np.where(retained, 2 * x[:64], 0)).all() and (y[64:] == 7).all()

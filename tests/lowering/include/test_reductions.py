"""Reductions of rows and columns of every shape, and transposes by way of shared memory: the text on a CPU gives the interpreter's results."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import lower
from cuir.lowering.ir.build_ir import build
from cuir.lowering.passes.pipeline import PASSES
from cuir.lowering.validate import random_arguments, validate
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from tests.lowering.host import GXX, on_cpu

REDUCTIONS = ("row_sum", "row_max", "col_sum", "col_max")
ROWS = {"warpgroups": (1, 64, 128), "warps": (1, 16, 48)}
COLUMNS = (1, 8, 24, 64)
SHAPES = [(workers, rows, cols) for workers, counts in ROWS.items() for rows in counts for cols in COLUMNS]
HEAD = """
@kernel(arch="sm_90a")
def reductions(X: Global[f32, 128, 64], Y: Global[f32, 4, 128, 64]):
    with role("all", {workers}=1):
        x = X[rows({rows}), cols({cols})]
"""
needs_gxx = pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")


def reductions(workers: str, rows: int, cols: int) -> Checked:
    """A kernel that stores each reduction of a tile, broadcast to the tile's shape."""
    stores = [f"        store(Y[{k}, rows({rows}), cols({cols})], {f}(x) + zeros(f32, [{rows}, {cols}]))" for k, f in enumerate(REDUCTIONS)]
    return check(parse(HEAD.format(workers=workers, rows=rows, cols=cols) + "\n".join(stores) + "\n"))


@pytest.mark.sweep
@needs_gxx
@pytest.mark.parametrize(("workers", "rows", "cols"), SHAPES)
def test_reductions_of_every_shape(workers: str, rows: int, cols: int, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(128, 64)).astype(np.float32), np.full((4, 128, 64), np.nan, np.float32)
    x[rows // 2, cols // 2] = np.nan
    on_cpu(lower(reductions(workers, rows, cols)), tmp_path, level="-O0")(x, 64, y, 128 * 64, 64)
    tile = x[:rows, :cols]
    for actual, expected in zip(
        y[:, :rows, :cols],
        (tile.sum(1, keepdims=True), tile.max(1, keepdims=True), tile.sum(0, keepdims=True), tile.max(0, keepdims=True)),
        strict=True,
    ):
        np.testing.assert_allclose(actual, np.broadcast_to(expected, tile.shape), rtol=1e-5, atol=1e-5)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("workers", "rows", "cols"), [("warpgroups", 1, 64), ("warpgroups", 64, 1), ("warpgroups", 128, 24), ("warps", 16, 64)]
)
def test_no_pass_changes_a_reduction(workers: str, rows: int, cols: int) -> None:
    checked = reductions(workers, rows, cols)
    assert validate(build(checked), [p.module for p in PASSES], random_arguments(checked, torch.Generator().manual_seed(0))) is None


# ---- values of keys
NORMS = """
@kernel(arch="sm_90a")
def norms(Q: Global[f32, 64, D], K: Global[f32, 64, D], Y: Global[f32, 64, 64], *, D: const = 64):
    k = shared(f32, [64, D])
    with role("all", warpgroups=1):
        store(k, load(K[0:64, :]))
        sync()
        keys = load(k.T)
        for i in range(3):
            store(Y[0:64, :], load(Q[0:64, 0:64]) + col_sum(keys * keys) * cast(i, f32) + col_max(keys))
"""


@needs_gxx
def test_a_value_per_key_is_added_to_columns(tmp_path: Path) -> None:
    """Squared norms of keys and their greatest elements, in a loop: an exchange follows another one in the same memory."""
    random = np.random.default_rng(1)
    q, k, y = (random.normal(size=(64, 64)).astype(np.float32) for _ in range(3))
    checked = check(parse(NORMS))
    expected = q + 2 * (k * k).sum(1) + k.max(1)
    lowered = lower(checked)
    tensors = {"Q": q, "K": k, "Y": y}
    on_cpu(lowered, tmp_path)(*(a for name in lowered.tensors for a in (tensors[name], 64)))
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    z = torch.zeros(64, 64)
    run(checked, {"Q": torch.from_numpy(q), "K": torch.from_numpy(k), "Y": z})
    np.testing.assert_allclose(z.numpy(), expected, rtol=1e-5)


def test_warpgroups_exchange_columns_in_memory_of_their_own() -> None:
    text = "x = zeros(f32, [64, 64]) + cast(w, f32)\n        store(Y[w, cols(64)], col_sum(x))"
    head = '@kernel(arch="sm_90a")\ndef f(Y: Global[f32, 2, 64]):\n    s = shared(f32, [{}])\n    with role("all", warpgroups=2) as w:\n        '
    checked = check(parse(head.format(100) + text + "\n"))
    assert (checked.roles[0].exchange, checked.roles[0].exchanged, checked.shared_bytes) == (400, 1024, 2448)
    assert "smem_address + 400 + warpgroup * 1024" in lower(checked).source
    with pytest.raises(CuirError, match="this takes 1024 a warpgroup") as caught:
        check(parse(head.format(57_600) + text + "\n"))
    assert caught.value.diagnostics[0].code == "M301"


# ---- transposes
TRANSPOSE = """
@kernel(arch="sm_90a")
def transposed(X: Global[{dtype}, {rows}, {cols}], Y: Global[{dtype}, {cols}, {rows}]):
    s = shared({dtype}, [2, {rows}, {cols}])
    with role("all", {workers}=1):
        store(s[1], X[rows({rows}), cols({cols})])
        sync()
        store(Y[rows({cols}), cols({rows})], load(s[1].T))
"""
DTYPES = {"f32": np.float32, "f16": np.float16, "i32": np.int32}
UNITS = {"warpgroups": (1, 64, 128), "warps": (1, 16, 64)}


@cache
def _transposing(dtype: str, workers: str, rows: int, cols: int) -> tuple[Checked, object]:
    checked = check(parse(TRANSPOSE.format(dtype=dtype, workers=workers, rows=rows, cols=cols)))
    return checked, on_cpu(lower(checked), Path(mkdtemp()), level="-O0")


@needs_gxx
@settings(max_examples=6, deadline=None)
@given(st.sampled_from(sorted(DTYPES)), st.sampled_from(sorted(UNITS)), st.data())
def test_a_transposed_view_loads_as_the_transpose(dtype: str, workers: str, data: st.DataObject) -> None:
    rows, cols = (data.draw(st.sampled_from(UNITS[workers])) for _ in range(2))
    if dtype == "f16" and cols % 64 == 0 and rows > 1:
        cols = 16 if workers == "warps" else 1  # halves in panels are stored by an instruction that no CPU has
    checked, on_host = _transposing(dtype, workers, rows, cols)
    x = np.arange(rows * cols).reshape(rows, cols).astype(DTYPES[dtype])
    y = np.zeros((cols, rows), DTYPES[dtype])
    on_host(x, cols, y, rows)  # type: ignore[operator]
    assert (y == x.T).all()
    z = torch.from_numpy(np.zeros_like(y))
    run(checked, {"X": torch.from_numpy(x), "Y": z})
    assert (z.numpy() == x.T).all() and math.prod(z.shape) == rows * cols


def test_a_read_of_a_transposed_view_is_a_read_of_its_array() -> None:
    """The race detector sees the bytes of the view."""
    text = (
        TRANSPOSE.format(dtype="f32", rows=64, cols=64, workers="warpgroups")
        .replace("warpgroups=1", "warpgroups=2")
        .replace("        sync()\n", "")
    )
    with pytest.raises(CuirError) as caught:
        run(check(parse(text)), {"X": torch.zeros(64, 64), "Y": torch.zeros(64, 64)})
    assert caught.value.diagnostics[0].code == "R401"

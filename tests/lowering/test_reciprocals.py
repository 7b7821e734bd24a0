"""Divisions that share a reciprocal: which may, and that their texts say the same, also at the ends of the range."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.lowering import lower
from tests.lowering.conftest import kernel
from tests.lowering.host import GXX, on_cpu

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, COLUMNS], Y: Global[f32, M, COLUMNS], Z: Global[f32, M, COLUMNS], scale: f32, cap: f32):
    with role("all", warpgroups=1):
"""
BODY = """\
S = X[rows(64), cols(COLUMNS)]
T = tanh(S * scale) * cap + S
store(Y[rows(64), cols(COLUMNS)], T)
E = exp2(min(S, 31.0))
W = E / (1.0 + E)
store(Z[rows(64), cols(COLUMNS)], W)
"""


def source(body: str, columns: int = 48) -> str:
    return lower(kernel(body.replace("COLUMNS", str(columns)), HEAD.replace("COLUMNS", str(columns)))).source


@pytest.mark.parametrize(
    ("division", "shared"),
    [
        ("E / (1.0 + E)", True),
        ("1.0 / (1.0 + exp2(min(S, 20.0)))", True),
        ("1.0 / (1.0 + exp2(min(S, 32.0)))", False),  # the product of four is no float
        ("1.0 / (1.0 + exp2(S))", False),
        ("1.0 / (0.5 + exp2(min(S, 20.0)))", False),
        ("1.0 / (1.0 + exp2(max(S, 20.0)))", False),
        ("1.0 / (1.0 + S)", False),
        ("1.0 / max(1.0, min(S, 100.0))", True),
        ("tanh(S) * 2.0 + S", True),
        ("tanh(S) + tanh(E)", False),
        ("tanh(tanh(S))", False),
    ],
)
def test_what_shares(division: str, shared: bool) -> None:
    text = source(BODY.replace("E / (1.0 + E)", division).replace("tanh(S * scale) * cap", "scale * cap"))
    assert text.count("cuir::reciprocals<") == shared


def test_an_odd_number_of_groups_shares_nothing() -> None:
    assert "reciprocals<" in source(BODY, 80) and "reciprocals<" not in source(BODY, 72)


def test_a_loop_that_grows_a_value_has_no_range() -> None:
    text = source(
        "S = X[rows(64), cols(48)]\nE = exp2(min(S, 31.0))\nfor i in range(3):\n    E = E + exp2(min(S, 31.0))\nW = E / (1.0 + E)\nstore(Z[rows(64), cols(48)], W)\n"
    )
    assert "reciprocals<" not in text


@pytest.fixture(scope="module", params=[48, 128])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Callable[..., None]]:
    if GXX is None:
        pytest.skip("no g++ on the PATH")
    found = lower(kernel(BODY.replace("COLUMNS", str(request.param)), HEAD.replace("COLUMNS", str(request.param))))
    assert found.source.count("cuir::reciprocals<") == 2
    return request.param, on_cpu(found, tmp_path_factory.mktemp("host"))


@given(st.integers(0, 2**31), st.sampled_from([1e-3, 1.0, 20.0, 1e4, 1e30]), st.floats(0.01, 50.0))
def test_the_texts_compute_the_functions(run: tuple[int, Callable[..., None]], seed: int, size: float, cap: float) -> None:
    columns, call = run
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((64, columns)) * size).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = -np.inf
    x[rng.random(x.shape) < 0.02] = 3e38
    finite = np.where(np.isinf(x), 0, x).astype(np.float32)
    y, z = np.full_like(x, np.nan), np.full_like(x, np.nan)
    scale, cap = np.float32(1 / cap), np.float32(cap)
    call(finite, columns, y, columns, z, columns, float(scale), float(cap), 64)
    exact = np.tanh(finite.astype(np.float64) * scale) * cap + finite
    assert (np.abs(y - exact) <= 7e-7 * cap + 1.2e-7 * np.abs(exact) + 1e-6 * np.abs(finite)).all()
    call(x, columns, y, columns, z, columns, float(scale), float(cap), 64)
    with np.errstate(over="ignore"):
        weights = 1 / (1 + np.exp2(-x.astype(np.float64)))
    assert (z[np.isneginf(x)] == 0).all() and (np.abs(z - weights) <= 8e-7 * weights + 2.0**-126).all()  # what is smaller may be 0


def test_a_nan_stays_in_its_row(run: tuple[int, Callable[..., None]]) -> None:
    columns, call = run
    x = np.zeros((64, columns), np.float32)
    x[9, 5] = np.nan
    y, z = np.zeros_like(x), np.zeros_like(x)
    call(x, columns, y, columns, z, columns, 1.0, 1.0, 64)
    assert np.isnan(y[9, 5]) and not np.isnan(np.delete(y, 9, 0)).any()

"""Divisions that share a reciprocal: which may, and that what is printed computes them, also at the ends of the range."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.passes import share_reciprocals
from tests.lowering.conftest import kernel
from tests.lowering.host import GXX, on_cpu
from tests.lowering.passes.lowering import cuda, role, text

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
ONE_DIVISION = BODY.replace("tanh(S * scale) * cap", "scale * cap")


def check_kernel(body: str, columns: int = 48) -> object:
    return kernel(body.replace("COLUMNS", str(columns)), HEAD.replace("COLUMNS", str(columns)))


def ir(body: str, columns: int = 48) -> str:
    return text(check_kernel(body, columns), [share_reciprocals.run])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("division", "shared"),
    [
        ("E / (1.0 + E)", 1),
        ("1.0 / (1.0 + exp2(min(S, 20.0)))", 1),
        ("1.0 / (1.0 + exp2(min(S, 32.0)))", 0),  # the product of four is no float
        ("1.0 / (1.0 + exp2(S))", 0),
        ("1.0 / (0.5 + exp2(min(S, 20.0)))", 0),
        ("1.0 / (1.0 + exp2(max(S, 20.0)))", 0),
        ("1.0 / (1.0 + S)", 0),
        ("1.0 / max(1.0, min(S, 100.0))", 1),
        ("tanh(S) * 2.0 + S", 1),
        ("tanh(S) + tanh(E)", 2),
        ("tanh(tanh(S))", 2),
        ("tanh(S) / (1.0 + E)", 2),
    ],
)
def test_what_shares(division: str, shared: int) -> None:
    result = ir(ONE_DIVISION.replace("E / (1.0 + E)", division))
    assert len(re.findall(r"tile\.by_reciprocal\(.*\) shared|tile\.shared_tanh", result)) == shared


def test_an_odd_number_of_groups_shares_nothing() -> None:
    assert ") shared :" in ir(BODY, 80)
    result = ir(BODY, 72)
    assert ") shared :" not in result and "shared_tanh" not in result
    assert "tile.by_reciprocal(" in result, "a divisor of a known range needs no care of the ends of the range"


def test_a_number_a_row_is_divided_by_alone() -> None:
    assert re.search(
        r"tile\.by_reciprocal\(%\w+\) : !tile.reg<f32, 64, 1>",
        ir(BODY.replace("1.0 + E", "1.0").replace("W = E", "W = E * (1.0 / max(1.0, min(row_max(S), 9.0)))")),
    )


def test_a_loop_that_grows_a_value_has_no_range() -> None:
    body = "S = X[rows(64), cols(48)]\nE = exp2(min(S, 31.0))\nfor i in range(3):\n    E = E + exp2(min(S, 31.0))\nW = E / (1.0 + E)\nstore(Z[rows(64), cols(48)], W)\n"
    assert "by_reciprocal" not in ir(body)


DIVISION = """\
%one = tile.constant 1.0 : !tile.scalar<f32>
%two = tile.constant 2.0 : !tile.scalar<f32>
%a = tile.apply "min"(%S, %two) : !tile.reg<f32, 64, 64>
%y = tile.apply "max"(%a, %one) : !tile.reg<f32, 64, 64>
%q = tile.apply "/"(%S, %y) : !tile.reg<f32, 64, 64>"""


def after(body: str, **facts: object) -> str:
    program = parse(role(body, "%q"))
    share_reciprocals.run(program, **facts)  # type: ignore[arg-type]
    return show(program)


def test_nans_spread_where_they_spoil_the_row_anyway() -> None:
    assert "%q = tile.by_reciprocal(%S, %y) shared : " in after(DIVISION)
    assert "%q = tile.by_reciprocal(%S, %y) shared spreads : " in after(DIVISION, spoils_row=lambda value: value.name_hint == "q")


def test_what_decides_is_divided_as_written() -> None:
    assert '"/"(%S, %y) exact' in after(DIVISION.replace('"/"(%S, %y)', '"/"(%S, %y) exact'))


def test_a_scalar_factor_of_tanh_goes_into_that_of_the_exponential() -> None:
    product = '%p = tile.apply "*"(%S, %f) : !tile.reg<f32, 64, 64>\n%q = tile.apply "tanh"(%p) : !tile.reg<f32, 64, 64>'
    assert "%q = tile.shared_tanh(%S, %f) :" in after(product)
    assert "%q = tile.shared_tanh(%p) :" in after(product.replace('"*"(%S, %f)', '"*"(%S, %f) exact'))
    assert "%q = tile.shared_tanh(%p) :" in after(product.replace("%f", "%x"))


# ---- what is printed
@pytest.fixture(scope="module", params=[48, 128])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Callable[..., None]]:
    if GXX is None:
        pytest.skip("no g++ on the PATH")
    result = cuda(check_kernel(BODY, request.param))  # type: ignore[arg-type]
    assert result.source.count("cuir::reciprocals<") == 2
    return request.param, on_cpu(result, tmp_path_factory.mktemp("host"))


@given(st.integers(0, 2**31), st.sampled_from([1e-3, 1.0, 20.0, 1e4, 1e30]), st.floats(0.01, 50.0))
def test_what_is_printed_computes_the_functions(run: tuple[int, Callable[..., None]], seed: int, size: float, cap: float) -> None:
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
    assert np.isnan(z[9, 5]) and np.isnan(z).sum() == 1


SEVERAL = """\
S = X[rows(64), cols(32)]
E = exp2(min(S, 31.0))
T = tanh(tanh(S * scale) * cap) + E / (1.0 + E)
store(Y[rows(64), cols(32)], T)
F = exp2(min(S, 20.0))
H = cast(F / (1.0 + F), f16)
if cap > 0.0:
    store(Z[rows(64), cols(32)], cast(H, f32))
"""


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
def test_several_divisions_share_in_one_loop_and_results_are_packed(tmp_path_factory: pytest.TempPathFactory) -> None:
    result = cuda(check_kernel(SEVERAL, 32))  # type: ignore[arg-type]
    assert result.source.count("cuir::reciprocals<") == 4 and "cuir::pack_f16(v__" in result.source
    x = (np.random.default_rng(1).standard_normal((64, 32)) * 5).astype(np.float32)
    y, z = np.full_like(x, np.nan), np.full_like(x, np.nan)
    on_cpu(result, tmp_path_factory.mktemp("host"))(x, 32, y, 32, z, 32, 0.5, 1.5, 64)
    wide = x.astype(np.float64)
    weights = 1 / (1 + np.exp2(-np.minimum(wide, 31)))
    assert np.allclose(y, np.tanh(np.tanh(wide * 0.5) * 1.5) + weights, rtol=2e-6, atol=2e-6)
    assert np.allclose(z, (1 / (1 + np.exp2(-np.minimum(wide, 20)))).astype(np.float16), rtol=1e-3, atol=1e-7)

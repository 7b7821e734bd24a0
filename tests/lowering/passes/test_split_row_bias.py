"""Tiles kept without the part of a bias that is alike along a row: which are, and what their readers then compute."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from tests.lowering.conftest import kernel
from tests.lowering.host import GXX, on_cpu
from tests.lowering.passes.lowering import BIAS, cuda, text

BEGIN = """\
q, k = n + rows(64), cols(64)
full[0].wait(0)
S = mma_async(s[0], s[1].T)
mma_wait(S)
"""
BIAS_LINE = "S = S * scale + cast(k - q, f32) * scale\n"
STEP = """\
m = row_max(S)
P = exp2(S * 1.5 - m * 1.5)
store(Z[rows(64), cols(64)], P)
"""


def shifts(body: str) -> int:
    """Tiles of a body that are kept so."""
    return text(kernel(BEGIN + body), BIAS).count("tile.pin")


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "body",
    [
        BIAS_LINE + STEP,
        "S = cast(k - q, f32) * scale + S\n" + STEP,
        "S = S - cast(k - q, f32) * scale\n" + STEP,
        "S = cast(k - q, f32) - S\n" + STEP,
        "S = S + (-cast(k, f32) * 0.5 + cast(q, f32))\n" + STEP,
        "S = S * S + (cast(k - q, f32) * scale + cast(k, f32))\n" + STEP,  # a sum of two slopes
        BIAS_LINE + "S = where(k < n, S, -inf)\n" + STEP,
        BIAS_LINE + "S = where(k < n, -inf, S)\n" + STEP,
        BIAS_LINE + "S = where(k < n, S, full(f32, [64, 64], -inf))\n" + STEP,
        BIAS_LINE + "if n > 0:\n    S = where((k < n) & (q < k), S, -inf)\n" + STEP,
        BIAS_LINE + "if n > 0:\n    S = full(f32, [64, 64], -inf)\n" + STEP,
        BIAS_LINE
        + "T = S\nif n > 0:\n    T = where(k < n, S, -inf)\nelse:\n    if n < -5:\n        T = where(q < k, S, -inf)\nS = T\n"
        + STEP,
        BIAS_LINE + "m = row_max(S) * 2.0\nP = exp2(2.0 * S - m)\nl = row_sum(P)\nstore(Z[rows(64), cols(64)], P)\nstore(Y[rows(64)], l)",
        BIAS_LINE + "P = exp2(S - row_max(S))\nstore(Z[rows(64), cols(64)], P)",
        BIAS_LINE + "P = exp2(S * scale - 1.0) * 2.0\nstore(Z[rows(64), cols(64)], P)",
        BIAS_LINE + "P = exp2(S * 2.0)\nstore(Z[rows(64), cols(64)], P)",
        BIAS_LINE + "P = exp2((S + 1.0) * 2.0 * scale)\nstore(Z[rows(64), cols(64)], P)",
        BIAS_LINE + "P = exp2(1.0 - S)\nstore(Z[rows(64), cols(64)], P)",
        BIAS_LINE + "T = zeros(f32, [64, 64])\nP = exp2(S - T)\nstore(Z[rows(64), cols(64)], P)",  # a tile of one number is that number
        BIAS_LINE + STEP + "S = zeros(f32, [64, 64])\nstore(Z[rows(64), cols(64)], S)",  # bound again, to something else
        "for i in range(n):\n    S = zeros(f32, [64, 64]) + scale * scale\n    T = S * S + cast(k + q + i, f32) * scale\n    m = row_max(T)\n    store(Y[rows(64)], m)",
    ],
)
def test_tiles_that_only_a_softmax_reads_are_kept_so(body: str) -> None:
    assert shifts(body) == 1


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "body",
    [
        BIAS_LINE + STEP + "store(Z[rows(64), cols(64)], S)",  # read otherwise
        BIAS_LINE + STEP + "if n > 0:\n    store(Z[rows(64), cols(64)], S)",
        BIAS_LINE + STEP + "T = S\nstore(Z[rows(64), cols(64)], T)",
        BIAS_LINE + STEP + "T = S * 2.0\nstore(Z[rows(64), cols(64)], T)",
        BIAS_LINE + STEP + "l = row_sum(S)\nstore(Y[rows(64)], l)",
        BIAS_LINE + "m = row_max(S * 2.0)\nstore(Y[rows(64)], m)",
        BIAS_LINE + "m = row_max(S)\nP = exp2(S * S - m)\nstore(Z[rows(64), cols(64)], P)",  # no line in S
        BIAS_LINE + "P = exp2(abs(S))\nstore(Z[rows(64), cols(64)], P)",
        BIAS_LINE + "P = exp2(S - cast(k, f32))\nstore(Z[rows(64), cols(64)], P)",  # what is subtracted is no value a row
        BIAS_LINE + "S = where(S > 0.0, S, -inf)\n" + STEP,  # a condition on the value
        BIAS_LINE + "S = where(k < n, S, 0.0)\n" + STEP,
        BIAS_LINE + "S = where(k < n, S, inf)\n" + STEP,
        BIAS_LINE + "if n > 0:\n    S = zeros(f32, [64, 64])\n" + STEP,  # another value on one path
        "if n > 0:\n    S = S + cast(k - q, f32)\n" + STEP,  # a shift on one path alone
        "for i in range(n):\n    m = row_max(S)\n    store(Y[rows(64)], m)\n    S = S + cast(k - q, f32)\n",  # read by the next turn
        "S = S + cast(k, f32) * cast(q, f32)\n" + STEP,  # a slope of its own for each row
        "S = S + cast(q, f32)\n" + STEP,  # no slope
        "S = S + cast(k * k, f32)\n" + STEP,
        "S = S + cast(k, f32)\n" + STEP,  # nothing that differs from row to row
        "S = cast(k, f32) + cast(q, f32)\n" + STEP,  # a line itself
        "S = S * cast(k - q, f32)\n" + STEP,
        BIAS_LINE,  # nobody reads it
    ],
)
def test_other_tiles_are_kept_whole(body: str) -> None:
    assert shifts(body) == 0


def test_spellings_that_mean_the_same_give_the_same_ir() -> None:
    def plain(body: str) -> list[str]:  # in whatever order they are written
        return sorted(re.sub(r"%[\w.]+", "%", text(kernel(BEGIN + body), BIAS)).split("\n"))

    assert plain(BIAS_LINE + STEP) == plain(
        "bias = cast(k - q, f32)\nbias = scale * bias\nT = S * scale\nS = T + bias\nU = S\nm = row_max(U)\nP = exp2(1.5 * S - 1.5 * m)\nstore(Z[rows(64), cols(64)], P)\n"
    )


def test_the_shift_goes_into_the_maximum_and_into_what_is_subtracted() -> None:
    result = text(kernel(BEGIN + BIAS_LINE + STEP), BIAS)
    top = re.search(r'(%\w+) = tile.apply "row_max"\(%\w+\)', result)
    assert top is not None and re.search(rf'tile.apply "\+"\({top[1]}, %shift\) : !tile.reg<f32, 64, 1>', result)
    scaled = re.search(r'(%\w+) = tile.apply "\*"\(%shift, %\w+\) : !tile.reg<f32, 64, 1>', result)
    assert scaled is not None
    offset = re.search(rf'(%\w+) = tile.apply "-"\({scaled[1]}, %\w+\) : !tile.reg<f32, 64, 1>', result)
    assert offset is not None and re.search(rf'tile.apply "\+"\(%\w+, {offset[1]}\) : !tile.reg<f32, 64, 64>', result)


def test_the_value_before_and_the_value_after_are_read_whole() -> None:
    result = text(
        kernel(
            BEGIN
            + "m = row_max(S)\nstore(Y[rows(64)], m)\n"
            + BIAS_LINE
            + STEP
            + "S = zeros(f32, [64, 64])\nm = row_max(S)\nstore(Y[rows(64)], m)\n"
        ),
        BIAS,
    )
    assert result.count('"row_max"') == 3 and result.count("%shift)") == 1


def test_a_branch_does_not_see_the_other_one_s_shift() -> None:
    body = "if n > 0:\n    " + BIAS_LINE + "    m = row_max(S)\nelse:\n    m = row_max(S)\nstore(Y[rows(64)], m)"
    result = text(kernel(BEGIN + body), BIAS)
    assert len(re.findall(r'"\+"\(%\w+, %shift\)', result)) == 1 and result.index("%shift)") < result.index("} else {")


# ---- what is printed computes a softmax
ATTENTION = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], Z: Global[f32, M, 64], Y: Global[f32, M], L: Global[f32, M], n: i32, scale: f32, slope: f32, bound: i32):
    with role("all", warpgroups=1, registers=REGISTERS):
"""
STEP_OF_SOFTMAX = """\
q, k = n + rows(64), cols(64)
S = X[rows(64), k]
top = full(f32, [64, 1], -1e30)
total = zeros(f32, [64, 1])
P = zeros(f32, [64, 64])
for i in range(1):
    T = S * scale SIGN cast(k - q, f32) * slope
    if bound < 64:
        T = where(k < bound + rows(64) * 2, T, -inf)
    top = max(top, row_max(T) * 1.5)
    P = exp2(FACTORS - top)
    total = total + row_sum(P)
store(Z[rows(64), cols(64)], P)
store(Y[rows(64)], top)
store(L[rows(64)], total)
"""


@pytest.fixture(scope="module", params=[("+", "T * 1.5", 128), ("-", "1.5 * T", 232)], ids=["sum", "difference"])
def softmax(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[float, Callable[..., None]]:
    sign, factors, registers = request.param
    result = cuda(kernel(STEP_OF_SOFTMAX.replace("SIGN", sign).replace("FACTORS", factors), ATTENTION.replace("REGISTERS", str(registers))))
    assert "pin(shift" in result.source and ("pin(products" in result.source) == (registers == 232)
    return float(f"{sign}1"), on_cpu(result, tmp_path_factory.mktemp("host"))


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([0, 5, 64, -64, 1000, 100_000, -100_000]),
    scale=st.sampled_from([0.125, -0.3, 0.0, 2.0]),
    slope=st.sampled_from([0.5, -0.5, 2.0**-8, 1e-3, -3.7, 0.0]),
    bound=st.sampled_from([64, 0, 7, -40, -200]),
)
def test_what_is_printed_computes_a_softmax(
    softmax: tuple[float, Callable[..., None]], seed: int, n: int, scale: float, slope: float, bound: int
) -> None:
    """Against float64; masked rows, rows far from the diagonal, scales and slopes of either sign. An error is a few roundings of the largest term."""
    sign, run = softmax
    scale, slope = float(np.float32(scale)), float(np.float32(slope))
    x = np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32) * 4
    p, top, total = np.full((64, 64), np.nan, np.float32), np.full(64, np.nan, np.float32), np.full(64, np.nan, np.float32)
    run(x, 64, p, 64, top, total, n, scale, slope, bound, 64)
    rows, cols = np.arange(64)[:, None], np.arange(64)[None, :]
    bias = sign * (cols - rows - n) * slope
    exact = x.astype(np.float64) * scale + bias
    if bound < 64:
        exact = np.where(cols < bound + rows * 2, exact, -np.inf)
    largest = 1.5 * (np.abs(x * scale).max() + np.abs(bias).max())
    exact_top = np.maximum(-1e30, exact.max(1) * 1.5)
    alive = exact.max(1) > -np.inf
    error = 4 * 2.0**-23 * largest + 1e-6
    assert np.abs(top - exact_top)[alive].max(initial=0) <= error and (top[~alive] == np.float32(-1e30)).all()
    want = np.where(alive[:, None], np.exp2(exact * 1.5 - top[:, None].astype(np.float64)), 0.0)  # of the maximum that was found
    assert (np.abs(p - want) <= want * error + 1e-30).all() and (p[np.isneginf(exact)] == 0).all()
    assert np.allclose(total, p.astype(np.float64).sum(1), rtol=1e-5, atol=0)


# ---- whole kernels
@pytest.mark.nvcc
@pytest.mark.thorough("compiles the expert kernel; the pass itself is tested above")
@pytest.mark.parametrize(
    ("slope", "consts"),
    [
        ("scale", {"D": 64, "BM": 128, "BN": 128}),
        ("exp2(-8.0 * cast(h + 1, f32) / cast(H, f32))", {"D": 128, "BM": 192, "BN": 80}),
    ],
    ids=["products in registers", "no room"],
)
def test_the_expert_kernel_with_a_bias_compiles_without_spills(slope: str, consts: dict[str, int]) -> None:
    plain, biased = "return S, scale * LOG2E", f"return S * scale + cast(k - q, f32) * {slope}, LOG2E"
    program = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
    assert plain in program
    cuda = lower(check(parse(program.replace(plain, biased)), consts={"T": F16, **consts}))
    assert cuda.source.count("pin(shift") == 3  # a tile's first block after another tile and without, and the loop
    assert ("pin(products" in cuda.source) == (consts["D"] == 64)
    result = compile_cuda(cuda).resources
    assert result.spill_stores + result.spill_loads + result.stack == 0 and result.warnings == ()


@pytest.mark.thorough("compiles an expert kernel; the pass itself is tested above")
@pytest.mark.nvcc
def test_a_bias_compiles_for_sm_80() -> None:
    program = corpus.programs()["flash_fwd_warps"].read_text(encoding="utf-8")
    biased = program.replace("return S, scale * LOG2E", "return S * scale - cast(q - k, f32) * 0.5, LOG2E")
    cuda = lower(check(parse(biased), consts={"T": F16, "D": 64}))
    assert "pin(shift" in cuda.source and compile_cuda(cuda).cubin

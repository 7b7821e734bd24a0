"""Tiles kept without the part of a bias that is alike along a row: which names may be, and that their texts say the same."""

from __future__ import annotations

import re
import shutil
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
from tests.lowering.conftest import HEAD, kernel, text
from tests.lowering.host import GXX, on_cpu

BEGIN = """\
q, k = n + rows(64), cols(64)
full[0].wait(0)
S = mma_async(s[0], s[1].T)
mma_wait(S)
"""
BIAS = "S = S * scale + cast(k - q, f32) * scale\n"
STEP = """\
m = row_max(S)
P = exp2(S * 1.5 - m * 1.5)
store(Z[rows(64), cols(64)], P)
"""


def shifts(body: str) -> int:
    """Tiles of a body that are kept so."""
    return len(re.findall(r"float shift__\d+\[", text(BEGIN + body)))


@pytest.mark.parametrize("body", [
    BIAS + STEP,
    "S = cast(k - q, f32) * scale + S\n" + STEP,
    "S = S - cast(k - q, f32) * scale\n" + STEP,
    "S = S + cast(k, f32)\n" + STEP,
    "S = S + (-cast(k, f32) * 0.5 + scale)\n" + STEP,
    "S = S * S + (cast(k, f32) * scale + cast(k, f32))\n" + STEP,  # a sum of two slopes
    BIAS + "S = where(k < n, S, -inf)\n" + STEP,
    BIAS + "if n > 0:\n    S = where((k < n) & (q < k), S, -inf)\n" + STEP,
    BIAS + "m = row_max(S) * 2.0\nP = exp2(2.0 * S - m)\nl = row_sum(P)\nstore(Z[rows(64), cols(64)], P)\nstore(Y[rows(64)], l)",
    BIAS + "P = exp2(S - row_max(S))\nstore(Z[rows(64), cols(64)], P)",
    BIAS + "P = exp2(S * scale - 1.0) * 2.0\nstore(Z[rows(64), cols(64)], P)",
    BIAS + STEP + "S = zeros(f32, [64, 64])\nstore(Z[rows(64), cols(64)], S)",  # bound again, to something else
    "for i in range(n):\n    S = zeros(f32, [64, 64])\n    T = S + cast(k + i, f32) * scale\n    m = row_max(T)\n    store(Y[rows(64)], m)",
])  # fmt: skip
def test_tiles_that_only_a_softmax_reads_are_kept_so(body: str) -> None:
    assert shifts(body) == 1


@pytest.mark.parametrize("body", [
    BIAS + STEP + "store(Z[rows(64), cols(64)], S)",  # read otherwise
    BIAS + STEP + "if n > 0:\n    store(Z[rows(64), cols(64)], S)",
    BIAS + STEP + "T = S\nstore(Z[rows(64), cols(64)], T)",
    BIAS + STEP + "T = S * 2.0\nstore(Z[rows(64), cols(64)], T)",
    BIAS + STEP + "l = row_sum(S)\nstore(Y[rows(64)], l)",
    BIAS + "m = row_max(S * 2.0)\nstore(Y[rows(64)], m)",
    BIAS + "m = row_max(S)\nP = exp2(S * S - m)\nstore(Z[rows(64), cols(64)], P)",  # no line in S
    BIAS + "P = exp2(S * 2.0)\nstore(Z[rows(64), cols(64)], P)",
    BIAS + "P = exp2(S * 2.0 + 1.0)\nstore(Z[rows(64), cols(64)], P)",
    BIAS + "P = exp2(1.0 - S)\nstore(Z[rows(64), cols(64)], P)",
    BIAS + "T = zeros(f32, [64, 64])\nP = exp2(S - T)\nstore(Z[rows(64), cols(64)], P)",  # what is subtracted is no value a row
    BIAS + "T = zeros(f32, [64, 64])\nP = exp2(T - row_max(S) * cast(k, f32))\nP = exp2(S * T - 1.0)\nstore(Z[rows(64), cols(64)], P)",
    BIAS + "S = where(S > 0.0, S, -inf)\n" + STEP,  # a condition on the value
    BIAS + "S = where(k < n, S, 0.0)\n" + STEP,
    BIAS + "S = where(k < n, S, inf)\n" + STEP,
    BIAS + "if n > 0:\n    S = zeros(f32, [64, 64])\n" + STEP,  # another value on one path
    "if n > 0:\n    S = S + cast(k - q, f32)\n" + STEP,  # a shift on one path alone
    "for i in range(n):\n    m = row_max(S)\n    store(Y[rows(64)], m)\n    S = S + cast(k, f32)\n",  # read by the next turn
    "S = S + cast(k, f32) * cast(q, f32)\n" + STEP,  # a slope of its own for each row
    "S = S + cast(q, f32)\n" + STEP,  # no slope
    "S = S + cast(k * k, f32)\n" + STEP,
    "S = cast(k, f32) - S\n" + STEP,  # a negative tile
    "S = cast(k, f32) + cast(q, f32)\n" + STEP,  # affine itself
    "S = S * cast(k, f32)\n" + STEP,
])  # fmt: skip
def test_other_tiles_are_kept_whole(body: str) -> None:
    assert shifts(body) == 0


def test_the_value_before_and_the_value_after_are_read_whole() -> None:
    """Only what lies between the sum and the next binding of the name reads the kept tile."""
    found = text(BEGIN + "m = row_max(S)\nstore(Y[rows(64)], m)\n" + BIAS + STEP + "S = zeros(f32, [64, 64])\nP = exp2(S * 2.0 - m)\nm = row_max(S)\n"
                 "store(Y[rows(64)], m)\nstore(Z[rows(64), cols(64)], P)")  # fmt: skip
    assert found.count("cuir::row_max(S") == 3 and len(re.findall(r"\+= shift__", found)) == 1
    assert found.count("cuir::ex2(fmaf(") == 1


def test_a_branch_does_not_see_the_other_one_s_shift() -> None:
    body = (
        "if n > 0:\n"
        + "".join(f"    {line}\n" for line in (BIAS + "m = row_max(S)").split("\n"))
        + "else:\n    m = row_max(S)\nstore(Y[rows(64)], m)"
    )
    found = text(BEGIN + body)
    assert len(re.findall(r"\+= shift__", found)) == 1 and found.index("+= shift__") < found.index("else {")


# ---- the products of slope and columns
ROOMY = HEAD.replace("warpgroups=1)", "warpgroups=1, registers=232)")


def products(body: str, head: str = ROOMY) -> list[str]:
    """The slopes whose products with the columns a role keeps."""
    found = lower(kernel(BEGIN + body, head)).source
    return re.findall(r"products__\d+\[c_\] = (.*) \* float\(col", found)


def loop(*lines: str) -> str:
    return "\n".join(
        [
            "T = zeros(f32, [64, 64])",
            "for i in range(n):",
            *(f"    {line}" for line in lines),
            "    m = row_max(T)",
            "    store(Y[rows(64)], m)",
        ]
    )


@pytest.mark.parametrize(("body", "kept"), [
    (loop("T = S + cast(k - q, f32) * scale"), ["scale"]),
    (loop("T = S - cast(k - q, f32) * scale"), ["scale * -1.f"]),
    (loop("T = S + cast(q - k, f32) * scale"), ["scale * -1.f"]),
    (loop("T = cast(k, f32) * 3.0 + (S + cast(k - q, f32) * 2.0)"), ["3.0f"]),  # the other operand has a slope, but is not affine
    (loop("T = S + cast(k * 2 + i, f32)"), ["2.f"]),
    (loop("T = S + (scale * cast(k, f32) * 0.5 - cast(q, f32))"), ["scale * 0.5f"]),
    (loop("T = S + cast(k, f32) * scale", "m = row_max(T)", "T = S + cast(k - i, f32) * scale"), ["scale"]),  # one array for both
    ("f = exp2(scale)\n" + loop("T = S + cast(k, f32) * f"), ["f"]),
    (loop("f = exp2(cast(i, f32))", "T = S + cast(k, f32) * f"), []),  # another slope each turn
    ("f = scale\n" + loop("T = S + cast(k, f32) * f", "f = f * 2.0"), []),
    (loop("T = S + (cast(k, f32) * scale + cast(k, f32))"), []),
    ("T = S + cast(k, f32) * scale\nm = row_max(T)\nstore(Y[rows(64)], m)", []),  # nothing is computed twice
])  # fmt: skip
def test_products_that_stay_the_same_are_kept_in_registers(body: str, kept: list[str]) -> None:
    assert products(body) == kept


def test_products_are_computed_as_soon_as_the_slope_is_known() -> None:
    found = lower(
        kernel(
            BEGIN
            + "for j in range(n):\n    f = exp2(cast(j, f32))\n"
            + "\n".join("    " + x for x in loop("T = S + cast(k, f32) * f").split("\n")),
            ROOMY,
        )
    ).source
    lines = [line.strip() for line in found.split("\n")]
    (at,) = [i for i, line in enumerate(lines) if line.startswith("const float f = ")]
    assert lines[at + 1].startswith("float products__") and any("for (int i = " in line for line in lines[at:])


def test_a_role_without_room_computes_products_anew_and_late() -> None:
    tight = HEAD.replace("warpgroups=1)", "warpgroups=1, registers=128)")
    body = loop("T = S + cast(k, f32) * scale")
    assert products(body, tight) == products(body, HEAD) == []
    assert "cuir::after(" in lower(kernel(BEGIN + body, tight)).source


def test_the_choice_is_told() -> None:
    found = [c for c in lower(kernel(BEGIN + loop("T = S + cast(k, f32) * scale"), ROOMY)).choices if "bias" in c]
    assert len(found) == 1 and found[0].startswith("line 14: ") and "registers" in found[0]


# ---- what the texts compute
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
    found = lower(kernel(STEP_OF_SOFTMAX.replace("SIGN", sign).replace("FACTORS", factors), ATTENTION.replace("REGISTERS", str(registers))))
    assert "shift__" in found.source and ("products__" in found.source) == (registers == 232)
    return float(f"{sign}1"), on_cpu(found, tmp_path_factory.mktemp("host"))


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([0, 5, 64, -64, 1000, 100_000, -100_000]),
    scale=st.sampled_from([0.125, -0.3, 0.0, 2.0]),
    slope=st.sampled_from([0.5, -0.5, 2.0**-8, 1e-3, -3.7, 0.0]),
    bound=st.sampled_from([64, 0, 7, -40, -200]),
)
def test_the_texts_compute_a_softmax(
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


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
@pytest.mark.parametrize(("slope", "consts"), [
    ("scale", {"D": 64, "BM": 128, "BN": 128}),
    ("exp2(-8.0 * cast(h + 1, f32) / cast(H, f32))", {"D": 128, "BM": 192, "BN": 80}),
], ids=["products in registers", "no room"])  # fmt: skip
def test_the_expert_kernel_with_a_bias_compiles_without_spills(slope: str, consts: dict[str, int]) -> None:
    plain, biased = "return S, scale * LOG2E", f"return S * scale + cast(k - q, f32) * {slope}, LOG2E"
    program = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
    assert plain in program
    cuda = lower(check(parse(program.replace(plain, biased)), consts={"T": F16, **consts}))
    assert (
        len(set(re.findall(r"float (shift__\d+)\[2\]", cuda.source))) == 3
    )  # a tile's first block after another tile and without, and the loop
    assert ("products__" in cuda.source) == (consts["D"] == 64)
    found = compile_cuda(cuda).resources
    assert found.spill_stores + found.spill_loads + found.stack == 0 and found.warnings == ()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_a_bias_compiles_for_sm_80() -> None:
    program = corpus.programs()["flash_fwd_sm80"].read_text(encoding="utf-8")
    biased = program.replace("return S, scale * LOG2E", "return S * scale - cast(q - k, f32) * 0.5, LOG2E")
    cuda = lower(check(parse(biased), consts={"T": F16, "D": 64}))
    assert "shift__" in cuda.source and compile_cuda(cuda).cubin

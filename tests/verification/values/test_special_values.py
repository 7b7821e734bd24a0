"""Special values of inputs: faults that show there alone are refused at level quick, and right kernels with the same content pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from cuir import FunctionSpecification, parse, verify
from cuir.checking.checked import Const
from cuir.syntax.types import F16, F32
from cuir.verification.report import VerifyReport
from cuir.verification.values.special_values import (
    ALONE,
    END,
    OPPOSED,
    SMALL,
    hide,
    list_neighbours,
    list_vast_factors,
    make_close,
    make_near,
    make_vast,
    scatter,
)
from tests.verification.small_kernels import rows


def judge(text: str, reference: Callable[..., Any], dtype: Const = F16) -> VerifyReport:
    spec = FunctionSpecification("reference", reference)
    return verify(parse(text, "kernel.cuir"), spec, consts={"T": dtype, "D": 64}, seeded=0, shrink=False)


def elementwise(value: str, more: str = "", dtype: str = "f32") -> str:
    """A kernel that stores a value for each element x; g is of a second tensor."""
    second = "g = G[q, cols(D)]" if "G:" in more else ""
    return rows(f"Y: Global[{dtype}, M, D]" + f", {more}" * bool(more), f"{second}\nstore(Y[q, cols(D)], {value})")


def make_nested(more: str, text: str) -> str:
    """Build a kernel as `rows` does, with the indentation of the text kept."""
    lines = "\n".join(" " * 12 + line for line in text.strip("\n").splitlines())
    return rows(more, "pass").replace(" " * 12 + "pass", lines)


def blas(x: torch.Tensor, c: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    """C is not read if beta is 0."""
    return x * alpha + (c * beta if beta != 0 else 0.0)


def blas_in_place(x: torch.Tensor, c: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    """Multiply and add as BLAS does, which PyTorch follows."""
    return torch.addmm(c, x, torch.eye(x.shape[1], dtype=x.dtype), beta=beta, alpha=alpha)


def count(x: torch.Tensor) -> torch.Tensor:
    return (x > 0.5).sum(-1).int()


def gated(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.where(g > 0.25, x, 0.0)


FINITE = "where(CONDITION, min(max(x, -3.4028234663852886e38), 3.4028234663852886e38), 0.0)"


def finite(x: torch.Tensor) -> torch.Tensor:
    largest = 3.4028234663852886e38
    return torch.where(x.isnan(), 0.0, x.clamp(-largest, largest))


def above(x: torch.Tensor, threshold: float) -> torch.Tensor:
    return torch.where(x > threshold, x, 0.0)


def biased(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (x + bias).softmax(-1)


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(~(mask > -0.5), -torch.inf).softmax(-1)


def dropped(x: torch.Tensor, p: float) -> torch.Tensor:
    return x * 0 if p == 1 else x / (1 - p)


def bucket(x: torch.Tensor) -> torch.Tensor:
    return (x * 0.1).floor().int()


def entropy(x: torch.Tensor) -> torch.Tensor:
    return torch.xlogy(x.abs(), x.abs())


def padded(x: torch.Tensor, pad: int) -> torch.Tensor:
    return x * 0.5 if pad == -1 else x * pad


GATE = "G: Global[f32, M, D]"
THRESHOLD = "threshold: f32"
BIAS = "Bias: Global[f32, M, D], Y: Global[f32, M, D]"
BLAS = "C: Global[f32, M, D], Y: Global[f32, M, D], alpha: f32, beta: f32"
IN_PLACE = "C: Global[f32, M, D], alpha: f32, beta: f32"
KEYS = "Bias: Global[f32, D], Y: Global[f32, M, D]"
PRODUCT = "store(Y[q, cols(D)], x * alpha + C[q, cols(D)] * beta)"
GUARDED = f"""
if beta != 0.0:
    {PRODUCT}
else:
    store(Y[q, cols(D)], x * alpha)
"""
ONLINE = """
m, l = full(f32, [16, 1], -inf), zeros(f32, [16, 1])
for j in range(4):
    s = cast(X[q, j * 16 + cols(16)], f32) + Bias[q, j * 16 + cols(16)]
    n = max(m, row_max(s))
    r = where(n == -inf, 0.0, n)
    l = l * exp2((m - r) * 1.4426950408889634) + row_sum(exp2((s - r) * 1.4426950408889634))
    m = n
store(Y[q, cols(D)], exp2((x + Bias[q, cols(D)] - m) * 1.4426950408889634) / l)
"""

MASK = BIAS.replace("Bias", "Mask")
MASKED = ONLINE.replace(
    "cast(X[q, j * 16 + cols(16)], f32) + Bias[q, j * 16 + cols(16)]",
    "where(Mask[q, j * 16 + cols(16)] > -0.5, cast(X[q, j * 16 + cols(16)], f32), -inf)",
).replace("x + Bias[q, cols(D)]", "where(Mask[q, cols(D)] > -0.5, x, -inf)")

Kernel = tuple[str, Callable[..., Any], Const]
RIGHT: dict[str, Kernel] = {
    "a gate that selects": (elementwise("where(g > 0.25, x, 0.0)", GATE), gated, F16),
    "a threshold": (elementwise("where(x > threshold, x, 0.0)", THRESHOLD), above, F16),
    "C is read if beta says so": (make_nested(BLAS, GUARDED), blas, F16),
    "C is always read": (rows(BLAS, PRODUCT), lambda x, c, alpha, beta: x * alpha + c * beta, F16),
    "a reciprocal": (elementwise("1.0 / x"), lambda x: 1 / x, F16),
    "entropy": (elementwise("where(x == 0.0, 0.0, abs(x) * log2(where(x == 0.0, 1.0, abs(x))) * 0.6931471805599453)"), entropy, F16),
    "dropout of everything": (elementwise("x * (0.0 if p == 1.0 else 1.0 / (1.0 - p))", "p: f32"), dropped, F16),
    "a bucket": (elementwise("cast(floor(x * 0.1), i32)", dtype="i32"), bucket, F32),
    "hardshrink": (elementwise("where(abs(x) > 0.5, x, 0.0)"), lambda x: F.hardshrink(x, 0.5), F16),
    "relu6": (elementwise("min(max(x, 0.0), 6.0)"), lambda x: F.relu6(x), F16),
    "NaN becomes 0": (elementwise("where(x == x, x, 0.0)"), lambda x: torch.where(x.isnan(), 0.0, x), F16),
    "infinities become the largest numbers": (elementwise(FINITE.replace("CONDITION", "x == x")), finite, F32),
    "a softmax with a bias": (make_nested(BIAS, ONLINE), biased, F16),
    "a softmax with a mask": (make_nested(MASK, MASKED), masked, F16),
    "two factors": (elementwise("(x - g) * (x + g)", GATE), lambda x, g: (x - g) * (x + g), F32),
    "C is read in place if beta says so": (make_nested(IN_PLACE, GUARDED.replace("Y[", "C[")), blas_in_place, F16),
    "a power": (elementwise("exp2(p * log2(abs(x) + 0.5))", "p: f32"), lambda x, p: (x.abs() + 0.5) ** p, F16),
    "a mask of keys": (make_nested(KEYS, ONLINE.replace("Bias[q, ", "Bias[")), biased, F16),
    "a count": (rows("Y: Global[i32, M]", "store(Y[q], cast(row_sum(where(x > 0.5, 1.0, 0.0)), i32))"), count, F16),
    "a padding of -1": (elementwise("x * (0.5 if pad == -1 else cast(pad, f32))", "pad: i32"), padded, F16),
}
WRONG: dict[str, Kernel] = {
    "a gate that multiplies": (elementwise("x * where(g > 0.25, 1.0, 0.0)", GATE), gated, F16),
    "a gate at its bound": (elementwise("where(g >= 0.25, x, 0.0)", GATE), gated, F16),
    "a threshold at its bound": (elementwise("where(x >= threshold, x, 0.0)", THRESHOLD), above, F16),
    "C is read if beta is 0": (rows(BLAS, PRODUCT), blas, F16),
    "a reciprocal of -0": (elementwise("1.0 / (x + 0.0)"), lambda x: 1 / x, F16),
    "the sign of -0": (elementwise("where(x < 0.0, -1.0, 1.0)"), lambda x: torch.copysign(torch.ones_like(x), x), F16),
    "0 times a logarithm": (elementwise("abs(x) * log2(abs(x)) * 0.6931471805599453"), entropy, F16),
    "1 - p is 0": (elementwise("x / (1.0 - p)", "p: f32"), dropped, F16),
    "a bucket too high": (elementwise("cast(floor(x * 0.1 + 0.001), i32)", dtype="i32"), bucket, F32),
    "hardshrink at its bound": (elementwise("where(abs(x) >= 0.5, x, 0.0)"), lambda x: F.hardshrink(x, 0.5), F16),
    "infinities become 0": (elementwise(FINITE.replace("CONDITION", "x - x == 0.0")), finite, F32),
    "NaN stays": (elementwise("x"), lambda x: torch.where(x.isnan(), 0.0, x), F16),
    "a first block of -inf": (make_nested(BIAS, ONLINE.replace("where(n == -inf, 0.0, n)", "n")), biased, F16),
    "a maximum from -1e30": (make_nested(BIAS, ONLINE.replace("[16, 1], -inf", "[16, 1], -1e30")), biased, F16),
    "a mask that hides the first block": (make_nested(MASK, MASKED.replace("where(n == -inf, 0.0, n)", "n")), masked, F16),
    "C is read in place if beta is 0": (rows(IN_PLACE, PRODUCT.replace("Y[", "C[")), blas_in_place, F16),
    "a count at its bound": (rows("Y: Global[i32, M]", "store(Y[q], cast(row_sum(where(x >= 0.5, 1.0, 0.0)), i32))"), count, F16),
    "a mask of keys": (make_nested(KEYS, ONLINE.replace("Bias[q, ", "Bias[").replace("where(n == -inf, 0.0, n)", "n")), biased, F16),
    "a padding of -1": (elementwise("x * cast(pad, f32)", "pad: i32"), padded, F16),
    "a variance in one pass": (
        rows("V: Global[f32, M]", "m = row_sum(x) / D\nstore(V[q], row_sum(x * x) / D - m * m)"),
        lambda x: x.var(-1, unbiased=False),
        F32,
    ),
}


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_pass(name: str) -> None:
    report = judge(*RIGHT[name])
    assert report.ok, report.diagnostics[0].render()


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize("name", WRONG)
def test_faults_at_special_values_are_refused(name: str) -> None:
    report = judge(*WRONG[name])
    assert [d.code for d in report.diagnostics] in (["V301"], ["V302"]), report.summary()


DTYPES = (torch.float16, torch.bfloat16, torch.float32)
DRAWN = st.tuples(st.integers(1, 24), st.integers(1, 100), st.sampled_from(DTYPES), st.integers(0, 20))


@given(DRAWN)
def test_hidden_rows_have_runs_and_else_what_they_had(drawn: tuple[int, int, torch.dtype, int]) -> None:
    count, columns, dtype, turn = drawn
    x = torch.randn(count, columns, generator=torch.Generator().manual_seed(turn)).to(dtype)
    y = hide(x, turn, 16, torch.Generator().manual_seed(turn))
    least = torch.finfo(dtype).min
    assert y.dtype == dtype and bool(((y == x) | (y == 0) | (y == -torch.inf) | (y == least) | (y == least / 2)).all())
    if count >= 9 and columns > 64:
        assert bool((y == -torch.inf).all(-1).any()) and bool((y[:, :64] == -torch.inf).all(-1).any())


@given(DRAWN)
def test_values_stay_in_the_dtype(drawn: tuple[int, int, torch.dtype, int]) -> None:
    count, columns, dtype, turn = drawn
    generator = torch.Generator().manual_seed(turn)
    x, y = (torch.randn(count, columns, generator=generator).to(dtype) for _ in range(2))
    vast = [make_vast(x, turn, list_vast_factors(form, dtype, turn, True, (1e-6,))) for form in (ALONE, END, OPPOSED, SMALL)]
    for result in (*vast, make_near(x, turn), make_close(x, y, turn), scatter(x, (0.0, 1.0), turn, 16, generator)):
        assert result.dtype == dtype and result.shape == x.shape and bool(result.isfinite().all())


@given(st.floats(-1e4, 1e4), st.sampled_from(DTYPES))
def test_neighbours_compare_alike_in_float32_and_float64(number: float, dtype: torch.dtype) -> None:
    """A literal that float32 does not hold is not drawn where the two precisions disagree."""
    single = torch.tensor(number, dtype=torch.float32)
    for value in list_neighbours(number, dtype):
        x = torch.tensor(value, dtype=dtype)
        assert (bool(x.double() > number), bool(x.double() == number)) == (bool(x.float() > single), bool(x.float() == single))

"""Special values of inputs: faults that show there alone are refused at level quick, and right kernels with the same content pass.

Sums of subnormal numbers by atomic additions: the hardware gives 0, so a kernel that needs them is refused, or within what is allowed.

NaN that extremes spread: a kernel that selects by comparisons drops it.

Products of normal numbers that are subnormal: atomic additions of f32 lose them, sums within a worker do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from cuir import CuirError, FunctionSpecification, check, parse, verify
from cuir.checking.checked import Checked, Const
from cuir.syntax.types import F16, F32
from cuir.verification.inputs import find_accumulated, get_special_plan, make_function_launch
from cuir.verification.report import VerifyReport
from cuir.verification.spec_dispatch import check_case
from cuir.verification.special_problems import make_underflow_draws
from cuir.verification.values.cases import Draw
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
    make_underflowing,
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


KERNEL = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], S: Global[f32, 64]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r, c = t * 16 + rows(16), cols(64)
            store(S[c], col_sum(X[r, c] * X[r, c]) * FACTOR, add=True)
"""


def verdict(factor: str, reference: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
    report = verify(parse(KERNEL.replace("FACTOR", factor)), FunctionSpecification("k", reference), seeded=0, shrink=False)
    return [d.code for d in report.diagnostics]


def test_a_sum_that_its_parts_do_not_reach_is_refused() -> None:
    """Each of the parts is below 2^-126 and counts as 0; together they are not."""
    assert verdict("1e-40", lambda X: (X * X).sum(0) * 1e-40) == ["V301"]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("factor", ("1.0", "1e-36", "1e-44"))
def test_normal_parts_pass_and_so_does_what_is_below_the_least_normal_number(factor: str) -> None:
    """A sum of 131,075 squares of some 1e-44 may be 0: 2^-126 an element is allowed, as of an exponential."""
    assert verdict(factor, lambda X: (X * X).sum(0) * float(factor)) == []


LARGEST = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, N], Y: Global[f32, M]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r = t * 16 + rows(16)
            m = full(f32, [16, 1], -inf)
            for j in range(cdiv(N, 16)):
                c = j * 16 + cols(16)
                v = row_max(where(c < N, X[r, c], -inf))
                m = UPDATE
            store(Y[r], m)
"""
SMALLEST = LARGEST.replace("-inf", "inf").replace("row_max", "-row_max").replace("where", "-where")
SIZES = {"M": 20, "N": 40}


def judge_of_spread_nan(text: str, reference: Callable[..., Any]) -> list[str]:
    program = parse(text)
    checked, spec = (
        check(program, "k", {}),
        FunctionSpecification("k", reference, sizes=lambda drawn: {d: max(1, n) for d, n in drawn.items()}),
    )
    assert get_special_plan(checked, spec).selected == ("X",)
    assert make_function_launch(checked, spec, Draw("one", SIZES, "nan")).spread["Y"].any()
    try:
        check_case(program, checked, spec, Draw("one", SIZES, "nan"))
    except CuirError as error:
        return [d.code for d in error.diagnostics]
    return []


@pytest.mark.parametrize(
    ("text", "update", "reference", "codes"),
    [
        (LARGEST, "max(m, v)", lambda x: x.amax(1), []),
        (LARGEST, "where(v > m, v, m)", lambda x: x.amax(1), ["V301"]),
        (LARGEST, "where(m >= v, m, v)", lambda x: x.amax(1), ["V301"]),
        (SMALLEST, "min(m, v)", lambda x: x.amin(1), []),
        (SMALLEST, "where(v < m, v, m)", lambda x: x.amin(1), ["V301"]),
        (LARGEST.replace("X[r, c]", "abs(X[r, c])"), "where(v > m, v, m)", lambda x: x.abs().amax(1), ["V301"]),
    ],
)
def test_an_extreme_that_drops_nan_is_refused(text: str, update: str, reference: Callable[..., Any], codes: list[str]) -> None:
    assert judge_of_spread_nan(text.replace("UPDATE", update), reference) == codes


def test_a_single_extreme_may_be_nan_alone() -> None:
    """The function then gives NaN for all of its output, which elsewhere says that it is not defined."""
    for update, codes in (("max(m, v)", []), ("where(v > m, v, m)", ["V301"])):
        text = LARGEST.replace("UPDATE", update)
        program = parse(text)
        checked, spec = (
            check(program, "k", {}),
            FunctionSpecification("k", lambda x: x.amax(1), sizes=lambda drawn: {**drawn, "N": max(1, drawn["N"])}),
        )
        results = []
        try:
            check_case(program, checked, spec, Draw("one", {"M": 1, "N": 40}, "nan"))
        except CuirError as error:
            results = [d.code for d in error.diagnostics]
        assert results == codes


CLAMP = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 16], LO: Global[f32, 16], HI: Global[f32, 16], Y: Global[f32, M, 16]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r = t * 16 + rows(16)
            x, lo, hi = X[r, cols(16)], LO[cols(16)], HI[cols(16)]
            store(Y[r, cols(16)], min(UPDATE, hi))
"""


@pytest.mark.parametrize(("update", "codes"), [("max(x, lo)", []), ("where(x > lo, x, lo)", ["V301"]), ("where(x < lo, lo, x)", [])])
def test_a_clamp_between_bounds_keeps_nan(update: str, codes: list[str]) -> None:
    program = parse(CLAMP.replace("UPDATE", update))
    checked = check(program, "k", {})
    spec = FunctionSpecification("clamp", lambda x, lo, hi: torch.minimum(torch.maximum(x, lo), hi))
    seed = get_special_plan(checked, spec).selected.index("X")
    results = []
    try:
        check_case(program, checked, spec, Draw("one", {"M": 20}, "nan", seed))
    except CuirError as error:
        results = [d.code for d in error.diagnostics]
    assert results == codes


@pytest.mark.parametrize(
    "reference",
    [
        lambda x: x.relu(),  # 0 is no element
        lambda x: x * 2,
        lambda x: x.softmax(-1),
        lambda x: x.sort(-1).values,  # the place of a NaN is not the kernel's to know
        lambda x: torch.fmax(x, x.roll(1, 0)),
    ],
)
def test_other_functions_ask_for_no_nan(reference: Callable[..., Any]) -> None:
    text = rows("Y: Global[f32, M, D]", "store(Y[q, cols(D)], x)")
    checked = check(parse(text), "kernel", {"D": 64})
    spec = FunctionSpecification("f", reference)
    assert not make_function_launch(checked, spec, Draw("one", dict.fromkeys(checked.dims, 20), "nan")).spread


def test_a_factor_of_0_asks_for_no_nan() -> None:
    checked = check(parse(rows("Y: Global[f32, M, D]", "store(Y[q, cols(D)], x)")), "kernel", {"D": 64})
    spec = FunctionSpecification("f", lambda x: x @ torch.eye(x.shape[1], dtype=x.dtype))
    launch = make_function_launch(checked, spec, Draw("one", {"M": 20}, "nan"))
    assert torch.equal(launch.spread["Y"], launch.inputs["X"].isnan()) and launch.exact["Y"].isnan().sum() > launch.spread["Y"].sum()


def test_a_product_that_copies_may_spread_nan_further() -> None:
    """0 times NaN is NaN: what else of a row such a kernel spoils is not compared."""
    text = rows("Y: Global[f32, M, D]", "store(Y[q, cols(D)], mma(x, where(rows(64) == cols(64), 1.0, 0.0), parts=2))").replace(
        "T]", "f32]"
    )
    checked = check(program := parse(text), "kernel", {"D": 64})
    spec = FunctionSpecification("f", lambda x: x)
    draw = Draw("one", dict.fromkeys(checked.dims, 20), "nan")
    assert make_function_launch(checked, spec, draw).spread
    check_case(program, checked, spec, draw)


ADDED = """\
@kernel(arch="sm_90a")
def k(G: Global[f32, R, 32], OUT: Global[f32, 32]):
    work = tiles(cdiv(R, 16))
    with role("all", warps=1):
        for t in work:
            g = G[t * 16 + rows(16), cols(32)]
            store(OUT[cols(32)], col_sum(PART), add=True)
"""
SUMMED = """\
@kernel(arch="sm_90a")
def k(G: Global[f32, R, 32], OUT: Global[f32, 32]):
    work = tiles(1)
    with role("all", warps=1):
        for t in work:
            acc = zeros(f32, [1, 32])
            for j in range(cdiv(R, 16)):
                g = G[j * 16 + rows(16), cols(32)]
                acc = acc + col_sum(PART)
            store(OUT[cols(32)], acc, add=True)
"""


def squares(g: torch.Tensor) -> torch.Tensor:
    return (g * g).sum(0)


def plain(g: torch.Tensor) -> torch.Tensor:
    return g.sum(0)


def problems(text: str, reference: object) -> tuple[Checked, FunctionSpecification, list[Draw]]:
    checked, spec = check(parse(text)), FunctionSpecification("k", reference)  # type: ignore[arg-type]
    return checked, spec, make_underflow_draws(checked, spec, find_accumulated(checked))


def test_additions_lose_tiny_squares() -> None:
    """Each part is below 2^-126, their sum is not."""
    checked, spec, draws = problems(ADDED.replace("PART", "g * g"), squares)
    assert [d.name for d in draws] == ["underflow along R"]
    with pytest.raises(CuirError, match="V301"):
        check_case(checked.program, checked, spec, draws[0])


def test_a_sum_within_a_worker_keeps_them() -> None:
    """Registers hold subnormal numbers, and one addition brings the whole sum."""
    checked, spec, draws = problems(SUMMED.replace("PART", "g * g"), squares)
    assert draws and check_case(checked.program, checked, spec, draws[0])


def test_linear_sums_have_no_such_problem() -> None:
    """Normal numbers that are added lose nothing."""
    assert problems(ADDED.replace("PART", "g"), plain)[2] == []


def test_values_are_normal_and_their_squares_are_not() -> None:
    """The sum of 4,096 of them is a normal number."""
    x = torch.ones(4096, 2)
    values = make_underflowing({"g": x}, lambda v: {"out": squares(torch.as_tensor(v["g"]).double())})
    assert values is not None
    g = torch.as_tensor(values["g"])
    assert (g >= 2.0**-126).all() and (g.double() ** 2 < 2.0**-130).all() and (squares(g.double()) > 2.0**-123).all()
    assert make_underflowing({"g": x}, lambda v: {"out": plain(torch.as_tensor(v["g"]))}) is None

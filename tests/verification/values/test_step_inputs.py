"""Inputs at the steps of functions that jump: a kernel that comes out on another side than PyTorch is refused, one that rounds as it does passes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir.checking.checker import check
from cuir.spec.function_specification import FunctionSpecification
from cuir.syntax.parser import parse
from cuir.verification import verify
from cuir.verification.inputs import ask_small
from cuir.verification.report import VerifyReport
from cuir.verification.values.cases import Draw
from cuir.verification.values.step_inputs import KIND, _draw_at_steps, find_undecided, jumps_in_torch, make_decisive_draws, move_to_steps

TEXT = """\
@kernel(arch="sm_90a")
def rows_of(X: Global[f32, M, 64], Z: Global[f32, M, 64], Y: Global[DTYPE, M, 64], s: f32):
    buf = shared(f32, [64, 64])
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            x, z = X[t * 64 + rows(64), cols(64)], Z[t * 64 + rows(64), cols(64)]
            store(Y[t * 64 + rows(64), cols(64)], BODY)
"""


def text_of(body: str, dtype: str = "f32") -> str:
    return TEXT.replace("BODY", body).replace("DTYPE", dtype)


def function(text: str) -> Any:
    result: dict[str, Any] = {"torch": torch, "math": math}
    exec(f"def reference(X, Z, s):\n    return {text}\n", result)
    return result["reference"]


def judge(body: str, text: str, dtype: str = "f32") -> VerifyReport:
    return verify(parse(text_of(body, dtype), "rows.cuir"), function(text), shrink=False, seeded=0)


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("floor(x * (1.0 / s))", "torch.floor(X / s)"),
        ("round(x * (1.0 / s))", "torch.round(X / s)"),
        ("round(x * (1.0 / s)) * s", "torch.round(X / s) * s"),
        ("floor(x * (1.0 / z))", "torch.floor(X / Z)"),
        ("floor(x * 10.0)", "torch.floor(X / 0.1)"),
        ("floor(x + 0.5)", "torch.round(X)"),
        ("-floor(-x)", "torch.floor(X)"),
        ("where(x * (1.0 / s) > 3.0, x, 0.0)", "torch.where(X / s > 3, X, 0.0)"),
        ("where(x >= 3.0 * s, x, 0.0)", "torch.where(X > 3 * s, X, 0.0)"),
        ("floor(x / s)", "torch.trunc(X / s)"),
        ("round(x * (127.0 / max(row_max(abs(x)), 0.000001)))", "torch.round(X / (X.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127))"),
        (
            "where(x == x, floor(log2(max(row_max(abs(x)), 0.000001)) + 0.0001), 0.0)",  # the margin lifts what is just below a power of 2
            "(torch.frexp(X.abs().amax(-1, keepdim=True).clamp(min=1e-6))[1] - 1).float().expand(-1, 64)",
        ),
    ],
)
def test_another_side_is_refused(body: str, text: str) -> None:
    report = judge(body, text)
    assert [d.code for d in report.diagnostics] == ["V301"]


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("floor(x / s)", "torch.floor(X / s)"),
        ("floor(x / z)", "torch.floor(X / Z)"),
        ("round(x / s) * s", "torch.round(X / s) * s"),
        ("round(x * (1.0 / s))", "torch.round(X * (1.0 / torch.tensor(s, dtype=X.dtype)))"),
        ("floor(x * 0.7 - 7.0)", "torch.floor(X * 0.7 - 7)"),
        ("floor(x / 0.1)", "torch.floor(X / 0.1)"),
        ("fmod(x, s)", "torch.fmod(X, s)"),
        ("where(x / s > 3.0, x, 0.0)", "torch.where(X / s > 3, X, 0.0)"),
        ("where(x >= row_sum(x) / 64.0, x, 0.0)", "torch.where(X >= X.mean(-1, keepdim=True), X, 0.0)"),
        ("-floor(-x / s)", "torch.ceil(X / s)"),
        ("floor(row_sum(x) * 0.7 - 7.0) + 0.0 * x", "torch.floor(X.sum(-1, keepdim=True) * 0.7 - 7) + 0 * X"),
        ("round(x / (max(row_max(abs(x)), 0.000001) / 127.0))", "torch.round(X / (X.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127))"),
        ("round(tanh(x) * 127.0)", "torch.round(torch.tanh(X) * 127)"),
        ("x + 12582912.0 - 12582912.0", "torch.round(X)"),
    ],
)
def test_rounding_as_pytorch_does_passes(body: str, text: str) -> None:
    report = judge(body, text)
    assert report.ok, report.diagnostics[0].render()
    assert any(KIND in str(row["case"]) for row in report.stages[4].rows)


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("body", "text", "decider", "feeds"),
    [
        ("floor(log2(abs(x)))", "torch.floor(torch.log2(X.abs()))", "rounding `floor(log2(abs(x)))`", "log2"),
        (
            "cast(cast(log2(abs(x)), i32), f32)",
            "torch.trunc(torch.log2(X.abs())).clamp(-2**31)",
            "conversion `cast(log2(abs(x)), i32)`",
            "log2",
        ),
        ("where(log2(abs(x)) >= 3.0, x, 0.0)", "torch.where(X.abs().log2() >= 3, X, 0.0)", "comparison `log2(abs(x)) >= 3.0`", "log2"),
        (
            "x / exp2(floor(log2(max(row_max(abs(x)), 0.0001))))",
            "X / torch.exp2(X.abs().amax(-1, keepdim=True).clamp(min=1e-4).log2().floor())",
            "rounding `floor(log2(max(row_max(abs(x)), 0.0001)))`",
            "log2",
        ),
        ("floor(power(abs(x), 0.5))", "torch.floor(X.abs().sqrt())", "rounding `floor(power(abs(x), 0.5))`", "power"),
    ],
)
def test_what_is_not_exact_and_rounded_is_refused(body: str, text: str, decider: str, feeds: str) -> None:
    (result,) = judge(body, text).diagnostics
    assert result.code == "V308" and f"the {decider} hangs" in result.message
    assert any(f"`{feeds}`" in n.message for n in result.notes) and result.hint is not None


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize(("read", "dtype"), [("f8e4m3", "f32"), ("f16", "i32"), ("bf16", "bf16")])
def test_other_dtypes(read: str, dtype: str) -> None:
    def report(body: str) -> VerifyReport:
        text = text_of(f"cast({body}, {dtype})", dtype).replace("X: Global[f32", f"X: Global[{read}")
        text = text.replace("x, z = X[t * 64 + rows(64), cols(64)]", "x, z = cast(X[t * 64 + rows(64), cols(64)], f32)")
        of = "torch.floor(X / s)" + (".to(torch.int32)" if dtype == "i32" else "")
        return verify(parse(text, "rows.cuir"), function(of), shrink=False, seeded=0)

    assert report("floor(x / s)").ok
    if read != "f8e4m3":  # which holds no multiples of 61
        assert [d.code for d in report("floor(x * (1.0 / s))").diagnostics] == ["V301"]


def test_the_error_names_what_jumps() -> None:
    (result,) = judge("floor(x * (1.0 / s))", "torch.floor(X / s)").diagnostics
    note = next(n for n in result.notes if "the inputs lie at steps" in n.message)
    assert note.span is not None and note.span.line == 8


def test_problems_lie_at_steps_only_where_something_jumps() -> None:
    def draws(body: str, text: str, level: str) -> list[Draw]:
        checked, spec = check(parse(text_of(body))), FunctionSpecification("f", function(text))
        return make_decisive_draws(
            checked, spec, [Draw("a", {"M": 64}), Draw("none", {"M": 0}), Draw("b", {"M": 100})], level, lambda: ask_small(checked, spec)
        )

    assert draws("x * 2.0 + z", "X * 2 + Z", "full") == []
    for body, text in (
        ("floor(x)", "X"),
        ("x", "X.floor()"),
        ("x", "X.int().float()"),
        ("x", "X // s"),
        ("x", "torch.div(X, s, rounding_mode='trunc')"),
    ):
        few, many = draws(body, text, "quick"), draws(body, text, "full")
        assert 0 < len(few) < len(many) and {d.sizes["M"] for d in many} == {64, 100}


@settings(deadline=None, max_examples=25)
@given(
    shape=st.sampled_from([(5,), (40, 64), (3, 20, 16)]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]),
    numbers=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6),
    signed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_values_are_finite_no_divisor_is_0_and_the_same_each_time(
    shape: tuple[int, ...], dtype: torch.dtype, numbers: list[float], signed: bool, seed: int
) -> None:
    x, y = (_draw_at_steps(shape, dtype, numbers, torch.Generator().manual_seed(seed), signed).float() for _ in range(2))
    assert torch.equal(x, y) and bool((x.isfinite() & (x != 0)).all()) and (signed or bool((x > 0).all()))


def test_half_of_the_numbers_are_whole_and_steps_of_a_number_are_met() -> None:
    x = _draw_at_steps((256, 64), torch.float32, [61.0], torch.Generator().manual_seed(0), signed=False)
    assert 0.4 < (x == x.round()).float().mean() < 1 and int((x % 61 == 0).sum()) > 500 and int((x % 61 == 30.5).sum()) > 500
    assert bool((x == 8).any()) and bool((x == 7).any())


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: torch.floor(x), True),
        (lambda x: x % 3, True),
        (lambda x: x.long(), True),
        (lambda x: x // 2, True),
        (lambda x: x * 2, False),
        (lambda x: x.double(), False),
        (lambda x: x > 2, False),
    ],
)
def test_what_jumps_in_pytorch(call: Any, expected: bool) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    actual: list[bool] = []

    class Mode(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            actual.append(jumps_in_torch(func.overloadpacket.__name__, args, kwargs or {}, result))
            return result

    with Mode():
        call(torch.ones(3))
    assert any(actual) is expected


def test_what_float32_and_float64_disagree_on_is_not_asked() -> None:
    exact, single = torch.tensor([1.0, 2.0, 0.0, 1e-9, torch.nan]).double(), torch.tensor([1.0000001, 3.0, 0.0, 1.0, 1.0])
    assert find_undecided(single, exact).tolist() == [False, True, False, True, True]


SCALED = """\
@kernel(arch="sm_90a")
def quantize(X: Global[f32, M, N], S: Global[f32, N], Y: Global[f32, M, N]):
    work = tiles(cdiv(M, 64) * cdiv(N, 64))
    with role("all", warpgroups=1):
        for t in work:
            i, c = t // cdiv(N, 64) * 64 + rows(64), t % cdiv(N, 64) * 64 + cols(64)
            q = X[i, c] / where(c < N, S[c], 1.0)
            store(Y[i, c], ROUND)
"""


@pytest.mark.sweep(4)
@pytest.mark.usefixtures("no_schedules")
@pytest.mark.parametrize(
    ("rounding", "right"), [("round(q)", True), ("floor(q + 0.5)", False), ("where(q < 0.0, -floor(0.5 - q), floor(q + 0.5))", False)]
)
def test_operands_are_halfway_where_inputs_of_the_specification_draw_the_scale(rounding: str, right: bool) -> None:
    def reference(X: torch.Tensor, S: torch.Tensor) -> torch.Tensor:
        return torch.round(X / S)

    def inputs(sizes: dict[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {"S": torch.rand(sizes["N"], generator=generator) * 2 + 0.05}

    program = parse(SCALED.replace("ROUND", rounding), "quantize.cuir")
    report = verify(program, FunctionSpecification("quantize", reference, inputs=inputs), shrink=False, seeded=0)
    assert report.ok == right, [str(d) for d in report.diagnostics]


def test_elements_move_to_steps_by_a_factor() -> None:
    x, scale = torch.arange(1.0, 65).reshape(8, 8), torch.rand(8, generator=torch.Generator().manual_seed(1)) + 0.1
    moved = move_to_steps(lambda: torch.round(x.double() / scale.double()), {"X": x, "other": torch.zeros(3)}, 0)
    quotient = moved["X"] / scale
    assert moved.keys() == {"X"} and ((quotient - quotient.floor()) == 0.5).sum() >= 8

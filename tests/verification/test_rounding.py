"""Integers that follow from floats: those of float32 are right beside those of float64, others are not.

Kernels that round to 16 bits and go on computing with the result.

Outputs of 8-bit floats: they are rounded and saturate as casts do, and are judged like others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from corpus.computes import COMPUTES
from cuir import CuirError, FunctionSpecification, check, parse, verify
from cuir.syntax.types import BF16, DTYPES, F16, F32
from cuir.verification.error_bounds import SingleError
from cuir.verification.rounding import collect_right_integers, find_out_of_range, half_steps, round_to, rounds_between, rounds_for_products
from cuir.verification.spec_dispatch import check_case
from cuir.verification.values.cases import Draw
from tests.verification.small_kernels import KERNELS, rows


def right(function: Callable[..., torch.Tensor], tf32: bool = False, **tensors: torch.Tensor) -> list[torch.Tensor]:
    """Collect the integers that are right beside those of float64."""
    return list(collect_right_integers(SingleError(FunctionSpecification("f", function), tensors, ["Y"]), "Y", tf32))


def test_float32_decides_as_it_rounds() -> None:
    """The tenth of 30 is 3 in float32, and 2.99... for 0.1 cut to fewer bits."""
    x = torch.arange(0, 2000.0)
    result = right(lambda x: (x * 0.7 - 7).floor().int(), x=x)
    assert torch.equal(result[0], (x * 0.7 - 7).floor().int())
    exact = (x.double() * 0.7 - 7).floor().int()
    assert not torch.equal(result[0], exact) and all(torch.equal(result[0], second) for second in result)


def test_a_sum_in_another_order_is_right() -> None:
    x = torch.cat([torch.full((1,), 2.0**24), torch.ones(7), torch.full((1,), -(2.0**24))])[None]
    results = {int(y) for y in right(lambda x: x.sum(-1).int(), x=x)}
    assert len(results) > 1


def test_exact_sums_are_one_number() -> None:
    x = torch.randint(-9, 9, (5, 64), generator=torch.Generator().manual_seed(0)).float()
    assert all(torch.equal(y, x.sum(-1).int()) for y in right(lambda x: x.sum(-1).int(), x=x))


def test_products_of_tf32_decide_for_themselves() -> None:
    a, b = (torch.randn(32, 64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    function = lambda a, b: (a @ b.mT * 1000).round().int()  # noqa: E731
    plain, more = right(function, a=a, b=b), right(function, True, a=a, b=b)
    assert len(more) > len(plain) and any(not torch.equal(plain[0], y) for y in more[len(plain) :])


@pytest.mark.parametrize("value", [1e30, -1e30, float("nan"), float("inf"), 2.0**31])
def test_what_no_integer_holds_is_not_asked(value: float) -> None:
    x = torch.tensor([1.5, value, -3.0])
    single = SingleError(FunctionSpecification("f", lambda x: x.floor().int() + 1), {"x": x}, ["Y"])
    assert find_out_of_range(single, "Y").tolist() == [False, True, False]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_exponents_of_what_has_none_are_not_asked(value: float) -> None:
    """Also in integers and floats that are made with such an exponent; those of numbers are asked."""
    x = torch.tensor([[1.5, 3.0], [value, -3.0]])
    powers = lambda x: torch.ldexp(torch.ones(2), -torch.frexp(x.abs().amax(-1)).exponent)  # noqa: E731
    scaled = lambda x: torch.ldexp(x.nan_to_num(0.25), -torch.frexp(x.abs().amax(-1, keepdim=True)).exponent).round().int()  # noqa: E731
    results = [find_out_of_range(SingleError(FunctionSpecification("f", f), {"x": x}, ["Y"]), "Y").tolist() for f in (powers, scaled)]
    assert results == [[False, True], [[False, False], [True, True]]]


MORE = "Y: Global[T, M, D]"
STORE = "store(Y[q, cols(D)], cast(x, T))"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (STORE, False),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], y)", False),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], where(x > 0.0, y, 0.0))", False),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], y * y)", True),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], cast(cast(y, f32) * 2.0, T))", True),
        ("y = cast(x * 2.0, T)\n z = y\n store(Y[q, cols(D)], cast(exp2(cast(max(z, 0.0), f32)), T))", True),
        (STORE + "\n store(Y[q, cols(D)], cast(cast(Y[q, cols(D)], f32) + 1.0, T))", True),
        ("store(Y[q, cols(D)], cast(x, T), add=True)", True),
        ("store(Y[q, cols(D)], cast(x * cast(cast(q, T), f32), T))", False),
        ("store(Y[q, cols(D)], cast(x * cast(cast(cast(q, f32), T), f32), T))", False),
        ("store(Y[q, cols(D)], cast(x * cast(cast(cast(q, f32) * 0.1, T), f32), T))", True),
        ("store(Y[q, cols(D)], cast(mma(cast(x, T), cast(x, T)), T))", True),
    ],
)
def test_what_is_rounded_and_used(body: str, expected: bool) -> None:
    assert rounds_between(check(parse(rows(MORE, body)), "kernel", {"T": F16, "D": 16})) == expected
    assert not rounds_between(check(parse(rows(MORE, body.replace("mma(cast(x, T), cast(x, T))", "x"))), "kernel", {"T": F32, "D": 16}))


THROUGH_SHARED = """\
@kernel(arch="sm_90a")
def kernel(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    s = shared(f16, [64, 64])
    with role("all", warpgroups=1):
        x = cast(load(X[0:64, :]), f32)
        store(s, cast(x * 2.0, f16))
        {way}
"""


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("store(Y[0:64, :], load(s))", False),
        ("y = load(s)\n        z = y\n        store(Y[0:64, :], z)", False),
        ("store(Y[0:64, :], load(s) + x)", True),
        ("y = load(s)\n        store(Y[0:64, :], cast(cast(y, f32) * x, f16))", True),
        ("y = load(s)\n        store(Y[0:64, :], -y)", True),
    ],
)
def test_what_is_read_back_is_used_where_something_is_done_with_it(way: str, expected: bool) -> None:
    """A result that leaves through shared memory is not."""
    checked = check(parse(THROUGH_SHARED.format(way=way.replace("load(s) + x", "cast(cast(load(s), f32) + x, f16)"))), "kernel", {})
    assert rounds_between(checked) == expected and not rounds_for_products(checked)


@pytest.mark.parametrize("name", ["flash_attention_2_hdim128", "flash_attention_3_hdim128"])
def test_weights_alone_are_rounded_by_kernels_whose_results_pass_through_shared_memory(name: str) -> None:
    text = (Path(__file__).parents[2] / "examples" / "lifting" / f"{name}.cuir").read_text(encoding="utf-8")
    assert rounds_for_products(check(parse(text), None, {"T": F16, "D": 128}))


def test_kernels_of_the_corpus_and_small_ones() -> None:
    """Weights of an attention are operands of a product; a matrix product stores its result through shared memory."""
    results = {}
    for name, kernels in COMPUTES.items():
        program = parse({**corpus.programs(), **corpus.kernels()}[name].read_text(encoding="utf-8"))
        for kernel, computed in kernels.items():
            expected_values = {"T": BF16, "D": 64}
            params = {p.name for p in program.kernels()[kernel].params}
            results[name, kernel] = rounds_between(
                check(program, kernel, {**{n: v for n, v in expected_values.items() if n in params}, **computed.tested})
            )
    plain = {(name, kernel) for (name, kernel), rounds in results.items() if not rounds}
    plain.remove(("flash_fwd_f8_sm90", "flash_fwd"))  # whose weights have 8 bits
    assert {kernel for name, kernel in plain if not name.endswith("_f32")} == {
        "gemm",
        "delta",
        "combine",
        "prepare",
        "finish",
        "join_parts",
    }
    assert {name for name, _ in plain if name.endswith("_f32")} == {name for name, _ in results if name.endswith("_f32")}
    assert not any(rounds_between(check(parse(s.text), "kernel", dict(s.consts[0]))) for s in KERNELS.values())


@pytest.mark.parametrize(("position", "codes"), [("cast(cast(q, T), f32)", ["V301"]), ("cast(q, f32)", [])])
def test_a_position_that_its_dtype_does_not_hold_is_an_error_of_the_kernel(position: str, codes: list[str]) -> None:
    """2,049 is no number of f16; the dtype of the data does not allow that."""
    text = rows(MORE, f"store(Y[q, cols(D)], cast(x * cos({position}), T))")
    checked = check(program := parse(text), "kernel", {"T": F16, "D": 16})
    spec = FunctionSpecification("f", lambda x: x * torch.arange(x.shape[0], dtype=torch.float64).to(x.dtype)[:, None].cos())
    results = []
    try:
        check_case(program, checked, spec, Draw("long", {"M": 2100}))
    except CuirError as error:
        results = [d.code for d in error.diagnostics]
    assert results == codes


QUANTISE = """\
@kernel(arch="sm_90a")
def quantise(X: Global[f32, M, 48], Y: Global[T, M, 48], S: Global[f32, M], *, T: const = f8e4m3, TOP: const = 448.0):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r = t * 16 + rows(16)
            x = X[r, cols(48)]
            most = row_max(abs(x))
            s = {scale}
            store(Y[r, cols(48)], cast({value}, T))
            store(S[r], s)
"""
SCALE, VALUE = "where(most > 0.0, most / TOP, 1.0)", "x / s"
TOPS = {"f8e4m3": 448.0, "f8e5m2": 57344.0}


def quantise(x: torch.Tensor, TOP: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide rows by their scales; a row of zeros has scale 1."""
    most = x.abs().amax(-1)
    s = torch.where(most > 0, most / TOP, torch.ones_like(most))
    return x / s[:, None], s


def fault(scale: str, value: str, kind: str, dtype: str = "f8e4m3") -> str:
    """Run one problem; return the code of the fault."""
    program = parse(QUANTISE.format(scale=scale, value=value))
    checked = check(program, None, {"T": DTYPES[dtype], "TOP": TOPS[dtype]})
    spec = FunctionSpecification("quantise", lambda x: quantise(x, TOPS[dtype]))
    try:
        check_case(program, checked, spec, Draw("one", {"M": 20}, kind, 0))
    except CuirError as error:
        return error.diagnostics[0].code
    return ""


@pytest.mark.parametrize("dtype", TOPS)
@pytest.mark.parametrize("kind", ("normal", "zero", "wide", "large"))
def test_right_kernel_passes(dtype: str, kind: str) -> None:
    assert fault(SCALE, VALUE, kind, dtype) == ""


@pytest.mark.parametrize("dtype", TOPS)
@pytest.mark.parametrize(
    ("scale", "value", "kind", "code"),
    [
        ("most / TOP", VALUE, "zero", "V302"),  # 0 / 0
        (SCALE, "x / s * 1.1", "normal", "V301"),
        (SCALE, "where(x > 0.0, x / s, x / s * 0.8)", "normal", "V301"),
        (SCALE, "min(x / s, TOP / 2.0)", "normal", "V301"),
    ],
)
def test_faulty_kernel_is_refused(dtype: str, scale: str, value: str, kind: str, code: str) -> None:
    assert fault(scale, value, kind, dtype) == code


def saturated(x: torch.Tensor) -> torch.Tensor:
    return x * 300


@pytest.mark.parametrize(("factor", "ok"), [("300.0", True), ("200.0", False)])
def test_numbers_beyond_the_range_saturate(factor: str, ok: bool) -> None:
    """The whole verification, with its comparison of schedules bit by bit."""
    text = f"""\
@kernel(arch="sm_90a")
def times(X: Global[f32, M, 16], Y: Global[f8e4m3, M, 16]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r = t * 16 + rows(16)
            store(Y[r, cols(16)], cast(X[r, cols(16)] * {factor}, f8e4m3))
"""
    report = verify(parse(text), FunctionSpecification("times", saturated), seeded=0)
    assert report.ok == ok, report.summary()
    assert ok or report.diagnostics[0].code == "V301"


@given(x=st.floats(-60000, 60000, width=16), y=st.floats(-60000, 60000, width=16))
def test_half_steps_are_those_of_nextafter(x: float, y: float) -> None:
    a, b = torch.tensor([x], dtype=torch.float16), torch.tensor([y], dtype=torch.float16)
    larger = torch.maximum(a.abs(), b.abs())
    step = torch.nextafter(larger, torch.full_like(larger, torch.inf)).double() - larger.double()
    assert half_steps(a, b).item() == step.item() / 2


@given(st.floats(-500, 500, width=32))
def test_rounding_is_within_half_a_step(x: float) -> None:
    rounded = round_to(torch.tensor([x]), torch.float8_e4m3fn)
    nearest = max(-448.0, min(448.0, x))
    assert abs(rounded.double().item() - nearest) <= half_steps(rounded, rounded).item()

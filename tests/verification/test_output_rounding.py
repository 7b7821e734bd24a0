"""Outputs of 8-bit floats: they are rounded and saturate as casts do, and are judged like others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir import CuirError, FunctionSpecification, check, parse, verify
from cuir.syntax.types import DTYPES
from cuir.verification.output_rounding import half_steps, round_to
from cuir.verification.spec_dispatch import check_case
from cuir.verification.values.cases import Draw

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

"""NaN that extremes spread: a kernel that selects by comparisons drops it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.verification.inputs import get_special_plan, make_function_launch
from cuir.verification.spec_dispatch import check_case
from cuir.verification.values.cases import Draw
from tests.verification.small_kernels import rows

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


def judge(text: str, reference: Callable[..., Any]) -> list[str]:
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
    assert judge(text.replace("UPDATE", update), reference) == codes


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

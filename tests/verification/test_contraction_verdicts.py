"""Results that leave the allowance once a product and a sum are rounded once; sums that lowering computes as written do not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.checking import contraction
from cuir.interp import noisy_operations
from cuir.interp.interpreted_launch import run
from cuir.interp.noise import contract_sums, perturb_runs
from cuir.verification.contraction_verdicts import check_contraction, choose_contraction_cases
from cuir.verification.numbers_stage import NumbersStage
from cuir.verification.spec_dispatch import check_case
from cuir.verification.values.cases import Draw

SOFTMAX = """\
@kernel(arch="sm_90a")
def softmax(X: Global[f32, M, N], Y: Global[f32, M, N], scale: f32):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            top, total = full(f32, [64, 1], -inf), zeros(f32, [64, 1])
            for c in range(cdiv(N, 64)):
                j = c * 64 + cols(64)
                FIRST
                new = max(top, row_max(where(j < N, LARGEST, -inf)))
                total = total * exp2((top - new)UNIT * 1.4426950408889634) + row_sum(exp2((x - REFERENCE) * 1.4426950408889634))
                top = new
            for c in range(cdiv(N, 64)):
                j = c * 64 + cols(64)
                z = X[i, j] * scale
                store(Y[i, j], exp2((SECOND) * 1.4426950408889634) / total)
"""
WIDE = Draw("wide", {"M": 70, "N": 73}, "wide")
ENDED = "x = where(j < N, X[i, j] * scale, -inf)"


def softmax(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x * scale).softmax(-1)


SPEC = FunctionSpecification("softmax", softmax, lambda sizes, generator: {"scale": torch.rand((), generator=generator) + 0.5})


def write(first: str, largest: str, reference: str, second: str, unit: str = "") -> str:
    changes = {"FIRST": first, "LARGEST": largest, "REFERENCE": reference, "SECOND": second, "UNIT": unit}
    text = SOFTMAX
    for name, value in changes.items():
        text = text.replace(name, value)
    return text


MARKED = (write(ENDED, "x", "new", "X[i, j] * scale - top"), write(ENDED, "x", "new", "z - top"))
UNMARKED = write(ENDED, "X[i, j]", "max(new * scale, -1e30)", "X[i, j] * scale - top * scale", " * scale")
SUBTRACTS_FIRST = write(
    "x = where(j < N, (X[i, j] - row_max(X[i, j])) * scale, -inf)",
    "X[i, j]",
    "(new - row_max(X[i, j])) * scale",
    "(X[i, j] - top) * scale",
    " * scale",
)


def refusal(text: str) -> CuirError | None:
    program = parse(text, "softmax.cuir")
    checked = check(program)
    (case,) = choose_contraction_cases(checked, [WIDE], "quick")

    def judge() -> list[dict[str, object]]:
        return check_case(program, checked, SPEC, case)

    judge()
    try:
        check_contraction(checked, judge)
    except CuirError as error:
        return error
    return None


@pytest.mark.parametrize("text", [*MARKED, SUBTRACTS_FIRST])
def test_differences_that_are_computed_as_written_pass(text: str) -> None:
    assert refusal(text) is None


def is_refused_at(error: CuirError | None, text: str, difference: str) -> bool:
    assert error is not None
    (result,) = error.diagnostics
    assert result.code == "V301" and result.span is not None and result.hint is not None
    words = [n.message for n in result.notes]
    assert any("allowed" in w for w in words) and any("of what is allowed" in w for w in words) and "row_max(c * x)" in result.hint
    return difference in result.message and text.splitlines()[result.span.line - 1].strip().startswith("store")


@pytest.mark.parametrize(("text", "difference"), [*zip(MARKED, ("X[i, j] * scale - top", "z - top"), strict=True)])
def test_they_are_refused_if_they_are_contracted(text: str, difference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (contraction, noisy_operations):
        monkeypatch.setattr(module, "collect_exempt_sums", lambda checked: frozenset())
    text += "# without marks\n"  # what is known of a checked kernel is kept with it
    assert is_refused_at(refusal(text), text, difference)


def test_a_maximum_that_is_multiplied_is_refused_where_one_pass_is_contracted() -> None:
    assert is_refused_at(refusal(UNMARKED), UNMARKED, "X[i, j] * scale - top * scale")


def test_the_numbers_stage_refuses_it() -> None:
    program = parse(UNMARKED, "softmax.cuir")
    request = SimpleNamespace(program=program, level="quick", progress=lambda _: None)
    stage = NumbersStage.__new__(NumbersStage)
    vars(stage).update(request=request, program=program, checked=check(program), spec=SPEC, cases=[WIDE], remaining=[])
    with pytest.raises(CuirError, match="FMA"):
        stage._repeat_with_contraction()


Sum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ADDS = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, 64, 64], Y: Global[f32, 64, 64], s: f32):
    with role("all", warpgroups=1):
        i, j = rows(64), cols(64)
        p = X[i, j] * s
        q = p
        store(Y[i, j], SUM)
"""


@pytest.mark.parametrize(
    ("text", "once", "twice"),
    [
        ("p - X[i, j]", lambda p, x: p - x, None),
        ("X[i, j] - q", lambda p, x: x - p, None),
        ("X[i, j] * s - 1.0", lambda p, x: p - 1, None),
        ("max(p, -9.0) - 1.0", lambda p, x: p - 1, lambda p, x: p - 1),
    ],
)
def test_a_contracted_sum_rounds_once(text: str, once: Sum, twice: Sum | None) -> None:
    checked = check(parse(ADDS.replace("SUM", text)))
    x, s, y = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)), float(torch.tensor(1 / 3)), torch.empty(64, 64)
    with perturb_runs(contract_sums(contraction.list_contractable_sums(checked))):
        run(checked, {"X": x, "Y": y, "s": s})
    exact = x.double() * s
    assert torch.equal(y, once(exact, x.double()).float()) is (twice is None)
    assert twice is None or torch.equal(y, twice(exact.float(), x))


def test_nothing_is_run_without_a_product_that_is_added() -> None:
    assert not choose_contraction_cases(check(parse(ADDS.replace("SUM", "p * row_sum(p)"))), [WIDE], "quick")

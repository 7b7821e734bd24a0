"""Special values that inputs may hold, found by evaluating a specification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import FunctionSpecification, check, parse
from cuir.syntax.types import F16, F32
from cuir.verification.inputs import get_special_plan, list_applicable_kinds, make_function_launch
from cuir.verification.special_problems import make_special_draws
from cuir.verification.values.cases import Draw
from cuir.verification.values.special_plan import SPECIAL, SpecialPlan, list_integer_edges
from cuir.verification.values.special_values import OPPOSED, SMALL, list_vast_factors
from tests.verification.small_kernels import KERNELS, rows

CONSTS = {"T": F16, "D": 64}
TEXT = rows("Bias: Global[f32, M, D], Y: Global[f32, M, D], p: f32, n: i32", "store(Y[q, cols(D)], x + Bias[q, cols(D)])")


def plan(reference: Callable[..., Any], text: str = TEXT) -> SpecialPlan:
    return get_special_plan(check(parse(text), "kernel", CONSTS), FunctionSpecification("f", reference))


def test_summands_of_a_softmax_may_be_hidden() -> None:
    assert plan(lambda x, bias: (x + bias).softmax(-1)).hidden == ("X", "Bias")
    assert plan(lambda x, bias: (x * 2 + bias[:, None].squeeze(1)).softmax(-1)).hidden == ("Bias",)


@pytest.mark.parametrize(
    "reference", [lambda x, bias: x @ x.mT @ x + bias[:1].sum(), lambda x, bias: x + bias - (x + bias).mean(-1, keepdim=True)]
)
def test_tensors_that_leave_no_number_are_not_hidden(reference: Callable[..., Any]) -> None:
    assert plan(reference).hidden == ()


def test_infinities_enter_where_numbers_come_out() -> None:
    assert torch.inf in plan(lambda x, bias: x.clamp(-1, 1)).infinite["X"]
    assert "X" not in plan(lambda x, bias: x * 2).infinite
    assert "X" not in plan(lambda x, bias: ((x * 2) @ x.mT).softmax(-1) @ x).infinite, "a tensor core has no product with an infinity"
    assert any(v != v for v in plan(lambda x, bias: x.nan_to_num(0.0, 1.0, -1.0)).infinite["X"])


def test_infinities_enter_what_reaches_a_part_of_a_row() -> None:
    assert set(plan(lambda x: x.cumsum(-1)).infinite["X"]) == {torch.inf, -torch.inf}
    assert "X" not in plan(lambda x: x - x.mean(-1, keepdim=True)).infinite
    product = rows("Y: Global[f32, M, D]", "store(Y[q, cols(D)], mma(x, where(rows(64) <= cols(64), 1.0, 0.0), parts=2))")
    assert "X" not in plan(lambda x: x.cumsum(-1), product).infinite, "a tensor core multiplies an infinity by 0"


def test_rows_are_vast_and_tiny_in_several_forms() -> None:
    """Only where the scale of a tensor does not matter may rows lie at the end of f32."""

    def forms(reference: Callable[..., Any]) -> set[tuple[str, tuple[str, ...]]]:
        return set(plan(reference, TEXT.replace("T]", "f32]")).vast_forms)

    each = {("opposed", ("X", "Bias")), *((form, (n,)) for form in ("alone", "small") for n in ("X", "Bias"))}
    assert forms(lambda x, bias: x + bias) == each
    assert forms(lambda x, bias: x / x.abs().amax(-1, keepdim=True) + bias) == each | {("end", ("X",))}
    assert forms(lambda x, bias: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True) + bias) == each, "PyTorch adds its squares in f64"


def test_rows_lie_below_floors() -> None:
    floors = plan(lambda x: x.abs().clamp(min=1e-24)).floors
    assert floors == (1e-24,) and min(list_vast_factors(SMALL, torch.float32, 0, True, floors)) < 1e-24 / 16
    assert plan(lambda x: x.abs().clamp(min=0.5)).floors == ()


def test_two_tensors_meet_in_all_sizes_whose_product_stays_in_f32() -> None:
    a, b = (list_vast_factors(OPPOSED, torch.float32, place, True, ()) for place in (0, 1))
    assert len(set(zip(a, b, strict=True))) == 7 and {(1e20, 1e-20), (1e-20, 1e20)} <= set(zip(a, b, strict=True))
    assert all(1e-30 < x * y < 1e30 for x, y in zip(a, b, strict=True))


def test_scalars_have_values_that_the_function_admits() -> None:
    scalars = plan(lambda x, p: x / p).scalars["p"]
    assert 0.0 not in scalars and {1.0, -1.0} <= set(scalars)
    assert -1.0 not in plan(lambda x, p: x * p**0.5).scalars["p"]
    assert 0.25 in plan(lambda x, p: x if p > 0.25 else x * 2).scalars["p"]
    assert plan(lambda x: x).scalars == {}


def test_integers_lie_at_edges() -> None:
    assert {0, 1, 99, 100, 16, 15, 17, 64} <= set(list_integer_edges(100, ()))
    assert all(0 <= n <= 100 for n in list_integer_edges(100, (7, 1000))) and -1 not in list_integer_edges(100, (7,))
    assert {-1, 0} <= set(list_integer_edges(100, (-1,)))
    assert plan(lambda x, n: x if n == -1 else x * n).integers == ("n",)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rope"])
def test_problems_of_each_kind_differ_and_say_something(name: str) -> None:
    small = KERNELS[name]
    checked = check(parse(small.text), "kernel", CONSTS)
    spec = FunctionSpecification(name, small.reference, small.inputs, small.sizes)
    plan = get_special_plan(checked, spec)
    quick, full = (make_special_draws(checked, spec, plan, level) for level in ("quick", "full"))
    kinds = {d.kind for d in quick}
    assert kinds == {k for k in SPECIAL if plan.count(k)} == set(list_applicable_kinds(checked, spec)) & set(SPECIAL) and len(quick) <= len(
        full
    )
    assert len({(d.kind, d.seed, *d.sizes.items()) for d in quick}) == len(quick)
    for draw in full:
        inputs = make_function_launch(checked, spec, draw)
        assert inputs.special and inputs.exact is not None
        assert all(x.isfinite().any() for x in inputs.exact.values())


def test_pairs_are_large_at_once() -> None:
    checked = check(parse(TEXT), "kernel", {"T": F32, "D": 64})
    spec = FunctionSpecification("f", lambda x, bias: x + bias)
    inputs = make_function_launch(checked, spec, Draw("one", {"M": 20}, "both"))
    assert all(inputs.inputs[n].abs().max() > 60 for n in ("X", "Bias"))  # type: ignore[union-attr]


def test_a_problem_without_room_is_a_normal_one() -> None:
    """One row that is all -inf leaves no number: then another form is taken, or none."""
    checked = check(parse(TEXT), "kernel", CONSTS)
    spec = FunctionSpecification("f", lambda x, bias: (x + bias).softmax(-1))
    for seed in range(9):
        inputs = make_function_launch(checked, spec, Draw("one", {"M": 1}, "hidden", seed))
        assert inputs.exact is None or inputs.exact["Y"].isfinite().all()

"""Integers that follow from floats: those of float32 are right beside those of float64, others are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cuir import FunctionSpecification
from cuir.verification.error_bounds import SingleError
from cuir.verification.integer_outputs import collect_right_integers, find_out_of_range


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

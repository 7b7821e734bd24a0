"""PyTorch's own error in float32, and what it says where that is 0 or finer than the language's functions."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir import FunctionSpecification
from cuir.ops.meaning.tiles import split_operands
from cuir.verification.error_bounds import TURNS, SingleError


def off(function: object, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest error of each element, relative to float64; and that of PyTorch's plain float32."""
    spec = FunctionSpecification("f", function)  # type: ignore[arg-type]
    exact, single = spec.exact({"x": x}, ["Y"])["Y"], SingleError(spec, {"x": x}, ["Y"])
    errors = torch.stack([(y["Y"].double() - exact).abs() for y in single.off()]).amax(0) / exact.abs()
    return errors, (single.plain["Y"].double() - exact).abs() / exact.abs()


def test_products_of_tf32_round_their_factors_and_nothing_else() -> None:
    """By the tensor core's rounding first, then by others; a sum of the same terms stays as it is, as do products of numbers that TF32 has."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 64, generator=g), torch.randn(64, 64, generator=g)

    def evaluations(function: object, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        spec = FunctionSpecification("f", function)  # type: ignore[arg-type]
        inputs = {"x": x, "y": y}
        exact = spec.exact(inputs, ["Z"])["Z"]
        return exact, [(z["Z"].double() - exact).norm() / exact.norm() for z in SingleError(spec, inputs, ["Z"]).tf32()]

    exact, errors = evaluations(lambda x, y: x @ y, x)
    a, b = split_operands(x, y, 1)
    assert torch.allclose(errors[0], (a.double() @ b.double() - exact).norm() / exact.norm(), rtol=1e-3)
    assert all(1e-4 < e < 8e-4 for e in errors) and len(set(map(float, errors))) == len(errors)
    assert max(evaluations(lambda x, y: (x[:, None] * y).sum(-1), x)[1]) < 1e-6
    assert evaluations(lambda x, y: x @ x, torch.eye(64))[1][0] == 0

    def gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x @ y).sum(), x)[0]

    assert min(evaluations(gradient, x)[1]) > 1e-4, "products of the backward pass, too"


def test_step_functions_behind_products_of_tf32() -> None:
    """Numbers of kinds other than random ones keep the steps of float32, and have the errors of products all the same."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(64, 64, generator=g)
    spec = FunctionSpecification("f", lambda x: ((x @ x).floor(), x @ x))
    exact, single = spec.exact({"x": x}, ["Y", "Z"]), SingleError(spec, {"x": x}, ["Y", "Z"])
    free, retained = single.tf32(), single.tf32_between_steps()
    assert any(not torch.equal(y["Y"], single.plain["Y"]) for y in free) and all(torch.equal(y["Y"], single.plain["Y"]) for y in retained)
    assert all(1e-4 < (y["Z"].double() - exact["Z"]).norm() / exact["Z"].norm() < 8e-4 for y in retained) and len(retained) == len(free)


def test_products_of_two_tf32_numbers_lose_the_ends_of_factors() -> None:
    """The tensor core's own error is within the largest of the evaluations, of subnormal factors too; one TF32 number's is not."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 64, generator=g), torch.randn(64, 64, generator=g)
    for factor in (1.0, 1e-40):
        inputs = {"x": x * factor, "y": y}
        spec = FunctionSpecification("f", lambda x, y: x @ y)
        exact = spec.exact(inputs, ["Z"])["Z"]
        rows = torch.stack([(z["Z"].double() - exact).norm(dim=-1) for z in SingleError(spec, inputs, ["Z"]).two_parts()]).amax(0)

        def compute_error(parts: int, exact: torch.Tensor = exact, inputs: dict[str, torch.Tensor] = inputs) -> torch.Tensor:
            a, b = split_operands(inputs["x"], inputs["y"], parts)
            return (a.double() @ b.double() - exact).norm(dim=-1)

        assert bool((compute_error(2) < 2 * rows).all()) and bool((rows < 0.1 * exact.norm(dim=-1)).all())
        assert factor < 1 or bool((compute_error(1) > 20 * rows).all())


def test_a_statistic_of_many_rows_has_the_error_of_their_sum() -> None:
    """f32 adds 70,000 squares in some order; PyTorch adds them in float64."""
    x = torch.randn(70_000, 2, generator=torch.Generator().manual_seed(0))
    for function in (lambda x: x.var(0), lambda x: x.std(0), lambda x: torch.linalg.vector_norm(x, dim=0)):
        errors, _ = off(function, x)
        assert errors.min() > 1e-6 and errors.max() < 1e-4 and off(function, x[:100])[0].max() < 4e-6


def test_a_logarithm_of_1_and_a_small_number_is_exact() -> None:
    x = torch.tensor([1e-8, 1e-3, 1.0, 1e5])
    assert off(lambda x: x.log1p(), x)[0].max() < 1e-5 and off(lambda x: (1 + x).log(), x)[0].max() > 0.1


X = torch.rand(1000, generator=torch.Generator().manual_seed(0)) + 1


def test_every_operation_is_off_by_a_few_units() -> None:
    for function in (
        lambda x: x + 1,
        lambda x: x * 3,
        lambda x: 1 / x,
        lambda x: x.sqrt(),
        lambda x: x.rsqrt(),
        lambda x: x.exp(),
        lambda x: x.sigmoid(),
    ):
        errors, plain = off(function, X)
        assert errors.max() > 3 * 2.0**-23 > plain.max() and errors.max() < 100 * 2.0**-23


def test_powers_are_off_by_their_exponent() -> None:
    """x ** -0.5 is exp2(log2(x) * -0.5) in the language, whose error grows with the exponent."""
    assert off(lambda x: x.rsqrt(), X * 2.0**60)[0].max() > 30 * 2.0**-23


def test_what_rounds_nothing_is_off_by_its_inputs_alone() -> None:
    errors, plain = off(lambda x: torch.where(x > 1.5, x, -x).roll(3).view(10, 100).transpose(0, 1), X)
    assert plain.max() == 0 and errors.max() <= 4.6 * 2.0**-23


def test_comparisons_are_decided_as_they_are() -> None:
    """A value on the edge of a comparison stays on its side."""
    edge = torch.full((1000,), 1.5)
    for function in (
        lambda x: torch.where(x * 2 >= 3.0, x, 100.0),
        lambda x: x + (x * 2 == 3.0),
        lambda x: x if (x[0] * 2).item() >= 3.0 else x * 100,
    ):
        assert off(function, edge)[0].max() < 1e-5


def test_a_mean_far_from_0_leaves_less() -> None:
    """Cancellation adds error: a variance in two passes, but not by what one pass loses."""
    x = 1020 + torch.randn(50, 64, generator=torch.Generator().manual_seed(1))
    errors, plain = off(lambda x: (x - x.mean(-1, keepdim=True)).pow(2).mean(-1), x)
    once = off(lambda x: x.pow(2).mean(-1) - x.mean(-1).pow(2), x)[1]
    assert plain.max() < 1e-5 < errors.max() < 1e-3 < 0.1 * once.max()


def test_overflow_is_seen() -> None:
    for scale, expected in ((1.0, False), (1e30, True)):
        spec = FunctionSpecification("f", lambda x: (x * x).sqrt())
        assert SingleError(spec, {"x": X * scale}, ["Y"]).overflows == expected
    masked = FunctionSpecification("f", lambda x: x.masked_fill(x > 1.5, -torch.inf).softmax(-1))
    assert not SingleError(masked, {"x": X}, ["Y"]).overflows


def test_functions_with_gradients_are_evaluated() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x.exp() * x).sum(), x)[0]

    assert 3 * 2.0**-23 < off(gradient, X)[0].max() < 1e-5


@given(st.lists(st.sampled_from([1e38, -1e38, 3e38, -3e38, 1.0, 0.0]), min_size=2, max_size=6))
def test_sums_that_leave_float32_in_some_order_are_told(terms: list[float]) -> None:
    """An element is asked about exactly where every order of its terms stays within float32, and each block of them does."""
    largest = torch.finfo(torch.float32).max
    some = [sum(t for t in terms if t > 0), -sum(t for t in terms if t < 0)]  # the farthest that any part of them goes
    x = torch.tensor([terms, [1.0] * len(terms)])
    for function in (
        lambda x: x.sum(-1),
        lambda x: x.mean(-1),
        lambda x: (x @ torch.ones(x.shape[-1], 1, dtype=x.dtype))[:, 0].clamp(-1, 1),
    ):
        result = SingleError(FunctionSpecification("f", function), {"x": x}, ["Y"]).find_ordered()["Y"]
        assert not result[1] and (result[0] or max(some) <= largest) and (sum(some) > largest or not result[0])


def test_what_is_endless_in_any_order_is_asked_for() -> None:
    x = torch.tensor([[torch.inf, 1.0, 2.0], [1e30, -torch.inf, 1.0]])
    single = SingleError(FunctionSpecification("f", lambda x: x.sum(-1)), {"x": x}, ["Y"])
    assert not single.find_ordered()["Y"].any()
    decided = SingleError(FunctionSpecification("f", lambda x: torch.where(x.sum(-1) > 1e38, 1.0, 2.0)), {"x": x * 0 + 1e38}, ["Y"])
    assert not decided.find_ordered()["Y"].any(), "comparisons stay as they were"


def test_each_kind_of_evaluation_is_made_once() -> None:
    calls: list[torch.dtype] = []

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        calls.append(x.dtype)
        return (x @ y).round() + x.sum()

    spec = FunctionSpecification("f", f)
    single = SingleError(spec, {"x": torch.randn(4, 4), "y": torch.randn(4, 4)}, ["Z"])
    for evaluate in (
        single.tf32,
        single.tf32_between_steps,
        single.off,
        single.off_between_steps,
        single.find_turned,
        single.find_ordered,
        lambda: single.evaluate_rounded(torch.float16),
        lambda: single.evaluate_rounded(torch.bfloat16),
    ):
        before = len(calls)
        first = evaluate()
        values = list(first)  # those with errors run when they are read
        made = len(calls)
        assert evaluate() is first and list(evaluate()) == values and made > before and len(calls) == made


def test_evaluations_run_one_by_one() -> None:
    calls: list[int] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp()

    single = SingleError(FunctionSpecification("f", f), {"x": torch.randn(4)}, ["Y"])
    evaluations = single.off()
    assert len(evaluations) == TURNS and len(calls) == 1
    assert evaluations[0]["Y"] is next(iter(evaluations))["Y"] and len(calls) == 2

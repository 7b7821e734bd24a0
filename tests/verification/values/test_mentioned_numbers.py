"""Numbers that a reference or a kernel compares with: from the source, from helpers and closures, and from what runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cuir import check, parse
from cuir.syntax.types import F16
from cuir.verification.values.mentioned_numbers import Comparisons, Mentioned, collect_from_kernel, collect_from_source
from tests.verification.small_kernels import rows

LIMIT = 2.5


def bounded(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=-3.0, max=LIMIT)


def by_helper(x: torch.Tensor) -> torch.Tensor:
    return bounded(x) * 7.0


def by_branch(x: torch.Tensor, pad: int) -> torch.Tensor:
    return x if pad == -1 else x * 0.125


def open_ended(x: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(x)


def closing(limit: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > limit, x, 0.0)

    return reference


def default(x: torch.Tensor, least: float = 0.75) -> torch.Tensor:
    return torch.where(x >= least, x, 0.0)


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (bounded, Mentioned((-3.0, 2.5))),
        (by_helper, Mentioned((-3.0, 2.5))),
        (by_branch, Mentioned((-1.0,), (-1,))),
        (open_ended, Mentioned(open=True)),
        (closing(0.375), Mentioned((0.375,))),
        (default, Mentioned((0.75,))),
        (lambda x: torch.where(x < 1.5, x, 0.0), Mentioned((1.5,))),
        (torch.relu, Mentioned()),
        (len, Mentioned()),
    ],
)
def test_a_source_says_what_it_compares_with(function: Callable[..., object], result: Mentioned) -> None:
    assert collect_from_source(function) == result


def test_a_function_without_source_says_its_constants() -> None:
    names: dict[str, Callable[..., object]] = {}
    exec("def f(x):\n    return x > 4.25", names)
    assert 4.25 in collect_from_source(names["f"]).floats


def test_an_evaluation_says_what_it_compares_with() -> None:
    with (comparisons := Comparisons()):
        x = torch.tensor([1.0, 2.0])
        torch.where(x > 1.25, x, 0.0) + x.clamp(min=-4.5) + (torch.tensor([1, 2]) == -1)
    assert set(comparisons.mentioned.floats) == {1.25, -4.5} and comparisons.mentioned.integers == (-1,)


def test_a_kernel_says_what_it_compares_with() -> None:
    text = rows("Y: Global[f32, M, D], pad: i32", "store(Y[q, cols(D)], where((x > -0.5) & (pad == -1), max(x, 0.25), 0.125))")
    result = collect_from_kernel(check(parse(text), "kernel", {"T": F16, "D": 64}))
    assert set(result.floats) == {-0.5, 0.25} and -1 in result.integers

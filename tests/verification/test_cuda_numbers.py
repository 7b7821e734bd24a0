"""Numbers of CUDA kernels: PyTorch's own error and another order of sums pass, a wrong element does not."""

from __future__ import annotations

import math

import pytest
import torch

from cuir.cuda import tensor_map
from cuir.text.diagnostics import CuirError
from cuir.verification.cuda_numbers import OutputJudge, collect_places, collect_tensors


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def judge(actual: torch.Tensor, function, x: torch.Tensor, tolerance: float | None = None) -> list:  # type: ignore[no-untyped-def]
    return OutputJudge(function, tolerance).judge([x, torch.zeros_like(actual)], [x, actual], [1], ["x", "out"])[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rounding_and_another_order_pass_and_a_wrong_element_does_not(dtype: torch.dtype) -> None:
    x = draw(20, 100).to(dtype)
    out = x.flip(1).double().cumsum(1)[:, -1].to(dtype)[:, None].repeat(1, 8)
    assert not judge(out, lambda x, out: x.sum(1, keepdim=True).repeat(1, 8), x)
    out[7, 3] += out[7].abs().max() * 0.1
    (found,) = judge(out, lambda x, out: x.sum(1, keepdim=True).repeat(1, 8), x)
    assert found.code == "V301" and "out[7, 3]" in found.message and "1 of 160" in found.message


def test_a_small_row_is_judged_by_its_own_size() -> None:
    x = torch.stack([draw(64), draw(64) * 1e-3])
    out = x.clone()
    out[1] *= 1.01
    assert judge(out, lambda x, out: x, x) and not judge(out, lambda x, out: x, x, tolerance=0.02)


def test_integers_are_exact_and_infinities_are_compared() -> None:
    x = torch.tensor([1.0, math.inf, math.nan])
    assert not judge(torch.tensor([1.0, math.inf, 5.0]), lambda x, out: x, x)  # NaN says that nothing is asked
    assert judge(torch.tensor([1.0, 5.0, 5.0]), lambda x, out: x, x)
    assert judge(torch.tensor([math.nan, math.inf, 5.0]), lambda x, out: x, x)
    i = torch.tensor([3, 4])
    assert judge(torch.tensor([3, 5]), lambda x, out: x, i) and not judge(i, lambda x, out: x, i)


def test_a_function_may_write_in_place_and_leave_out_a_result() -> None:
    x, out = draw(4), draw(4)

    def write(x: torch.Tensor, out: torch.Tensor) -> None:
        out += x

    before = out.clone()
    rows, wrong = OutputJudge(write).judge([x, before], [x, out + x], [1], ["x", "out"])
    assert not wrong and rows[0].name == "out" and torch.equal(before, out)
    assert OutputJudge(lambda x, out: (None,)).judge([x, out], [x, out], [1], ["x", "out"]) == ([], [])


def test_results_that_do_not_fit_what_was_written_are_refused() -> None:
    x = draw(4)
    with pytest.raises(CuirError, match="returns 1 results, the launch writes 0 tensors: none"):
        OutputJudge(lambda x: x).judge([x], [x], [], ["x"])


def test_tensors_of_several_launches_come_once_and_maps_as_their_tensors() -> None:
    x, y = draw(64, 64), draw(3)
    values = [tensor_map(x, (8, 64)), 3, x, y, y, None]
    found = collect_tensors(values)
    assert len(found) == 4 and found[0] is x and found[1] == 3 and found[2] is y and found[3] is None
    assert collect_places(values, found) == [0, None, 0, 2, 2, None]

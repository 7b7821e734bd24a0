"""Outputs beside float64: errors of float arithmetic are allowed, others are not."""

from __future__ import annotations

import torch

from cuir.judge.input_draws import draw_inputs
from cuir.judge.output_comparison import compare_outputs
from tests.judge.test_input_draws import make


def judge(function, solution, draw, kinds=("large", "offset", "tiny")) -> list[str]:  # type: ignore[no-untyped-def]
    problem = make(function, draw)
    return [w for d in draw_inputs(problem, kinds, (1, 2)) if (w := compare_outputs(problem, d.values, [solution(*d.values)])[1])]


def test_another_order_of_a_sum_is_right_and_half_precision_is_not() -> None:
    def draw() -> list[torch.Tensor]:
        return [torch.randn(16, 64), torch.randn(64, 16)]

    def in_turn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(16, 16)
        for k in range(64):
            total += a[:, k : k + 1] * b[k : k + 1]
        return total

    assert not judge(torch.matmul, in_turn, draw)
    assert judge(torch.matmul, lambda a, b: (a.half() @ b.half()).float(), draw)
    assert judge(torch.matmul, lambda a, b: a.bfloat16().float() @ b, draw)


def test_errors_of_single_operations_are_allowed_where_they_grow() -> None:
    def log_of_sum(x: torch.Tensor) -> torch.Tensor:
        return (1 + x).log().sum(-1)

    assert not judge(log_of_sum, lambda x: torch.log2(1 + x).sum(-1) * 0.6931471805599453, lambda: [torch.rand(8, 32) * 1e-3], ())


def test_an_output_smaller_than_a_tolerance_is_compared_too() -> None:
    words = judge(lambda x: x.softmax(-1), torch.zeros_like, lambda: [torch.randn(4, 2048)], ())
    assert words and "in float64" in words[0]

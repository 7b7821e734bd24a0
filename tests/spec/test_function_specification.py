"""Products of float16 on a CPU: PyTorch's own up to the order of the sum, and rounded once."""

from __future__ import annotations

import pytest
import torch

from cuir.spec.function_specification import HalfProducts


@pytest.mark.parametrize("function", [torch.matmul, lambda a, b: torch.addmm(b.mT[:5, :5], a, b), lambda a, b: torch.mv(a, b[:, 0])])
def test_a_product_is_a_sum_in_float32_rounded_once(function) -> None:  # type: ignore[no-untyped-def]
    drawn = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 40, generator=drawn).half(), torch.randn(40, 5, generator=drawn).half()
    plain = function(a, b)
    with HalfProducts():
        result = function(a, b)
    assert result.dtype == torch.float16 and torch.equal(result, function(a.float(), b.float()).half())
    assert (result - plain).abs().max() <= torch.finfo(torch.float16).eps * plain.abs().max()


def test_a_sum_beyond_f16_is_infinite_and_other_dtypes_are_left() -> None:
    a = torch.full((2, 2), 200.0)
    with HalfProducts():
        assert (a.half() @ (2 * a).half()).isinf().all()
        assert (a @ a).dtype == torch.float32 and (a.bfloat16() @ a.bfloat16()).dtype == torch.bfloat16
        assert torch.mm(a.half(), a.half(), out=torch.zeros(2, 2, dtype=torch.float16)).isinf().all()

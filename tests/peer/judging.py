"""Judgement of results: no further from float64 than PyTorch's eager result in the same dtype, by a factor."""

from __future__ import annotations

from typing import Any

import torch

HALF, FLOAT, PAGED_FLOAT = 1.1, 10.0, 20.0  # PyTorch's factors; those of paged float32 are larger since pages come in another order


class Wrong(AssertionError):
    """Numbers differ from PyTorch's."""


class Differs(AssertionError):
    """The numbers may be right; a dtype, strides, an attribute, or how often something was compiled is not as PyTorch has it."""


def expect(holds: Any, description: str) -> None:
    if not bool(holds):
        raise Differs(description)


def same_tensor(ours: Any, expected: Any, description: str) -> None:
    """Integers and booleans that have to be equal, or None for None."""
    if expected is None or ours is None:
        expect(expected is None and ours is None, f"{description}: {_brief(ours)}, PyTorch has {_brief(expected)}")
        return
    expect(ours.shape == expected.shape, f"{description} has shape {list(ours.shape)}, PyTorch's {list(expected.shape)}")
    if not torch.equal(ours.to(expected.dtype), expected):
        raise Wrong(f"{description} is not PyTorch's: {_brief(ours)} instead of {_brief(expected)}")


def tf32(x: torch.Tensor) -> torch.Tensor:
    """A float32 tensor rounded to the ten bits of TF32, to the nearest; another as it is."""
    if x.dtype != torch.float32:
        return x
    return ((x.detach().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def judge(
    golden: torch.Tensor,
    eager: torch.Tensor,
    ours: torch.Tensor,
    name: str = "O",
    *,
    paged: bool = False,
    coarse: torch.Tensor | None = None,
) -> None:
    """golden: float64. eager: PyTorch in the dtype of the inputs, the yardstick of rounding. coarse: the same of inputs that products may round, where that is
    another one. Raises Wrong, Differs."""
    expect(isinstance(ours, torch.Tensor), f"{name} is {type(ours).__name__}")
    expect(ours.shape == golden.shape, f"{name} has shape {list(ours.shape)}, PyTorch's {list(golden.shape)}")
    expect(ours.dtype == eager.dtype, f"{name} is {ours.dtype}, PyTorch's is {eager.dtype}")
    factor = HALF if eager.dtype in (torch.float16, torch.bfloat16) else PAGED_FLOAT if paged else FLOAT
    rounding = torch.finfo(eager.dtype).eps / 4  # of one that is rounded once, to the nearest, on average
    golden, eager, ours = (x.detach().double() for x in (golden, eager, ours))
    infinite = golden.isinf()
    if not torch.equal(ours[infinite], golden[infinite]):
        raise Wrong(f"{name} differs in {int((ours[infinite] != golden[infinite]).sum())} places where PyTorch's is infinite")
    finite = golden.isfinite() & eager.isfinite()  # where PyTorch has a NaN, nothing is asked
    yardsticks = [eager] if coarse is None else [eager, coarse.detach().double()]
    golden, ours, yardsticks = golden[finite], ours[finite], [y[finite] for y in yardsticks]
    if not golden.numel():
        return
    if not ours.isfinite().all():
        raise Wrong(f"{name} has {int((~ours.isfinite()).sum())} elements of {ours.numel()} that are not finite, where PyTorch's are")
    error, yardstick = float((golden - ours).abs().mean()), max(float((golden - y).abs().mean()) for y in yardsticks)
    allowed = max(factor * yardstick, rounding * float(golden.abs().mean())) + 1e-7
    if error > allowed:
        raise Wrong(f"{name} is off by {error:.3g} on average, PyTorch by {yardstick:.3g}; {allowed:.3g} is allowed")


def close(ours: torch.Tensor, expected: torch.Tensor, tolerance: float, description: str = "O") -> None:
    """For the tests that compare within a tolerance. Raises Wrong, Differs."""
    expect(ours.shape == expected.shape, f"{description} has shape {list(ours.shape)}, PyTorch's {list(expected.shape)}")
    try:
        torch.testing.assert_close(ours.double(), expected.double(), atol=tolerance, rtol=tolerance)
    except AssertionError as error:
        raise Wrong(f"{description}: {' '.join(str(error).split())}") from None


def _brief(x: Any) -> str:
    return str(x.flatten()[:12].tolist()) if isinstance(x, torch.Tensor) else repr(x)

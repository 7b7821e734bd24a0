"""Gradients that cannot be differentiated again.

A node of the autograd graph above all their inputs raises in its backward. PyTorch's `once_differentiable` attaches
such a node to no input: `torch.autograd.grad(.., inputs)` never reaches it, and silently omits its contribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
from torch.autograd.function import FunctionCtx

from ...text.diagnostics import CuirError


class GradientError(CuirError, RuntimeError):
    """A backward pass that cannot be made; also a RuntimeError, as PyTorch raises."""


def differentiate_once(
    first: Callable[[], Sequence[torch.Tensor | None]], depends_on: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of `first`, which cannot be differentiated again.

    Under create_graph=True they are attached to what they depend on, and to differentiate them raises CuirError U410.
    """
    if not torch.is_grad_enabled():
        return tuple(first())
    with torch.no_grad():
        grads = tuple(first())
    attached: tuple[torch.Tensor | None, ...] = _Once.apply(grads, *depends_on)
    return attached


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, grads: tuple[torch.Tensor | None, ...], *depends_on: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        return grads

    @staticmethod
    def backward(ctx: FunctionCtx, *_: torch.Tensor | None) -> NoReturn:
        raise GradientError.of(
            "U410",
            "attention has no second derivatives: a gradient that was made with create_graph=True is differentiated once more",
            hint="detach that gradient where it need not be differentiated (a penalty needs it), or take attention of PyTorch's operations: "
            "torch.nn.functional.scaled_dot_product_attention under sdpa_kernel(SDPBackend.MATH)",
        )


__all__ = ["GradientError", "differentiate_once"]

"""Captured tensors on which a score depends as PyTorch's autograd sees it.

A score also depends on those for which the derivative is 0 everywhere: `0.0 * bias[h]` and `torch.round(bias[h])` have
gradients of zeros, where `bias[h] > 0` and `bias[h].detach()` have none.
"""

from __future__ import annotations

from ...ops.expressions import operation
from ...syntax.nodes import Expr, Name, Subscript
from ...syntax.types import DTYPES
from ...syntax.walk import IdentityKey
from ..tracing.derivative_marks import extremes_of, is_detached, partials_of


def collect_gradient_paths(score: Expr) -> set[str]:
    """Return names of tensors with a differentiable path from their elements to a score with marks.

    A path is differentiable if all its operations are.
    """
    names: set[str] = set()
    visited: set[IdentityKey] = set()  # tracing shares subexpressions
    pending = [score]
    while pending:
        e = pending.pop()
        if (key := IdentityKey(e)) in visited:
            continue
        visited.add(key)
        if isinstance(e, Subscript):
            names |= {e.value.id} if isinstance(e.value, Name) else set()
        elif not is_detached(e):
            pending += _differentiable_operands(e)
    return names


def _differentiable_operands(e: Expr) -> list[Expr]:
    """Return the operands by which PyTorch differentiates an operation."""
    if (pairs := partials_of(e)) is not None:
        return [operand for operand, _ in pairs]
    if (operands := extremes_of(e)) is not None:
        return list(operands)
    op_args = operation(e)
    if op_args is None:
        return []
    op, args = op_args
    if op.traits.chooses:
        return list(args[1:])
    if op.traits.converts:
        return list(args[:1]) if isinstance(args[1], Name) and DTYPES[args[1].id].is_float else []
    return [] if op.traits.compares else list(args)


__all__ = ["collect_gradient_paths"]

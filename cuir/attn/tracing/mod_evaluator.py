"""Values of traced expressions, computed with torch on any device.

A predicate of index tensors gives the mask of many pairs. Operations are those of the table of primitives, so
arithmetic in i32 and f32 is the kernel's. Reads outside of a tensor give 0.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from ...ops.base import Op
from ...ops.expressions import operation, traits
from ...ops.meaning import convert
from ...syntax.nodes import Expr, IfExp, Literal, Name, Subscript
from ...syntax.types import DTYPES, F32, DType
from ...syntax.walk import IdentityKey
from ...text.diagnostics import CuirError
from .derivative_marks import extremes_of, extremum_of, is_detached, partials_of, read_marked_value

# the transfer adds them to programs that lack them
CONSTANTS = {"LOG2E": 1.4426950408889634, "LN2": 0.6931471805599453}
Value = int | float | torch.Tensor  # they broadcast


def evaluate(e: Expr, names: Mapping[str, Value], spans: Mapping[str, tuple[int, int]] | None = None, *, double: bool = False) -> Value:
    """Return the value of an expression of numbers and i32, f32 or bool tensors.

    Args:
        spans: names that hold first .. end - 1, each along a dim of its own, in this order: reads at these alone are
            views, not gathers.
        double: f64 tensors stay f64, and floats that meet them become f64, as in PyTorch; otherwise all floats are f32,
            as in a kernel.

    Raises CuirError N101 for a name without a value, X140 for an expression that is no pure arithmetic.
    """
    return (_InDouble if double else _Evaluation)(names, spans or {}).expr(e)


class _Evaluation:
    def __init__(self, names: Mapping[str, Value], spans: Mapping[str, tuple[int, int]]):
        self.names, self.spans = names, spans
        self.values: dict[IdentityKey, Value] = {}  # tracing shares subexpressions

    def expr(self, e: Expr) -> Value:
        key = IdentityKey(e)
        if key not in self.values:
            self.values[key] = self.fresh(e)
        return self.values[key]

    def fresh(self, e: Expr) -> Value:
        if isinstance(e, Literal):
            return e.value
        if isinstance(e, Name):
            return self.name(e)
        if isinstance(e, Subscript) and isinstance(e.value, Name):
            tensor = self.name(e.value)
            view = self.view(tensor, e.indices)  # type: ignore[arg-type]
            return _read(tensor, [self.expr(i) for i in e.indices]) if view is None else view  # type: ignore[arg-type]
        if isinstance(e, IfExp) and not isinstance(cond := self.expr(e.cond), torch.Tensor):
            return self.expr(e.then if cond else e.other)
        if (value := read_marked_value(e)) is not None:
            return self.mark(e, self.expr(value))
        match = operation(e)
        if match is not None and match[0].traits.converts:
            (x, dtype) = match[1]
            assert isinstance(dtype, Name)
            return self.convert(self.expr(x), DTYPES[dtype.id])
        if match is not None and match[0].evaluate is not None:
            return self.apply(match[0], e, match[1])
        raise CuirError.of("X140", "an expression of pure arithmetic was expected", e.span)

    def mark(self, e: Expr, value: Value) -> Value:
        """Return the value within a mark, with the gradient that the mark defines."""
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        if is_detached(e):
            return value.detach()
        if (pairs := partials_of(e)) is not None:
            return _WithPartials.apply(value, *(torch.as_tensor(self.expr(x)) for pair in pairs for x in pair))
        operands = torch.stack(torch.broadcast_tensors(*(torch.as_tensor(self.expr(x)) for x in extremes_of(e) or ())))
        return operands.amax(0) if traits(extremum_of(e)).extremum == "max" else operands.amin(0)

    def convert(self, x: Value, dtype: DType) -> Value:
        return convert(self.to_kernel_dtype(x), dtype)

    def to_kernel_dtype(self, x: Value) -> Value:
        """Return a tensor in a dtype of kernels: i32, f32 or bool."""
        if not isinstance(x, torch.Tensor) or x.dtype in (torch.int32, torch.float32, torch.bool):
            return x
        return x.to(torch.float32 if x.dtype.is_floating_point else torch.int32)

    def view(self, tensor: torch.Tensor, indices: Sequence[Expr]) -> torch.Tensor | None:
        """Return a view of a tensor at indices that are distinct spans, with a dim for every span.

        None for other indices, and where the tensor does not reach that far.
        """
        named = [i.id for i in indices if isinstance(i, Name) and i.id in self.spans]
        if len(named) != tensor.ndim or len(set(named)) != tensor.ndim:
            return None
        if not all(self.spans[n][0] >= 0 and self.spans[n][1] <= size for n, size in zip(named, tensor.shape)):
            return None
        part = tensor[tuple(slice(*self.spans[n]) for n in named)].permute([named.index(n) for n in self.spans if n in named])
        return part[tuple(slice(None) if n in named else None for n in self.spans)]

    def apply(self, entry: Op, e: Expr, args: tuple[Expr, ...]) -> Value:
        assert entry.evaluate is not None
        values = [self.to_kernel_dtype(self.expr(a)) for a in args]
        if entry.evaluate.divides:
            values[-1] = _divisor(values[-1], e)
        if entry.params[0].variadic:
            return functools.reduce(entry.evaluate, values)
        return entry.evaluate(*values)

    def name(self, e: Name) -> Value:
        if e.id in self.names:
            return self.names[e.id]
        if e.id in CONSTANTS:
            return CONSTANTS[e.id]
        if e.id == "inf":
            return torch.inf
        raise CuirError.of("N101", f"`{e.id}` has no value here", e.span)


class _Context(Protocol):
    shapes: list[torch.Size]
    saved_tensors: tuple[torch.Tensor, ...]

    def save_for_backward(self, *tensors: torch.Tensor) -> None: ...


class _WithPartials(torch.autograd.Function):
    """Autograd function with given derivatives by its operands; a derivative of 0 stops even NaN."""

    @staticmethod
    def forward(ctx: _Context, value: torch.Tensor, *pairs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*pairs[1::2])
        ctx.shapes = [x.shape for x in pairs[::2]]
        return value.clone()

    @staticmethod
    def backward(ctx: _Context, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients: list[torch.Tensor | None] = [None]
        for partial, shape in zip(ctx.saved_tensors, ctx.shapes, strict=True):
            product = torch.where(partial == 0, 0.0, grad * partial)
            gradients += [product.sum_to_size(shape), None]
        return tuple(gradients)


def _read(tensor: torch.Tensor, indices: list[Value]) -> torch.Tensor:
    """Read elements of a tensor, 0 outside of it."""
    inside: bool | torch.Tensor = True
    safe = []
    for i, size in zip(indices, tensor.shape):
        inside = inside & ((i >= 0) & (i < size))
        safe.append(i.clamp(0, max(0, size - 1)).long() if isinstance(i, torch.Tensor) else min(max(int(i), 0), max(0, size - 1)))
    if tensor.numel() == 0:
        shapes = [i.shape for i in indices if isinstance(i, torch.Tensor)]
        return torch.zeros(torch.broadcast_shapes(*shapes), dtype=tensor.dtype, device=tensor.device)
    elements = tensor[tuple(safe)]
    return torch.where(inside, elements, 0) if isinstance(inside, torch.Tensor) else elements if inside else torch.zeros_like(elements)


def _divisor(x: Value, e: Expr) -> Value:
    if isinstance(x, torch.Tensor):
        return torch.where(x == 0, 1, x)  # of a pair that something else decides
    if x == 0:
        raise CuirError.of("T154", "the divisor is 0", e.span)
    return x


class _InDouble(_Evaluation):
    """An evaluation that keeps f64 tensors in f64, as PyTorch does."""

    def convert(self, x: Value, dtype: DType) -> Value:
        x = self.to_kernel_dtype(x)
        if dtype == F32 and isinstance(x, torch.Tensor):
            return x if x.dtype.is_floating_point else x.double()
        return convert(x, dtype)

    def to_kernel_dtype(self, x: Value) -> Value:
        if isinstance(x, float):
            return torch.tensor(x, dtype=torch.float64)  # which would be rounded to f32 beside a tensor
        return x if isinstance(x, torch.Tensor) and x.dtype == torch.float64 else super().to_kernel_dtype(x)


__all__ = ["CONSTANTS", "evaluate"]

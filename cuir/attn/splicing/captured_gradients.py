"""Gradients of captured tensors: the splice points captured_begin, captured_step and captured_end.

A tile of the backward kernel has keys as rows. Gradients of a read that all queries of a key share are summed along the
row in registers, over all blocks, and added to memory once; gradients of one pair, or of a query, are added to memory
for each pair.

Captured tensors on which a score depends as PyTorch's autograd sees it.

A score also depends on those for which the derivative is 0 everywhere: `0.0 * bias[h]` and `torch.round(bias[h])` have
gradients of zeros, where `bias[h] > 0` and `bias[h].detach()` have none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import cast

from ...ops.expressions import operation
from ...syntax.nodes import Binary, Expr, Func, GlobalType, Kernel, Literal, Name, Param, Subscript
from ...syntax.templates import Holes
from ...syntax.types import DTYPES
from ...syntax.walk import IdentityKey, NamesRead, names_read, walk
from ..tracing.derivative_marks import extremes_of, is_detached, partials_of
from ..tracing.traced_result import Traced
from .derivative import of_read

LOCALS = {"dX", "P", "sums"}  # names that these functions bind, besides `sum0`, `sum1` ... of several sums
PREFIX = "grad_"


@dataclass(frozen=True)
class _Read:
    """A read of a captured tensor.

    Attributes:
        gradient: the name of the tensor's gradient.
        change: the derivative of the natural logit.
    """

    gradient: str
    indices: tuple[Expr, ...]
    change: Expr

    @property
    def summed(self) -> bool:
        """True if all queries of a key share the element."""
        return not {n for i in self.indices for n in names_read(i)} & {"S", "q"}

    @property
    def uniform(self) -> bool:
        """True if the derivative is the same for all queries of a key."""
        return not names_read(self.change) & {"S", "q"}


def local_names(traced: Traced, learned: Collection[str]) -> set[str]:
    """Return the names of locals in the functions that compute gradients of captured tensors.

    Args:
        learned: names of the captured tensors that have a gradient.
    """
    summed = sum(r.summed for name in learned for r in _reads(traced, name, ""))
    return LOCALS | ({f"sum{i}" for i in range(summed)} if summed > 1 else set())


def make_gradient_functions(traced: Traced, gradients: Mapping[str, str], rows: str = "64") -> dict[str, Func]:
    """Return the functions by name; none if no gradient is requested.

    Args:
        gradients: the name of a captured tensor's gradient, by that of the tensor.
        rows: the text of the number of keys that a worker owns.

    Raises:
        CuirError: X109 for a score that has no gradient.
    """
    reads = [r for name, gradient in gradients.items() for r in _reads(traced, name, gradient)]
    if not reads:
        return {}
    summed = [r for r in reads if r.summed]
    names = [f"sum{i}" for i in range(len(summed))]
    holes = _GradientHoles()
    begin = ", ".join(f"zeros(f32, [{rows}, 1])" for _ in summed) or "()"
    unpacking = [f"{', '.join(names)} = sums"] if len(names) > 1 else []
    names = ["sums"] if len(names) == 1 else names
    steps = [f"{n} + row_sum({holes.put_term(r, 'dX', 'P')})" for n, r in zip(names, summed, strict=True)]
    added = [
        f"store({holes.put_place(r, 'kq')}, {holes.put_product('dX', r.change)}, mask=P != 0.0, add=True)" for r in reads if not r.summed
    ]
    ends = [f"store({holes.put_place(r, 'k')}, {holes.put_whole(r, n)}, add=True)" for n, r in zip(names, summed, strict=True)]
    text = f"""\
@func
def captured_begin():                    # gradients of captured tensors, of a head and a block of keys: what is summed up in registers
    return {begin}

@func
def captured_step(sums, dX, P, S, b, h, q, k):         # a block of dX, the gradient of the natural logit; P are the weights. The rest is added to its tensor at once
    {_lines([*(unpacking if steps else []), *added, f"return {', '.join(steps) or 'sums'}"])}

@func
def captured_end(sums, b, h, k):         # the sums are added to their tensors
    {_lines([*unpacking, *ends, "return ()"])}
"""
    return holes.fill(text)


def gradients_of(kernel: Kernel) -> dict[str, str]:
    """Return the gradients of captured tensors that a kernel computes.

    They are the names of gradients with those of the tensors, whose dims they have.
    """
    shapes = {p.name: p.type for p in kernel.params if isinstance(p.type, GlobalType)}
    bases: dict[str, str] = {}
    for name, kind in shapes.items():
        base = next(
            (n for n, t in shapes.items() if n != name and name.rstrip("_") == PREFIX + n.rstrip("_") and t.dims == kind.dims), None
        )
        if base is not None:
            bases[name] = base
    return bases


def gradient_of(p: Param, name: str) -> Param:
    """Return the parameter for the gradient of a captured tensor's parameter: f32, of the same dims."""
    assert isinstance(p.type, GlobalType)
    return replace(p, name=name, type=replace(p.type, dtype="f32"))


def _reads(traced: Traced, name: str, gradient: str) -> list[_Read]:
    subscripts = (n for n in walk(traced.score) if isinstance(n, Subscript) and isinstance(n.value, Name) and n.value.id == name)
    names = NamesRead()
    reads = (
        _Read(gradient, cast(tuple[Expr, ...], r.indices), of_read(*traced.differentiated, r, names)) for r in dict.fromkeys(subscripts)
    )
    return [r for r in reads if r.change != Literal(0.0)]


class _GradientHoles(Holes):
    """Holes for what is added to gradients."""

    def put_place(self, read: _Read, varying_names: str) -> str:
        """Return a hole for the element to which a gradient is added.

        Its indices have the shape of a tile in which all of these names vary.
        """
        first, *rest = read.indices
        varying = {n for i in read.indices for n in names_read(i)}
        for n in varying_names:
            if n not in varying and "S" not in varying:
                first = Binary("+", first, Binary("*", Name(n), Literal(0)))
        return self.put(Subscript(Name(read.gradient), (first, *rest)))

    def put_product(self, factor: str, change: Expr) -> str:
        return factor if change == Literal(1.0) else self.put(Binary("*", Name(factor), change))

    def put_term(self, read: _Read, dX: str, P: str) -> str:
        """Return the text that is summed along a row; for pairs of weight 0 the derivative may be NaN."""
        return dX if read.uniform else f"where({P} != 0.0, {self.put_product(dX, read.change)}, 0.0)"

    def put_whole(self, read: _Read, total: str) -> str:
        """Return the text that a sum adds to the gradient."""
        if not read.uniform or read.change == Literal(1.0):
            return total
        return f"where({total} != 0.0, {self.put_product(total, read.change)}, 0.0)"


def _lines(lines: list[str]) -> str:
    return "\n    ".join(lines)


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


__all__ = ["collect_gradient_paths", "gradient_of", "gradients_of", "local_names", "make_gradient_functions"]

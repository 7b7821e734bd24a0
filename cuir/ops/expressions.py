"""Lookup of the table entry of an expression, as far as its text determines it.

This is the only place that depends on the spelling of primitives. The text does not determine whether a subscript is a
view, an element or a gather (by its type: `subscript`), and whose method a barrier's is (by the barrier's kind:
`method`).
"""

from __future__ import annotations

import functools

from ..syntax.nodes import Attribute, Binary, Call, Expr, IfExp, Name, Node, Unary
from ..syntax.types import Scalar, TileType, Type
from ..text.source import Span
from . import operators as _  # noqa: F401  # enters the operators, which are looked up below
from .base import OPERATORS, TABLE, WRITTEN, Op
from .traits import Traits

_NO_TRAITS = Traits()
# by the sign
_UNARY = {op.written.removesuffix("x").strip(): op for op in OPERATORS.values() if op.evaluate is not None and len(op.params) == 1}
_ATTRIBUTES = {op.written.removeprefix("x."): op for op in OPERATORS.values() if op.written.startswith("x.")}
_CHOICE = next(op for op in OPERATORS.values() if op.traits.chooses)
_ELEMENT, _GATHER, _VIEW = (OPERATORS[name] for name in ("element", "gather", "view"))


def operator(e: Node) -> tuple[Op, tuple[Expr, ...]] | None:
    """Return the entry of an operator with its operands, in the order of its parameters.

    None for other expressions.
    """
    if isinstance(e, Binary):
        return OPERATORS[e.op], (e.left, e.right)
    if isinstance(e, Unary):
        return _UNARY[e.op], (e.operand,)
    if isinstance(e, IfExp):
        return _CHOICE, (e.cond, e.then, e.other)
    return None


def attribute(e: Attribute) -> Op | None:
    """Return the entry of `x.T`; None for a barrier's method."""
    return _ATTRIBUTES.get(e.attr)


def subscript(kind: Type) -> Op:
    """Return the entry of a subscript of this type."""
    return _GATHER if isinstance(kind, TileType) else _ELEMENT if isinstance(kind, Scalar) else _VIEW


def get_called_op(e: Node) -> Op | None:
    """Return the primitive that a call by a word denotes; None for other expressions.

    Of two with the same spelling, the one that has parameters for more of the arguments.
    """
    if not isinstance(e, Call) or not isinstance(e.func, Name):
        return None
    candidates = WRITTEN.get(e.func.id)
    if candidates is None or len(candidates) == 1:
        return candidates[0] if candidates else None
    keyword_names = {k.name for k in e.keywords}

    def fits(op: Op) -> tuple[int, int]:
        plain = sum(not p.keyword for p in op.params)
        return min(len(e.args), plain) + sum(p.name in keyword_names for p in op.params), -len(op.params)

    return max(candidates, key=fits)


def method(kind: str, name: str) -> Op | None:
    """Return a method of a kind of barrier."""
    return TABLE.get(f"{kind}.{name}")


def methods(kind: str) -> list[str]:
    """List the methods of a kind of barrier."""
    return [name.removeprefix(f"{kind}.") for name in TABLE if name.startswith(f"{kind}.")]


def operation(e: Node) -> tuple[Op, tuple[Expr, ...]] | None:
    """Return the entry of an operator or of a primitive called by a word, with its positional operands.

    None for other expressions.
    """
    op_args = operator(e)
    if op_args is not None:
        return op_args
    op = get_called_op(e)
    return (op, e.args) if op is not None and isinstance(e, Call) else None


def traits(e: Node) -> Traits:
    """Return the traits of an operator or of a primitive called by a word.

    Other expressions have no trait.
    """
    if isinstance(e, Binary):
        return OPERATORS[e.op].traits
    op_args = operation(e)
    return _NO_TRAITS if op_args is None else op_args[0].traits


def is_where(e: Node) -> bool:
    """Return whether an expression chooses element by element.

    Such is a call, whereas a choice between scalars is an `x if cond else y`.
    """
    return isinstance(e, Call) and traits(e).chooses is not None


def comparison(signs: tuple[int, ...]) -> str:
    """Return the spelling of the comparison that holds for these signs of x - y."""
    return next(op.written for op in OPERATORS.values() if op.traits.compares == signs)


@functools.cache
def get_declaration(product: str) -> Op:
    """Return the first declaration in the table that makes arrays, units or workers."""
    return next(op for op in TABLE.values() if op.traits.makes == product)


def copy_by_registers(source: Expr, target: Expr, span: Span) -> Call:
    """Return the call that loads from a source and stores to a target, in place of an asynchronous copy."""
    return Call(Name("store", span=span), (target, Call(Name("load", span=span), (source,), span=span)), span=span)


__all__ = [
    "attribute",
    "comparison",
    "copy_by_registers",
    "get_called_op",
    "get_declaration",
    "is_where",
    "method",
    "methods",
    "operation",
    "operator",
    "subscript",
    "traits",
]

"""Factoring of what is uniform in a block: x * f * g is x * (f * g), and x / f is x * (1 / f).

This leaves one division for the block. In an exponential a factor f > 0 of a square moves to the squared operand as
sqrt(f), and so to the factors of that. The result rounds differently, which a score allows. Expressions that decide are
unchanged: conditions, operands of comparisons, of floor, round and fmod, indices and integers stay as the mod wrote
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ...checking.fold import fold
from ...ops import build_calls as build
from ...ops.expressions import get_called_op, traits
from ...ops.meaning.scalars import LEAST_NORMAL
from ...syntax.nodes import Binary, Call, Expr, IfExp, Literal, Name, Subscript, Unary
from ...syntax.types import F32
from ...syntax.walk import IdentityKey, NamesRead, walk, with_children
from ...text.diagnostics import CuirError
from .derivative_marks import is_detached, read_marked_value
from .mod_evaluator import CONSTANTS, evaluate
from .number_literals import literal_of
from .traced_result import Parameter

VARYING = {"S", "q", "k"}  # within a block
_SCALE = Name("scale")


def factor_uniform(e: Expr, parameters: Iterable[Parameter], split: bool) -> tuple[Expr, Expr]:
    """Return (score, factor), whose product is the f32 expression of a mod.

    The factor costs nothing per pair; it is 1.0 unless it is certainly positive (`split`).
    """
    parameters = list(parameters)
    work = _Factoring(parameters)
    core, factor = work.product(e)
    if factor is None:
        return core, Literal(1.0)
    if split and (factor == _SCALE or _is_bounded(factor) or _positive(factor, parameters)):
        return core, factor
    return Binary("*", core, factor), Literal(1.0)


def _is_bounded(e: Expr) -> bool:
    """Return whether an expression is positive since what it reads is bounded from below."""
    return _has_positive_form(e) and any(isinstance(n, Call) for n in walk(e))


def _has_positive_form(e: Expr) -> bool:
    """Return whether an expression is positive whatever it reads: the scale, maxima with a positive number, their products."""
    if isinstance(e, Literal):
        return isinstance(e.value, float) and e.value > 0
    if isinstance(e, Binary):
        return traits(e).multiplies and _has_positive_form(e.left) and _has_positive_form(e.right)
    return e == _SCALE or (isinstance(e, Call) and traits(e).extremum == "max" and any(map(_has_positive_form, e.args)))


def _positive(e: Expr, parameters: list[Parameter]) -> bool:
    try:
        value = evaluate(e, {p.name: p.value for p in parameters if isinstance(p.value, (int, float))})
    except CuirError:  # it is only known when the kernel runs
        return False
    return isinstance(value, (int, float)) and value > 0


class _Factoring:
    def __init__(self, parameters: list[Parameter]):
        self.parameters = parameters
        self.floats = {p.name for p in parameters if p.dtype == F32} | {"S", "scale", "inf", *CONSTANTS}
        self.names = NamesRead()
        self.products: dict[IdentityKey, tuple[Expr, Expr | None]] = {}  # tracing shares subexpressions

    def product(self, e: Expr) -> tuple[Expr, Expr | None]:
        """Return an f32 expression as (core, factor); the factor is None if there is none."""
        key = IdentityKey(e)
        if key not in self.products:
            self.products[key] = self.split_factor(e) or (self.inside(e), None)
        return self.products[key]

    def split_factor(self, e: Expr) -> tuple[Expr, Expr] | None:
        factors = traits(e).factors
        if not isinstance(e, Binary) or not factors or not self.is_float(e):
            return None
        left, right = self.varies(e.left), self.varies(e.right)
        if left == right or (right and "y" not in factors):
            return None
        tile, by = (e.left, e.right) if left else (e.right, e.left)
        core, factor = self.product(tile)
        if factor is None and "y" in factors:
            return core, by
        combined = _fold(e.op, Literal(1.0) if factor is None else factor, by)
        return None if combined is None else (core, combined)

    def whole(self, e: Expr) -> Expr:
        core, factor = self.product(e)
        return core if factor is None else Binary("*", core, factor, span=e.span)

    def inside(self, e: Expr) -> Expr:
        """Rewrite the operands of an operation; expressions other than arithmetic on floats are unchanged."""
        if not self.varies(e) or not self.is_float(e) or traits(e).jumps:
            return e
        if isinstance(e, Call) and traits(e).exponential and (squared := self.square(e)) is not None:
            return squared
        negated = isinstance(e, Unary) and traits(e).linear
        if (
            negated
            or (isinstance(e, Binary) and _of_floats(e))
            or (isinstance(e, Call) and (_values(e) or read_marked_value(e) is not None))
        ):
            return with_children(e, self.whole)
        return e

    def square(self, e: Call) -> Expr | None:
        """Return exp2(y * y * f) as exp2 of the square of y * sqrt(|f|), or of minus that.

        None for another exponent.
        """
        core, factor = self.product(e.args[0])
        negative, square = _split_sign(core)
        if factor is None or not isinstance(square, Binary) or not traits(square).multiplies:
            return None
        if not _positive(factor, self.parameters):
            negative, factor = not negative, Unary("-", factor)
            if not _positive(factor, self.parameters):
                return None
        (left_negative, left), (right_negative, right) = _split_sign(square.left), _split_sign(square.right)
        if left != right:
            return None
        try:
            root: Expr = literal_of(math.sqrt(evaluate(factor, {})))
        except CuirError:  # a captured number is among the factors
            root = build.sqrt(factor)
        y = self.whole(Binary("*", left, root))
        product = Binary("*", y, y, span=square.span)
        return replace(e, args=(Unary("-", product) if negative ^ left_negative ^ right_negative else product,))

    def varies(self, e: Expr) -> bool:
        return not VARYING.isdisjoint(self.names(e))

    def is_float(self, e: Expr) -> bool:
        if isinstance(e, Literal):
            return isinstance(e.value, float)
        if isinstance(e, Name):
            return e.id in self.floats
        if isinstance(e, Subscript):
            return self.is_float(e.value)
        if isinstance(e, Unary):
            return bool(traits(e).linear) and self.is_float(e.operand)
        if isinstance(e, Binary):
            return _of_floats(e) and self.is_float(e.left)
        if isinstance(e, Call):
            value = None if is_detached(e) else read_marked_value(e)
            if value is not None:
                return self.is_float(value)
            values = _values(e)
            return e.args[1] == Name(F32.name) if traits(e).converts else bool(values) and self.is_float(values[0])
        return isinstance(e, IfExp) and self.is_float(e.then)


def _split_sign(e: Expr) -> tuple[bool, Expr]:
    """Return whether an expression is a negative, and the expression without its sign."""
    if isinstance(e, Unary) and traits(e).linear:
        negative, inner = _split_sign(e.operand)
        return not negative, inner
    return False, e


def _of_floats(e: Binary) -> bool:
    """Return True if an operation computes a float from two."""
    return bool(traits(e).linear or traits(e).factors)


def _values(e: Call) -> tuple[Expr, ...]:
    """Return the operands of a function from floats to a float, without a condition; none for other calls."""
    op = get_called_op(e)
    if op is None or op.evaluate is None or op.evaluate.tile(F32) is None or not op.traits.elementwise:
        return ()
    return e.args[1:] if op.traits.chooses else e.args


def _fold(op: str, a: Expr, b: Expr) -> Expr | None:
    """Combine two factors; None for literals whose product leaves the range of f32's normal numbers."""
    factor = fold(Binary(op, fold(a), fold(b)))
    if isinstance(factor, Literal):
        return literal_of(factor.value) if abs(factor.value) >= LEAST_NORMAL else None
    literals = isinstance(fold(a), Literal) and isinstance(fold(b), Literal)
    return None if literals else Binary(op, a, b)

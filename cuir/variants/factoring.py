"""Factors that are the same in a whole block, taken together: x * f * g is x * (f * g), and x / f is x * (1 / f), one division for the block.

That rounds differently, which a score allows. Owns nothing that decides: conditions, operands of comparisons, indices and what becomes an integer
stay as the mod wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..checking.fold import fold
from ..ops.meaning.scalars import LEAST_NORMAL
from ..syntax.nodes import Binary, Call, Expr, IfExp, Literal, Name, Subscript, Unary
from ..syntax.rewrite import with_children
from ..syntax.types import F32
from ..syntax.walk import Itself, names_read
from ..text.diagnostics import CuirError
from .evaluate import CONSTANTS, evaluate
from .parameter import Parameter
from .proxy import number

_VARYING = {"S", "q", "k"}  # within a block
_SCALE = Name("scale")
_ARITHMETIC = ("+", "-", "*", "/")
_OF_FLOATS = {
    "exp2": 0,
    "log2": 0,
    "tanh": 0,
    "min": 0,
    "max": 0,
    "abs": 0,
    "where": 1,
}  # calls, and their first operand that is no condition


def factored(e: Expr, parameters: Iterable[Parameter], split: bool) -> tuple[Expr, Expr]:
    """(score, factor) whose product is the f32 expression of a mod; the factor is 1.0 unless it is known to be positive (`split`), and costs nothing per pair."""
    parameters = list(parameters)
    work = _Factoring({p.name for p in parameters if p.dtype == F32})
    core, factor = work.product(e)
    if factor is None:
        return core, Literal(1.0)
    if split and (factor == _SCALE or _positive(factor, parameters)):
        return core, factor
    return Binary("*", core, factor), Literal(1.0)


def _positive(e: Expr, parameters: list[Parameter]) -> bool:
    try:
        value = evaluate(e, {p.name: p.value for p in parameters if isinstance(p.value, (int, float))})
    except CuirError:  # it is only known when the kernel runs
        return False
    return isinstance(value, (int, float)) and value > 0


class _Factoring:
    def __init__(self, floats: set[str]):
        self.floats = floats | {"S", "scale", "inf", *CONSTANTS}
        self.varying: dict[Itself, bool] = {}
        self.found: dict[Itself, tuple[Expr, Expr | None]] = {}  # tracing shares subexpressions

    def product(self, e: Expr) -> tuple[Expr, Expr | None]:
        """An f32 expression as (core, factor); without a factor, None."""
        key = Itself(e)
        if key not in self.found:
            self.found[key] = self.apart(e) or (self.inside(e), None)
        return self.found[key]

    def apart(self, e: Expr) -> tuple[Expr, Expr] | None:
        if not isinstance(e, Binary) or e.op not in ("*", "/") or not self.is_float(e):
            return None
        left, right = self.varies(e.left), self.varies(e.right)
        if left == right or (right and e.op == "/"):
            return None
        tile, by = (e.left, e.right) if left else (e.right, e.left)
        core, factor = self.product(tile)
        if factor is None and e.op == "*":
            return core, by
        taken = _folded(e.op, Literal(1.0) if factor is None else factor, by)
        return None if taken is None else (core, taken)

    def whole(self, e: Expr) -> Expr:
        core, factor = self.product(e)
        return core if factor is None else Binary("*", core, factor, span=e.span)

    def inside(self, e: Expr) -> Expr:
        """The same operation on operands that are rewritten; what is no arithmetic on floats stays."""
        if not self.varies(e) or not self.is_float(e):
            return e
        negated = isinstance(e, Unary) and e.op == "-"
        of_floats = isinstance(e, Call) and isinstance(e.func, Name) and e.func.id in _OF_FLOATS
        if negated or of_floats or (isinstance(e, Binary) and e.op in _ARITHMETIC):
            return with_children(e, self.whole)
        return e

    def varies(self, e: Expr) -> bool:
        key = Itself(e)
        if key not in self.varying:
            self.varying[key] = bool(names_read(e) & _VARYING)
        return self.varying[key]

    def is_float(self, e: Expr) -> bool:
        if isinstance(e, Literal):
            return isinstance(e.value, float)
        if isinstance(e, Name):
            return e.id in self.floats
        if isinstance(e, Subscript):
            return self.is_float(e.value)
        if isinstance(e, Unary):
            return e.op == "-" and self.is_float(e.operand)
        if isinstance(e, Binary):
            return e.op in _ARITHMETIC and self.is_float(e.left)
        if isinstance(e, Call) and isinstance(e.func, Name):
            return (
                e.args[1] == Name("f32")
                if e.func.id == "cast"
                else e.func.id in _OF_FLOATS and self.is_float(e.args[_OF_FLOATS[e.func.id]])
            )
        return isinstance(e, IfExp) and self.is_float(e.then)


def _folded(op: str, a: Expr, b: Expr) -> Expr | None:
    """A factor made of two; None for literals whose product leaves the range of f32's normal numbers."""
    found = fold(Binary(op, fold(a), fold(b)))
    if isinstance(found, Literal):
        return number(found.value) if abs(found.value) >= LEAST_NORMAL else None
    literals = isinstance(fold(a), Literal) and isinstance(fold(b), Literal)
    return None if literals else Binary(op, a, b)

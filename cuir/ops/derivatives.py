"""Derivatives of the primitives on floats, as expressions: the rules, not the chain rule.

Where a function has a corner, the derivative is PyTorch's: of `abs` at 0 it is 0, of x in `power(x, y)` it is 0 for y
= 0, of y for x = 0. Step functions (floor, round) have derivative 0, and so have operands of comparisons. The caller
passes the choice to use (of tiles or of scalars), as only it knows what varies.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..syntax.nodes import Binary, Expr, Literal, Unary
from .base import Op
from .build_calls import cos, exp2, floor, log2, magnitude, power, sin

Partial = Expr | None  # None: 0
Choice = Callable[[Expr, Expr, Expr], Expr]  # (condition, value where it holds, value elsewhere)
Rule = Callable[[tuple[Expr, ...], Expr, Choice], tuple[Partial, ...]]  # of the operands and the result
_UNIT, _LN2 = Literal(1.0), Literal(math.log(2.0))


def _multiply(*factors: Expr) -> Expr:
    first, *rest = factors
    for f in rest:
        first = Binary("*", first, f)
    return first


def _divide(x: Expr, y: Expr) -> Expr:
    return Binary("/", x, y)


def _subtract(x: Expr, y: Expr) -> Expr:
    return Binary("-", x, y)


def _make_sign(x: Expr, choose: Choice) -> Expr:
    return choose(Binary(">", x, Literal(0.0)), _UNIT, choose(Binary("<", x, Literal(0.0)), Literal(-1.0), Literal(0.0)))


def _differentiate_erf(x: Expr) -> Expr:
    """Return the derivative of erf."""
    return _multiply(exp2(_multiply(x, x, Literal(-1.0 / math.log(2.0)))), Literal(2.0 / math.sqrt(math.pi)))


def _truncate_quotient(x: Expr, y: Expr, choose: Choice) -> Expr:
    """Return x / y rounded to 0."""
    down = floor(magnitude(_divide(x, y)))
    return _multiply(down, _make_sign(_divide(x, y), choose))


def _differentiate_power(args: tuple[Expr, ...], z: Expr, choose: Choice) -> tuple[Partial, ...]:
    x, y = args
    of_x = choose(Binary("==", y, Literal(0.0)), Literal(0.0), _multiply(y, power(x, _subtract(y, _UNIT))))
    is_corner = Binary("&", Binary("==", x, Literal(0.0)), Binary(">=", y, Literal(0.0)))
    return of_x, choose(is_corner, Literal(0.0), _multiply(z, log2(x), _LN2))


_RULES: dict[str, Rule] = {
    "+": lambda a, z, choose: (_UNIT, _UNIT),
    "-": lambda a, z, choose: (_UNIT, Literal(-1.0)),
    "*": lambda a, z, choose: (a[1], a[0]),
    "/": lambda a, z, choose: (_divide(_UNIT, a[1]), Unary("-", _divide(z, a[1]))),
    "neg": lambda a, z, choose: (Literal(-1.0),),
    "abs": lambda a, z, choose: (_make_sign(a[0], choose),),
    "exp2": lambda a, z, choose: (_multiply(z, _LN2),),
    "log2": lambda a, z, choose: (_divide(Literal(1.0 / math.log(2.0)), a[0]),),
    "log1p": lambda a, z, choose: (_divide(_UNIT, Binary("+", _UNIT, a[0])),),
    "tanh": lambda a, z, choose: (_subtract(_UNIT, _multiply(z, z)),),
    "sqrt": lambda a, z, choose: (_divide(Literal(0.5), z),),
    "sin": lambda a, z, choose: (cos(a[0]),),
    "cos": lambda a, z, choose: (Unary("-", sin(a[0])),),
    "atan": lambda a, z, choose: (_divide(_UNIT, Binary("+", _UNIT, _multiply(a[0], a[0]))),),
    "erf": lambda a, z, choose: (_differentiate_erf(a[0]),),
    "erfc": lambda a, z, choose: (Unary("-", _differentiate_erf(a[0])),),
    "power": _differentiate_power,
    "fmod": lambda a, z, choose: (_UNIT, Unary("-", _truncate_quotient(a[0], a[1], choose))),
    "floor": lambda a, z, choose: (None,),
    "round": lambda a, z, choose: (None,),
    "round_tf32": lambda a, z, choose: (_UNIT,),
}


def differentiate_op(op: Op, args: tuple[Expr, ...], result: Expr, choose: Choice) -> tuple[Partial, ...] | None:
    """Return the derivatives of an operation's result by each of its operands.

    None for an operation that has no rule here (it chooses, converts, or is none of floats).
    """
    rule = _RULES.get(op.name)
    return None if rule is None else rule(args, result, choose)


__all__ = ["differentiate_op"]

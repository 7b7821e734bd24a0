"""Derivatives of the primitives on floats, as expressions: what a small change of each operand does to the result. Owns the rules, not how they are chained.

Where a function has a corner, the derivative is PyTorch's: of `abs` at 0 it is 0, of x in `power(x, y)` it is 0 for y = 0, of y for x = 0. What jumps (floor, round) has
derivative 0, and so has what is compared. Which choice it is (of tiles, of scalars) only those know who know what varies, so a rule is given it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..syntax.nodes import Binary, Expr, Literal, Unary
from .base import Op
from .build import cos, exp2, floor, log2, magnitude, power, sin

Partial = Expr | None  # None: 0
Choice = Callable[[Expr, Expr, Expr], Expr]  # of a condition, what holds there, and what holds elsewhere
Rule = Callable[[tuple[Expr, ...], Expr, Choice], tuple[Partial, ...]]  # of the operands and the result
_ONE, _LN2 = Literal(1.0), Literal(math.log(2.0))


def _times(*factors: Expr) -> Expr:
    first, *rest = factors
    for f in rest:
        first = Binary("*", first, f)
    return first


def _over(x: Expr, y: Expr) -> Expr:
    return Binary("/", x, y)


def _less(x: Expr, y: Expr) -> Expr:
    return Binary("-", x, y)


def _sign(x: Expr, where: Choice) -> Expr:
    return where(Binary(">", x, Literal(0.0)), _ONE, where(Binary("<", x, Literal(0.0)), Literal(-1.0), Literal(0.0)))


def _bell(x: Expr) -> Expr:
    """The derivative of erf."""
    return _times(exp2(_times(x, x, Literal(-1.0 / math.log(2.0)))), Literal(2.0 / math.sqrt(math.pi)))


def _whole(x: Expr, y: Expr, where: Choice) -> Expr:
    """x / y rounded to 0."""
    down = floor(magnitude(_over(x, y)))
    return _times(down, _sign(_over(x, y), where))


def _power(args: tuple[Expr, ...], z: Expr, where: Choice) -> tuple[Partial, ...]:
    x, y = args
    of_x = where(Binary("==", y, Literal(0.0)), Literal(0.0), _times(y, power(x, _less(y, _ONE))))
    none = Binary("&", Binary("==", x, Literal(0.0)), Binary(">=", y, Literal(0.0)))
    return of_x, where(none, Literal(0.0), _times(z, log2(x), _LN2))


_RULES: dict[str, Rule] = {
    "+": lambda a, z, where: (_ONE, _ONE),
    "-": lambda a, z, where: (_ONE, Literal(-1.0)),
    "*": lambda a, z, where: (a[1], a[0]),
    "/": lambda a, z, where: (_over(_ONE, a[1]), Unary("-", _over(z, a[1]))),
    "neg": lambda a, z, where: (Literal(-1.0),),
    "abs": lambda a, z, where: (_sign(a[0], where),),
    "exp2": lambda a, z, where: (_times(z, _LN2),),
    "log2": lambda a, z, where: (_over(Literal(1.0 / math.log(2.0)), a[0]),),
    "log1p": lambda a, z, where: (_over(_ONE, Binary("+", _ONE, a[0])),),
    "tanh": lambda a, z, where: (_less(_ONE, _times(z, z)),),
    "sqrt": lambda a, z, where: (_over(Literal(0.5), z),),
    "sin": lambda a, z, where: (cos(a[0]),),
    "cos": lambda a, z, where: (Unary("-", sin(a[0])),),
    "atan": lambda a, z, where: (_over(_ONE, Binary("+", _ONE, _times(a[0], a[0]))),),
    "erf": lambda a, z, where: (_bell(a[0]),),
    "erfc": lambda a, z, where: (Unary("-", _bell(a[0])),),
    "power": _power,
    "fmod": lambda a, z, where: (_ONE, Unary("-", _whole(a[0], a[1], where))),
    "floor": lambda a, z, where: (None,),
    "round": lambda a, z, where: (None,),
}


def partials(op: Op, args: tuple[Expr, ...], result: Expr, where: Choice) -> tuple[Partial, ...] | None:
    """The derivative of an operation's result by each of its operands; None for an operation that has no rule here (it chooses, converts, or is none of floats)."""
    rule = _RULES.get(op.name)
    return None if rule is None else rule(args, result, where)


__all__ = ["partials"]

"""Python's operators as texts of C++."""

from __future__ import annotations

from ...syntax.nodes import Literal
from ...syntax.types import BOOL
from ..registry import emits
from ..values import Operation, strip, wrapping


def _shift(value: int | None) -> int | None:
    """log2 of a positive power of two."""
    return value.bit_length() - 1 if value is not None and value > 0 and value & (value - 1) == 0 else None


@emits("+", "value")
def add(cx: Operation, x: str, y: str) -> str:
    return _arithmetic(cx, "+", "add", x, y)


@emits("-", "value")
def subtract(cx: Operation, x: str, y: str) -> str:
    return _arithmetic(cx, "-", "sub", x, y)


@emits("*", "value")
def multiply(cx: Operation, x: str, y: str) -> str:
    return _arithmetic(cx, "*", "mul", x, y)


def _arithmetic(cx: Operation, sign: str, intrinsic: str, x: str, y: str) -> str:
    if cx.decides and cx.dtype.is_float:  # the compiler fuses no intrinsics
        return cx.rounded(f"__f{intrinsic}_rn({strip(x)}, {strip(y)})")
    return cx.rounded(f"({x} {sign} {y})") if cx.dtype.is_float else wrapping(sign, x, y, cx.near)


@emits("/", "value")
def divide(cx: Operation, x: str, y: str) -> str:
    if cx.decides:
        return cx.rounded(f"cuir::divide_rn({strip(x)}, {strip(y)})")
    one = isinstance(cx.args[0], Literal) and cx.args[0].value == 1
    return cx.rounded(f"cuir::one_over({strip(y)})" if one and cx.few else f"cuir::divide({strip(x)}, {strip(y)})")


@emits("//", "value")
def floor_divide(cx: Operation, x: str, y: str) -> str:
    if (shift := _shift(cx.constant(1))) is not None:
        return f"({x} >> {shift})" if shift else x
    if cx.nonnegative(cx.args[0]) and cx.nonnegative(cx.args[1]):
        return _quotient(cx, "/", x, y)
    return f"cuir::floordiv({x}, {y})"


def _quotient(cx: Operation, sign: str, x: str, y: str) -> str:
    """x / y or x % y of numbers that are not negative: unsigned, and by a product if the divisor never changes."""
    if cx.constant(1) is None and (inverse := cx.inverse(cx.args[1])):
        return f"cuir::{'quotient' if sign == '/' else 'remainder'}({strip(x)}, {strip(y)}, {inverse})"
    return f"int(unsigned({strip(x)}) {sign} unsigned({strip(y)}))"


@emits("%", "value")
def floor_modulo(cx: Operation, x: str, y: str) -> str:
    if _shift(cx.constant(1)) is not None:
        return f"({x} & {int(y) - 1})"
    if cx.nonnegative(cx.args[0]) and cx.nonnegative(cx.args[1]):
        return _quotient(cx, "%", x, y)
    return f"cuir::floormod({x}, {y})"


@emits("cdiv", "value")
def ceil_divide(cx: Operation, x: str, y: str) -> str:
    value = cx.constant(1)
    if value == 1:
        return x
    if cx.nonnegative(cx.args[0]) and cx.nonnegative(cx.args[1]):  # the sum of two that are not negative fits 32 bits without a sign
        more = f"{value - 1}u" if value is not None else f"(unsigned({strip(y)}) - 1u)"
        if (shift := _shift(value)) is not None:
            return f"(({x} + {more[:-1]}) >> {shift})" if cx.near else f"int((unsigned({strip(x)}) + {more}) >> {shift})"
        return _quotient(cx, "/", f"unsigned({strip(x)}) + {more}", y)
    if value is not None and (shift := _shift(value)) is not None:
        return f"(({x} + {value - 1}) >> {shift})" if cx.near else f"cuir::ceilshift<{shift}>({strip(x)})"
    return f"cuir::ceildiv({strip(x)}, {strip(y)})"


@emits("&", "value")
def bit_and(cx: Operation, x: str, y: str) -> str:
    return f"({x} {'&&' if cx.dtype == BOOL else '&'} {y})"


@emits("|", "value")
def bit_or(cx: Operation, x: str, y: str) -> str:
    return f"({x} {'||' if cx.dtype == BOOL else '|'} {y})"


@emits("^", "value")
def bit_xor(cx: Operation, x: str, y: str) -> str:
    return f"({x} {'!=' if cx.dtype == BOOL else '^'} {y})"


@emits("~", "value")
def invert(cx: Operation, x: str) -> str:
    return f"({'!' if cx.dtype == BOOL else '~'}{x})"


@emits("neg", "value")
def negate(cx: Operation, x: str) -> str:
    return f"(-{x})" if cx.dtype.is_float or cx.near else wrapping("-", "0", x)


def _comparison(sign: str) -> None:
    @emits(sign, "value")
    def compare(cx: Operation, x: str, y: str) -> str:
        return f"({x} {sign} {y})"


for _sign in ("==", "!=", "<", "<=", ">", ">="):
    _comparison(_sign)


@emits("and", "value")
def both(cx: Operation, x: str, y: str) -> str:
    return f"({x} && {y})"


@emits("or", "value")
def either(cx: Operation, x: str, y: str) -> str:
    return f"({x} || {y})"


@emits("not", "value")
def negation(cx: Operation, x: str) -> str:
    return f"(!{x})"


@emits("ifexp", "value")
def choose(cx: Operation, cond: str, x: str, y: str) -> str:
    return f"({cond} ? {x} : {y})"


for _name in ("element", "gather", "view", "T"):
    emits(_name, "structure")(lambda: None)  # places: read by values.py, tiles.py and views.py

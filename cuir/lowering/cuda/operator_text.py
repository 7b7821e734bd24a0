"""C++ expressions of operations on numbers, for scalars and for elements of tiles alike.

There is one function for each operation of the table.

C++ types of elements in registers and in memory, and the conversions between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ...syntax.types import BF16, BOOL, DTYPES, F16, F32, I32, DType

_WRAPPING = {"+": "add", "-": "sub", "*": "mul"}


@dataclass(frozen=True)
class Operation:
    """Facts on which the expression of an operation depends, apart from its operands' texts."""

    dtype: DType  # of the operands (of the second for a choice)
    result: DType
    constants: tuple[int | float | bool | None, ...]  # values of operands that are constant, else None
    unsigned: bool = False  # a division of numbers that are not negative
    exact: bool = False  # floats are computed as written: nothing fused, quotients correctly rounded
    near: bool = False  # i32 arithmetic that stays within 32 bits
    whole: bool = False  # the first operand is a whole number
    few: bool = False  # a scalar or one number a row: a branch for a rare case costs little
    computes_both: bool = False  # a choice whose sides are both computed

    def round_result(self, text: str) -> str:
        """Return a result rounded to the dtype.

        Narrow floats are computed in f32: the second rounding changes no result of a single operation.
        """
        return f"cuir::round_{self.result}({text})" if self.result.narrow else text


Text = Callable[..., str]
TEXTS: dict[str, Text] = {}


def text_of(*names: str) -> Callable[[Text], Text]:
    """Register the function that follows as the text of these operations."""

    def register(function: Text) -> Text:
        for name in names:
            if name in TEXTS:
                raise ValueError(f"two texts for {name}")
            TEXTS[name] = function
        return function

    return register


def strip(text: str) -> str:
    """Return the text without the parentheses around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]


def summand(text: str) -> str:
    """Return the text as a summand: in parentheses unless it is a sum of products itself."""
    text = strip(text)
    return text if re.fullmatch(r"[\w\s+*\[\]]*", text) else f"({text})"


def literal(value: int | float | bool, dtype: DType) -> str:
    """Return the C++ literal of a value."""
    if dtype == BOOL:
        return "true" if value else "false"
    if dtype == I32:
        return str(int(value)) if int(value) >= -(2**31) + 1 else "(-2147483647 - 1)"
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{float(value)!r}f"


def wrapping(sign: str, x: str, y: str, near: bool = False) -> str:
    """Return i32 arithmetic that wraps at 32 bits, for which plain ints are undefined in C++.

    `near` says that it stays within 32 bits.
    """
    if near or (re.fullmatch(r"\d{1,9}", x) and re.fullmatch(r"\d{1,4}", y)):
        if y.startswith("-") and sign in "+-":
            return f"({x} {'-' if sign == '+' else '+'} {y[1:]})"
        return f"({x} {sign} {y})"
    return f"cuir::{_WRAPPING[sign]}({strip(x)}, {strip(y)})"


def _shift(value: object) -> int | None:
    """Return log2 of a positive power of two, else None."""
    return value.bit_length() - 1 if isinstance(value, int) and value > 0 and value & (value - 1) == 0 else None


@text_of("+")
def add(cx: Operation, x: str, y: str) -> str:
    """Emit a sum."""
    return _arithmetic(cx, "+", "add", x, y)


@text_of("-")
def subtract(cx: Operation, x: str, y: str) -> str:
    """Emit a difference."""
    return _arithmetic(cx, "-", "sub", x, y)


@text_of("*")
def multiply(cx: Operation, x: str, y: str) -> str:
    """Emit a product."""
    return _arithmetic(cx, "*", "mul", x, y)


def _arithmetic(cx: Operation, sign: str, intrinsic: str, x: str, y: str) -> str:
    if cx.exact and cx.dtype.is_float:  # the compiler fuses no intrinsics
        return cx.round_result(f"__f{intrinsic}_rn({strip(x)}, {strip(y)})")
    return cx.round_result(f"({x} {sign} {y})") if cx.dtype.is_float else wrapping(sign, x, y, cx.near)


@text_of("/")
def divide(cx: Operation, x: str, y: str) -> str:
    """Emit a quotient of floats."""
    if cx.exact:
        return cx.round_result(f"cuir::divide_rn({strip(x)}, {strip(y)})")
    has_unit_dividend = cx.constants[0] == 1
    return cx.round_result(f"cuir::one_over({strip(y)})" if has_unit_dividend and cx.few else f"cuir::divide({strip(x)}, {strip(y)})")


@text_of("//")
def floor_divide(cx: Operation, x: str, y: str) -> str:
    """Emit a quotient of ints rounded to minus infinity."""
    if (shift := _shift(cx.constants[1])) is not None:
        return f"({x} >> {shift})" if shift else x
    return _emit_unsigned("/", x, y) if cx.unsigned else f"cuir::floordiv({x}, {y})"


@text_of("%")
def floor_modulo(cx: Operation, x: str, y: str) -> str:
    """Emit a remainder of ints with the divisor's sign."""
    if _shift(cx.constants[1]) is not None:
        return f"({x} & {int(y) - 1})"
    return _emit_unsigned("%", x, y) if cx.unsigned else f"cuir::floormod({x}, {y})"


def _emit_unsigned(sign: str, x: str, y: str) -> str:
    return f"int(unsigned({strip(x)}) {sign} unsigned({strip(y)}))"


@text_of("cdiv")
def ceil_divide(cx: Operation, x: str, y: str) -> str:
    """Emit a quotient of ints rounded up."""
    value = cx.constants[1]
    shift = _shift(value)
    if value == 1:
        return x
    if cx.unsigned:  # the sum of two nonnegative numbers fits 32 bits without a sign
        more = f"{int(value) - 1}u" if value is not None else f"(unsigned({strip(y)}) - 1u)"
        if shift is not None:
            return f"(({x} + {more[:-1]}) >> {shift})" if cx.near else f"int((unsigned({strip(x)}) + {more}) >> {shift})"
        return _emit_unsigned("/", f"unsigned({strip(x)}) + {more}", y)
    if shift is not None:
        return f"(({x} + {int(value or 1) - 1}) >> {shift})" if cx.near else f"cuir::ceilshift<{shift}>({strip(x)})"
    return f"cuir::ceildiv({strip(x)}, {strip(y)})"


# Both sides are computed for each element: compilers make a branch an element of && and ||, as soon as three
# comparisons are joined and a branch follows.
@text_of("&")
def bit_and(cx: Operation, x: str, y: str) -> str:
    """Emit `&` of ints or truth values."""
    return f"({x} {'&&' if cx.dtype == BOOL and cx.few else '&'} {y})"


@text_of("|")
def bit_or(cx: Operation, x: str, y: str) -> str:
    """Emit `|` of ints or truth values."""
    return f"({x} {'||' if cx.dtype == BOOL and cx.few else '|'} {y})"


@text_of("^")
def bit_xor(cx: Operation, x: str, y: str) -> str:
    """Emit `^` of ints or truth values."""
    return f"({x} {'!=' if cx.dtype == BOOL else '^'} {y})"


@text_of("~")
def invert(cx: Operation, x: str) -> str:
    """Emit `~` of an int or a truth value."""
    return f"({'!' if cx.dtype == BOOL else '~'}{x})"


@text_of("neg")
def negate(cx: Operation, x: str) -> str:
    """Emit a negated number."""
    return f"(-{x})" if cx.dtype.is_float or cx.near else wrapping("-", "0", x)


def _comparison(sign: str) -> None:
    text_of(sign)(lambda cx, x, y: f"({x} {sign} {y})")


for _sign in ("==", "!=", "<", "<=", ">", ">="):
    _comparison(_sign)


@text_of("and")
def emit_and(cx: Operation, x: str, y: str) -> str:
    """Emit `and`, which leaves out the second operand if the first decides."""
    return f"({x} && {y})"


@text_of("or")
def emit_or(cx: Operation, x: str, y: str) -> str:
    """Emit `or`, which leaves out the second operand if the first decides."""
    return f"({x} || {y})"


@text_of("not")
def negation(cx: Operation, x: str) -> str:
    """Emit `not`."""
    return f"(!{x})"


@text_of("ifexp", "where")
def choose(cx: Operation, cond: str, x: str, y: str) -> str:
    """Emit a choice between two values."""
    if cx.computes_both:
        return f"cuir::select({strip(cond)}, {strip(x)}, {strip(y)})"
    return f"({cond} ? {x} : {y})"


@text_of("bit")
def bit(cx: Operation, x: str, i: str) -> str:
    """Emit a test of one bit of an int."""
    index = cx.constants[1]
    return (
        f"(({x} & {1 << int(index) % 32 if int(index) % 32 < 31 else 'int(1u << 31)'}) != 0)"
        if index is not None
        else f"((({x} >> ({i} & 31)) & 1) != 0)"
    )


@text_of("min")
def minimum(cx: Operation, x: str, y: str) -> str:
    """Emit a minimum; NaN if an operand is one."""
    return f"{'min' if cx.dtype == I32 else 'cuir::min_nan'}({strip(x)}, {strip(y)})"


@text_of("max")
def maximum(cx: Operation, x: str, y: str) -> str:
    """Emit a maximum; NaN if an operand is one."""
    return f"{'max' if cx.dtype == I32 else 'cuir::max_nan'}({strip(x)}, {strip(y)})"


@text_of("exp2")
def exp2(cx: Operation, x: str) -> str:
    """Emit a power of two."""
    return f"cuir::ex2({strip(x)})"


@text_of("log2")
def log2(cx: Operation, x: str) -> str:
    """Emit a logarithm to base 2."""
    if cx.whole:
        return f"cuir::log2_of_whole({strip(x)})"
    return f"cuir::{'log2' if cx.few else 'log2_anywhere'}({strip(x)})"


@text_of("tanh")
def tanh(cx: Operation, x: str) -> str:
    """Emit a hyperbolic tangent."""
    return f"cuir::tanh({strip(x)})"


@text_of("sqrt")
def sqrt(cx: Operation, x: str) -> str:
    """Emit a square root."""
    return f"cuir::{'sqrt_of_whole' if cx.whole else 'sqrt'}({strip(x)})"


def _library(name: str, function: str) -> None:
    text_of(name)(lambda cx, *operands: f"{function}({', '.join(map(strip, operands))})")


for _name, _function in (
    ("floor", "floorf"),
    ("round", "rintf"),
    ("sin", "cuir::sine"),
    ("cos", "cuir::cosine"),
    ("atan", "atanf"),
    ("log1p", "cuir::log1p"),
    ("erf", "erff"),
    ("erfc", "erfcf"),
    ("power", "powf"),
    ("fmod", "fmodf"),
    ("round_tf32", "cuir::round_tf32"),
):
    _library(_name, _function)


@text_of("abs")
def absolute(cx: Operation, x: str) -> str:
    """Emit a magnitude."""
    return f"cuir::absolute({strip(x)})" if cx.dtype == I32 else f"fabsf({strip(x)})"


@text_of("cast")
def cast(cx: Operation, x: str) -> str:
    """Emit a conversion between dtypes."""
    if cx.result.narrow:
        return x if cx.dtype == cx.result else f"cuir::round_{cx.result}({x if cx.dtype.is_float else f'float({x})'})"
    if cx.result == BOOL:
        return x if cx.dtype == BOOL else f"({x} != {'0' if cx.dtype == I32 else '0.f'})"
    if cx.result == F32:
        return x if cx.dtype.is_float else f"float({strip(x)})"
    return x if cx.dtype == I32 else f"int({x})" if cx.dtype == BOOL else f"cuir::to_int({strip(x)})"


@text_of("full")
def full(cx: Operation, x: str) -> str:
    """Emit a number that fills a tile."""
    return x


CTYPE = {d: "float" if d.is_float else {I32: "int", BOOL: "bool"}[d] for d in DTYPES.values()}  # in registers
# In memory. A dtype without a CUDA type is a struct of the targets that have it, named as the dtype.
MEMORY = {d: {F32: "float", I32: "int", BOOL: "bool", F16: "__half", BF16: "__nv_bfloat16"}.get(d, f"cuir::{d}") for d in DTYPES.values()}


def from_memory(dtype: DType, text: str) -> str:
    """Return the text of an element of memory converted to its type in registers."""
    return f"cuir::to_float({text})" if dtype.narrow else text


def to_memory(dtype: DType, text: str) -> str:
    """Return the text of a number converted to the type in which it is stored."""
    return f"{MEMORY[dtype]}({text})" if dtype.narrow else text

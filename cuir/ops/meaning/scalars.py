"""Evaluation of each operation on scalars: Python numbers, or NumPy arrays of one value for each lane.

In arrays i32 is int64 kept within 32 bits, f32 is float32. Checking uses this for constants without loading NumPy: it
is imported where there is an array, or a function of the hardware's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import c_float
from typing import Any

from ...syntax.types import BOOL, F32, I32, DType

LOW, HIGH = -(2**31), 2**31 - 1
LEAST_NORMAL = 2.0**-126  # of f32
# a Python number, a NumPy array (i32 as int64, f32 as float32, bool), or a torch tensor (int32, float32, bool)
Value = Any
Function = Callable[..., Value]
PLAIN: frozenset[Any] = frozenset((int, float, bool))


class DivisionByZero(ZeroDivisionError):
    """An integer division by zero; the evaluator that runs the operation reports it with its place."""


def wrap(v: Value) -> Value:
    """Reduce an integer to 32 bits, two's complement."""
    if v.__class__ is int:
        return v if LOW <= v <= HIGH else (v - LOW) % 2**32 + LOW
    return (v - LOW) % 2**32 + LOW


def f32(v: Value) -> Value:
    """Round a number to f32: nearest even, subnormals kept, beyond the range inf."""
    if isinstance(v, (int, float)):
        return c_float(v).value
    return v.astype("float32", copy=False)


def shortest(v: float) -> float:
    """Return the number with the fewest digits that rounds to this f32: 0.1 and not 0.10000000149011612."""
    return next((x for n in range(6, 9) if c_float(x := float(f"{v:.{n}g}")).value == v), float(f"{v:.9g}"))


def cast(v: Value, source: DType, target: DType) -> Value:
    """Convert a scalar to another dtype.

    f32 to i32 truncates and saturates (a NaN gives 0), to bool compares with 0, i32 to f32 rounds to nearest even.
    """
    plain = v.__class__ in PLAIN
    if target == source:
        return v
    if target == BOOL:
        return v != 0
    if target == F32:
        return f32(_double(v)) if plain else v.astype("float32")
    if source == BOOL:
        return int(v) if plain else v.astype("int64")
    if plain:
        return 0 if v != v else LOW if v <= LOW else HIGH if v >= HIGH else int(v)
    import numpy as np

    return np.nan_to_num(v.astype("float64"), nan=0.0, posinf=HIGH, neginf=LOW).clip(LOW, HIGH).astype("int64")


def _double(v: Value) -> float:
    try:
        return float(v)
    except OverflowError:  # an integer literal beyond every float
        return math.inf if v > 0 else -math.inf


def _divide(a: Value, b: Value) -> Value:
    """Divide with correct rounding, also to subnormals.

    A quotient of two f32 that is computed in double and then rounded to f32 is correctly rounded.
    """
    if a.__class__ in PLAIN and b.__class__ in PLAIN:
        if b:
            return f32(a / b)
        return math.nan if a != a or not a else math.copysign(math.inf, a) * math.copysign(1.0, b)
    import numpy as np

    with np.errstate(all="ignore"):
        return np.divide(a, b, dtype=np.float32)


def _nonzero(b: Value) -> Value:
    if not (b if b.__class__ in PLAIN else b.all()):
        raise DivisionByZero("a division by 0")
    return b


def _minimum(a: Value, b: Value) -> Value:
    if a.__class__ in PLAIN and b.__class__ in PLAIN:
        return b if b < a or b != b else a
    import numpy as np

    return np.minimum(a, b)


def _maximum(a: Value, b: Value) -> Value:
    if a.__class__ in PLAIN and b.__class__ in PLAIN:
        return b if b > a or b != b else a
    import numpy as np

    return np.maximum(a, b)


def _not(v: Value) -> Value:
    return not v if v.__class__ is bool else ~v


def _compute_and(a: Value, b: Value) -> Value:
    return a and b if a.__class__ is bool and b.__class__ is bool else a & b


def _compute_or(a: Value, b: Value) -> Value:
    return a or b if a.__class__ is bool and b.__class__ is bool else a | b


def _choice(cond: Value, x: Value, y: Value) -> Value:
    if cond.__class__ in PLAIN:
        return x if cond else y
    import numpy as np

    return np.where(cond, x, y)


def _round_from_double(name: str) -> Function:
    """Make a function evaluated in double and rounded once."""

    def function(*operands: Value) -> Value:
        import numpy as np

        with np.errstate(all="ignore"):
            double = getattr(np, name)(*(np.asarray(v, np.float64) for v in operands))
            return f32(float(double)) if all(v.__class__ in PLAIN for v in operands) else double.astype(np.float32)

    return function


def _round_operand(v: Any) -> Any:
    """Round an f32 to TF32 as `tiles.round_operand` does."""
    import numpy as np

    with np.errstate(all="ignore"):
        raised = np.asarray(v, np.float32) * np.float32(1 + 355 * 2.0**-20)
        rounded = (raised.view(np.int32) & ~0x1FFF).view(np.float32)
    return float(rounded) if v.__class__ in PLAIN else rounded


def _round_from_torch(name: str) -> Function:
    """Make a function as `_round_from_double` does, by PyTorch.

    For functions that NumPy does not have, or has with other special values (roots by powers).
    """

    def function(*operands: Value) -> Value:
        import numpy as np
        import torch

        shape = np.broadcast_shapes(*map(np.shape, operands))
        double = (
            getattr(torch, name)(*(torch.from_numpy(np.atleast_1d(np.asarray(v, np.float64)).copy()) for v in operands))
            .numpy()
            .reshape(shape)
        )
        with np.errstate(all="ignore"):
            return f32(float(double)) if all(v.__class__ in PLAIN for v in operands) else double.astype(np.float32)

    return function


_power = _round_from_double("exp2")


def _exp2(v: Value) -> Value:
    """Compute 2 ** v; results below the least normal number are 0, as the hardware's."""
    power = _power(v)
    if power.__class__ is float:
        return 0.0 if power < LEAST_NORMAL else power
    power[power < LEAST_NORMAL] = 0.0
    return power


def _share(function: Function, *dtypes: DType) -> dict[DType, Function]:
    return dict.fromkeys(dtypes, function)


SCALARS: dict[str, dict[DType, Function]] = {
    "+": {I32: lambda a, b: wrap(a + b), F32: lambda a, b: f32(a + b)},
    "-": {I32: lambda a, b: wrap(a - b), F32: lambda a, b: f32(a - b)},
    "*": {I32: lambda a, b: wrap(a * b), F32: lambda a, b: f32(a * b)},
    "/": {F32: _divide},
    "//": {I32: lambda a, b: wrap(a // _nonzero(b))},
    "%": {I32: lambda a, b: a % _nonzero(b)},
    "cdiv": {I32: lambda a, b: wrap(-(-a // _nonzero(b)))},
    "neg": {I32: lambda a: wrap(-a), F32: lambda a: -a},
    "abs": {I32: lambda a: wrap(abs(a)), F32: abs},
    "min": _share(_minimum, I32, F32),
    "max": _share(_maximum, I32, F32),
    "&": _share(lambda a, b: a & b, I32, BOOL),
    "|": _share(lambda a, b: a | b, I32, BOOL),
    "^": _share(lambda a, b: a ^ b, I32, BOOL),
    "~": _share(_not, BOOL) | {I32: lambda a: ~a},
    "not": _share(_not, BOOL),
    "and": _share(_compute_and, BOOL),
    "or": _share(_compute_or, BOOL),
    "==": _share(lambda a, b: a == b, I32, F32, BOOL),
    "!=": _share(lambda a, b: a != b, I32, F32, BOOL),
    "<": _share(lambda a, b: a < b, I32, F32, BOOL),
    "<=": _share(lambda a, b: a <= b, I32, F32, BOOL),
    ">": _share(lambda a, b: a > b, I32, F32, BOOL),
    ">=": _share(lambda a, b: a >= b, I32, F32, BOOL),
    "ifexp": _share(_choice, I32, BOOL) | {F32: lambda c, x, y: f32(_choice(c, x, y))},
    "where": _share(_choice, I32, BOOL) | {F32: lambda c, x, y: f32(_choice(c, x, y))},
    "bit": {I32: lambda a, i: (a >> i % 32) % 2 == 1},
    "exp2": {F32: _exp2},
    "log2": {F32: _round_from_double("log2")},
    "tanh": {F32: _round_from_double("tanh")},
    "sqrt": {F32: _round_from_double("sqrt")},
    "floor": {F32: _round_from_double("floor")},
    "round": {F32: _round_from_double("rint")},
    "sin": {F32: _round_from_double("sin")},
    "cos": {F32: _round_from_double("cos")},
    "atan": {F32: _round_from_double("arctan")},
    "log1p": {F32: _round_from_double("log1p")},
    "erf": {F32: _round_from_torch("erf")},
    "erfc": {F32: _round_from_torch("erfc")},
    "power": {F32: _round_from_torch("pow")},
    "fmod": {F32: _round_from_double("fmod")},
    "round_tf32": {F32: _round_operand},
}

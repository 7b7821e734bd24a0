"""Evaluation of each operation on numbers: one definition for all evaluators.

Used for constant folding, the interpreter, traced specifications and contracts. An entry of the table of primitives
refers to its `Meaning`. `scalars.py` defines it for Python numbers and NumPy arrays, `tiles.py` for torch tensors,
both by dtype: f16 and bf16 are computed in f32 and rounded once; `intervals.py` for intervals of integers. Lazy
operands (`and`, `or`, a choice) are evaluated by the caller. The page for people is section Numbers of
docs/semantics.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from ...syntax.types import BOOL, F32, I32, DType
from .intervals import ANYTHING, INTERVALS, ON_THE_WAY, Bounds
from .scalars import PLAIN, SCALARS, DivisionByZero, Function, Value, cast, f32, shortest, wrap


@dataclass(frozen=True)
class Meaning:
    """The function of the operation `name`.

    `ulps`: by how many units in the last place of f32 the hardware may differ; 0: by none, and only the bits of a NaN
    and which zero is the lesser are open. `rounded`: here it is correctly rounded, so that all evaluators have the
    same bits, and constants fold. `divides`: its last operand may not be 0.
    """

    name: str
    ulps: int = 0
    rounded: bool = True
    divides: bool = False

    def scalar(self, dtype: DType) -> Function | None:
        """Return the function on scalars whose operands have this dtype, or None if there is none.

        Scalars are Python numbers, or NumPy arrays of one value a lane: i32 within 32 bits (as int64 in arrays), f32
        rounded to f32 (float32 in arrays), bool. The function raises DivisionByZero.
        """
        return SCALARS.get(self.name, {}).get(_get_computed_dtype(dtype))

    def tile(self, dtype: DType) -> Function | None:
        """Return the function on torch tensors; f16 and bf16 are held as float32, and the caller rounds.

        `out=` is the tensor of the result, if not a new one. The caller must check for a divisor of 0 (tiles.nonzero),
        which waits for a device.
        """
        from .tiles import TILES

        return TILES.get(self.name, {}).get(_get_computed_dtype(dtype))

    def interval(self, *operands: Bounds) -> Bounds:
        """Return the least and greatest i32 result for operands between bounds.

        None, of an operand or of the result: anything.
        """
        function = INTERVALS.get(self.name)
        if function is None:
            return None
        bounds = function(*(ANYTHING if b is None else b for b in operands))
        return None if bounds == ANYTHING else bounds

    def on_the_way(self, *operands: Bounds) -> Bounds:
        """Return bounds of an i32 operation's intermediate result, if it may be further from 0; else None."""
        function = ON_THE_WAY.get(self.name)
        return None if function is None else function(*operands)

    def __call__(self, *operands: Value) -> Value:
        """Evaluate on values of any representation, in their common dtype, with broadcasting.

        A Python number among floats is one. Raises DivisionByZero (but of tensors), TypeError.
        """
        if self.name in ("where", "ifexp"):
            cond, *rest = operands
            if cond.__class__ is bool:
                return convert(rest[0 if cond else 1], unify_dtypes(rest))
        else:
            rest = list(operands)
        dtype = unify_dtypes(rest)
        rest = [convert(x, dtype) for x in rest]
        if any(map(_is_tensor, operands)):
            from .tiles import operand

            function = self.tile(dtype)
            rest = [operand(x) for x in rest]
        else:
            function = self.scalar(dtype)
        if function is None:
            raise TypeError(f"`{self.name}` of {dtype}")
        return function(*operands[: len(operands) - len(rest)], *rest)


@cache
def meaning(name: str, ulps: int = 0, rounded: bool = True, divides: bool = False) -> Meaning:
    """Return the cached `Meaning` that an entry of the table refers to."""
    return Meaning(name, ulps, rounded, divides)


def _get_computed_dtype(dtype: DType) -> DType:
    return F32 if dtype.is_float else dtype


def _is_tensor(x: Value) -> bool:
    torch = sys.modules.get("torch")  # not imported: no tensors exist
    return torch is not None and isinstance(x, torch.Tensor)


def dtype_of(x: Value) -> DType:
    """Return i32, f32 or bool, by the representation of the value."""
    if x.__class__ in PLAIN:
        return _KINDS[x.__class__]
    dtype = _OF_ARRAYS.get(x.dtype)
    if dtype is None:
        text = str(x.dtype)
        dtype = _OF_ARRAYS[x.dtype] = BOOL if "bool" in text else F32 if "float" in text else I32
    return dtype


_OF_ARRAYS: dict[object, DType] = {}  # dtypes of NumPy and PyTorch, filled at run time
_KINDS = {bool: BOOL, int: I32, float: F32}
_RANK = {BOOL: 0, I32: 1, F32: 2}


def unify_dtypes(values: Iterable[Value]) -> DType:
    """Return the common dtype of values: bool < i32 < f32."""
    return max((dtype_of(x) for x in values), key=_RANK.__getitem__)


def convert(x: Value, dtype: DType) -> Value:
    """Convert a value to another dtype, as `cast`.

    Also a literal to the dtype of the other operand, and a Python float, rounded to f32.
    """
    source = dtype_of(x)
    if x.__class__ in PLAIN:
        return f32(x) if source == dtype == F32 else cast(x, source, dtype)
    if source == dtype:
        return x
    if not _is_tensor(x):
        return cast(x, source, dtype)
    from .tiles import cast as cast_tile

    return cast_tile(x, source, dtype)


__all__ = ["DivisionByZero", "Meaning", "cast", "convert", "dtype_of", "f32", "meaning", "shortest", "unify_dtypes", "wrap"]

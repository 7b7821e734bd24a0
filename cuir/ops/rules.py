"""Building blocks of typing rules: requirements on arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..syntax.types import BOOL, DTYPES, F32, I32, DType, ErrorType, GlobalView, Scalar, SharedView, TileType, Type
from .base import CallContext


def has_error_type(*types: Type) -> bool:
    return any(isinstance(t, ErrorType) for t in types)


LINES = ("x", "y")  # the directions of CTAs in a cluster


def require_i32(cx: CallContext, arg: str) -> bool:
    t = cx.type(arg)
    if has_error_type(t):
        return False
    if t != Scalar(I32):
        cx.error("T101", f"`{arg}` must be an i32 scalar, found {t}", arg)
        return False
    return True


def check_cluster(cx: CallContext) -> None:
    """Check which CTAs of the cluster `cluster` names."""
    if not cx.has("cluster"):
        return
    value = cx.const("cluster")
    if value is None:
        require_known(cx, "cluster", bool)
    elif not isinstance(value, bool) and value not in LINES:
        cx.error(
            "T103",
            f'`cluster` must be a bool, "x" or "y", found {value!r}',
            "cluster",
            '"x" and "y" are the CTAs in line with this one in a kernel with cluster=(CX, CY)',
        )


def require_known(cx: CallContext, arg: str, kind: type = int) -> Any:
    """Return the value of an argument that must be known when the kernel is specialised.

    None after an error.
    """
    value = cx.const(arg)
    if value is None:
        cx.error(
            "T102",
            f"`{arg}` must be known when the kernel is specialised, found an expression of run-time values",
            arg,
            "use literals and const parameters",
        )
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        spelling = value.name if isinstance(value, DType) else repr(value)
        cx.error("T103", f"`{arg}` must be {_KINDS[kind]}, found {spelling}", arg)
        return None
    return value


def require_positive(cx: CallContext, arg: str) -> int | None:
    """Return a known integer of at least 1; None after an error."""
    n = require_known(cx, arg)
    if n is not None and n < 1:
        cx.error("T104", f"`{arg}` must be a positive integer, found {n}", arg)
        return None
    return n


_KINDS = {
    int: "an integer",
    bool: "True or False",
    DType: f"a dtype ({', '.join(DTYPES)})",
    str: "a word in quotes",
    tuple: "dims such as [64, D]",
}


def require_dims(cx: CallContext, arg: str) -> tuple[int, ...] | None:
    value = require_known(cx, arg, tuple)
    if value is None:
        return None
    for d in value:
        if not isinstance(d, int) or isinstance(d, bool) or d <= 0:
            cx.error("T104", f"`{arg}` must be positive integers, found {d!r}", arg)
            return None
    return value


def require_tile_shape(cx: CallContext, arg: str) -> tuple[int, int] | None:
    shape = require_dims(cx, arg)
    if shape is None:
        return None
    if len(shape) != 2:
        cx.error("T105", f"a tile has rank 2, found {len(shape)} dims", arg, "a value per row is [R, 1], per column [1, C]")
        return None
    return shape[0], shape[1]


def require_shared(cx: CallContext, arg: str, rank2: bool = True) -> SharedView | None:
    t = cx.type(arg)
    if has_error_type(t):
        return None
    if not isinstance(t, SharedView):
        cx.error("T106", f"`{arg}` must lie in shared memory, found {t}", arg)
        return None
    if rank2 and len(t.dims) != 2:
        refuse_rank(cx, arg, t)
        return None
    return t


def refuse_rank(cx: CallContext, arg: str, t: SharedView) -> Type:
    """Report a view that is no matrix."""
    hint = "pick a stage: x[s]"
    if len(t.dims) == 1:
        hint = f"an array of one dim has scalars, x[i]; a tile with a value a row lies in [{t.dims[0]}, 1]"
    return cx.error("T107", f"`{arg}` must have two dims (rows, columns), found {t}", arg, hint)


class Box(NamedTuple):
    """Box of a tensor with its rows (all dims but the last, flattened) and columns."""

    view: GlobalView
    rows: int
    cols: int


def require_box(cx: CallContext, arg: str) -> Box | None:
    """Return a box of a tensor."""
    t = cx.type(arg)
    if has_error_type(t):
        return None
    if not isinstance(t, GlobalView):
        cx.error("T108", f"`{arg}` must be a box of a tensor, found {t}", arg, "slice it: Q[b, h, m : m + 64, :]")
        return None
    rows = 1
    for d in t.dims:
        if not isinstance(d, int):
            cx.error(
                "T109",
                f"the box is as long as the run-time dim `{d}`",
                arg,
                f"slice that dim: x : x + c with a known c (`{d}` is known if it is a const)",
            )
            return None
    sizes = [d for d in t.dims if isinstance(d, int)]
    for d in sizes[:-1]:
        rows *= d
    return Box(t, rows, sizes[-1])


def unify_operands(cx: CallContext, *args: str, floats: bool = False, ints: bool = False) -> tuple[DType, tuple[int, int] | None] | None:
    """Return the common dtype and the broadcast shape (None: all scalars) of arguments.

    None after an error.
    """
    types = [cx.type(a) for a in args]
    if has_error_type(*types):
        return None
    for a, t in zip(args, types, strict=True):
        if not isinstance(t, (Scalar, TileType)):
            cx.error(
                "T110",
                f"expected a scalar or a tile, found {t}",
                a,
                "load(view) reads a view into registers" if isinstance(t, (GlobalView, SharedView)) else None,
            )
            return None
    dtype = types[0].dtype  # type: ignore[union-attr]
    for a, t in zip(args[1:], types[1:], strict=True):
        if t.dtype != dtype:  # type: ignore[union-attr]
            cx.error(
                "T111",
                f"operands must have one dtype, found {types[0]} and {t}",
                a,
                "cast(x, dtype) converts; nothing is converted silently",
            )
            return None
    if floats and not dtype.is_float:
        cx.error("T112", f"expected floats, found {types[0]}", args[0])
        return None
    if ints and dtype not in (I32, BOOL):
        cx.error("T112", f"expected i32 or bool, found {types[0]}", args[0])
        return None
    shape: tuple[int, int] | None = None
    for a, t in zip(args, types, strict=True):
        if isinstance(t, TileType):
            merged = broadcast(shape, (t.rows, t.cols))
            if merged is None:
                cx.error("T113", f"shapes do not broadcast: [{shape[0]}, {shape[1]}] and [{t.rows}, {t.cols}]", a)  # type: ignore[index]
                return None
            shape = merged
    return dtype, shape


def broadcast(a: tuple[int, int] | None, b: tuple[int, int]) -> tuple[int, int] | None:
    if a is None:
        return b
    if all(x == y or x == 1 or y == 1 for x, y in zip(a, b, strict=True)):
        return max(a[0], b[0]), max(a[1], b[1])
    return None


def refuse_sums_of_bytes(cx: CallContext, arg: str) -> Type:
    return cx.error("T122", f"no atomic addition takes elements of a byte, found {cx.type(arg)}", arg, "add in f32")


def make_type(dtype: DType, shape: tuple[int, int] | None) -> Type:
    return Scalar(dtype) if shape is None else TileType(dtype, *shape)


__all__ = [
    "BOOL",
    "F32",
    "I32",
    "broadcast",
    "has_error_type",
    "make_type",
    "require_box",
    "require_dims",
    "require_i32",
    "require_known",
    "require_shared",
    "require_tile_shape",
    "unify_operands",
]

"""Views: the part of a tensor or a shared array that a subscript picks, dim by dim.

Read by the checker, the interpreter and the lowering.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ops.expressions import traits
from ..syntax.nodes import Attribute, Binary, Expr, Literal, Name, Slice, Subscript
from ..syntax.types import PANEL_BYTES, DType


@dataclass(frozen=True)
class Drop:
    """An index that drops its dim."""

    index: Expr


@dataclass(frozen=True)
class Range:
    """A slice; `start` None and `size` None: the whole dim.

    `size` is None too when the slice's length could not be read off.
    """

    start: Expr | None
    size: int | None


@dataclass(frozen=True)
class View:
    """A view `root[parts...]`, one part for each dim of root; `.T` flips `transposed`."""

    root: str
    parts: tuple[Drop | Range, ...]
    transposed: bool = False

    @property
    def ranges(self) -> tuple[Range, ...]:
        return tuple(p for p in self.parts if isinstance(p, Range))


def root_name(e: Expr) -> str | None:
    """Return the array that a chain of subscripts and attributes starts from."""
    while isinstance(e, (Subscript, Attribute)):
        e = e.value
    return e.id if isinstance(e, Name) else None


def make_view(e: Expr, rank: int) -> View | None:
    """Return the view, of an array of `rank` dims, that an expression of the flat kernel denotes.

    None if it has too many indices.
    """
    if isinstance(e, Attribute):
        inner = make_view(e.value, rank)
        return None if inner is None else View(inner.root, inner.parts, not inner.transposed)
    if isinstance(e, Name):
        return View(e.id, (Range(None, None),) * rank)
    if not isinstance(e, Subscript) or not isinstance(e.value, Name) or len(e.indices) > rank:
        return None
    parts = tuple(_make_part(i) for i in e.indices)
    return View(e.value.id, parts + (Range(None, None),) * (rank - len(parts)))


def _make_part(index: Expr | Slice) -> Drop | Range:
    if not isinstance(index, Slice):
        return Drop(index)
    if index.start is None and index.stop is None:
        return Range(None, None)
    return Range(index.start if index.start is not None else Literal(0, span=index.span), compute_slice_size(index))


def compose(inner: tuple[Expr | Slice, ...], outer: tuple[Expr | Slice, ...], rank: int) -> tuple[Expr | Slice, ...] | None:
    """Return the indices of `x[inner][outer]` as one subscript of x; None if there are too many."""
    parts: list[Expr | Slice] = [*inner, *(Slice() for _ in range(rank - len(inner)))]
    free = [i for i, p in enumerate(parts) if isinstance(p, Slice)]
    if len(outer) > len(free):
        return None
    for position, index in zip(free, outer, strict=False):
        before = parts[position]
        assert isinstance(before, Slice)
        if before.start is None or (isinstance(index, Slice) and index.start is None and index.stop is None):
            parts[position] = index if before.start is None else before
        elif isinstance(index, Slice):
            start = Binary("+", before.start, index.start if index.start is not None else Literal(0), span=index.span)
            size = compute_slice_size(index)
            stop = index.stop if size is None else Binary("+", start, Literal(size), span=index.span)
            parts[position] = Slice(start, stop, span=index.span)
        else:
            parts[position] = Binary("+", before.start, index, span=index.span)
    return tuple(parts)


def compute_slice_size(s: Slice) -> int | None:
    """Return c of `e : e + c`, where both e are the same text; or the difference of two literals."""
    start = s.start.value if isinstance(s.start, Literal) else 0 if s.start is None else None
    if isinstance(s.stop, Literal) and type(s.stop.value) is int and type(start) is int:
        return s.stop.value - start
    c = get_written_size(s)
    return c.value if isinstance(c, Literal) and type(c.value) is int else None


def get_written_size(s: Slice) -> Expr | None:
    """Return c of `e : e + c`, where both e are the same text."""
    stop = s.stop
    return stop.right if isinstance(stop, Binary) and traits(stop).linear == (1, 1) and stop.left == s.start else None


def count_panel_columns(dtype: DType) -> int:
    """Return the columns of a 128-byte panel."""
    return PANEL_BYTES // dtype.itemsize

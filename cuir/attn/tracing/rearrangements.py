"""Rearrangements of a captured tensor's elements: parts, shifts and repetitions."""

from __future__ import annotations

import itertools

from .captured_rows import Dims, Sizes, array, make_shaped
from .element_indices import Index
from .lookups import whole_number
from .operation_table import function
from .proxy import Proxy, Rows, Scalar, TracedValue, compute
from .refusal import refuse


@function("split")
def split(tensor: object, split_size_or_sections: object, dim: int = 0) -> tuple[TracedValue, ...]:
    x = array(tensor)
    n = x.shape[at := x.axis(dim)]
    x.small([1], "split")
    if isinstance(split_size_or_sections, (list, tuple)):
        sizes = [whole_number(size) for size in split_size_or_sections]
        if sum(sizes) != n:
            refuse(f"split of {n} elements into {sizes}", "the sizes add up to the length")
    else:
        size = whole_number(split_size_or_sections)
        if size < 1:
            refuse(f"split into parts of {size} elements", "1 or more")
        sizes = [min(size, n - start) for start in range(0, n, size)] or [0]
    starts = itertools.accumulate(sizes, initial=0)
    return tuple(x.narrow(at, start, size) for start, size in zip(starts, sizes, strict=False))


@function("chunk")
def chunk(input: object, chunks: int, dim: int = 0) -> tuple[TracedValue, ...]:
    x, count = array(input), whole_number(chunks)
    if count < 1:
        refuse(f"{count} chunks of a tensor", "1 or more")
    return split(x, max(1, -(-x.shape[x.axis(dim)] // count)), dim)


@function("roll")
def roll(input: object, shifts: Sizes, dims: Dims = None) -> TracedValue:
    x = array(input)
    if dims is None or dims == ():
        return array(roll(x.reshape(-1), shifts, 0)).reshape(*x.shape)
    by: dict[int, int] = {}
    for dim, shift in zip(_each(dims), _each(shifts), strict=True):
        by[x.axis(dim)] = by.get(x.axis(dim), 0) + whole_number(shift)
    x.small([1], "shifted")

    def source(index: Index) -> Index:
        return tuple((i - by[d]) % x.shape[d] if d in by else i for d, i in enumerate(index))

    return x.make_view(x.shape, source)


def _each(x: object) -> list[object]:
    return list(x) if isinstance(x, (list, tuple)) else [x]


@function("repeat")
def repeat(input: object, *repeats: Sizes) -> TracedValue:
    return tile(input, *repeats)


@function("tile")
def tile(input: object, *dims: Sizes) -> TracedValue:
    x = array(input)
    counts = [whole_number(n) for n in (dims[0] if len(dims) == 1 and isinstance(dims[0], (list, tuple)) else dims)]
    counts = [1] * (x.ndim - len(counts)) + counts
    sizes = [1] * (len(counts) - x.ndim) + list(x.shape)
    x.small([1], "repeated")

    def source(index: Index) -> Index:
        return tuple(0 if n == 1 else i % n for i, n in zip(index, sizes))[len(sizes) - x.ndim :]

    return x.make_view([n * count for n, count in zip(sizes, counts)], source)


@function("repeat_interleave")
def repeat_interleave(input: object, repeats: object, dim: int | None = None, *, output_size: int | None = None) -> TracedValue:
    if isinstance(repeats, Rows) or (isinstance(repeats, Proxy) and repeats.value is None):
        refuse(
            "repeat_interleave by a tensor, whose result has no known length", "compute it before the mod, and index the result in the mod"
        )
    x, count = array(input), whole_number(repeats)
    x = array(x.reshape(-1)) if dim is None else x
    at = x.axis(0 if dim is None else dim)
    x.small([1], "repeated")
    shape = [n * count if d == at else n for d, n in enumerate(x.shape)]
    return x.make_view(shape, lambda index: tuple(i // count if d == at else i for d, i in enumerate(index)))


@function("ravel")
def ravel(input: object) -> TracedValue:
    return array(input).reshape(-1)


@function("tril")
def tril(input: object, diagonal: int = 0) -> TracedValue:
    return _triangle(input, "le", diagonal)


@function("triu")
def triu(input: object, diagonal: int = 0) -> TracedValue:
    return _triangle(input, "ge", diagonal)


def _triangle(input: object, comparison: str, diagonal: int) -> TracedValue:
    x = array(input)
    if x.ndim < 2:
        refuse(f"a triangle of a tensor of shape {list(x.shape)}", "two dims or more")

    def element(index: Index) -> Scalar:
        inside = compute(comparison, compute("sub", index[-1], index[-2]), diagonal)
        value = x.element(index)
        return compute("where", inside, value, compute("zeros_like", value))

    return make_shaped(x.shape, element, x.follows)


__all__ = ["chunk", "repeat", "repeat_interleave", "roll", "split", "tile"]

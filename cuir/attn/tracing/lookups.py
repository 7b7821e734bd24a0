"""Reads of tensors at computed places, as functions, and searches in tensors.

The reads are embedding, gather, index_select and take, the searches isin, bucketize and searchsorted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import SupportsIndex

from ...syntax.types import I32
from .captured_rows import MOST, Array, array, fold_in_pairs, make_shaped
from .concatenations import constant
from .element_indices import Index, whole
from .operation_table import function
from .proxy import Place, Proxy, Scalar, TracedValue, compute, lift, without_gradient
from .refusal import refuse


# ---- reads
@function("embedding")
def embedding(
    input: object,
    weight: object,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> TracedValue:
    if max_norm is not None:
        refuse(
            "embedding with max_norm writes to its table, and a kernel only reads what it captures", "renormalise the table before the call"
        )
    if scale_grad_by_freq or sparse:
        refuse("gradients of a captured table are dense sums", "leave out scale_grad_by_freq and sparse")
    table, places = array(weight), array(input)
    if table.ndim != 2:
        refuse(f"an embedding is of a table of rows, found {list(table.shape)}", "table[idx] reads one element of a row")
    padding = None if padding_idx is None else whole(padding_idx, table.shape[0])

    def element(index: Index) -> Scalar:
        row = place(places.element(index[:-1]), table.shape[0])
        if padding is None:
            return table.element((row, index[-1]))
        element_read = lift(table.element((row, index[-1])))
        # the row of padding learns nothing
        return compute("where", compute("eq", row, padding), without_gradient(element_read), element_read)

    return make_shaped([*places.shape, table.shape[1]], element, table.follows or places.follows)


@function("gather")
def gather(input: object, dim: int, index: object, *, sparse_grad: bool = False) -> TracedValue:
    source, places = array(input), array(index)
    if max(source.ndim, 1) != max(places.ndim, 1):
        refuse(
            f"gather of {list(source.shape)} at places of shape {list(places.shape)}",
            "both have as many dims: x[idx], or x.index_select(dim, idx)",
        )
    at = source.axis(dim)
    if any(p > n for d, (n, p) in enumerate(zip(source.shape, places.shape)) if d != at):
        refuse(
            f"gather along dim {at} of {list(source.shape)} at places of shape {list(places.shape)}",
            "other dims are no longer than the source's",
        )
    return _along(source, at, places, places.shape)


@function("take_along_dim")
def take_along_dim(input: object, indices: object, dim: int | None = None) -> TracedValue:
    source, places = array(input), array(indices)
    if dim is None:
        source, places = _flat(source), _flat(places)
        dim = 0
    if source.ndim != places.ndim:
        refuse(
            f"take_along_dim of {list(source.shape)} at places of shape {list(places.shape)}",
            "both have as many dims: idx.unsqueeze(0), or x[idx]",
        )
    at = source.axis(dim)
    shape = []
    for d, (n, p) in enumerate(zip(source.shape, places.shape)):
        if d != at and n != p and 1 not in (n, p):
            refuse(
                f"take_along_dim of {list(source.shape)} at places of shape {list(places.shape)}",
                "other dims are alike, or one of them is 1",
            )
        shape.append(p if d == at or n == 1 else n)
    wide = array(source.expand(*(n if d == at else s for d, (n, s) in enumerate(zip(source.shape, shape)))))
    return _along(wide, at, array(places.expand(*shape)), shape)


@function("index_select")
def index_select(input: object, dim: int, index: object) -> TracedValue:
    source, places = array(input), array(index)
    if places.ndim > 1:
        refuse(f"index_select at places of shape {list(places.shape)}", "a row of places, or one")
    at = source.axis(dim)
    if not source.ndim:
        return lift(source.element(()))
    places = _flat(places)
    shape = [*source.shape[:at], places.shape[0], *source.shape[at + 1 :]]
    return make_shaped(
        shape,
        lambda i: source.element((*i[:at], place(places.element((i[at],)), source.shape[at]), *i[at + 1 :])),
        source.follows or places.follows,
    )


@function("take")
def take(input: object, index: object) -> TracedValue:
    source, places = _flat(array(input)), array(index)
    return make_shaped(
        places.shape, lambda i: source.element((whole(places.element(i), source.shape[0]),)), source.follows or places.follows
    )


def _along(source: Array, at: int, places: Array, shape: Sequence[int]) -> TracedValue:
    """Return the elements whose place along a dim is read from `places`."""

    def element(index: Index) -> Scalar:
        if not source.ndim:
            return source.element(())
        inner = index or (0,)  # a place without dims is of a row
        return source.element((*inner[:at], place(places.element(index), source.shape[at]), *inner[at + 1 :]))

    return make_shaped(shape, element, source.follows or places.follows)


def _flat(x: Array) -> Array:
    return x if x.ndim == 1 else array(x.unsqueeze(0) if not x.ndim else x.reshape(-1))


def place(x: object, size: int) -> Place:
    """Return an index that must be nonnegative: these functions of PyTorch do not count from the end."""
    index = lift(x)
    if index.element != I32:
        refuse(f"places of elements are integers, found {index.element}", ".to(torch.int32) converts")
    if isinstance(index.value, int) and not 0 <= index.value < size:
        refuse(f"element {index.value} of a dim of {size} is read", "here places count from 0: x[-1] is the last one", "U416")
    return constant(index)


@function("one_hot")
def one_hot(input: object, num_classes: object = -1) -> TracedValue:
    places, classes = array(input), whole_number(num_classes)
    if classes < 1:
        refuse("one_hot whose number of classes depends on the data", "give num_classes")
    return make_shaped([*places.shape, classes], lambda i: compute("int", compute("eq", places.element(i[:-1]), i[-1])), places.follows)


def whole_number(x: object) -> int:
    """Return a size, which is part of the program."""
    return x.__index__() if isinstance(x, SupportsIndex) else refuse(f"expected an integer, found {type(x).__name__}")


# ---- searches
@function("isin")
def isin(elements: object, test_elements: object, *, assume_unique: bool = False, invert: bool = False) -> TracedValue:
    candidates = _flat(array(test_elements))
    _few(
        candidates.shape[0],
        candidates.follows,
        "isin",
        "wanted = torch.isin(torch.arange(N), values) before the mod, and wanted[kv_idx] in it",
    )

    def element(x: Scalar) -> Proxy:
        equal = [compute("eq", x, candidates.element((n,))) for n in range(candidates.shape[0])]
        result = _join("or", equal, False)
        return compute("invert", result) if invert else result

    return _each(elements, element)


@function("bucketize")
def bucketize(input: object, boundaries: object, *, out_int32: bool = False, right: object = False) -> TracedValue:
    row = array(boundaries)
    if row.ndim != 1:
        refuse(f"boundaries of shape {list(row.shape)}", "they are a row: torch.searchsorted searches one of several rows")
    return _search(row, input, bool(right), "bucketize")


@function("searchsorted")
def searchsorted(
    sorted_sequence: object,
    input: object,
    *,
    out_int32: bool = False,
    right: object = False,
    side: str | None = None,
    sorter: object = None,
) -> TracedValue:
    if side not in (None, "left", "right") or (side == "left" and right):
        refuse(f"searchsorted with side={side!r} and right={bool(right)}", '"left" or "right"')
    rows = array(sorted_sequence)
    if not rows.ndim:
        refuse("boundaries without dims", "they are a row, in ascending order")
    if sorter is not None:
        rows = array(_along(rows, rows.ndim - 1, array(sorter), rows.shape))
    return _search(rows, input, side == "right" or bool(right), "searchsorted")


def _search(rows: Array, input: object, behind: bool, name: str) -> TracedValue:
    """Count the boundaries below each value, as torch.searchsorted.

    Args:
        behind: count boundaries equal to the value, too.
        name: function to name in errors.
    """
    _few(
        rows.shape[-1],
        rows.follows,
        name,
        "bucket = torch.bucketize(torch.arange(N), boundaries) before the mod, and bucket[kv_idx] in it",
    )
    values = array(input)
    if rows.ndim > 1 and values.shape[:-1] != rows.shape[:-1]:
        refuse(
            f"searchsorted in rows of shape {list(rows.shape)} of values of shape {list(values.shape)}",
            "all dims but the last are alike, or boundaries[b] is one row",
        )

    def element(index: Index) -> Scalar:
        x = values.element(index)
        bounds = [rows.element((*(index[:-1] if rows.ndim > 1 else ()), n)) for n in range(rows.shape[-1])]

        def search(first: int, end: int) -> Scalar:
            """Halve the boundaries as PyTorch does.

            Its results for NaN and unordered boundaries follow from these steps.
            """
            if first == end:
                return first
            middle = first + (end - first) // 2
            beyond = compute("gt" if behind else "ge", bounds[middle], x)
            return compute("where", beyond, search(first, middle), search(middle + 1, end))

        return lift(search(0, len(bounds)))

    return make_shaped(values.shape, element, values.follows)


def _few(count: int, follows: bool, name: str, instead: str) -> None:
    if follows or count > MOST:
        refuse(
            f"`{name}` compares with {'as many elements as the lengths say' if follows else f'{count} elements'} for each pair of query and key",
            f"{MOST} are the most: {instead}",
        )


def _each(x: object, element: Callable[[Scalar], Scalar]) -> TracedValue:
    values = array(x)
    return make_shaped(values.shape, lambda index: element(values.element(index)), values.follows)


def _join(name: str, items: Sequence[Proxy], empty: bool) -> Proxy:
    return fold_in_pairs(items, lambda x, y: compute(name, x, y)) if items else lift(empty)


__all__ = ["embedding", "gather", "searchsorted"]

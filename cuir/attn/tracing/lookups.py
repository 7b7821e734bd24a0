"""Reads of tensors at computed places, as functions, and searches in tensors.

The reads are embedding, gather, index_select and take, the searches isin, bucketize and searchsorted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...syntax.types import I32
from .arrays import MOST, Array, Index, array, fold_in_pairs, function, shaped, whole
from .joins import constant
from .proxy import Proxy, call, lift, without_gradient
from .refusal import refuse


# ---- reads
@function("embedding")
def embedding(
    input: Any,
    weight: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: Any = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
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

    def element(index: Index) -> Any:
        row = place(places.element(index[:-1]), table.shape[0])
        element_read = table.element((row, index[-1]))
        if padding is None:
            return element_read
        element_read = lift(element_read)
        return call(
            "where", (call("eq", (row, padding), {}), without_gradient(element_read), element_read), {}
        )  # the row of padding learns nothing

    return shaped([*places.shape, table.shape[1]], element, table.follows or places.follows)


@function("gather")
def gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
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
def take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
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
    wide = source.expand(*(n if d == at else s for d, (n, s) in enumerate(zip(source.shape, shape))))
    return _along(wide, at, places.expand(*shape), shape)


@function("index_select")
def index_select(input: Any, dim: int, index: Any) -> Any:
    source, places = array(input), array(index)
    if places.ndim > 1:
        refuse(f"index_select at places of shape {list(places.shape)}", "a row of places, or one")
    at = source.axis(dim)
    if not source.ndim:
        return lift(source.element(()))
    places = _flat(places)
    shape = [*source.shape[:at], places.shape[0], *source.shape[at + 1 :]]
    return shaped(
        shape,
        lambda i: source.element((*i[:at], place(places.element((i[at],)), source.shape[at]), *i[at + 1 :])),
        source.follows or places.follows,
    )


@function("take")
def take(input: Any, index: Any) -> Any:
    source, places = _flat(array(input)), array(index)
    return shaped(places.shape, lambda i: source.element((whole(places.element(i), source.shape[0]),)), source.follows or places.follows)


def _along(source: Array, at: int, places: Array, shape: Any) -> Any:
    """Return the elements whose place along a dim is read from `places`."""

    def element(index: Index) -> Any:
        if not source.ndim:
            return source.element(())
        inner = index or (0,)  # a place without dims is of a row
        return source.element((*inner[:at], place(places.element(index), source.shape[at]), *inner[at + 1 :]))

    return shaped(shape, element, source.follows or places.follows)


def _flat(x: Array) -> Array:
    return x if x.ndim == 1 else array(x.unsqueeze(0) if not x.ndim else x.reshape(-1))


def place(x: Any, size: int) -> Any:
    """Return a place for these functions, for which no place counts from the end, as in PyTorch."""
    index = lift(x)
    if index.element != I32:
        refuse(f"places of elements are integers, found {index.element}", ".to(torch.int32) converts")
    if isinstance(index.value, int) and not 0 <= index.value < size:
        refuse(f"element {index.value} of a dim of {size} is read", "here places count from 0: x[-1] is the last one", "U416")
    return constant(index)


@function("one_hot")
def one_hot(input: Any, num_classes: Any = -1) -> Any:
    places, classes = array(input), whole_number(num_classes)
    if classes < 1:
        refuse("one_hot whose number of classes depends on the data", "give num_classes")
    return shaped([*places.shape, classes], lambda i: _int(call("eq", (places.element(i[:-1]), i[-1]), {})), places.follows)


def whole_number(x: Any) -> int:
    """Return a size, which is part of the program."""
    return x.__index__() if hasattr(x, "__index__") else refuse(f"expected an integer, found {type(x).__name__}")


# ---- searches
@function("isin")
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    candidates = _flat(array(test_elements))
    _few(
        candidates.shape[0],
        candidates.follows,
        "isin",
        "wanted = torch.isin(torch.arange(N), values) before the mod, and wanted[kv_idx] in it",
    )

    def element(x: Any) -> Any:
        equal = [call("eq", (x, candidates.element((n,))), {}) for n in range(candidates.shape[0])]
        result = _joined("or", equal, False)
        return call("invert", (result,), {}) if invert else result

    return _each(elements, element)


@function("bucketize")
def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: Any = False) -> Any:
    row = array(boundaries)
    if row.ndim != 1:
        refuse(f"boundaries of shape {list(row.shape)}", "they are a row: torch.searchsorted searches one of several rows")
    return _searched(row, input, bool(right), "bucketize")


@function("searchsorted")
def searchsorted(
    sorted_sequence: Any, input: Any, *, out_int32: bool = False, right: Any = False, side: str | None = None, sorter: Any = None
) -> Any:
    if side not in (None, "left", "right") or (side == "left" and right):
        refuse(f"searchsorted with side={side!r} and right={bool(right)}", '"left" or "right"')
    rows = array(sorted_sequence)
    if not rows.ndim:
        refuse("boundaries without dims", "they are a row, in ascending order")
    if sorter is not None:
        rows = array(_along(rows, rows.ndim - 1, array(sorter), rows.shape))
    return _searched(rows, input, side == "right" or bool(right), "searchsorted")


def _searched(rows: Array, input: Any, behind: bool, name: str) -> Any:
    """Count the boundaries before each value; `behind` counts those that equal it, too."""
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

    def element(index: Index) -> Any:
        x = values.element(index)
        bounds = [rows.element((*(index[:-1] if rows.ndim > 1 else ()), n)) for n in range(rows.shape[-1])]

        def search(first: int, end: int) -> Any:
            """Halve the boundaries as PyTorch does.

            Its results for NaN and unordered boundaries follow from these steps.
            """
            if first == end:
                return first
            middle = first + (end - first) // 2
            beyond = call("gt" if behind else "ge", (bounds[middle], x), {})
            return call("where", (beyond, search(first, middle), search(middle + 1, end)), {})

        return lift(search(0, len(bounds)))

    return shaped(values.shape, element, values.follows)


def _few(count: int, follows: bool, name: str, instead: str) -> None:
    if follows or count > MOST:
        refuse(
            f"`{name}` compares with {'as many elements as the lengths say' if follows else f'{count} elements'} for each pair of query and key",
            f"{MOST} are the most: {instead}",
        )


def _each(x: Any, element: Callable[[Any], Any]) -> Any:
    values = array(x)
    return shaped(values.shape, lambda index: element(values.element(index)), values.follows)


def _joined(name: str, items: list[Any], empty: Any) -> Any:
    return fold_in_pairs(items, lambda x, y: call(name, (x, y), {})) if items else lift(empty)


def _int(x: Any) -> Proxy:
    result = call("int", (x,), {})
    assert isinstance(result, Proxy)
    return result


__all__ = ["embedding", "gather", "searchsorted"]

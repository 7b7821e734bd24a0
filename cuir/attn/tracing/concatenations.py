"""Tensors that a mod joins to a larger one: stack, cat and their relatives.

A computed index selects among the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...syntax.types import I32
from .captured_rows import MOST, Array, array, make_shaped
from .element_indices import Index
from .half_rounding import unify_dtypes
from .operation_table import function
from .proxy import Place, Proxy, Scalar, TracedValue, compute, lift, literal
from .refusal import refuse


@function("stack")
def stack(tensors: object, dim: int = 0) -> TracedValue:
    parts = _parts(tensors, "stack")
    if any(p.shape != parts[0].shape for p in parts):
        refuse(f"stack of {_shapes(parts)}", "its tensors have one shape")
    at = parts[0].axis(dim, 1)
    like = unify_parts(parts)

    def element(index: Index) -> Scalar:
        rest = (*index[:at], *index[at + 1 :])
        return choose(index[at], [lambda part=part: part.element(rest) for part in like])  # type: ignore[misc]

    return make_shaped([*parts[0].shape[:at], len(parts), *parts[0].shape[at:]], element, any(p.follows for p in parts))


@function("cat", "concat", "concatenate")
def cat(tensors: object, dim: int = 0) -> Array:
    parts = _parts(tensors, "cat")
    if any(not p.ndim for p in parts):
        refuse("cat of a tensor without dims", "torch.stack joins numbers to a row")
    parts = [p for p in parts if p.shape != (0,)] or parts[:1]  # PyTorch passes over these, whatever the others are
    at = parts[0].axis(dim)
    if any((*p.shape[:at], *p.shape[at + 1 :]) != (*parts[0].shape[:at], *parts[0].shape[at + 1 :]) for p in parts) or any(
        p.follows for p in parts
    ):
        refuse(f"cat of {_shapes(parts)} along dim {at}", "all other dims are alike, and no shape follows the lengths")
    like = unify_parts(parts)
    ends = [sum(p.shape[at] for p in parts[: n + 1]) for n in range(len(parts))]

    def element(index: Index) -> Scalar:
        place = constant(index[at])
        if isinstance(place, int):
            n = next(n for n, end in enumerate(ends) if place < end)
            return like[n].element((*index[:at], place - ends[n] + like[n].shape[at], *index[at + 1 :]))
        place = from_the_end(place, ends[-1])
        result: Scalar | None = None
        for part, end in reversed(list(zip(like, ends))):
            size = part.shape[at]
            inner = compute("clamp", place - (end - size), 0, size - 1)  # so that no read is outside of its tensor
            mine = part.element((*index[:at], inner, *index[at + 1 :]))
            result = mine if result is None else compute("where", place < end, mine, result)
        assert result is not None
        return result

    return Array(torch.Size([*parts[0].shape[:at], ends[-1], *parts[0].shape[at + 1 :]]), element)


@function("hstack")
def hstack(tensors: object) -> Array:
    parts = [p if p.ndim else array(p.unsqueeze(0)) for p in _parts(tensors, "hstack")]
    return cat(parts, min(1, parts[0].ndim - 1))


@function("vstack", "row_stack")
def vstack(tensors: object) -> Array:
    return cat([p if p.ndim > 1 else p.reshape(1, -1) for p in _parts(tensors, "vstack")], 0)


def _parts(tensors: object, name: str) -> list[Array]:
    if not isinstance(tensors, (list, tuple)) or not tensors:
        refuse(f"`{name}` takes a list or a tuple of tensors, found {type(tensors).__name__}", f"torch.{name}([x, y])")
    return [array(t) for t in tensors]


def _shapes(parts: Sequence[Array]) -> str:
    return " and ".join(str(list(p.shape)) for p in parts)


def unify_parts(parts: Sequence[Array]) -> list[Array]:
    """Return the arrays with elements of their common dtype, as PyTorch promotes them."""
    firsts = [lift(p.element((0,) * p.ndim)) for p in parts if p.numel()]
    if len({(f.element, f.precision) for f in firsts}) <= 1:
        return list(parts)

    def convert(part: Array) -> Callable[[Index], Scalar]:
        return lambda index: unify_dtypes(part.element(index), *firsts)[0]

    return [Array(p.shape, convert(p), p.follows) for p in parts]


# ---- elements at a place that may be computed
def constant(place: Place) -> Place:
    """Return an index known while tracing as an int; other indices are returned unchanged."""
    return int(place.value) if isinstance(place, Proxy) and literal(place) and isinstance(place.value, int) else place


def from_the_end(place: Place, size: int) -> Proxy:
    """Return an index in 0 .. size - 1 for a computed one, of which negative ones count from the end."""
    if (element := lift(place).element) != I32:
        refuse(f"a tensor is indexed by integers, found {element}", ".to(torch.int32) converts")
    return compute("where", place < 0, place + size, place)


def choose(place: Place, elements: Sequence[Callable[[], Scalar]]) -> Scalar:
    """Return the element at an index, by comparisons.

    A computed place is compared with all places but the last.
    """
    place = constant(place)
    if isinstance(place, int):
        return elements[place]()
    if len(elements) > MOST:
        refuse(f"one of {len(elements)} joined tensors is read at a computed place", f"{MOST} are the most: join them before the mod")
    place = from_the_end(place, len(elements))
    result = elements[-1]()
    for n, element in reversed(list(enumerate(elements[:-1]))):
        result = compute("where", place == n, element(), result)
    return result


__all__ = ["cat", "choose", "stack"]

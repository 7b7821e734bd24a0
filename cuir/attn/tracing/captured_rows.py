"""Rows and views of captured tensors within a mod, whose elements are computed on demand.

A view is thus index arithmetic, and a sum is written out. Shapes, views, broadcasting and reductions are here; elements
and operations on them are in proxy.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, SupportsInt, TypeVar, overload

import torch

from ...syntax.types import BOOL, I32
from ...text.source import Span
from .element_indices import Index, along, always, minus, plus, quotient, remainder, times, whole
from .operation_table import FUNCTIONS, function, of_function, of_method
from .proxy import (
    OPERATORS,
    Operands,
    Options,
    Place,
    Proxy,
    Rows,
    Scalar,
    TensorProxy,
    TracedValue,
    apply,
    call,
    compute,
    lift,
    standing,
    to,
)
from .refusal import refuse, user_place

MOST = 256  # elements of a reduction: each is read, and computed, for every pair
Sizes = int | Sequence[int]
Dims = int | Sequence[int] | None
E = TypeVar("E")


class Origin(NamedTuple):
    """The read of a captured tensor whose dims an array has, for messages."""

    place: Span
    shape: torch.Size


@dataclass(eq=False)
class Array(Rows):
    """Elements by one index for each dim.

    `follows` marks a shape that follows the lengths, of which this one is a sample.
    """

    shape: torch.Size
    at: Callable[[Index], Scalar]
    follows: bool = False
    constants: dict[Index, Scalar] = field(default_factory=dict)  # elements at constant places
    origin: Origin | None = None

    def __post_init__(self) -> None:
        self.shape = torch.Size(self.shape)

    def element(self, index: Index) -> Scalar:
        if not all(type(i) is int for i in index):
            return self.at(index)
        if index not in self.constants:
            self.constants[index] = self.at(index)
        return self.constants[index]

    # ---- what Python asks
    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return self.ndim

    @overload
    def size(self) -> torch.Size: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0] if self.shape else refuse("a number has no length")

    def __iter__(self) -> Iterator[TracedValue]:
        self.small(self.shape[:1], "taken apart")
        return iter([self[i] for i in range(self.shape[0])])

    def __bool__(self) -> NoReturn:
        refuse(
            "`if`, `and`, `or` or `not` of a row of a captured tensor",
            "a tensor cannot decide the path of a kernel: use torch.where",
            "X121",
        )

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def T(self) -> TracedValue:  # noqa: N802 - PyTorch's name
        return self.permute(*reversed(range(self.ndim)))

    mT = property(lambda self: self.transpose(-2, -1))  # noqa: N815 - PyTorch's name

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)
        if not hasattr(torch.Tensor, name):
            raise AttributeError(f"'Tensor' object has no attribute '{name}'")
        return lambda *args, **kwargs: call(name, *of_method(name, (self, *args), kwargs))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., object], types: Collection[type], args: Operands = (), kwargs: Options | None = None
    ) -> object:
        return call(*of_function(func, args, kwargs or {}))

    def small(self, dims: Iterable[int], action: str) -> None:
        if self.follows:
            refuse(f"{action}: a row whose length follows the lengths", "give it a length of its own: capture the tensor itself")
        if (n := math.prod(dims)) > MOST:
            refuse(
                f"{n} elements are {action} for each pair of query and key",
                f"{MOST} are the most: compute it before the mod, and index the result in the mod",
            )

    # ---- views
    def make_view(self, shape: Sequence[int], source: Callable[[Index], Index]) -> TracedValue:
        """Return the array of this shape whose element at an index is the one at source(index).

        Without dims it is a number.
        """
        if not shape:
            return self.element(source(()))
        return Array(torch.Size(shape), lambda index: self.element(source(index)), self.follows, origin=self.origin)

    def axis(self, dim: object, more: int = 0) -> int:
        n = self.ndim + more
        if not isinstance(dim, int) or not -max(n, 1) <= dim < max(n, 1):
            refuse(f"dim {dim} of an array of {self.ndim} dims")
        return dim % max(n, 1)

    def __getitem__(self, item: object) -> TracedValue:
        items = [standing(i) for i in (item if isinstance(item, tuple) else (item,))]
        index_count = sum(i is not None and i is not Ellipsis for i in items)
        if index_count > self.ndim:
            refuse(f"{index_count} indices of an array of {self.ndim} dims")
        if Ellipsis not in [i for i in items if i is None or i is Ellipsis]:
            items.append(Ellipsis)
        ellipsis = next(n for n, i in enumerate(items) if i is Ellipsis)
        items[ellipsis : ellipsis + 1] = [slice(None)] * (self.ndim - index_count)
        tensors = [n for n, i in enumerate(items) if isinstance(i, (Proxy, Rows, torch.Tensor))]
        if sum(map(has_dims, items)) > 1 or (any(map(has_dims, items)) and len(tensors) <= tensors[-1] - tensors[0]):
            refuse("a row as an index beside other indices of tensors", "index dim by dim: x[b][:, ids[q_idx]]")
        shape: list[int] = []
        sources: list[Callable[[Index], Place]] = []  # of each dim, from the new index
        dim = 0
        for i in items:
            if i is None:
                shape.append(1)
                continue
            size, at = self.shape[dim], len(shape)
            dim += 1
            if isinstance(i, slice):
                start, stop, step = self.bounds(i, size)
                sources.append(along(at, start, step))
                shape.append(max(0, -(-(stop - start) // step)))
            elif isinstance(i, Rows) or (isinstance(i, torch.Tensor) and i.ndim):
                rows = array(i)
                sources.append(_through(at, rows, size))
                shape += rows.shape
            else:
                sources.append(always(whole(i, size)))
        return self.make_view(shape, lambda index: tuple(s(index) for s in sources))

    def bounds(self, s: slice, size: int) -> tuple[int, int, int]:
        if self.follows and (s.start, s.stop, s.step) != (None, None, None):
            refuse("a slice of a tensor whose shape follows the lengths", "capture the slice")
        for end in (s.start, s.stop, s.step):
            if end is not None and not isinstance(end, int) and not (isinstance(end, Proxy) and end.value is not None):
                refuse("a slice whose ends are only known when the kernel runs", "an index reads one element; a row has a known length")
        constant_slice = slice(*(None if end is None else int(end) for end in (s.start, s.stop, s.step)))
        if constant_slice.step is not None and constant_slice.step < 1:
            refuse("a slice with a step below 1", ".flip(0) turns a dim around")
        return constant_slice.indices(size)

    def unsqueeze(self, dim: int) -> TracedValue:
        at = self.axis(dim, 1)
        return self.make_view([*self.shape[:at], 1, *self.shape[at:]], lambda index: (*index[:at], *index[at + 1 :]))

    def squeeze(self, *dims: Sizes) -> TracedValue:
        dims_to_drop = _sizes(dims)
        dropped = {self.axis(d) for d in dims_to_drop} if dims_to_drop else set(range(self.ndim))
        remaining = [d for d in range(self.ndim) if d not in dropped or self.shape[d] != 1]

        def source(index: Index) -> Index:
            places = dict(zip(remaining, index))
            return tuple(places.get(d, 0) for d in range(self.ndim))

        return self.make_view([self.shape[d] for d in remaining], source)

    def permute(self, *dims: Sizes) -> TracedValue:
        order = [self.axis(d) for d in _sizes(dims)]
        if sorted(order) != list(range(self.ndim)):
            refuse(f"permute({', '.join(map(str, order))}) of an array of {self.ndim} dims")
        return self.make_view([self.shape[d] for d in order], lambda index: tuple(index[order.index(d)] for d in range(self.ndim)))

    def transpose(self, dim0: int, dim1: int) -> TracedValue:
        order = list(range(self.ndim))
        a, b = self.axis(dim0), self.axis(dim1)
        if order:
            order[a], order[b] = order[b], order[a]
        return self.permute(*order) if order else self

    swapaxes = swapdims = transpose

    def t(self) -> TracedValue:
        return self.transpose(0, 1) if self.ndim == 2 else self

    def expand(self, *sizes: Sizes) -> TracedValue:
        target = _sizes(sizes)
        new = len(target) - self.ndim
        if new < 0:
            refuse(f"expand to {len(target)} dims of an array of {self.ndim}")
        shape = [n if n != -1 else self.shape[d - new] for d, n in enumerate(target)]
        if any(old not in (1, n) for old, n in zip(self.shape, shape[new:])):
            refuse(f"expand of {list(self.shape)} to {shape}")
        return self.make_view(shape, lambda index: tuple(0 if old == 1 else i for old, i in zip(self.shape, index[new:])))

    def expand_as(self, other: object) -> TracedValue:
        return self.expand(*array(other).shape)

    broadcast_to = expand

    def reshape(self, *sizes: Sizes) -> TracedValue:
        target = _sizes(sizes)
        rest = math.prod(n for n in target if n != -1)
        shape = [self.numel() // max(1, rest) if n == -1 else n for n in target]
        if self.follows or math.prod(shape) != self.numel() or target.count(-1) > 1:
            refuse(f"a view of {list(self.shape)} as {target}", "the sizes have as many elements")

        def source(index: Index) -> Index:
            place: Place = 0
            for i, n in zip(index, shape):
                place = plus(times(place, n), i)
            indices: list[Place] = []
            for d, n in reversed(list(enumerate(self.shape))):
                indices.append(place if d == 0 else remainder(place, n))
                place = quotient(place, n)
            return tuple(reversed(indices))

        return self.make_view(shape, source)

    view = reshape

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> TracedValue:
        first, last = self.axis(start_dim), self.axis(end_dim)
        return self.reshape(*self.shape[:first], math.prod(self.shape[first : last + 1]), *self.shape[last + 1 :])

    def unflatten(self, dim: int, sizes: Sequence[int]) -> TracedValue:
        at = self.axis(dim)
        return self.reshape(*self.shape[:at], *sizes, *self.shape[at + 1 :])

    def select(self, dim: int, index: object) -> TracedValue:
        return self[(slice(None),) * self.axis(dim) + (index,)]

    def narrow(self, dim: int, start: int, length: int) -> TracedValue:
        return self[(slice(None),) * self.axis(dim) + (slice(start, start + length),)]

    def flip(self, *dims: Sizes) -> TracedValue:
        turned = {self.axis(d) for d in _sizes(dims)}
        return self.make_view(
            self.shape, lambda index: tuple(minus(self.shape[d] - 1, i) if d in turned else i for d, i in enumerate(index))
        )

    def unbind(self, dim: int = 0) -> tuple[TracedValue, ...]:
        self.small([self.shape[self.axis(dim)]], "taken apart")
        return tuple(self.select(dim, i) for i in range(self.shape[self.axis(dim)]))

    # ---- reductions
    def reduce_dims(
        self,
        dim: Dims,
        keepdim: bool,
        action: str,
        fold: Callable[[Sequence[E]], Scalar],
        each: Callable[[Scalar], E],
        empty: Scalar | None,
    ) -> TracedValue:
        """Fold the elements along dims (all, if None)."""
        dims = sorted({self.axis(d) for d in (range(self.ndim) if dim is None else _sizes((dim,)))})
        self.small([self.shape[d] for d in dims], action)
        remaining = [d for d in range(self.ndim) if d not in dims]
        ranges = [range(self.shape[d]) for d in dims]

        def fold_at(index: Index) -> Scalar:
            places = dict(zip(range(self.ndim) if keepdim else remaining, index))
            all_places = ({**places, **dict(zip(dims, inner))} for inner in itertools.product(*ranges))
            items = [each(self.element(tuple(at[d] for d in range(self.ndim)))) for at in all_places]
            return fold(items) if items else lift(empty) if empty is not None else refuse(f"no elements are {action}")

        shape = [1 if d in dims else n for d, n in enumerate(self.shape)] if keepdim else [self.shape[d] for d in remaining]
        return make_shaped(shape, fold_at, self.follows)

    def sum(self, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TracedValue:
        return self.reduce_dims(
            dim, keepdim, "summed", _in_pairs(_add), number if dtype is None else lambda x: compute("to", number(x), dtype), 0
        )

    def mean(self, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TracedValue:
        total = self.sum(dim, keepdim)
        count = self.numel() // max(1, total.numel() if isinstance(total, Array) else 1)
        return apply("truediv", total, count)

    def prod(self, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TracedValue:
        return self.reduce_dims(dim, keepdim, "multiplied", _in_pairs(_multiply), number, 1)

    def any(self, dim: Dims = None, keepdim: bool = False) -> TracedValue:
        return self.reduce_dims(dim, keepdim, "looked at", _in_pairs(lambda x, y: compute("or", x, y)), _truth, False)

    def all(self, dim: Dims = None, keepdim: bool = False) -> TracedValue:
        return self.reduce_dims(dim, keepdim, "looked at", _in_pairs(lambda x, y: compute("and", x, y)), _truth, True)

    def count_nonzero(self, dim: Dims = None) -> TracedValue:
        return array(elementwise("bool", (self,), {})).sum(dim)

    def equal(self, other: object) -> TracedValue:
        second = array(other)
        return array(elementwise("eq", (self, second), {})).all() if self.shape == second.shape else lift(False)

    def dot(self, other: object) -> TracedValue:
        second = array(other)
        if self.ndim != 1 or self.shape != second.shape:
            refuse(f"a dot product is of two rows of one length, found {list(self.shape)} and {list(second.shape)}")
        return array(elementwise("mul", (self, second), {})).sum()

    vdot = inner = dot

    def matmul(self, other: object) -> TracedValue:
        a, b = self, array(other)
        if not 1 <= a.ndim <= 2 or not 1 <= b.ndim <= 2 or a.shape[-1] != b.shape[0]:
            refuse(f"a product of {list(a.shape)} and {list(b.shape)}", "rows and matrices, whose inner dims agree")
        rows, columns = a.shape[:-1], b.shape[1:]

        def product(index: Index) -> Scalar:
            row = array(a[index[: len(rows)]]) if rows else a
            column = b[(slice(None), *index[len(rows) :])] if columns else b
            return lift(row.dot(column))

        return Array(torch.Size([*rows, *columns]), product) if rows or columns else a.dot(b)

    mm = mv = matmul


def make_shaped(shape: Sequence[int], at: Callable[[Index], Scalar], follows: bool = False) -> Array | Scalar:
    """Make an array of this shape with elements `at(index)`; a number if there are no dims."""
    return Array(torch.Size(shape), at, follows) if len(shape) else at(())


def fold_in_pairs(items: Sequence[E], join: Callable[[E, E], E]) -> E:
    """Join one or more items two by two, so that the expression is not deep."""
    while len(items) > 1:
        items = [join(*items[i : i + 2]) if i + 1 < len(items) else items[i] for i in range(0, len(items), 2)]
    return items[0]


def _in_pairs(join: Callable[[Proxy, Proxy], Proxy]) -> Callable[[Sequence[Proxy]], Proxy]:
    return lambda items: fold_in_pairs(items, join)


def _through(at: int, rows: Array, size: int) -> Callable[[Index], Place]:
    return lambda index: whole(rows.element(index[at : at + rows.ndim]), size)


def _multiply(x: Proxy, y: Proxy) -> Proxy:
    return compute("mul", x, y)


def _add(x: Proxy, y: Proxy) -> Proxy:
    return compute("add", x, y)


def number(x: object) -> Proxy:
    p = lift(x)
    return to(p, I32) if p.element == BOOL else p


def _truth(x: object) -> Proxy:
    return to(lift(x), BOOL)


def _sizes(sizes: Sequence[object]) -> list[int]:
    """Return sizes or dims that are given one by one or in a sequence."""
    first = sizes[0] if len(sizes) == 1 else None
    return [_size(n) for n in (first if isinstance(first, (tuple, list)) else sizes)]


def _size(n: object) -> int:
    return int(n) if isinstance(n, SupportsInt) else refuse(f"sizes and dims are integers, found {type(n).__name__}")


CONSTANT: ContextVar[Callable[[torch.Tensor], TensorProxy]] = ContextVar("CONSTANT")  # of the trace that runs


def _read_constant(x: torch.Tensor, index: Index) -> Scalar:
    """Read a tensor that the mod makes at a computed place, as a captured tensor."""
    if (capture := CONSTANT.get(None)) is None:
        refuse("a tensor that the mod makes cannot be read by an index", "make it before the mod, which may close over it")
    return lift(capture(x)[index])


def array(x: object) -> Array:
    """Return any value of a mod as an array; a number becomes one without dims."""
    x = standing(x)
    if isinstance(x, Array):
        return x
    if isinstance(x, TensorProxy):
        captured = x
        origin = None if x.place is None else Origin(x.place, x.size())
        return Array(x.size(), lambda index: lift(captured[index]), x.follows, origin=origin)
    if isinstance(x, torch.Tensor) and x.ndim:
        values = x

        def read(index: Index) -> Scalar:
            return values[index].item() if all(type(i) is int for i in index) else _read_constant(values, index)

        return Array(x.shape, read)
    return Array(torch.Size([]), lambda index: lift(x))


def elementwise(name: str, args: Operands, kwargs: Options) -> Array | Scalar:
    """Apply an operation to elements of arrays that broadcast."""
    arrays = {i: array(a) for i, a in enumerate(args) if has_dims(a)}
    named = {n: array(a) for n, a in kwargs.items() if has_dims(a)}
    shapes = [a.shape for a in (*arrays.values(), *named.values())]
    try:
        shape = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        refuse(f"`{name}` of arrays of {' and '.join(str(list(s)) for s in shapes)}", "dims are alike, or one of them is 1")

    def element(index: Index) -> Scalar:
        operands_at_index = [arrays[i].element(_broadcast(index, arrays[i].shape)) if i in arrays else a for i, a in enumerate(args)]
        named_at_index = {n: named[n].element(_broadcast(index, named[n].shape)) if n in named else a for n, a in kwargs.items()}
        return lift(call(name, tuple(operands_at_index), named_at_index))

    operands = (*arrays.values(), *named.values())
    origin = next((a.origin for a in operands if a.origin is not None), None)
    return Array(shape, element, any(a.follows for a in operands), origin=origin) if shape else element(())


def _broadcast(index: Index, shape: torch.Size) -> Index:
    return tuple(0 if n == 1 else i for i, n in zip(index[len(index) - len(shape) :], shape))


def has_dims(x: object) -> bool:
    return isinstance(x, Rows) or (isinstance(x, torch.Tensor) and x.ndim > 0)


_NOT_TORCH = ("at", "element", "small", "make_view", "axis", "bounds", "reduce_dims", "constants", "follows", "origin")


def _member(name: str) -> Callable[..., object]:
    def apply_member(x: object, *args: object, **kwargs: object) -> object:
        member: object = getattr(array(x), name)
        return member(*args, **kwargs) if callable(member) else member

    return apply_member


@function("getitem")
def _getitem(x: object, item: object) -> TracedValue:
    result = array(x)[item]
    if isinstance(result, Array) and isinstance(x, TensorProxy) and (place := user_place()) is not None:
        result.origin = Origin(place, result.shape)
    return result


FUNCTIONS.update({n: _member(n) for n in vars(Array) if not n.startswith("_") and n not in _NOT_TORCH})


def _operator(name: str) -> Callable[..., object]:
    return lambda self, *operands: call(name, (self, *operands), {})


for _name in OPERATORS:  # Python's own == would compare the objects
    setattr(Array, _name, _operator(_name))
Array.__hash__ = object.__hash__  # type: ignore[method-assign]

__all__ = ["CONSTANT", "MOST", "Array", "array", "elementwise", "fold_in_pairs", "has_dims", "make_shaped", "number"]

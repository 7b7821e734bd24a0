"""Proxies that a mod is called with: each operation on one gives CuIR.

They follow torch.fx.Proxy, which has no dtypes, no columns of the source and no values of captured numbers. PyTorch's
promotion rules and the table of operations are here, the capturing of values in trace.py.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn, overload

import numpy as np
import torch

from ...ops import build_calls as build
from ...ops.meaning import convert, shortest
from ...syntax.nodes import NOWHERE, Expr, Literal, Name, Subscript
from ...syntax.types import BF16, BOOL, F16, F32, I32, DType
from ...text.diagnostics import CuirError
from ...text.source import Span
from .concrete_answers import KINDS, TRACE, Answers, Constant, Tracing
from .derivative_marks import is_detached, mark_detached, remove_marks
from .mod_evaluator import Value, evaluate
from .number_literals import literal_of
from .operation_table import of_function, of_method
from .refusal import refuse, user_place

Operands = tuple[object, ...]  # what a mod gives an operation: `lift` and `array` refuse all but numbers and tensors
Options = Mapping[str, object]
OUTLIVED = (
    "what the mod computed in an earlier call lies where it keeps things, and a mod is called for tracing alone",
    "compute it before the mod, or in each call",
    "X122",
)
ELEMENTWISE = ("to", "type", "float", "double", "half", "bfloat16", "int", "long", "bool", "contiguous", "clone", "detach", "cuda", "cpu")
_RANK = {BOOL: 0, I32: 1, F32: 2}
_DTYPES = {BOOL: torch.bool, I32: torch.int32, F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}


@dataclass(eq=False)
class Proxy(Answers):
    """A scalar of a mod: its CuIR and dtype.

    `varies` says that it varies within a block (depends on q or k); it has a value if only captured numbers made it.
    `pins` tells the tracer that control flow used a captured number, which makes its value part of the program.
    """

    expr: Expr
    element: DType
    varies: bool
    value: int | float | bool | None = None
    numbers: frozenset[str] = frozenset()
    pins: set[str] | None = None
    number: bool = False  # it stands for a Python number, not for a tensor
    # captured numbers in float arithmetic that Python does in double and the kernel in f32
    doubles: frozenset[str] = frozenset()
    size: int = 1  # of the expression, written out
    precision: DType | None = None  # f16 or bf16, to which it was rounded
    trace: Tracing | None = field(default_factory=TRACE.get)  # to which it belongs

    if TYPE_CHECKING:  # set below, with all other operators

        def __add__(self, other: Place) -> Proxy: ...
        def __radd__(self, other: Place) -> Proxy: ...
        def __sub__(self, other: Place) -> Proxy: ...
        def __rsub__(self, other: Place) -> Proxy: ...
        def __mul__(self, other: Place) -> Proxy: ...
        def __floordiv__(self, other: Place) -> Proxy: ...
        def __mod__(self, other: Place) -> Proxy: ...
        def __lt__(self, other: Place) -> Proxy: ...

    # ---- what Python asks of a value
    def require_value(self, purpose: str) -> int | float | bool:
        self.of_this_trace()
        if self.value is None:
            refuse(
                f"{purpose} needs a value, found one that is only known when the kernel runs",
                "use torch functions and & | ~; a choice is torch.where",
                "X121",
            )
        assert self.pins is not None
        self.pins |= self.numbers
        return self.value

    def of_this_trace(self) -> None:
        """Refuse a proxy that a mod kept from an earlier trace: it has other parameters."""
        if self.trace is not (running := TRACE.get()) and running is not None:
            refuse(*OUTLIVED)

    def __bool__(self) -> bool:
        return bool(self.require_value("`if`, `and`, `or`, `not`, or a chained comparison"))

    def __int__(self) -> int:
        return int(self.require_value("int()"))

    def __index__(self) -> int:
        value = self.require_value("an index or a count")
        return value if isinstance(value, int) else refuse(f"an index must be an integer, found {value}")

    def __float__(self) -> float:
        return float(self.require_value("a function of the math module, or float(),"))

    def __iter__(self) -> NoReturn:
        as_constants(self)
        refuse("a score or an index is one number: it cannot be iterated over")

    def __len__(self) -> NoReturn:
        as_constants(self)
        # not recorded: PyTorch asks an index for its length, and goes on without one
        raise CuirError.of(
            "X120", "a score or an index is one number: it has no length", user_place(), "torch.stack([x, y]) joins numbers to a row"
        )

    def __repr__(self) -> str:
        return repr(self.constant("text")) if self.number and TRACE.get() is not None else f"Proxy({self.element})"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in the kernel."""
        as_constants(self)
        return _DTYPES[self.precision or self.element]

    @property
    def ndim(self) -> int:
        as_constants(self)
        return 0

    @property
    def shape(self) -> torch.Size:
        as_constants(self)
        return torch.Size([])

    @property
    def device(self) -> torch.device:
        as_constants(self)
        return torch.device("cpu")

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)
        as_constants(self)
        if (member := getattr(torch.Tensor, name, None)) is None:
            raise AttributeError(f"'Tensor' object has no attribute '{name}'")
        if not callable(member):
            refuse(f"`{name}` cannot become part of a kernel", "a score or an index is one number, without dims")
        if name.endswith("_"):
            refuse(f"`{name}` changes its argument in place, and a kernel's values do not change", f"use the value of .{name.strip('_')}()")
        return lambda *args, **kwargs: call(name, *of_method(name, (self, *args), kwargs))

    def __getitem__(self, item: object) -> object:
        as_constants(self)
        if all(i is None or i is Ellipsis for i in (item if isinstance(item, tuple) else (item,))):
            return call("getitem", (self, item), {})
        refuse("a score or an index is one number: it has no elements")

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., object], types: Collection[type], args: Operands = (), kwargs: Options | None = None
    ) -> object:
        return call(*of_function(func, args, kwargs or {}))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
        return of_numpy(ufunc, method, inputs, options)


def of_numpy(ufunc: np.ufunc, method: str, inputs: Operands, options: Options) -> object:
    """Apply a function of NumPy, or an operator of one of its numbers.

    Of captured numbers alone it is NumPy's, with constants.
    """
    numbers = [x for x in inputs if isinstance(x, Proxy)]
    if all(x.number and x.value is not None for x in numbers) and not any(isinstance(x, Rows) for x in inputs):
        return getattr(ufunc, method)(*(x.constant("a function of NumPy") if isinstance(x, Proxy) else x for x in inputs), **options)
    if method != "__call__" or options:
        refuse(f"np.{ufunc.__name__}.{method} cannot become part of a kernel", "use torch functions")
    return call(ufunc.__name__, inputs, {})


def as_constants(*proxies: Proxy) -> None:
    """Make captured numbers constants of the next trace, where Python needs their values."""
    for p in proxies:
        if p.number and p.value is not None:
            p.constant("a constant")


def exactly(*proxies: Proxy) -> None:
    """Restart the trace with these values computed by Python, before they decide something.

    Python computes in double precision what the trace has in float32.
    """
    for p in proxies:
        if p.doubles and TRACE.get() is not None:
            assert p.pins is not None
            p.pins |= p.doubles
            raise Constant


def _operator(name: str, swap: bool = False) -> Callable[..., object]:
    if swap:
        return lambda self, operand: _operate(name, (operand, self))
    return lambda self, *operands: _operate(name, (self, *operands))


def _operate(name: str, args: Operands) -> object:
    """Apply an operator of Python.

    Of numbers it gives a number, and operators that no kernel has are applied to constants.
    """
    numbers = [x for x in args if isinstance(x, Proxy)]
    if not all(x.number for x in numbers) or any(isinstance(x, (torch.Tensor, Rows)) for x in args):
        return call(name, args, {})
    if name not in _COMPARISONS and any(x.element == BOOL for x in numbers):
        as_constants(*numbers)  # True + True is 2
    try:
        if name == "pow" and all(isinstance(x, int) for x in args) and (isinstance(args[1], Proxy) or args[1] not in PRODUCTS):
            refuse("a power of integers is an integer")
        result = call(name, args, {})
    except CuirError:
        if all(x.value is not None for x in numbers):
            as_constants(*numbers)
        raise
    return Proxy(**{**vars(result), "number": True})


_TWO = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul")
_OPERATOR_NAMES = ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge")
for _name in _TWO:
    setattr(Proxy, f"__r{_name}__", _operator(_name, swap=True))
for _name in (*_TWO, *_OPERATOR_NAMES):
    setattr(Proxy, f"__{_name}__", _operator(_name))
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor")
# with what each computes
OPERATORS = {f"__{p}{n}__": f"__{n}__" for p, names in (("", _TWO + _OPERATOR_NAMES), ("r", _TWO)) for n in names}


class Rows:
    """A value with dims: a captured tensor, a row of it, or a view (captured_rows.py)."""

    shape: torch.Size

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
        return of_numpy(ufunc, method, inputs, options)


@dataclass(eq=False)
class TensorProxy(Rows):
    """A captured tensor; indexing it with one index for each dim is an element read or a gather."""

    name: str  # of its parameter
    user_name: str  # its name in the mod
    shape: torch.Size
    element: DType
    boolean: bool
    leading_indices: tuple[int | Proxy, ...] = ()
    into: DType | None = None  # dtype to which elements are converted
    follows: bool = False  # its shape follows the lengths: this one is a sample
    kind: type = torch.Tensor  # the tensor's class
    constant: bool = False  # detached: its elements have no gradient
    dtype: torch.dtype = torch.float32  # the tensor's own
    place: Span | None = None  # of the read that gives this row, in the user's file

    def __getitem__(self, item: object) -> TracedValue:
        items = tuple(_plain_index(standing(i)) for i in (item if isinstance(item, tuple) else (item,)))
        if any(i is None or i is Ellipsis or isinstance(i, (slice, Rows)) or (isinstance(i, torch.Tensor) and i.ndim) for i in items):
            return as_traced(call("getitem", (self, items), {}))
        indices = (*self.leading_indices, *map(_element_index, items))
        if len(indices) < len(self.shape):
            return replace(self, leading_indices=indices, place=user_place())
        if len(indices) > len(self.shape):
            refuse(f"`{self.user_name}` has {len(self.shape)} dims, found {len(indices)} indices")
        places = [lift(self._from_the_end(int(i), d) if _negative(i) else i) for d, i in enumerate(indices)]
        for p in places:
            if p.element != I32:
                refuse(f"a captured tensor is indexed by integers, found {p.element}", ".to(torch.int32) converts")
        read = Subscript(Name(self.name), tuple(remove_marks(p.expr) for p in places), span=user_place() or NOWHERE)
        stored = Proxy(read, self.element, any(p.varies for p in places))
        element = compute("ne", stored, 0) if self.boolean else without_gradient(stored) if self.constant else stored
        return element if self.into is None else to(element, self.into)

    def __setitem__(self, item: object, value: object) -> NoReturn:
        refuse(
            f"a mod writes to the captured tensor `{self.user_name}`", "a kernel only reads what it captures: write to it before the call"
        )

    def _from_the_end(self, index: int, dim: int) -> int:
        """Return the index that a negative constant means in PyTorch."""
        size = self.shape[dim]
        if self.follows:
            refuse(
                f"element {index} of `{self.user_name}`, whose shape follows the lengths, is read", "count from its first element", "U416"
            )
        if index < -size:
            along = f" along dim {dim}" if len(self.shape) > 1 else ""
            refuse(f"`{self.user_name}` has {size} elements{along}, and its element {index} is read", "-1 is the last one", "U416")
        return index + size

    def __len__(self) -> int:
        return self.shape[len(self.leading_indices)]

    def __bool__(self) -> NoReturn:
        refuse(
            f"`if`, `and`, `or` or `not` of the captured tensor `{self.user_name}`",
            "a tensor cannot decide the path of a kernel: use a number, or torch.where",
            "X121",
        )

    def __iter__(self) -> Iterator[object]:
        parts = call("unbind", (self,), {})
        assert isinstance(parts, tuple)
        return iter(parts)

    @property
    def ndim(self) -> int:
        return len(self.shape) - len(self.leading_indices)

    def dim(self) -> int:
        return self.ndim

    @overload
    def size(self) -> torch.Size: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> torch.Size | int:
        remaining = self.shape[len(self.leading_indices) :]
        return remaining if dim is None else remaining[dim]

    def numel(self) -> int:
        return self.size().numel()

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "detach":
            return lambda: replace(self, constant=True)
        if name in ELEMENTWISE:  # of an element, when it is read: its dtype alone can change
            return lambda *args, **kwargs: self._convert(name, args, kwargs)
        if (member := getattr(torch.Tensor, name, None)) is None:
            raise AttributeError(f"'Tensor' object has no attribute '{name}'")
        if name.endswith("_"):
            refuse(
                f"`{name}` writes to a captured tensor, and a kernel only reads what it captures",
                f"use the value of .{name.strip('_')}(), or write to the tensor before the call",
            )
        return (
            (lambda *args, **kwargs: call(name, *of_method(name, (self, *args), kwargs))) if callable(member) else call(name, (self,), {})
        )

    def _convert(self, name: str, args: Operands, kwargs: Options) -> object:
        """Return the tensor with elements of another dtype.

        Elements of half precision are rounded, as those of a view are.
        """
        element = lift(call(name, (self._element(), *args), kwargs))
        return replace(self, into=element.element) if element.precision is None else call(name, (self, *args), kwargs)

    def _element(self) -> Proxy:
        return Proxy(Name(self.name), self.into or (BOOL if self.boolean else self.element), True)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., object], types: Collection[type], args: Operands = (), kwargs: Options | None = None
    ) -> object:
        return call(*of_function(func, args, kwargs or {}))


def _plain_index(index: object) -> object:
    """Return an integer of NumPy, or of a tensor that the mod made, as one of Python."""
    if isinstance(index, torch.Tensor) and index.ndim == 0 and not index.dtype.is_floating_point and index.dtype != torch.bool:
        return int(index)
    proxy = isinstance(index, (Proxy, TensorProxy, torch.Tensor, int))
    return operator.index(index) if not proxy and hasattr(index, "__index__") else index


def _element_index(index: object) -> int | Proxy:
    if not isinstance(index, (int, Proxy)) or isinstance(index, bool):
        refuse(f"a captured tensor is indexed by integers, found {type(index).__name__}", "one index for each dim: doc[b, q_idx]")
    return index


def _negative(index: object) -> bool:
    """Return True for a constant or a captured number below 0, which counts from the end."""
    value = index.value if isinstance(index, Proxy) else index
    return isinstance(value, int) and value < 0


def _of_rows(name: str) -> Callable[..., object]:
    return lambda self, *operands: call(name, (self, *operands), {})


for _name in OPERATORS:  # Python's own == would compare the proxies
    setattr(TensorProxy, _name, _of_rows(_name))
TensorProxy.__hash__ = object.__hash__  # type: ignore[method-assign]


# ---- values
Scalar = Proxy | int | float  # a number of a mod
Place = Proxy | int | torch.Tensor  # an index of one element; a tensor has no dims
TracedValue = Scalar | Rows

STANDING: ContextVar[Callable[[torch.Tensor], object]] = ContextVar("STANDING")  # of the trace that runs


def standing(x: object) -> object:
    """Return the stand-in of a tensor from outside the mod; other values are returned unchanged."""
    return STANDING.get(_return_tensor)(x) if isinstance(x, torch.Tensor) else x


def _return_tensor(x: torch.Tensor) -> object:
    return x


def lift(x: object) -> Proxy:
    """Return the proxy of a number or of a tensor with one element."""
    x = standing(x)
    if isinstance(x, Proxy):
        x.of_this_trace()
        return x
    if isinstance(x, TensorProxy):
        refuse(f"`{x.user_name}` is indexed by {len(x.leading_indices)} of {len(x.shape)} indices", "one index for each dim")
    if isinstance(x, Rows):
        refuse("a row of a captured tensor stands where one number is needed", "index it, or take its sum")
    if isinstance(x, torch.Tensor) and x.ndim == 0:
        x = x.item()
    if hasattr(x, "item") and not isinstance(x, torch.Tensor):
        x = x.item()
    if isinstance(x, bool):
        return Proxy(Literal(x), BOOL, False, x, frozenset(), set())
    if isinstance(x, int):
        x = int.__int__(x)  # of a class of the user's, such as an enumeration, whose text is another one
        return Proxy(literal_of(x), I32, False, x, frozenset(), set())
    if isinstance(x, float):
        x = float.__float__(x)
        return Proxy(literal_of(x), F32, False, x, frozenset(), set())
    refuse(f"expected a number, found {type(x).__name__}")


def without_gradient(p: Proxy) -> Proxy:
    """Return the same number, detached from its inputs' gradients."""
    return replace(p, expr=mark_detached(p.expr)) if p.element == F32 and p.value is None and not is_detached(p.expr) else p


def literal(p: Proxy) -> bool:
    return p.value is not None and not p.numbers


def to(p: Proxy, dtype: DType) -> Proxy:
    """Return a conversion, which PyTorch does silently and CuIR spells out."""
    if p.element == dtype:
        return p
    if literal(p):
        return lift(convert(p.value, dtype))
    if dtype != F32:
        exactly(p)
    value = None if p.value is None else KINDS[dtype](p.value)
    return Proxy(build.cast(p.expr, dtype), dtype, p.varies, value, p.numbers, p.pins, doubles=p.doubles, size=p.size + 1)


def promote(*xs: object) -> list[Proxy]:
    """Return operands in their common dtype: bool < i32 < f32, as PyTorch's categories."""
    ps = [lift(x) for x in xs]
    top = max(ps, key=lambda p: _RANK[p.element]).element
    return [to(p, top) for p in ps]


def make_proxy(expr: Expr, dtype: DType, *parts: Proxy, value: Callable[..., int | float] | None = None) -> Proxy:
    """Return the proxy of an expression of its parts.

    `value` computes Python's result from captured numbers, for control flow.
    """
    numbers = frozenset().union(*(p.numbers for p in parts))
    all_known = value is not None and all(p.value is not None for p in parts)
    computed = None
    if all_known and (numbers or dtype == I32):
        try:
            computed = value(*(p.value for p in parts))  # type: ignore[misc]
        except (ArithmeticError, ValueError) as error:
            refuse(f"{error}")
    if all_known and not numbers:  # an expression of literals; integers beyond 32 bits are refused
        return lift(computed if dtype == I32 else _shorten(evaluate(expr, {})))
    if computed is not None and dtype == I32 and not -(2**31) <= computed < 2**31:
        as_constants(*parts)  # Python's integers have no end
    doubles = frozenset().union(*(p.doubles for p in parts), numbers if all_known and F32 in (dtype, *(p.element for p in parts)) else ())
    pins = next((p.pins for p in parts if p.numbers or p.doubles), set())
    return Proxy(
        expr,
        dtype,
        any(p.varies for p in parts),
        computed,
        numbers if computed is not None else frozenset(),
        pins,
        doubles=doubles,
        size=1 + sum(p.size for p in parts),
    )


def _shorten(v: Value) -> Value:
    return shortest(v) if isinstance(v, float) and math.isfinite(v) else v


# ---- operations
Handler = Callable[..., Proxy]
PRODUCTS = (1, 2, 3, 4)  # exponents whose powers are written as products


def call(name: str, args: Operands, kwargs: Options) -> object:
    """Apply an operation of PyTorch or Python by its name to proxies, in the trace that runs."""
    if (running := TRACE.get()) is None:
        refuse(*OUTLIVED)
    return running.apply(name, args, kwargs)


def compute(name: str, *operands: object) -> Proxy:
    """Apply an operation to numbers."""
    return lift(call(name, operands, {}))


def apply(name: str, *operands: object) -> TracedValue:
    """Apply an operation to numbers, or to tensors element by element."""
    return as_traced(call(name, operands, {}))


def as_traced(x: object) -> TracedValue:
    """Return the result of an operation that gives a number or a tensor."""
    assert isinstance(x, (Proxy, Rows, int, float)), type(x)
    return x

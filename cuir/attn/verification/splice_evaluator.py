"""Evaluation of splice points over NumPy arrays, for the enumeration of contracts.

Pure expressions only: memory and synchronisation belong to the interpreter. The meaning of operations comes from the
table of primitives.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...checking.const_defaults import with_defaults
from ...ops.base import Op
from ...ops.expressions import get_called_op, operator, traits
from ...ops.meaning import convert
from ...syntax.nodes import (
    Assign,
    AugAssign,
    Binary,
    Call,
    Expr,
    For,
    Func,
    GlobalType,
    If,
    IfExp,
    Kernel,
    Literal,
    Name,
    Program,
    Return,
    Stmt,
    Subscript,
    Tuple,
    Unary,
)
from ...syntax.printer import show
from ...syntax.types import DTYPES
from ...text.diagnostics import CuirError

Value = Any  # a Python number, a NumPy array (i32 as int64, f32 as float32, bool), or a tuple of these
# without D
_SHAPES = {"Q": ("B", "H", "M"), "K": ("B", "HK", "N"), "V": ("B", "HK", "N"), "O": ("B", "H", "M"), "LSE": ("B", "H", "M")}
_ERRORS: dict[str, Any] = {"divide": "ignore", "over": "ignore", "invalid": "ignore", "under": "ignore"}


class _Returned(Exception):
    def __init__(self, value: Value):
        self.value = value


@dataclass
class Evaluator:
    """Evaluator of the @funcs of a program.

    names: values of dims, consts, scalars (numbers) and tensors (arrays) of the kernel. Arguments and results are
    numbers or broadcasting arrays: i32 as int64 (within 32 bits), f32 as float32. Reads outside of a tensor give 0, as
    a gather does. Raises CuirError X140 for what is not pure arithmetic.
    """

    program: Program
    names: Mapping[str, Value]
    rank: int = 0  # the value of cta_rank()
    funcs: dict[str, Func] = field(init=False)
    constants: dict[str, Value] = field(init=False)

    def __post_init__(self) -> None:
        self.funcs = self.program.funcs()
        self.constants = {name: self.evaluate_expr(c.value, {}) for name, c in self.program.constants().items()}

    def call(self, name: str, *arguments: Value) -> Value:
        """Call a @func; floating-point warnings are suppressed."""
        func = self.funcs[name]
        with np.errstate(**_ERRORS):
            return self._call(func, arguments)

    def _call(self, func: Func, arguments: tuple[Value, ...]) -> Value:
        local = dict(zip(func.params, arguments))
        try:
            self.run_block(func.body, local)
        except _Returned as returned:
            return returned.value
        raise CuirError.of("X140", f"`{func.name}` has no return", func.span)

    def run_block(self, body: tuple[Stmt, ...], local: dict[str, Value]) -> None:
        """Execute statements; `local` holds the values of names."""
        for s in body:
            if isinstance(s, Return):
                raise _Returned(self.evaluate_expr(s.value, local))
            if isinstance(s, Assign):
                value = self.evaluate_expr(s.value, local)
                values = (value,) if len(s.targets) == 1 else value
                local.update(zip(s.targets, values))
            elif isinstance(s, AugAssign):
                local[s.target] = self.evaluate_expr(Binary(s.op, Name(s.target), s.value, span=s.span), local)
            elif isinstance(s, If):
                cond = self.evaluate_expr(s.cond, local)
                if np.ndim(cond):
                    raise CuirError.of(
                        "X140", "an if statement whose condition differs between the values enumerated", s.span, "a if cond else b"
                    )
                self.run_block(s.body if cond else s.orelse, local)
            elif isinstance(s, For) and isinstance(s.iter, Call) and s.iter.func == Name("range"):
                bounds = [self.evaluate_expr(a, local) for a in s.iter.args]
                if any(np.ndim(b) for b in bounds):
                    hint = "a count that lengths and consts give; a search that ends earlier keeps what it found: a if cond else b"
                    raise CuirError.of("X140", "a loop whose count differs between the values enumerated", s.span, hint)
                for i in range(*(int(b) for b in bounds)):
                    local[s.target] = i
                    self.run_block(s.body, local)
            else:
                raise CuirError.of("X140", "a splice point of pure arithmetic was expected", s.span)

    def evaluate_expr(self, e: Expr, local: Mapping[str, Value]) -> Value:
        """Evaluate an expression; `local` holds the values of names."""
        if isinstance(e, Literal):
            return e.value
        if isinstance(e, Name):
            return self.name(e, local)
        if isinstance(e, Tuple):
            return tuple(self.evaluate_expr(i, local) for i in e.items)
        if isinstance(e, Unary):
            return self.apply(e, self.evaluate_expr(e.operand, local))
        if isinstance(e, Binary):
            return self.evaluate_binary(e, local)
        if isinstance(e, IfExp):
            cond = self.evaluate_expr(e.cond, local)
            if not np.ndim(cond):
                return self.evaluate_expr(e.then if cond else e.other, local)
            return self.choose(e, cond, self.evaluate_expr(e.then, local), self.evaluate_expr(e.other, local))
        if isinstance(e, Subscript):
            return self.evaluate_subscript(e, local)
        if isinstance(e, Call) and isinstance(e.func, Name) and not e.keywords:
            return self.evaluate_call(e, e.func.id, local)
        raise CuirError.of("X140", "a splice point of pure arithmetic was expected", e.span)

    def choose(self, e: IfExp, cond: Value, then: Value, otherwise: Value) -> Value:
        """Choose for each of the enumerated values; for tuples part by part."""
        if isinstance(then, tuple) and isinstance(otherwise, tuple) and len(then) == len(otherwise):
            return tuple(self.choose(e, cond, a, b) for a, b in zip(then, otherwise))
        return self.apply(e, cond, then, otherwise)

    def apply(self, e: Unary | Binary | IfExp, *operands: Value) -> Value:
        """Apply an operator to values."""
        operation = operator(e)
        assert operation is not None
        return _apply(operation[0], e, *operands)

    def name(self, e: Name, local: Mapping[str, Value]) -> Value:
        """Look up the value of a name. Raises CuirError N101."""
        for place in (local, self.names, getattr(self, "constants", {})):
            if e.id in place:
                return place[e.id]
        if e.id == "inf":
            return np.inf
        names = sorted({*local, *self.names, *getattr(self, "constants", {})})
        raise CuirError.of("N101", f"`{e.id}` has no value where splice points are enumerated", e.span, f"these have: {', '.join(names)}")

    def evaluate_binary(self, e: Binary, local: Mapping[str, Value]) -> Value:
        """Evaluate a binary expression; a scalar left operand may decide alone."""
        left = self.evaluate_expr(e.left, local)
        operator_traits = traits(e)
        if operator_traits.lazy and not np.ndim(left) and bool(left) == operator_traits.decided_by:
            return left
        return self.apply(e, left, self.evaluate_expr(e.right, local))

    def evaluate_subscript(self, e: Subscript, local: Mapping[str, Value]) -> Value:
        """Read an element of a tuple, or gather elements of a tensor; 0 outside of it."""
        value = self.evaluate_expr(e.value, local)
        indices = [self.evaluate_expr(i, local) for i in e.indices]  # type: ignore[arg-type]
        if isinstance(value, tuple):
            return value[indices[0]]
        if value.size == 0:
            return np.zeros(np.broadcast_shapes(*(np.shape(i) for i in indices)), value.dtype)
        inside = np.ones((), bool)
        safe: list[Value] = []
        for i, n in zip(indices, value.shape):
            ok = (np.asarray(i) >= 0) & (np.asarray(i) < n)
            inside = inside & ok
            safe.append(np.where(ok, i, 0))
        return np.where(inside, value[tuple(safe)], value.dtype.type(0))

    def evaluate_call(self, e: Call, name: str, local: Mapping[str, Value]) -> Value:
        """Evaluate a call of a @func or of a pure primitive."""
        op = get_called_op(e)
        if op is not None and op.traits.converts:
            x, dtype = self.evaluate_expr(e.args[0], local), e.args[1]
            if not isinstance(dtype, Name) or dtype.id not in ("bool", "i32", "f32"):
                raise CuirError.of("X140", f"a cast to {show(dtype)} is not enumerated", e.span)
            return convert(x, DTYPES[dtype.id])
        if op is not None and op.traits.rank:
            return self.rank
        arguments = tuple(self.evaluate_expr(a, local) for a in e.args)
        if name in self.funcs:
            return self._call(self.funcs[name], arguments)
        if op is None or op.evaluate is None:
            raise CuirError.of("X140", f"`{name}` is no pure arithmetic", e.span)
        if op.params[0].variadic:
            return functools.reduce(lambda x, y: _apply(op, e, x, y), arguments)
        return _apply(op, e, *arguments)


def _apply(entry: Op, e: Expr, *operands: Value) -> Value:
    """Apply an entry of the table.

    Raises CuirError X140 for an operation of tiles alone, T154 for a divisor of 0.
    """
    assert entry.evaluate is not None
    values = [_normalise(x) for x in operands]
    if entry.evaluate.divides and not np.all(values[-1]):
        if np.ndim(values[-1]) == 0:
            raise CuirError.of("T154", "the divisor is 0", e.span)
        values[-1] = np.where(values[-1] == 0, 1, values[-1])  # in a branch not taken
    try:
        return entry.evaluate(*values)
    except TypeError:
        raise CuirError.of("X140", f"`{entry.name}` is no pure arithmetic here", e.span) from None


def _normalise(x: Value) -> Value:
    """Convert a NumPy scalar to a Python number, and arrays to those of i32, f32 or bool."""
    if not isinstance(x, (np.generic, np.ndarray)):
        return x
    if np.ndim(x) == 0:
        return x.item()
    dtype = {"i": np.int64, "u": np.int64, "f": np.float32}.get(x.dtype.kind, x.dtype)
    return x.astype(dtype, copy=False)


def collect_kernel_values(
    kernel: Kernel, dims: Mapping[str, int], consts: Mapping[str, Value], values: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the values of a kernel's names: consts with defaults, scalars, tensors and dims.

    dims: lengths by their meaning for attention (B, H, HK, M, N), whatever the kernel calls them; dims of other tensors
    are those of their values.
    """
    names: dict[str, Value] = {n: v for n, v in (with_defaults(kernel, consts) | dict(consts)).items() if isinstance(v, (int, float, bool))}
    names |= dims
    for p in kernel.params:
        if isinstance(p.type, GlobalType):
            shape = getattr(values.get(p.name), "shape", tuple(dims.get(n) for n in _SHAPES.get(p.name, ())))
            names |= {d: n for d, n in zip(p.type.dims, shape) if isinstance(d, str) and n is not None and d not in consts}
    for n, v in values.items():
        names[n] = _to_numpy(v) if hasattr(v, "shape") else np.float32(v) if isinstance(v, float) else v
    return names


def _to_numpy(x: Any) -> np.ndarray:
    """Convert a tensor to NumPy.

    Dtypes that NumPy lacks (bfloat16, 8-bit floats) become float32, which represents all their values.
    """
    try:
        return np.asarray(x)
    except (RuntimeError, TypeError):  # tensors that require gradients, and those dtypes
        return np.asarray(x.detach().to(torch.float32).cpu())

"""Numbers that a reference or a kernel's text compares with; inputs are drawn at and near them."""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import math
import textwrap
import tokenize
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...attn.tracing.user_objects import EMPTY, list_cells, list_defaults, list_globals
from ...checking.checked import Checked
from ...ops.expressions import operation, traits
from ...syntax.nodes import Expr, Literal, Name, Unary
from ...syntax.walk import walk

MOST = 12  # the first numbers of each kind are kept
_LARGEST = 1e30  # larger numbers stand for infinity
_FUNCTIONS = 24  # the largest number of called functions whose source is read
_COMPARISONS = frozenset(["gt", "ge", "lt", "le", "eq", "ne", "clamp", "clamp_", "clamp_min", "clamp_max", "threshold", "hardtanh"])
# functions by which a source bounds its values
_BOUNDED = frozenset(
    [
        "clamp",
        "clip",
        "clamp_",
        "clip_",
        "clamp_min",
        "clamp_max",
        "minimum",
        "maximum",
        "min",
        "max",
        "threshold",
        "hardtanh",
        "fmin",
        "fmax",
    ]
)
# operations that PyTorch computes in double precision, where a sum in f32 overflows
_WIDE = frozenset(
    [
        "native_layer_norm",
        "native_group_norm",
        "native_batch_norm",
        "_fused_rms_norm",
        "var",
        "var_mean",
        "std",
        "std_mean",
        "linalg_vector_norm",
        "norm",
    ]
)
_OPEN = frozenset(["isnan", "isinf", "isfinite", "nan_to_num", "nan_to_num_", "isposinf", "isneginf"])


@dataclass(frozen=True)
class Mentioned:
    """Numbers that floats, and integers, are compared with.

    open: the reference handles NaN and infinities explicitly. wide: it adds in double precision whatever its dtype.
    """

    floats: tuple[float, ...] = ()
    integers: tuple[int, ...] = ()
    open: bool = False
    wide: bool = False

    def __or__(self, other: Mentioned) -> Mentioned:
        floats, integers = (
            tuple(dict.fromkeys((*a, *b)))[:MOST] for a, b in ((self.floats, other.floats), (self.integers, other.integers))
        )
        return Mentioned(floats, integers, self.open or other.open, self.wide or other.wide)


def collect_from_kernel(checked: Checked) -> Mentioned:
    """Return literals and consts that the kernel's text compares with, or bounds values by."""
    floats, integers = list[float](), list[int]()
    bodies = (checked.declarations, *(r.body for r in checked.roles))
    for node in (n for body in bodies for stmt in body for n in walk(stmt)):
        match = operation(node)
        if match is None or not (match[0].traits.compares or match[0].traits.extremum):
            continue
        for value in (_value(e, checked.consts) for e in match[1]):
            if isinstance(value, float):
                floats.append(value)
            elif value is not None:
                integers.append(value)
    return _filter(floats, integers, False)


def _value(e: Expr, consts: Mapping[str, object]) -> int | float | None:
    if isinstance(e, Unary) and traits(e).linear:
        positive = _value(e.operand, consts)
        return None if positive is None else -positive
    value: object = e.value if isinstance(e, Literal) else consts.get(e.id) if isinstance(e, Name) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def collect_from_source(function: Callable[..., Any]) -> Mentioned:
    """Return the numbers that a function and its callees compare with.

    They come from the source, or from its constants where there is no source.
    """
    mentioned, visited, pending = Mentioned(), set[int](), [function]
    while pending and len(visited) < _FUNCTIONS:
        current = inspect.unwrap(pending.pop(0))
        current = getattr(current, "__func__", current)
        if (
            not isinstance(current, types.FunctionType)
            or id(current) in visited
            or (current.__module__ or "").partition(".")[0] in ("torch", "math")
        ):
            continue
        visited.add(id(current))
        names = _collect_names(current)
        tree = _parse_source(current)
        if tree is None:
            mentioned |= _collect_constants(current.__code__)
            continue
        reader = _Reader(names)
        reader.visit(tree)
        mentioned |= _filter(reader.floats, reader.integers, reader.open)
        pending += [f for f in reader.called if callable(f)]
    return mentioned


def _collect_names(function: types.FunctionType) -> dict[str, object]:
    """Return globals, closure variables, and defaults of a function's parameters, by name."""
    members = [*list_globals(function), *list_cells(function), *list_defaults(function)]
    return {m.name: m.value for m in members if m.value is not EMPTY}


def _parse_source(function: types.FunctionType) -> ast.AST | None:
    """Return the syntax tree of a function; None where its source is not available or cannot be parsed."""
    try:
        text = textwrap.dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return None
    if function.__name__ != "<lambda>":
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            return ast.parse(text)
        return None
    begin = text.find("lambda")  # inside of a statement of which only these lines are available
    for end in range(len(text), begin, -1) if begin >= 0 else ():
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            tree = ast.parse(f"({text[begin:end]})")
            if len(lambdas := [n for n in ast.walk(tree) if isinstance(n, ast.Lambda)]) == 1:
                return lambdas[0]
            return None  # it is not known which of them
    return None


def _collect_constants(code: types.CodeType) -> Mentioned:
    """Return all numbers of a function without source, including nested functions."""
    values = list(_list_numbers(code))
    floats = [float(v) for v in values]
    return _filter(floats, [v for v in values if isinstance(v, int)], any(name in _OPEN for name in code.co_names))


def _list_numbers(code: types.CodeType) -> Iterator[int | float]:
    for value in code.co_consts:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield value
        elif isinstance(value, types.CodeType):
            yield from _list_numbers(value)


class _Reader(ast.NodeVisitor):
    """Collector of comparisons and bounds in a source, and of the functions that it calls (`called`)."""

    def __init__(self, names: Mapping[str, object]):
        self.names = names
        self.floats, self.integers, self.called = list[float](), list[int](), list[Any]()
        self.open = False

    def visit_Compare(self, node: ast.Compare) -> None:
        for side in (node.left, *node.comparators):
            self.note(side)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _BOUNDED:
            for argument in (*node.args, *(k.value for k in node.keywords if k.arg != "dim")):
                self.note(argument)
        self.open |= name in _OPEN
        function = self.resolve(node.func)
        if isinstance(function, (types.FunctionType, types.MethodType)):
            self.called.append(function)
        self.generic_visit(node)

    def note(self, e: ast.expr) -> None:
        value = self.resolve(e)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self.floats.append(float(value))
            if isinstance(value, int):
                self.integers.append(value)

    def resolve(self, e: ast.expr) -> object:
        """Return the value of a literal, a name, or an attribute of a module; None for others."""
        if isinstance(e, ast.Constant):
            return e.value
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
            value = self.resolve(e.operand)
            return -value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
        if isinstance(e, ast.Name):
            return self.names.get(e.id, getattr(builtins, e.id, None))
        if isinstance(e, ast.Attribute):
            owner = self.resolve(e.value)
            return getattr(owner, e.attr, None) if isinstance(owner, types.ModuleType) else None
        return None


class Comparisons(TorchDispatchMode):
    """Mode that records the numbers with which an evaluation compares tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.floats, self.integers, self.open, self.wide = list[float](), list[int](), False, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.open |= name in _OPEN
        self.wide |= name in _WIDE
        if name in _COMPARISONS and args and isinstance(args[0], torch.Tensor):
            operands = [*args[1:], *(kwargs or {}).values()]
            numbers = [x for x in operands if isinstance(x, (int, float)) and not isinstance(x, bool)]
            if args[0].is_floating_point():
                self.floats += map(float, numbers)
            else:
                self.integers += [int(x) for x in numbers if x == int(x)] if all(map(math.isfinite, numbers)) else []
        return func(*args, **(kwargs or {}))

    @property
    def mentioned(self) -> Mentioned:
        """The numbers recorded so far."""
        return replace(_filter(self.floats, self.integers, self.open), wide=self.wide)


def _filter(floats: Sequence[float], integers: Sequence[int], open_: bool) -> Mentioned:
    infinite = any(math.isinf(v) or math.isnan(v) for v in floats)
    small = dict.fromkeys(v for v in floats if abs(v) < _LARGEST)
    return Mentioned(tuple(small)[:MOST], tuple(dict.fromkeys(v for v in integers if abs(v) < 2**31 - 2))[:MOST], open_ or infinite)


__all__ = ["Comparisons", "Mentioned", "collect_from_kernel", "collect_from_source"]

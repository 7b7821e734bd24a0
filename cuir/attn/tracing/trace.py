"""Tracing: a mod called with proxies gives CuIR, and its captured values become parameters.

The capturing of numbers and tensors (closures, keyword parameters, objects, `captured`) and their names are here.
Operations are in proxy.py, the blocks of a mask in block_bounds.py, tensors that no function or object on the way holds in
outside_reads.py.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from ...caching import memoize
from ...ops import build_calls as build
from ...ops.expressions import is_where
from ...spec.specification import SINK, Lengths, Specification, keyword_parameters, list_requested_lengths
from ...spec.user_calls import user_call
from ...syntax.nodes import Binary, Call, Expr, Literal, Name, Unary
from ...syntax.types import BOOL, F32, I32
from ...syntax.walk import names_read
from ...text.diagnostics import CuirError
from ...text.source import Span, function_span, user_span
from . import captured_rows as captured_rows
from . import concatenations as concatenations  # likewise
from . import distributions as distributions  # likewise
from . import lookups as lookups  # likewise
from . import rearrangements as rearrangements  # likewise
from . import reductions as reductions  # likewise
from . import traced_functions as traced_functions  # likewise
from .captured_rows import CONSTANT, Array, array
from .concrete_answers import TRACE, Constant
from .derivative_marks import remove_marks
from .dispatch import tracing
from .factoring import factor_uniform
from .number_literals import INF, holds
from .operation_table import of_function
from .outside_reads import Operation, Outside, Standin, attribute_read, find_name_under, refuse_drawn, refuse_random, seeds_now
from .proxy import STANDING, Proxy, Rows, Scalar, TensorProxy, call, compute, lift, to
from .refusal import refuse, user_frame
from .splice_names import list_reserved_in_expressions
from .traced_result import Parameter, Traced, fresh
from .user_objects import (
    BUILTINS,
    EMPTY,
    has_attributes,
    list_attributes,
    list_cells,
    list_defaults,
    list_globals,
    list_members,
    slot_of,
    with_traced_methods,
)

K = TypeVar("K")
T = TypeVar("T")
# for captured data that follow the lengths: only rank and dtype matter here
SAMPLE = Lengths(B=2, H=4, HK=2, M=256, N=256)
_PACKAGE = f"{Path(__file__).parents[2]}/"  # this package
_LIBRARIES = (*(f"{Path(module.__file__ or '').parent}/" for module in (torch, np)), _PACKAGE)
_PYTHON = (f"{Path(inspect.__file__).parent}/", "<frozen ")
_INSTALLED = ("/site-packages/", "/dist-packages/")  # inside of the folder of Python's own files, for some


_ONCE: ContextVar[dict[int, tuple[Specification, Traced]] | None] = ContextVar("once", default=None)  # by id


@contextlib.contextmanager
def tracing_once() -> Iterator[None]:
    """Trace each specification once within this context.

    Captured values of the mods must not change within it.
    """
    entered = _ONCE.set({})
    try:
        yield
    finally:
        _ONCE.reset(entered)


def trace(spec: Specification, reserved: Iterable[str] = ()) -> Traced:
    """Trace the mods of a specification; names in `reserved` are not given to parameters.

    Raises CuirError with the place in the user's file: X120 an operation that no kernel has, X121 control flow on a
    score or an index, X122 a mod that fails, X123 a mod that gives no number; U417 for a number beyond 32 bits.
    """
    traces = _ONCE.get()
    if traces is None:
        return _trace(spec, set(reserved))
    if id(spec) not in traces:
        traces[id(spec)] = spec, _trace(spec, list_reserved_in_expressions())
    return traces[id(spec)][1].rename_reserved(reserved)


def _trace(spec: Specification, used_names: set[str]) -> Traced:
    """Trace as `trace` does: once, and once more for each captured number that decides control flow."""
    pinned: set[str] = set()
    while True:
        tracer = _Tracer(spec, used_names, pinned)
        try:
            with tracing():
                traced = tracer.run()
            if tracer.pins <= pinned:
                return traced
        except Constant:
            pass
        except CuirError:  # which a constant may not meet
            if tracer.pins <= pinned:
                raise
        pinned |= tracer.pins


def list_captured_integers(spec: Specification) -> list[int]:
    """Return the captured integers of a specification, where its mask has edges.

    Empty if it cannot be traced.
    """
    try:
        return [p.value for p in trace(spec).parameters if isinstance(p.value, int)]
    except CuirError:
        return [v for v in spec.captured.values() if isinstance(v, int)]


class Capture(NamedTuple):
    """A captured number or tensor."""

    parameter: Parameter
    proxy: Proxy | TensorProxy


class _Tracer:
    def __init__(self, spec: Specification, reserved: set[str], pinned: set[str]):
        self.spec, self.reserved, self.pinned = spec, reserved, pinned
        self.pins: set[str] = set()  # captured numbers that decided control flow in this trace
        self.names = set(reserved)  # names
        self.parameters: dict[tuple[str, object], Capture] = {}
        self.keys_by_id: dict[int, tuple[str, object]] = {}  # keys of `parameters` by the ids of tensors
        self.lifted: dict[int, object] = {}
        self.standing: Callable[[torch.Tensor], torch.Tensor] = lambda x: x  # for tensors from outside
        self.alive: list[object] = []  # keeps what `lifted` knows by id
        self.constants = False  # numbers are not captured: those of a file
        self.at: Span | None = None  # place of the mod whose values are captured, before it runs

    def run(self) -> Traced:
        b, h, q, k = (Proxy(Name(n), I32, n in "qk") for n in "bhqk")
        scaled = Proxy(Binary("*", Name("S"), Name("scale")), F32, True)
        masks: list[Proxy] = []
        result: Proxy = scaled
        mask: Expr | None = None
        marked: Proxy | None = None
        peeled = False
        if self.spec.score_mod is not None:
            if (running := TRACE.get()) is not None:
                running.beyond = True
            modified = self.call(self.spec.score_mod, (scaled, b, h, q, k))
            if running is not None:
                running.beyond = False
            if modified.element == BOOL:
                raise CuirError.of(
                    "X123",
                    "a score_mod gives scores, found a bool",
                    function_span(self.spec.score_mod),
                    "a function of five parameters is taken for a score_mod; a mask takes four: (b, h, q_idx, kv_idx)",
                )
            modified = to(modified, F32)
            result, masks = _peel_masks(plain := replace(modified, expr=remove_marks(modified.expr)))
            marked = None if plain.expr is modified.expr else _peel_masks(modified)[0]
            peeled = bool(masks)
        if self.spec.mask_mod is not None:
            condition = self.call(self.spec.mask_mod, (b, h, q, k))
            if condition.element != BOOL:
                raise CuirError.of(
                    "X123", f"a mask_mod gives a bool, found {condition.element}", function_span(self.spec.mask_mod), "compare: ... != 0"
                )
            condition = replace(condition, expr=remove_marks(condition.expr))
            masks.append(condition)
            mask = condition.expr
        keep = None
        for m in masks:
            keep = m if keep is None else compute("and", keep, m)
        keeps_all = keep is not None and isinstance(keep.expr, Literal) and keep.expr.value is True
        parameters_in_order = [c.parameter for c in self.parameters.values()]
        (score, factor), *marked_logits = (
            self.logits(*factor_uniform(e, parameters_in_order, split=not peeled))
            for e in (result.expr, *(() if marked is None else (marked.expr,)))
        )
        sink = self.sink(h)
        if _SCORE not in names_read(score):  # scores from the indices alone: they still are a tile of the scores' shape
            # S * 0 would be NaN where S overflows
            zero = Binary("+", Binary("-", q.expr, q.expr), Binary("-", k.expr, k.expr))
            score = Binary("+", score, to(Proxy(zero, I32, True), F32).expr)
        used = {n for e in (score, factor, keep.expr if keep is not None else None, sink) if e is not None for n in names_read(e)}
        parameters = tuple(c.parameter for c in self.parameters.values() if c.parameter.name in used)
        return Traced(
            None if keep is None or keeps_all else keep.expr,
            score,
            factor,
            parameters,
            sink,
            mask,
            tuple(sorted(self.pinned)),
            tuple((name, c.parameter.name) for (name, _), c in self.parameters.items()),
            (running := TRACE.get()) is not None and running.rows,
            marked_logits[0] if marked_logits else None,
        )

    def logits(self, score: Expr, factor: Expr) -> tuple[Expr, Expr]:
        """Return the score with the factor that makes base-2 logits of it, for a softmax."""
        if self.spec.normalize == "relu":
            return score, factor
        return score, Binary("*", factor, Name("LOG2E")) if factor != Literal(1.0) else Name("LOG2E")

    def sink(self, h: Proxy) -> Expr | None:
        """Return the sink of a head, f32."""
        if self.spec.sink is None:
            return None
        value, fixed = self.spec.values(SAMPLE)[SINK], self.spec.sink
        if isinstance(value, int):
            value = float(value)
        captured = self.capture(SINK, value, key=SINK if callable(fixed) and not isinstance(fixed, torch.Tensor) else None)
        return to(lift(captured[h] if isinstance(captured, TensorProxy) else captured), F32).expr

    def call(self, mod: Callable[..., object], positional: tuple[Proxy, ...]) -> Proxy:
        values = self.spec.values(SAMPLE)
        keywords: dict[str, object] = {}
        self.at = function_span(mod)
        lengths = list_requested_lengths(mod)
        for p in keyword_parameters(mod):
            if p.name in self.spec.captured:
                fixed = self.spec.captured[p.name]
                keywords[p.name] = self.capture(
                    p.name, values[p.name], key=p.name if callable(fixed) and not isinstance(fixed, torch.Tensor) else None
                )
            elif p.name in lengths:
                keywords[p.name] = Proxy(Name(p.name), I32, False, number=True)
            else:
                keywords[p.name] = self.capture(p.name, p.default)
        outside = Outside(self.outside, run=_apply_replaced, observe=refuse_random)
        seeds = seeds_now()
        entered, entered_constant = STANDING.set(outside.of), CONSTANT.set(self.constant)
        try:
            traced_mod = self.callable(mod)
            self.at = None
            graded = (
                contextlib.nullcontext() if _asks_for_gradients(mod) else torch.enable_grad()
            )  # so that a mod's own torch.no_grad() shows
            with user_call(f"a mod of the specification `{self.spec.name}`", mod):
                with outside, graded:
                    result = traced_mod(*positional, **keywords)
                result = outside.of(result)
                refuse_drawn(mod, seeds)
        except CuirError:
            raise
        except Exception as error:  # a mod may raise anything
            raise CuirError.of(
                "X122", f"tracing `{self.spec.name}`: {type(error).__name__}: {error}", user_span(error) or function_span(mod)
            ) from error
        finally:
            STANDING.reset(entered)
            CONSTANT.reset(entered_constant)
        if (running := TRACE.get()) is not None and running.refused:
            raise running.refused[0]  # the mod caught it, and went another way than it does with tensors
        if isinstance(result, TensorProxy):
            result = array(result)
        if not isinstance(result, (Proxy, bool, int, float)) and not (isinstance(result, torch.Tensor) and result.ndim == 0):
            description, at, hint = _describe_result(result), function_span(mod), "return the new score, or the bool of a mask"
            if isinstance(result, Array) and result.origin is not None:
                at = result.origin.place
                description += f": `{at.text()}` has shape {list(result.origin.shape)}"
                hint = "one index for each dim of the captured tensor, or a reduction of the row"
            raise CuirError.of("X123", f"a mod gives one number, found {description}", at, hint)
        return lift(result)

    # ---- capturing
    def capture(self, name: str, value: object, key: str | None = None) -> object:
        """Return the stand-in of a captured value in a traced function.

        These are proxies for numbers and tensors, and rebuilt functions and containers.
        """
        if isinstance(value, (bool, Proxy, Rows)):
            return value
        if (
            isinstance(value, (int, float)) and type(value) in _NUMBERS
        ):  # instances of a subclass, such as an enumeration's, have an identity
            return value if self.constants else self.number(name, value)
        if isinstance(value, torch.Tensor):
            return self.tensor(name, value, key)
        if isinstance(value, (list, tuple, deque)) and type(value) in (list, tuple, deque):
            return type(value)(self.capture(f"{name}_{i}", a) for i, a in enumerate(value))
        if isinstance(value, tuple) and isinstance(fields := getattr(value, "_fields", None), tuple):
            return tuple.__new__(type(value), [self.capture(n, a) for n, a in zip(fields, value)])
        if isinstance(value, dict):
            return self.dictionary(value, {n: f"{name}_{n}" for n in value})
        return self.function(value, name)

    def dictionary(self, value: dict[K, object], names: Mapping[K, str]) -> object:
        if id(value) in self.lifted:
            return self.lifted[id(value)]
        new = {} if type(value) is dict else _copy(value)
        self.alive.append(value)
        self.lifted[id(value)] = new
        if new is not value:
            for n, a in list(value.items()):
                dict.__setitem__(new, n, self.capture(names[n], a))
            if isinstance(getattr(new, "__dict__", None), dict):
                self.attributes(value, new, "")
        return new

    def number(self, name: str, value: int | float) -> Scalar | TensorProxy:
        # no launch takes it, but a program may say `inf`
        if name in self.pinned or value in (math.inf, -math.inf) or not holds(value):
            return value
        place = (name, repr(value))  # 1 and 1.0, 0.0 and -0.0 are two
        entry = self.parameters.get(place)
        if entry is None:
            dtype = F32 if isinstance(value, float) else I32
            p = Parameter(self.fresh(name), dtype, 0, value)
            entry = self.parameters[place] = Capture(p, Proxy(Name(p.name), dtype, False, value, frozenset((name,)), self.pins, True))
        return entry.proxy

    def tensor(self, name: str, value: torch.Tensor, key: str | None) -> TensorProxy | Proxy:
        place = (name, id(value) if key is None else key)
        if place not in self.parameters:
            if value.is_complex() or value.is_quantized:
                readable = "real" if value.is_complex() else "dequantize()"
                refuse(
                    f"`{name}` holds {value.dtype}, and a kernel reads integers, bools and real numbers", f"{name}.{readable}", at=self.at
                )
            if value.layout != torch.strided:
                refuse(f"`{name}` is a tensor of layout {value.layout}, and a kernel reads dense ones", f"{name}.to_dense()", at=self.at)
            self.alive.append(value)
            self.keys_by_id.setdefault(id(value), place)
            dtype = F32 if value.dtype.is_floating_point else I32
            p = Parameter(self.fresh(name), dtype, max(1, value.ndim), None if key else value, key)
            proxy = TensorProxy(
                p.name,
                name,
                value.shape if value.ndim else torch.Size([1]),
                dtype,
                value.dtype == torch.bool,
                follows=key is not None,
                kind=type(value),
                dtype=value.dtype,
            )
            # without dims: a number that lies on the device
            self.parameters[place] = Capture(p, proxy if value.ndim else lift(proxy[0]))
        return self.parameters[place].proxy

    def constant(self, value: torch.Tensor) -> TensorProxy:
        """Return the parameter of a tensor with dims that the mod makes from none of its arguments.

        Equal tensors share one.
        """
        with torch._C.DisableTorchFunction():
            for parameter, proxy in self.parameters.values():
                if parameter.constant and _are_equal(parameter.value, value):
                    assert isinstance(proxy, TensorProxy)
                    return proxy
            proxy_of_constant = self.tensor("constant", value.detach().clone(), None)  # the mod may write to its own
            assert isinstance(proxy_of_constant, TensorProxy)
            place = ("constant", id(self.alive[-1]))
            self.parameters[place] = Capture(replace(self.parameters[place].parameter, constant=True), proxy_of_constant)
        return proxy_of_constant

    def outside(self, value: torch.Tensor) -> TensorProxy | Proxy:
        """Return the stand-in of a tensor that an operation of the mod reads and that no walk replaced."""
        with torch._C.DisableTorchFunction():
            standin = self.standing(value)
            if id(standin) not in self.keys_by_id:
                frame = user_frame()
                self.tensor((frame and find_name_under(value, frame)) or "tensor", standin, None)
        return self.parameters[self.keys_by_id[id(standin)]].proxy

    def callable(self, value: Callable[..., object], name: str = "") -> Callable[..., object]:
        """Capture a function, or an object that is called."""
        new = self.function(value, name)
        assert callable(new)
        return new

    def function(self, value: object, name: str = "") -> object:
        """Capture a user's function: its closure, defaults, and globals that are tensors or functions.

        Other objects, those of methods too, become copies with captured attributes. `name` is the one under which it is
        found.
        """
        if isinstance(value, Standin):
            self.standing = value.standing
            return self.function(value.mod, name)
        if isinstance(value, functools.partial):
            return self.partial(value, name)
        if isinstance(value, types.MethodType):
            return types.MethodType(self.callable(value.__func__), self.function(value.__self__))
        if not isinstance(value, (types.FunctionType, types.ModuleType, type)) and has_attributes(value):
            return self.thing(value, name)
        if not isinstance(value, types.FunctionType) or foreign(value):
            return value  # but FlexAttention's and_masks(...) closes over the user's mods
        if id(value) in self.lifted:
            return self.lifted[id(value)]
        self.alive.append(value)
        global_names = {**value.__globals__, "__builtins__": BUILTINS}
        new = types.FunctionType(
            value.__code__, global_names, value.__name__, None, tuple(types.CellType() for _ in value.__closure__ or ())
        )
        self.lifted[id(value)] = new
        for name, _, (_, _, _, global_value) in list_globals(value):
            if isinstance(global_value, (torch.Tensor, types.FunctionType)):
                global_names[name] = self.capture(name, global_value)
            elif leads_to_a_tensor(global_value):
                self.constants, previous = True, self.constants
                global_names[name] = self.capture(name, global_value)
                self.constants = previous
            elif isinstance(global_value, (list, dict, set, deque)):
                global_names[name] = _copy(global_value)  # the mod may write to it
        for member, new_cell in zip(list_cells(value), new.__closure__ or ()):
            if member.value is not EMPTY:
                new_cell.cell_contents = self.capture(member.name, member.value)
        defaults = [(m.name, self.capture(m.name, m.value)) for m in list_defaults(value)]
        count = len(value.__defaults__ or ())
        new.__defaults__, new.__kwdefaults__ = tuple(d for _, d in defaults[:count]) or None, dict(defaults[count:]) or None
        new.__dict__.update({m.name: self.capture(m.name, m.value) for m in list_attributes(value)})
        return new

    def partial(self, value: functools.partial[object], name: str) -> functools.partial[object]:
        """Capture a partial; arguments by position get the names of their parameters."""
        names = [f"{name or 'argument'}_{i}" for i in range(len(value.args))]
        with contextlib.suppress(TypeError, ValueError):
            parameters = inspect.signature(value.func).parameters.values()
            for i, p in enumerate(p for p in list(parameters)[: len(names)] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)):
                names[i] = p.name
        arguments = [self.capture(n, a) for n, a in zip(names, value.args)]
        keywords = {n: self.capture(n, a) for n, a in value.keywords.items()}
        return functools.partial(self.callable(value.func, name), *arguments, **keywords)

    def thing(self, value: object, name: str) -> object:
        if id(value) in self.lifted:
            return self.lifted[id(value)]
        # without any, its identity is its value
        new = _copy(value) if any(m.value is not EMPTY for m in list_attributes(value)) else value
        self.alive.append(value)
        self.lifted[id(value)] = new
        if new is not value:  # of an enumeration, for instance, there is one object
            self.attributes(value, new, name)
            with_traced_methods(new, self.callable, foreign)
        return new

    def attributes(self, value: object, new: object, name: str) -> None:
        """Capture the attributes of an object for its copy."""
        for member in list_attributes(value):
            n, v = member.name, member.value
            if member.link[0] is slot_of:
                if v is not EMPTY:
                    object.__setattr__(new, n, self.capture(n, v))
            elif n in _REGISTERED and isinstance(value, torch.nn.Module) and isinstance(v, dict):
                new.__dict__[n] = self.dictionary(v, {m: m if m.isidentifier() else f"{name}_{m}" for m in v})
            else:
                new.__dict__[n] = self.capture(n, v)

    def fresh(self, name: str) -> str:
        """Return a free name for a parameter."""
        new = fresh(name, self.names)
        self.names.add(new)
        return new


def _asks_for_gradients(mod: object) -> bool:
    """Return True if a mod's code reads whether gradients are enabled."""
    code = getattr(mod, "__code__", None)
    todo = [code] if code is not None else []
    while todo:
        code_object = todo.pop()
        if "is_grad_enabled" in code_object.co_names:
            return True
        todo += [c for c in code_object.co_consts if isinstance(c, types.CodeType)]
    return False


def _are_equal(x: object, y: torch.Tensor) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype == y.dtype and x.device == y.device and torch.equal(x, y)


def _describe_result(result: object) -> str:
    return f"elements of shape {list(result.shape)}" if isinstance(result, Rows) else type(result).__name__


def leads_to_a_tensor(value: object) -> bool:
    """Return True for a container or an object with a tensor in it, at any depth."""
    visited: dict[int, object] = {}
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, torch.Tensor):
            return True
        if id(item) in visited or isinstance(item, (types.ModuleType, types.FunctionType, type)):
            continue
        visited[id(item)] = item
        todo += [m.value for m in list_members(item)]
    return False


def foreign(function: types.FunctionType) -> bool:
    """Return True for a function of Python, PyTorch or this package that captures nothing of the user's."""
    return foreign_file(function.__code__.co_filename) and not function.__closure__


@memoize(4096)
def foreign_file(name: str) -> bool:
    """Return True for a file of Python, PyTorch, NumPy or this package.

    A module that calls `flex_attention` reads it, and a mod of that module holds the module.
    """
    return name.startswith(_LIBRARIES) or (name.startswith(_PYTHON) and not any(folder in name for folder in _INSTALLED))


def _copy(value: T) -> T:
    try:
        return copy.copy(value)
    except Exception:  # an object may refuse to be copied in any way: it stays what it is
        return value


_NUMBERS = (int, float, np.float64)
_REGISTERED = ("_parameters", "_buffers", "_modules")  # of a torch.nn.Module, whose attributes these are


def _apply_replaced(func: Operation, args: list[object], kwargs: dict[str, object]) -> object:
    """Apply an operation of PyTorch with tensors that the tracer replaced."""
    first, name = args[0] if args else None, getattr(func, "__name__", str(func))
    attribute = attribute_read(func)
    if attribute is not None:
        return getattr(first, attribute)
    if isinstance(first, (Proxy, Rows)) and hasattr(type(first), name):
        return getattr(first, name)(*args[1:], **kwargs)
    return call(*of_function(func, tuple(args), kwargs))


def _peel_masks(result: Proxy) -> tuple[Proxy, list[Proxy]]:
    """Split a score_mod that ends in where(cond, s, -inf) into the score and its masks.

    The conditions go to keep, so that blocks can be left out, except those that read the score.
    """
    masks: list[Proxy] = []
    staying: list[Expr] = []
    minus_inf = Unary("-", INF)
    while isinstance(result.expr, Call) and is_where(result.expr):
        cond, x, y = result.expr.args
        if minus_inf not in (x, y):
            break
        condition, score = (Proxy(cond, BOOL, True), x) if y == minus_inf else (compute("invert", Proxy(cond, BOOL, True)), y)
        staying += [condition.expr] * (asks := _SCORE in names_read(cond))
        masks += [condition] * (not asks)
        result = Proxy(score, F32, True)
    for cond in reversed(staying):
        result = Proxy(build.where(cond, result.expr, minus_inf), F32, True)
    return result, masks


_SCORE = "S"  # the products as the kernel calls them

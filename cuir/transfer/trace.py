"""Tracing: a mod called once with proxies gives CuIR, and what it captures becomes parameters of the kernel.

Owns the capturing of numbers and tensors (closures, keyword parameters, `captured`) and their names. Does not own the operations (proxy.py)
nor the blocks that a mask needs (blocks.py).
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..diagnostics import CuirError
from ..nodes import Binary, Call, Expr, Literal, Name, Unary
from ..spec import LENGTHS, SINK, Lengths, Specification, asked
from ..types import BOOL, F32, I32, DType
from ..user_code import function_span, user_span
from ..walk import names_read
from . import operations as operations  # enters the table of operations
from .proxy import INF, Proxy, TensorProxy, call, lift, refuse, to

SAMPLE = Lengths(B=2, H=4, HK=2, M=256, N=256)  # for captured data that follow the problem's size: only rank and dtype matter here
_OWN = (str(Path(torch.__file__).parent), str(Path(inspect.__file__).parent))
Value = int | float | torch.Tensor


@dataclass(frozen=True)
class Parameter:
    """A captured value as a parameter of the kernel: an i32 or f32 scalar, or a tensor of i32 or f32 with `rank` dims. A tensor without dims has one.

    `value` is None if it follows the lengths: then `key` names it in the specification's `captured`.
    """

    name: str
    dtype: DType
    rank: int  # 0: a scalar
    value: Value | None
    key: str | None = None

    def argument(self, spec: Specification, lengths: Lengths, device: torch.device | str = "cpu") -> Value:
        """What a launch passes for it."""
        return self.on(self.value if self.value is not None else spec.values(lengths)[self.key or self.name], device)

    def on(self, value: Value, device: torch.device | str) -> Value:
        """A value of it as a launch on this device passes it."""
        if isinstance(value, torch.Tensor):
            moved = value.detach().to(device=device, dtype=torch.float32 if self.dtype == F32 else torch.int32).contiguous()
            return moved if moved.ndim else moved.view(1)
        return value


@dataclass(frozen=True)
class Traced:
    """A specification as CuIR. `keep`: a bool expression of b, h, q, k (i32), or None for no mask.

    `score`: f32 expression of S (the products), b, h, q, k, and `factor` > 0: score * factor is the base-2 logit, for weights by relu the score itself.
    `sink`: an expression of h, or None.
    """

    keep: Expr | None
    score: Expr
    factor: Expr
    parameters: tuple[Parameter, ...]
    notes: tuple[str, ...]
    sink: Expr | None = None


def trace(spec: Specification, taken: Iterable[str] = ()) -> Traced:
    """Traces the mods of a specification; names in `taken` are not given to parameters.

    Raises CuirError with the place in the user's file: X120 an operation that no kernel has, X121 control flow on a score or an index,
    X122 a mod that fails, X123 a mod that gives no number; U417 for a captured number beyond 32 bits.
    """
    pinned: set[str] = set()
    while True:
        tracer = _Tracer(spec, set(taken), pinned)
        found = tracer.run()
        if tracer.pins <= pinned:
            return found
        pinned |= tracer.pins


def captured_integers(spec: Specification) -> list[int]:
    """Integers among what a specification captures: where its mask has edges. Empty if it cannot be traced."""
    try:
        return [p.value for p in trace(spec).parameters if isinstance(p.value, int)]
    except CuirError:
        return [v for v in spec.captured.values() if isinstance(v, int)]


class _Tracer:
    def __init__(self, spec: Specification, taken: set[str], pinned: set[str]):
        self.spec, self.taken, self.pinned = spec, taken, pinned
        self.pins: set[str] = set()  # captured numbers that decided control flow in this trace
        self.parameters: dict[tuple[str, object], tuple[Parameter, Proxy | TensorProxy]] = {}
        self.lifted: dict[int, Any] = {}
        self.renamed: dict[str, str] = {}  # parameters whose own name the kernel uses already
        self.alive: list[Any] = []  # keeps what `lifted` knows by id
        self.constants = False  # numbers that are met now stay what they are: those of a file

    def run(self) -> Traced:
        b, h, q, k = (Proxy(Name(n), I32, n in "qk") for n in "bhqk")
        scaled = Proxy(Binary("*", Name("S"), Name("scale")), F32, True, core=Name("S"), factor=Proxy(Name("scale"), F32, False))
        masks: list[Proxy] = []
        result: Proxy = scaled
        if self.spec.score_mod is not None:
            found = self.call(self.spec.score_mod, (scaled, b, h, q, k))
            if found.dtype == BOOL:
                raise CuirError.of(
                    "X123",
                    "a score_mod gives scores, found a bool",
                    function_span(self.spec.score_mod),
                    "a function of five parameters is taken for a score_mod; a mask takes four: (b, h, q_idx, kv_idx)",
                )
            result = to(found, F32)
            result, masks = _peeled(result)
        if self.spec.mask_mod is not None:
            found = self.call(self.spec.mask_mod, (b, h, q, k))
            if found.dtype != BOOL:
                raise CuirError.of(
                    "X123", f"a mask_mod gives a bool, found {found.dtype}", function_span(self.spec.mask_mod), "compare: ... != 0"
                )
            masks.append(found)
        keep = None
        for m in masks:
            keep = m if keep is None else call("and", (keep, m), {})
        everything = keep is not None and isinstance(keep.expr, Literal) and keep.expr.value is True
        score, factor = _split(result)
        if self.spec.normalize != "relu":
            factor = Binary("*", factor, Name("LOG2E")) if factor != Literal(1.0) else Name("LOG2E")
        sink = self.sink(h)
        if "S" not in names_read(score):  # scores from the indices alone: they still are a tile of the scores' shape
            score = Binary("+", score, Binary("*", Name("S"), Literal(0.0)))
        notes = [f"`{name}` decided control flow while tracing: its value is part of the program" for name in sorted(self.pinned)]
        used = {n for e in (score, factor, keep.expr if keep is not None else None, sink) if e is not None for n in names_read(e)}
        parameters = tuple(p for p, _ in self.parameters.values() if p.name in used)
        notes += [
            f"`{self.renamed[p.name]}` is a name of the kernel: its parameter is called `{p.name}`"
            for p in parameters
            if p.name in self.renamed
        ]
        return Traced(None if keep is None or everything else keep.expr, score, factor, parameters, tuple(notes), sink)

    def sink(self, h: Proxy) -> Expr | None:
        """The sink of a head, f32."""
        if self.spec.sink is None:
            return None
        value, fixed = self.spec.values(SAMPLE)[SINK], self.spec.sink
        if isinstance(value, int):
            value = float(value)
        found = self.capture(SINK, value, key=SINK if callable(fixed) and not isinstance(fixed, torch.Tensor) else None)
        return to(lift(found[h] if isinstance(found, TensorProxy) else found), F32).expr

    def call(self, mod: Callable[..., Any], positional: tuple[Proxy, ...]) -> Proxy:
        values = self.spec.values(SAMPLE)
        given: dict[str, Any] = {}
        for p in asked(mod):
            if p.name in LENGTHS:
                given[p.name] = Proxy(Name(p.name), I32, False)
            elif p.name in values:
                fixed = self.spec.captured[p.name]
                given[p.name] = self.capture(
                    p.name, values[p.name], key=p.name if callable(fixed) and not isinstance(fixed, torch.Tensor) else None
                )
            else:
                given[p.name] = self.capture(p.name, p.default)
        try:
            result = self.function(mod)(*positional, **given)
        except CuirError:
            raise
        except Exception as error:  # a mod may raise anything
            raise CuirError.of(
                "X122", f"tracing `{self.spec.name}`: {type(error).__name__}: {error}", user_span(error) or function_span(mod)
            ) from error
        if not isinstance(result, (Proxy, bool, int, float)) and not (isinstance(result, torch.Tensor) and result.ndim == 0):
            raise CuirError.of(
                "X123",
                f"a mod gives one number, found {type(result).__name__}",
                function_span(mod),
                "return the new score, or the bool of a mask",
            )
        return lift(result)

    # ---- capturing
    def capture(self, name: str, value: Any, key: str | None = None) -> Any:
        """What stands in a traced function for a captured value: proxies for numbers and tensors, rebuilt functions and containers."""
        if isinstance(value, (bool, Proxy, TensorProxy)):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value if self.constants else self.number(name, value)
        if isinstance(value, torch.Tensor):
            return self.tensor(name, value, key)
        if isinstance(value, functools.partial):
            arguments = [self.capture(f"{name}_{i}", a) for i, a in enumerate(value.args)]
            return functools.partial(
                self.capture(name, value.func), *arguments, **{n: self.capture(n, a) for n, a in value.keywords.items()}
            )
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(self.capture(f"{name}_{i}", a) for i, a in enumerate(value))
        if isinstance(value, dict):
            return {n: self.capture(f"{name}_{n}", a) for n, a in value.items()}
        return self.function(value)

    def number(self, name: str, value: int | float) -> Any:
        if name in self.pinned or value in (math.inf, -math.inf):  # no launch takes an infinite scalar, but a program may say `inf`
            return value
        if isinstance(value, int) and not -(2**31) <= value < 2**31:
            raise CuirError.of("U417", f"the captured number `{name}` = {value} does not fit the 32 bits that integers of a kernel have")
        if not abs(value) <= torch.finfo(torch.float32).max:
            raise CuirError.of("U417", f"the captured number `{name}` = {value} is none of the numbers that an f32 of a kernel holds")
        found = self.parameters.get((name, value))
        if found is None:
            dtype = F32 if isinstance(value, float) else I32
            p = Parameter(self.fresh(name), dtype, 0, value)
            found = self.parameters[name, value] = (p, Proxy(Name(p.name), dtype, False, value, frozenset((name,)), self.pins))
        return found[1]

    def tensor(self, name: str, value: torch.Tensor, key: str | None) -> TensorProxy | Proxy:
        place = (name, id(value) if key is None else key)
        if place not in self.parameters:
            if value.is_complex() or value.is_quantized:
                refuse(f"`{name}` holds {value.dtype}, and a kernel reads integers, bools and real numbers", f"{name}.real")
            self.alive.append(value)
            dtype = F32 if value.dtype.is_floating_point else I32
            p = Parameter(self.fresh(name), dtype, max(1, value.ndim), None if key else value, key)
            found = TensorProxy(p.name, value.shape if value.ndim else torch.Size([1]), dtype, value.dtype == torch.bool)
            self.parameters[place] = (p, found if value.ndim else found[0])  # without dims: a number that lies on the device
        made = self.parameters[place][1]
        assert isinstance(made, (Proxy, TensorProxy))
        return made

    def function(self, value: Any) -> Any:
        """A Python function of the user with its closure, defaults and the tensors and functions among its globals captured.

        Another object, that of a method too, becomes one whose attributes are captured.
        """
        if isinstance(value, types.MethodType):
            return types.MethodType(self.function(value.__func__), self.function(value.__self__))
        if isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, (types.FunctionType, types.ModuleType)):
            return self.thing(value)
        if not isinstance(value, types.FunctionType) or foreign(value):
            return value  # but FlexAttention's and_masks(...) closes over the user's mods
        if id(value) in self.lifted:
            return self.lifted[id(value)]
        self.alive.append(value)
        known = dict(value.__globals__)
        new = types.FunctionType(value.__code__, known, value.__name__, None, tuple(types.CellType() for _ in value.__closure__ or ()))
        self.lifted[id(value)] = new
        for name in sorted(globals_read(value.__code__)):
            found = known.get(name)
            if isinstance(found, (torch.Tensor, types.FunctionType)):
                known[name] = self.capture(name, found)
            elif leads_to_a_tensor(found):
                self.constants, before = True, self.constants
                known[name] = self.capture(name, found)
                self.constants = before
        for name, cell, fresh in zip(value.__code__.co_freevars, value.__closure__ or (), new.__closure__ or ()):
            fresh.cell_contents = self.capture(name, cell.cell_contents)
        if value.__defaults__:
            positional = value.__code__.co_varnames[: value.__code__.co_argcount]
            new.__defaults__ = tuple(self.capture(n, d) for n, d in zip(positional[-len(value.__defaults__) :], value.__defaults__))
        if value.__kwdefaults__:
            new.__kwdefaults__ = {n: self.capture(n, d) for n, d in value.__kwdefaults__.items() if n not in LENGTHS}
        return new

    def thing(self, value: Any) -> Any:
        if id(value) in self.lifted:
            return self.lifted[id(value)]
        try:
            new = copy.copy(value)
        except Exception:  # an object may refuse to be copied in any way: it stays what it is
            new = value
        self.alive.append(value)
        self.lifted[id(value)] = new
        if new is not value:  # of an enumeration, for instance, there is one object
            new.__dict__.update({n: self.capture(n, v) for n, v in vars(value).items()})
        return new

    def fresh(self, name: str) -> str:
        """A name of the kernel for a captured value: its own, or with `_` and a number behind it if that is taken."""
        base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name) or "value"
        used = self.taken | {p.name for p, _ in self.parameters.values()}
        candidate, n = base, 1
        while candidate in used:
            candidate, n = f"{base}_{n if n > 1 else ''}", n + 1
        if candidate != base:
            self.renamed[candidate] = base
        return candidate


def leads_to_a_tensor(value: Any) -> bool:
    """A container or an object with a tensor in it, or further in."""
    seen: dict[int, Any] = {}
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, torch.Tensor):
            return True
        if id(one) in seen or isinstance(one, (types.ModuleType, types.FunctionType, type)):
            continue
        seen[id(one)] = one
        if type(one) in (list, tuple):
            todo += one
        elif isinstance(one, dict):
            todo += one.values()
        elif isinstance(getattr(one, "__dict__", None), dict):
            todo += vars(one).values()
    return False


def foreign(function: types.FunctionType) -> bool:
    """A function of Python or PyTorch that captures nothing of the user's."""
    return function.__code__.co_filename.startswith(_OWN) and not function.__closure__


@functools.cache
def globals_read(code: types.CodeType) -> frozenset[str]:
    """Global names that a function or a function inside it reads."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found |= globals_read(const)
    return frozenset(found)


def _peeled(result: Proxy) -> tuple[Proxy, list[Proxy]]:
    """A score_mod that ends in where(cond, s, -inf) masks: the condition goes to keep, so that blocks can be left out."""
    masks: list[Proxy] = []
    minus_inf = Unary("-", INF)
    while isinstance(result.expr, Call) and result.expr.func == Name("where"):
        cond, x, y = result.expr.args
        if y == minus_inf:
            masks.append(Proxy(cond, BOOL, True))
            result = Proxy(x, F32, True)
        elif x == minus_inf:
            masks.append(call("invert", (Proxy(cond, BOOL, True),), {}))
            result = Proxy(y, F32, True)
        else:
            break
    return result, masks


def _split(result: Proxy) -> tuple[Expr, Expr]:
    """score -> (score, factor). A factor known to be positive leaves the score and costs nothing per pair."""
    if result.factor is not None and (result.factor.expr == _SCALE or (result.factor.value or 0) > 0):
        return result.core, result.factor.expr
    return result.expr, Literal(1.0)


_SCALE = Name("scale")

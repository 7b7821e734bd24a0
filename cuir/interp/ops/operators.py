"""Operators on scalars and tiles, elements and gathers."""

from __future__ import annotations

import numpy as np
import torch

from ...ops import OPERATORS, TABLE, Op
from ...ops.meaning.scalars import Function, Value
from ...ops.meaning.tiles import require_nonzero, round_to
from ...syntax.nodes import Binary, Call, Expr, Name, Node, Subscript
from ...syntax.types import BOOL, DType, TileType
from ...syntax.walk import walk
from .. import element_places as elements
from ..code import Site
from ..element_places import compile_indices, compile_shared_place, find_tensor, is_shared
from ..faults import make_fault
from ..machine import Evaluate, Worker
from ..ops_registry import runs
from ..races import touch
from ..values import HELD_DTYPES, collapse, make_blank, require_uniform, tile_operand


def get_tile_function(op: Op, dtype: DType) -> Function:
    """Return the function of an operation on tiles of a dtype."""
    assert op.evaluate is not None
    return op.evaluate.tile(dtype)  # type: ignore[return-value]  # the checker admits only those that there are


def get_scalar_function(op: Op, dtype: DType) -> Function:
    """Return the function of an operation on scalars of a dtype."""
    assert op.evaluate is not None
    return op.evaluate.scalar(dtype)  # type: ignore[return-value]  # as above


def unary(site: Site) -> Evaluate:
    """Compile an operation on one value; a tile that nobody else holds is overwritten."""
    x, dtype = site.value("x"), site.dtype("x")
    if not isinstance(site.result(), TileType):
        scalar = get_scalar_function(site.op, dtype)
        return lambda w: scalar(x(w))
    function = get_tile_function(site.op, dtype)
    if site.fresh("x"):

        def overwrite(w: Worker) -> torch.Tensor:
            t = x(w)
            return function(t, out=t)

        return overwrite
    return lambda w: function(x(w))


def combine(site: Site, x: Evaluate, y: Evaluate, fx: bool, fy: bool, dtype: DType, result: DType) -> Evaluate:
    """Compile the site's operation on x and y, elementwise on tiles or a tile and a scalar.

    fx, fy: that operand's tensor may be overwritten.
    """
    function = get_tile_function(site.op, dtype)
    if site.op.evaluate is not None and site.op.evaluate.divides:
        divide = function
        function = lambda a, b, **into: divide(a, require_nonzero(b), **into)  # noqa: E731
    device, swap, tensors_only = site.device, site.op.name in "+*&|^", site.op.name in ("min", "max")
    reuse_x, reuse_y = fx and result == dtype, fy and result == dtype
    rounds = result.narrow
    host_dtype = HELD_DTYPES[dtype]

    def run(w: Worker) -> torch.Tensor:
        a, b = x(w), y(w)
        if a.__class__ is not torch.Tensor:
            a = tile_operand(a, device)
            if swap and b.__class__ is torch.Tensor and a.__class__ is not torch.Tensor:
                a, b = b, a
                into = a if reuse_y else None
                out = function(a, b, out=into)
                return round_to(out, result) if rounds else out
            if a.__class__ is not torch.Tensor:
                a = torch.tensor(a, dtype=host_dtype, device=device)
        elif b.__class__ is not torch.Tensor:
            b = tile_operand(b, device)
            if tensors_only and b.__class__ is not torch.Tensor:
                b = torch.tensor(b, dtype=host_dtype, device=device)
        if reuse_x and a.dim() == 3 and (b.__class__ is not torch.Tensor or _has_result_shape(a, b)):
            out = function(a, b, out=a)
        elif reuse_y and b.__class__ is torch.Tensor and b.dim() == 3 and _has_result_shape(b, a):
            out = function(a, b, out=b)
        else:
            out = function(a, b)
        return round_to(out, result) if rounds else out

    return run


def _has_result_shape(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether the result of broadcasting has the shape of `a`."""
    return b.dim() == 0 or (a.shape[0] >= b.shape[0] and a.shape[1] >= b.shape[1] and a.shape[2] >= b.shape[2])


@runs("+", "-", "*", "/", "//", "%", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=")
def binary(site: Site) -> Evaluate:
    x, y, result, dtype = site.value("x"), site.value("y"), site.result(), site.dtype("x")
    if isinstance(result, TileType):
        return combine(site, x, y, site.fresh("x"), site.fresh("y"), dtype, result.dtype)
    function = get_scalar_function(site.op, dtype)
    return lambda w: function(x(w), y(w))


runs("neg", "~", "not")(unary)


def must_be_lazy(e: Expr) -> bool:
    """Return whether an operand must be evaluated only if it is chosen, because it could fail."""
    return any(isinstance(n, Subscript) or _divides(n) for n in walk(e))


def _divides(n: Node) -> bool:
    entry = (
        OPERATORS.get(n.op) if isinstance(n, Binary) else TABLE.get(n.func.id) if isinstance(n, Call) and isinstance(n.func, Name) else None
    )
    return entry is not None and entry.evaluate is not None and entry.evaluate.divides


@runs("and", "or")
def logic(site: Site) -> Evaluate:
    x, y, decided, keep = site.value("x"), site.value("y"), site.op.name == "or", must_be_lazy(site.args["y"])
    function = get_scalar_function(site.op, BOOL)

    def run(w: Worker) -> Value:
        a = collapse(x(w))
        if a.__class__ is np.ndarray:
            if not keep:
                return function(a, y(w))
            a = require_uniform(a)
        return a if a == decided else y(w)

    return run


@runs("ifexp")
def choice(site: Site) -> Evaluate:
    cond, x, y = site.value("cond"), site.value("x"), site.value("y")
    keep, chosen = must_be_lazy(site.args["x"]) or must_be_lazy(site.args["y"]), get_scalar_function(site.op, site.dtype("x"))

    def run(w: Worker) -> Value:
        c = collapse(cond(w))
        if c.__class__ is np.ndarray:
            if not keep:
                return chosen(c, x(w), y(w))
            c = require_uniform(c)
        return x(w) if c else y(w)

    return run


@runs("element")
def element(site: Site) -> Evaluate:
    span, op, values = site.span, site.op, site.values
    if is_shared(site, "place"):
        place = compile_shared_place(site, "place")

        def read_shared(w: Worker) -> Value:
            ref = place(w)
            touch(op, w, w.actor(span, "the read"), {"place": ref}, w.clock.event())
            if not values:
                return 0
            loaded = ref.values(w.m.shared).cpu().numpy()
            return collapse(loaded.astype(np.int64) if loaded.dtype == np.int32 else loaded.copy())

        return read_shared
    tensor, indices = find_tensor(site, "place"), compile_indices(site, "place")

    def read(w: Worker) -> Value:
        t = tensor(w)
        if not values and t.shadow is None:
            return 0
        return elements.read_element(w.m, w.actor(span, "the read"), t, [collapse(i(w)) for i in indices])

    return read


@runs("gather")
def gather(site: Site) -> Evaluate:
    tensor, indices, span, values, kind = find_tensor(site, "place"), compile_indices(site, "place"), site.span, site.values, site.result()
    assert isinstance(kind, TileType)

    def read(w: Worker) -> torch.Tensor:
        t = tensor(w)
        if not values and t.shadow is None:
            return make_blank(kind, site.device)
        return elements.gather(w.m, w.actor(span, "the read"), t, [collapse(i(w)) for i in indices])

    return read


@runs("view", "T")
def not_a_value(site: Site) -> Evaluate:
    """Refuse to evaluate a view: it is a place, reached through the primitive that takes it (places.py)."""

    def run(w: Worker) -> Value:
        raise make_fault(w.m, "M413", "a view is read by load(view)", site.span)

    return run

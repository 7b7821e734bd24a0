"""Arithmetic on register tiles, and products on the tensor core."""

from __future__ import annotations

from typing import Any

import torch

from ...types import BOOL, I32, DType, SharedView, TileType
from ..agents import Product, Taken, product
from ..compile import Evaluate, Site, settled
from ..machine import GO, Worker
from ..memory import SharedRef
from ..places import shared_place, touch
from ..registry import runs
from ..values import FLOAT, HELD, INTEGER, STORED, cast_scalar, float_unary, tile_operand, wrap
from .operators import combine


@runs("min", "max", "cdiv")
def extremum(site: Site) -> Evaluate:
    names = site.variadic("x") or list(site.args)
    result, dtype = site.result(), site.dtype(names[0])
    acc, fresh = site.value(names[0]), site.fresh(names[0])
    for name in names[1:]:
        if isinstance(result, TileType):
            acc = combine(site, acc, site.value(name), fresh, site.fresh(name), dtype, site.op.name, dtype)
            fresh = False  # its shape may be smaller than the next operand's
        else:
            acc = _pair((FLOAT if dtype.is_float else INTEGER)[site.op.name], acc, site.value(name))
    return acc


def _pair(function: Any, x: Evaluate, y: Evaluate) -> Evaluate:
    return lambda w: function(x(w), y(w))


@runs("where")
def where(site: Site) -> Evaluate:
    cond, x, y, dtype, device = site.value("cond"), site.value("x"), site.value("y"), site.dtype("x"), site.device
    held, result = HELD[dtype], site.result()
    assert isinstance(result, TileType)

    def operand(v: Any) -> torch.Tensor:
        v = tile_operand(v, device)
        return v if v.__class__ is torch.Tensor else torch.tensor(v, dtype=held, device=device)

    def run(w: Worker) -> torch.Tensor:
        c, a, b = cond(w), operand(x(w)), operand(y(w))
        lanes = max(c.shape[0], a.shape[0] if a.dim() else 1, b.shape[0] if b.dim() else 1)
        out = torch.empty((lanes, result.rows, result.cols), dtype=held, device=device)
        return torch.where(c, a, b, out=out)  # with out= it runs several times faster on a CPU

    return run


_UNARY = {"exp2": torch.exp2, "log2": torch.log2, "tanh": torch.tanh, "abs": torch.abs}


@runs("exp2", "log2", "tanh", "abs")
def unary(site: Site) -> Evaluate:
    x, name = site.value("x"), site.op.name
    if isinstance(site.result(), TileType):
        function: Any = _UNARY[name]
        if site.fresh("x"):

            def overwrite(w: Worker) -> torch.Tensor:
                t = x(w)
                return function(t, out=t)

            return overwrite
        return lambda w: function(x(w))
    if site.dtype("x") == I32:
        return lambda w: wrap(abs(x(w)))
    scalar = float_unary(name)
    return lambda w: scalar(x(w))


@runs("cast")
def cast(site: Site) -> Evaluate:
    x, source, target = site.value("x"), site.dtype("x"), site.const("dtype")
    if isinstance(site.result(), TileType):
        return lambda w: cast_tile(x(w), source, target)
    return lambda w: cast_scalar(x(w), source, target)


def cast_tile(t: torch.Tensor, source: DType, target: DType) -> torch.Tensor:
    """A new tile of another dtype: floats round to nearest even, f32 to i32 truncates and saturates (a NaN gives 0), to bool compares with 0."""
    if target == BOOL:
        return t != 0
    if target.is_float:
        if STORED[target] is torch.float32 or target == source:
            return t.to(torch.float32, copy=True)
        return t.to(STORED[target]).to(torch.float32)
    if source.is_float:
        low, high = -(2**31), 2**31 - 1
        return torch.nan_to_num(t.to(torch.float64), nan=0.0, posinf=high, neginf=low).trunc_().clamp_(low, high).to(torch.int32)
    return t.to(torch.int32, copy=True)


@runs("row_max")
def row_max(site: Site) -> Evaluate:
    x = site.value("x")

    def run(w: Worker) -> torch.Tensor:
        t = x(w)
        top = t.amax(-1, keepdim=True)
        if torch.isnan(top).any():  # a NaN loses against a number
            top = torch.where(torch.isnan(t), -torch.inf, t).amax(-1, keepdim=True)
            top.masked_fill_(torch.isnan(t).all(-1, keepdim=True), torch.nan)
        return top

    return run


@runs("row_sum")
def row_sum(site: Site) -> Evaluate:
    x = site.value("x")
    return lambda w: x(w).sum(-1, keepdim=True)


# ---- products
def _operand(site: Site, arg: str) -> Any:
    return shared_place(site, arg) if site.is_shared(arg) else site.value(arg)


@runs("mma")
def mma(site: Site) -> Evaluate:
    a, b, op, span = _operand(site, "a"), _operand(site, "b"), site.op, site.span
    c = site.value("c") if site.has("c") else None
    fresh = c is not None and site.fresh("c")

    def run(w: Worker) -> torch.Tensor:
        operands = {"a": a(w), "b": b(w)}
        acc = c(w) if c is not None else None
        touch(op, w, w.actor(span, "the product"), _shared(operands), w.event())
        x, y = (v.values(w.m) if isinstance(v, SharedRef) else v for v in operands.values())
        if acc is not None and not fresh:
            acc = acc.clone()
        w.m.count("products")
        w.m.launch.area += w.m.lanes * x.shape[1] * x.shape[2] * y.shape[2] / 128**3
        return product(x, y, acc, w.m.lanes, w.m.launch.noise)

    return run


def _shared(operands: dict[str, Any]) -> dict[str, SharedRef]:
    return {k: v for k, v in operands.items() if isinstance(v, SharedRef)}


@runs("mma_async")
def mma_async(site: Site) -> Evaluate:
    a, b, op, span = _operand(site, "a"), shared_place(site, "b"), site.op, site.span
    c = site.held("c") if site.has("c") else None
    named = site.is_name("c") if c is not None else None
    a_name = None if site.is_shared("a") else site.is_name("a")
    t = site.result()
    assert isinstance(t, TileType)
    right = site.type("b")
    assert isinstance(right, SharedView)
    volume = t.rows * t.cols * int(right.dims[0])

    def run(w: Worker) -> Product:
        m = w.m
        operands = {"a": a(w), "b": b(w)}
        acc = c(w) if c is not None else None
        if isinstance(acc, Taken) or (isinstance(acc, Product) and acc.taken is not None):
            acc = settled(w, named or "the accumulator", acc, span)
        actor = w.engine("product", span, "the product")
        m.products += 1
        p = Product(actor, m.products, operands["a"], operands["b"], acc, (a_name,) if a_name else ())
        p.records = touch(op, w, actor, _shared(operands), None, f"{w.label} calls mma_wait for it")
        if acc is not None:
            w.groups.take_over(w, acc, p)
        w.groups.products.append(p)
        if a_name:
            w.groups.operands[a_name] = p
        m.count("products")
        m.launch.area += m.lanes * volume / 128**3
        if m.launch.trace is not None:
            m.launch.trace.product(m, w, p, volume)
        m.issue(p)
        return p

    return run


@runs("mma_wait")
def mma_wait(site: Site) -> Evaluate:
    names = site.variadic("x")
    values = [site.held(n) for n in names]

    def run(w: Worker) -> int:
        for value in values:
            v = value(w)
            if v.__class__ is Product and not v.over:
                start = w.time
                w.groups.retire_products(w.m, w, v)
                if w.m.launch.trace is not None:
                    w.m.launch.trace.waited(w.m, w, start, "mma_wait", site.span)
        return GO

    return run

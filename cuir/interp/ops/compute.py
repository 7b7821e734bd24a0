"""Arithmetic on register tiles, and products on the tensor core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...ops import meaning
from ...ops.meaning import tiles
from ...ops.meaning.scalars import Function, Value
from ...syntax.types import SharedView, TileType
from .. import trace_times
from ..actions import Product, ReclaimedRegisters
from ..async_groups import retire_products, take_over
from ..code import Site, read_settled_tile
from ..element_places import compile_shared_place
from ..engines import compute_product, issue
from ..machine import GO, Evaluate, Worker
from ..memory import SharedRef
from ..ops_registry import runs
from ..races import touch
from ..values import HELD_DTYPES, make_blank, tile_operand
from .operators import binary, combine, get_scalar_function, get_tile_function, unary


@runs("min", "max", "cdiv")
def extremum(site: Site) -> Evaluate:
    names = site.variadic("x") or list(site.args)
    result, dtype = site.result(), site.dtype(names[0])
    acc, fresh = site.value(names[0]), site.fresh(names[0])
    for name in names[1:]:
        if isinstance(result, TileType):
            acc = combine(site, acc, site.value(name), fresh, site.fresh(name), dtype, dtype)
            fresh = False  # its shape may be smaller than the next operand's
        else:
            acc = _combine_pair(get_scalar_function(site.op, dtype), acc, site.value(name))
    return acc


def _combine_pair(function: Function, x: Evaluate, y: Evaluate) -> Evaluate:
    return lambda w: function(x(w), y(w))


@runs("where")
def where(site: Site) -> Evaluate:
    cond, x, y, dtype, device = site.value("cond"), site.value("x"), site.value("y"), site.dtype("x"), site.device
    host_dtype, result, choose = HELD_DTYPES[dtype], site.result(), get_tile_function(site.op, dtype)
    assert isinstance(result, TileType)
    rounds = not (isinstance(site.type("x"), TileType) and isinstance(site.type("y"), TileType))  # a literal is an f32

    def operand(v: Value) -> torch.Tensor:
        v = tile_operand(v, device)
        return v if v.__class__ is torch.Tensor else torch.tensor(v, dtype=host_dtype, device=device)

    def run(w: Worker) -> torch.Tensor:
        c, a, b = cond(w), operand(x(w)), operand(y(w))
        lanes = max(c.shape[0], a.shape[0] if a.dim() else 1, b.shape[0] if b.dim() else 1)
        out = torch.empty((lanes, result.rows, result.cols), dtype=host_dtype, device=device)
        choose(c, a, b, out=out)  # with out= it runs several times faster on a CPU
        return tiles.round_to(out, dtype) if rounds else out

    return run


runs("exp2", "log2", "tanh", "abs", "sqrt", "floor", "round", "sin", "cos", "atan", "log1p", "erf", "erfc", "round_tf32")(unary)
runs("power", "fmod", "bit")(binary)


@runs("cast")
def cast(site: Site) -> Evaluate:
    x, source, target = site.value("x"), site.dtype("x"), site.const("dtype")
    if isinstance(site.result(), TileType):
        return lambda w: tiles.cast(x(w), source, target)
    return lambda w: meaning.cast(x(w), source, target)


@runs("row_max", "row_sum", "col_max", "col_sum", "interleave")
def apply_tile_function(site: Site) -> Evaluate:
    x, function = site.value("x"), get_tile_function(site.op, site.dtype("x"))
    return lambda w: function(x(w))


@runs("warp_any")
def vote(site: Site) -> Evaluate:
    x, function, device = site.value("x"), get_tile_function(site.op, site.dtype("x")), site.device

    def run(w: Worker) -> torch.Tensor:
        v = tile_operand(x(w), device)
        return function(v if isinstance(v, torch.Tensor) else torch.full((1, 1, 1), bool(v), device=device))

    return run


# ---- products
def _compile_operand(site: Site, arg: str) -> Any:
    return compile_shared_place(site, arg) if site.is_shared(arg) else site.value(arg)


@runs("mma")
def mma(site: Site) -> Evaluate:
    a, b, op, span = _compile_operand(site, "a"), _compile_operand(site, "b"), site.op, site.span
    c = site.value("c") if site.has("c") else None
    fresh = c is not None and site.fresh("c")
    parts = site.const("parts") if site.has("parts") else 0
    values, t = site.values, site.result()
    assert isinstance(t, TileType)

    def run(w: Worker) -> torch.Tensor:
        operands = {"a": a(w), "b": b(w)}
        acc = c(w) if c is not None else None
        touch(op, w, w.actor(span, "the product"), _select_shared(operands), w.clock.event())
        w.m.count("products")
        if not values:
            return make_blank(t, site.device)
        x, y = (v.values(w.m.shared) if isinstance(v, SharedRef) else v for v in operands.values())
        if acc is not None and not fresh:
            acc = acc.clone()
        w.m.launch.area += w.m.lanes * x.shape[1] * x.shape[2] * y.shape[2] / 128**3
        if parts:
            x, y = tiles.split_operands(x, y, parts)
        return compute_product(x, y, acc, w.m.lanes, w.m.launch.noise)

    return run


def _select_shared(operands: Mapping[str, object]) -> dict[str, SharedRef]:
    return {k: v for k, v in operands.items() if isinstance(v, SharedRef)}


@runs("mma_async")
def mma_async(site: Site) -> Evaluate:
    a, b, op, span = _compile_operand(site, "a"), compile_shared_place(site, "b"), site.op, site.span
    c = site.compile_held("c") if site.has("c") else None
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
        if isinstance(acc, ReclaimedRegisters) or (isinstance(acc, Product) and acc.successor is not None):
            acc = read_settled_tile(w, named or "the accumulator", acc, span)
        actor = w.engine("product", span, "the product")
        m.products += 1
        p = Product(actor, m.products, operands["a"], operands["b"], acc, (a_name,) if a_name else ())
        p.records = touch(op, w, actor, _select_shared(operands), None, f"{w.label} calls mma_wait for it")
        if acc is not None:
            take_over(w, acc, p)
        w.groups.products.append(p)
        if a_name:
            w.groups.operands[a_name] = p
        m.count("products")
        m.launch.area += m.lanes * volume / 128**3
        trace_times.record_product(w, p, volume)
        issue(m, p)
        return p

    return run


@runs("mma_wait")
def mma_wait(site: Site) -> Evaluate:
    names = site.variadic("x")
    values = [site.compile_held(n) for n in names]

    def run(w: Worker) -> int:
        for value in values:
            v = value(w)
            if isinstance(v, Product) and not v.over:
                start = w.time
                over = retire_products(w, v)
                trace_times.record_wait(w, start, "mma_wait", site.span, over)
        return GO

    return run

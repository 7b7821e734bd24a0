"""Ordinary memory: arrays in shared memory, new register tiles, loads and stores."""

from __future__ import annotations

import torch

from ...ops.meaning.scalars import Value
from ...ops.meaning.tiles import add_atomically, interleave, round_to
from ...syntax.types import GlobalView, Scalar, SharedView, TileType
from ..code import Site
from ..element_places import compile_box_place, compile_indices, compile_shared_place, find_tensor, is_shared, scatter, set_element
from ..machine import GO, Evaluate, Worker
from ..memory import Shared, count_bytes
from ..ops_registry import runs
from ..races import touch
from ..tensor_races import enter_read, enter_write
from ..tensors import BoxRef
from ..values import HELD_DTYPES, collapse, make_blank, tile_operand

runs("shared")(Shared)


@runs("nbytes")
def size_of(site: Site) -> Evaluate:
    t = site.type("x")
    assert isinstance(t, SharedView)
    rows = 1
    for d in t.dims[:-1]:
        rows *= d
    size = count_bytes(t.dims[-1], rows, t.dtype.itemsize)
    return lambda w: size


@runs("zeros")
def zeros(site: Site) -> Evaluate:
    t, device = site.result(), site.device
    assert isinstance(t, TileType)
    return lambda w: torch.zeros((1, t.rows, t.cols), dtype=HELD_DTYPES[t.dtype], device=device)


@runs("full")
def full(site: Site) -> Evaluate:
    t, device, value = site.result(), site.device, site.value("value")
    assert isinstance(t, TileType)
    host_dtype = HELD_DTYPES[t.dtype]

    def run(w: Worker) -> torch.Tensor:
        v = tile_operand(value(w), device)
        if isinstance(v, torch.Tensor):
            return round_to(v.to(host_dtype).expand(-1, t.rows, t.cols).clone(memory_format=torch.contiguous_format), t.dtype)
        return round_to(torch.full((1, t.rows, t.cols), v, dtype=host_dtype, device=device), t.dtype)

    return run


@runs("rows")
def rows(site: Site) -> Evaluate:
    n, device = site.const("n"), site.device
    return lambda w: torch.arange(n, dtype=torch.int32, device=device).reshape(1, n, 1)


@runs("cols")
def cols(site: Site) -> Evaluate:
    n, device = site.const("n"), site.device
    return lambda w: torch.arange(n, dtype=torch.int32, device=device).reshape(1, 1, n)


@runs("load")
def load(site: Site) -> Evaluate:
    op, span, values, t = site.op, site.span, site.values, site.result()
    assert isinstance(t, TileType)
    if site.is_shared("view"):
        place = compile_shared_place(site, "view")

        def load_shared(w: Worker) -> torch.Tensor:
            ref = place(w)
            touch(op, w, w.actor(span, "the load"), {"view": ref}, w.clock.event())
            return ref.values(w.m.shared).clone(memory_format=torch.contiguous_format) if values else make_blank(t, site.device)

        return load_shared
    box, proxy = compile_box_place(site, "view"), op.effects.proxy("view")

    def load_tensor(w: Worker) -> torch.Tensor:
        out = (
            torch.empty((w.m.lanes, t.rows, t.cols), dtype=HELD_DTYPES[t.dtype], device=site.device)
            if values
            else make_blank(t, site.device)
        )
        ref = box(w)
        enter_read(w.m, w.actor(span, "the load"), ref, proxy, w.clock.event())
        if values:
            ref.tensor.fetch(ref, out)
        return out

    return load_tensor


@runs("transpose_interleaved")
def transpose(site: Site) -> Evaluate:
    op, span, values = site.op, site.span, site.values
    source, target = compile_shared_place(site, "source"), compile_shared_place(site, "target")

    def run(w: Worker) -> int:
        views = {"source": source(w), "target": target(w)}
        touch(op, w, w.actor(span, "the transposition"), views, w.clock.event())
        to = views["target"]
        if values:
            to.values(w.m.shared).copy_(interleave(views["source"].values(w.m.shared).mT))
        w.m.shared[to.cta].wrote(to)
        return GO

    return run


@runs("store")
def store(site: Site) -> Evaluate:
    op, span, value, values = site.op, site.span, site.value("tile"), site.values
    mask = site.value("mask") if site.has("mask") else None
    add = bool(site.const("add", False))
    place = site.type("place")
    if is_shared(site, "place"):
        at = compile_shared_place(site, "place")

        def store_shared(w: Worker) -> int:
            ref, v, keep = at(w), tile_operand(value(w), site.device), mask(w) if mask and values else None
            touch(op, w, w.actor(span, "the store"), {"place": ref}, w.clock.event())
            if not values:
                w.m.shared[ref.cta].wrote(ref)
                return GO
            target = ref.values(w.m.shared)
            if keep is not None:
                v = torch.where(keep, v, target)
            if isinstance(v, torch.Tensor):
                target.copy_(v.reshape(v.shape[0], *target.shape[1:]))
            else:
                target.fill_(v)
            w.m.shared[ref.cta].wrote(ref)
            return GO

        return store_shared
    if isinstance(place, GlobalView):
        box, proxy = compile_box_place(site, "place"), op.effects.proxy("place")

        def store_box(w: Worker) -> int:
            ref, v = box(w), value(w)
            if mask is None:
                enter_write(w.m, w.actor(span, "the store"), ref, add, proxy, w.clock.event())
                if values:
                    ref.tensor.deliver(ref, v, w.m.lanes, add_atomically if add else None)
            elif values or ref.tensor.shadow is not None:
                scatter(w.m, w.actor(span, "the store"), ref.tensor, _make_coordinates(ref, v), v, mask(w), add)
            return GO

        return store_box
    tensor, indices = find_tensor(site, "place"), compile_indices(site, "place")
    single = isinstance(place, Scalar)

    def store_elements(w: Worker) -> int:
        if not values and tensor(w).shadow is None:
            value(w)
            return GO
        position: list[Value] = [collapse(i(w)) for i in indices]
        v = value(w)
        actor = w.actor(span, "the store")
        if single:
            set_element(w.m, actor, tensor(w), position, collapse(v), add)
        else:
            scatter(w.m, actor, tensor(w), position, v, mask(w) if mask else None, add)
        return GO

    return store_elements


def _make_coordinates(ref: BoxRef, v: torch.Tensor) -> list[Value]:
    """Return index tiles [lanes, R, C] of a box's elements, one for each dim of the tensor."""
    linear = torch.arange(v.shape[1] * v.shape[2], device=v.device).reshape(1, v.shape[1], v.shape[2])
    coordinates: list[Value] = []
    inner = linear.numel()
    for start, size in zip(ref.starts, ref.sizes):
        inner //= size
        coordinates.append(linear // inner % size + tile_operand(start, v.device))
    return coordinates

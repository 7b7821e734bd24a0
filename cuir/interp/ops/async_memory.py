"""Bulk copies and stores of the copy engine, and cp.async."""

from __future__ import annotations

import numpy as np

from ...syntax.types import SharedView, TileType
from ...text.source import Span
from .. import trace_times
from ..actions import Copy, Store
from ..async_groups import drain_copies, drain_stores
from ..code import Site
from ..element_places import compile_barrier_place, compile_box_place, compile_gather_place, compile_shared_place, list_peers
from ..engines import enter_copy, enter_store, issue
from ..faults import make_fault
from ..machine import GO, POINT, Evaluate, Machine, Worker
from ..ops_registry import runs
from ..races import touch
from ..tensors import BoxRef, GatherRef


def copy_name(w: Worker, number: int, cta: int | None) -> str:
    """Return the name of the landing of a worker's bulk copy in a written schedule.

    number: counted from 1. cta: of a multicast.
    """
    return f"copy {number} by {w.label}" + (f" to CTA {cta}" if cta is not None else "")


def commit_name(w: Worker) -> str:
    """Return the name of the late arrival for a worker's commit in a written schedule."""
    return f"commit {w.copies} by {w.label}"


def count_columns(site: Site) -> int:
    """Return the columns of a chunk of 16 bytes."""
    view = site.type("shared")
    assert isinstance(view, SharedView)
    return max(1, 16 // view.dtype.itemsize)


def require_chunk(m: Machine, box: BoxRef, unit: int, span: Span) -> None:
    """Raise CuirError M414 for a box that begins inside of a chunk: on an H200 the copy engine ends the kernel there."""
    if np.any(np.remainder(box.starts[-1], unit)):
        raise make_fault(
            m,
            "M414",
            f"the copy begins at column {np.ravel(box.starts[-1])[0]} of `{box.tensor.name}`, and it moves chunks of 16 bytes, {unit} columns",
            span,
            f"begin at a multiple of {unit} columns, or load and store the elements",
        )


def require_neighbours(m: Machine, rows: GatherRef, unit: int, span: Span) -> None:
    """Raise CuirError M414 for gathered rows whose columns are no chunks of neighbours."""
    columns = np.asarray(rows.indices[-1])
    columns = columns.reshape(-1, columns.shape[-1]) if columns.ndim else columns.reshape(1, 1)
    first = columns[:, :1]
    if np.any(columns != first + np.arange(columns.shape[1])) or np.any(np.remainder(first, unit)):
        raise make_fault(
            m,
            "M414",
            f"the copy gathers columns {columns[0, 0]} to {columns[0, -1]} of `{rows.tensor.name}`, and it moves chunks of 16 bytes: "
            f"{unit} neighbours from a multiple of {unit} columns",
            span,
            "columns c + cols(n), from a multiple of 16 bytes",
        )


@runs("copy_async.bulk")
def copy_bulk(site: Site) -> Evaluate:
    box, shared, bar, op, span = (
        compile_box_place(site, "box"),
        compile_shared_place(site, "shared"),
        compile_barrier_place(site, "bar"),
        site.op,
        site.span,
    )
    along, proxy = site.const("cluster", False), op.effects.proxy("box")
    unit = count_columns(site)

    def run(w: Worker) -> int:
        m = w.m
        ref, source, target = shared(w), box(w), bar(w)
        require_chunk(m, source, unit, span)
        bars = list_peers(m, w, target, site, along)
        refs = [ref.at(cta) for cta in m.launch.checked.ctas(w.cta, along)] if along else [ref]
        actor = w.engine("bulk copy", span, "the copy")
        w.copies += 1
        copies = []
        for r, b in zip(refs, bars):
            awaited = f"a wait for its phase of `{b.text}`"
            action = Copy(actor, source, r, b, proxy, awaited, copy_name(w, w.copies, r.cta if len(refs) > 1 else None))
            action.records = touch(op, w, actor, {"shared": r}, None, awaited)
            copies.append(action)
        for action in copies:
            enter_copy(m, action)
        m.count("bulk copies")
        trace_times.record_copies(w, copies, source.text)
        for action in copies:
            issue(m, action)
        return POINT

    return run


@runs("copy_async.cp")
def copy_cp(site: Site) -> Evaluate:
    gathers = isinstance(site.type("box"), TileType)
    box = compile_gather_place(site, "box") if gathers else compile_box_place(site, "box")
    shared, op, span = compile_shared_place(site, "shared"), site.op, site.span
    proxy = op.effects.proxy("box")
    unit = count_columns(site)

    def run(w: Worker) -> int:
        m = w.m
        ref, source = shared(w), box(w)
        if isinstance(source, GatherRef):
            if source.indices:
                require_neighbours(m, source, unit, span)
        else:
            require_chunk(m, source, unit, span)
        actor = w.engine("cp.async", span, "the copy")
        awaited = f"{w.label} calls copy_commit and copy_wait"
        action = Copy(actor, source, ref, None, proxy, awaited)
        action.records = touch(op, w, actor, {"shared": ref}, None, awaited)
        enter_copy(m, action)
        w.groups.open.append(action)
        m.count("cp.async copies")
        trace_times.record_copies(w, [action], source.text)
        issue(m, action)
        return GO

    return run


@runs("copy_commit")
def copy_commit(site: Site) -> Evaluate:
    def run(w: Worker) -> int:
        w.groups.commit()
        return GO

    return run


@runs("copy_wait")
def copy_wait(site: Site) -> Evaluate:
    keep, span = site.const("n"), site.span

    def run(w: Worker) -> int:
        start = w.time
        over = drain_copies(w, keep)
        trace_times.record_wait(w, start, "copy_wait", span, over)
        return POINT

    return run


@runs("store_async")
def store_async(site: Site) -> Evaluate:
    shared, box, op, span, add = (
        compile_shared_place(site, "shared"),
        compile_box_place(site, "box"),
        site.op,
        site.span,
        bool(site.const("add", False)),
    )
    proxy, unit = op.effects.proxy("box"), count_columns(site)

    def run(w: Worker) -> int:
        m = w.m
        ref, target = shared(w), box(w)
        require_chunk(m, target, unit, span)
        actor = w.engine("bulk store", span, "the store")
        action = Store(actor, ref, target, add, proxy)
        columns = target.columns_inside()  # columns beyond the tensor's last are not stored
        needed = ref.first_columns(columns) if 0 < columns < target.sizes[-1] else None
        action.records = touch(op, w, actor, {"shared": ref}, None, f"{w.label} calls store_wait", needed)
        enter_store(m, action)
        w.groups.stores.append(action)
        m.count("bulk stores")
        trace_times.record_store(w, action, target.text)
        issue(m, action)
        return POINT

    return run


@runs("store_wait")
def store_wait(site: Site) -> Evaluate:
    keep, span = site.const("n", 0), site.span

    def run(w: Worker) -> int:
        start = w.time
        over = drain_stores(w, keep)
        trace_times.record_wait(w, start, "store_wait", span, over)
        return POINT

    return run

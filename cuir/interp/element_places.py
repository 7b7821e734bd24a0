"""Places in memory: the view, box, element or barrier that a subscript reaches when it runs.

Bounds of stages and views are checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..checking.views import Drop, View, make_view, root_name
from ..syntax.nodes import Expr, Literal, Name, Subscript
from ..syntax.printer import show
from ..text.source import Span
from .barrier_state import Mbarrier, NamedBarrier
from .code import Compiler, Site
from .faults import make_fault
from .machine import Evaluate, Machine, Worker
from .memory import SharedRef, compute_view_intervals, count_bytes
from .tensors import BoxRef, TensorArg
from .values import collapse, require_uniform

SharedAt = Callable[[Worker], SharedRef]
TensorAt = Callable[[Worker], TensorArg]
D = TypeVar("D", int, str | int)


def is_shared(site: Site, arg: str) -> bool:
    return root_name(site.args[arg]) in site.compiler.checked.shared


def find_tensor(site: Site, arg: str) -> TensorAt:
    """Return a lookup of the tensor in the launch.

    Code serves many launches, and knows of a tensor only its parameter.
    """
    root = root_name(site.args[arg])
    assert root is not None
    return lambda w: w.m.launch.tensors[root]


def _get_view(compiler: Compiler, e: Expr, rank: int) -> View:
    view = make_view(e, rank)
    assert view is not None  # the checker has seen to it
    return view


def compile_shared_place(site: Site, arg: str) -> SharedAt:
    """Return a lookup of a shared array's view in the worker's own CTA.

    The view must be the same in all lanes; references are made once and cached.
    """
    compiler, e, span = site.compiler, site.args[arg], site.span
    alloc = compiler.checked.shared[root_name(e) or ""]
    view = _get_view(compiler, e, len(alloc.dims))
    starts, sizes = _split_view(compiler, view, alloc.dims)
    text = show(e)
    cache: dict[tuple[int, ...], SharedRef] = {}
    drops = tuple(isinstance(p, Drop) for p in view.parts)

    def place(w: Worker) -> SharedRef:
        key = (w.cta, *[require_uniform(s(w)) for s in starts])
        ref = cache.get(key)
        if ref is None:
            for d, (start, size, dim) in enumerate(zip(key[1:], sizes, alloc.dims)):
                if not 0 <= start <= dim - size:
                    extent = f"rows {start} to {start + size - 1}" if not drops[d] else f"index {start}"
                    raise make_fault(
                        w.m,
                        "M409",
                        f"{w.label} reaches outside of `{alloc.name}`: {extent} in dim {d} of length {dim}",
                        span,
                        "stages run from 0: i % STAGES",
                        [(f"`{alloc.name}` is declared here", alloc.span)],
                    )
            index = tuple(start if drop else slice(start, start + size) for start, size, drop in zip(key[1:], sizes, drops))
            rows = int(np.prod(sizes[:-1]))
            ref = SharedRef(
                w.cta,
                alloc,
                index,
                view.transposed,
                compute_view_intervals(alloc, index),
                count_bytes(sizes[-1], rows, alloc.dtype.itemsize),
                text,
            )
            cache[key] = ref
        return ref

    return place


def _split_view(compiler: Compiler, view: View, dims: tuple[D, ...]) -> tuple[list[Evaluate], tuple[int | D, ...]]:
    """Return the start of each dim of a view, and its size; a whole dim's size is as in `dims`."""
    starts: list[Evaluate] = []
    sizes: list[int | D] = []
    for part, dim in zip(view.parts, dims):
        if isinstance(part, Drop):
            starts.append(compiler.compile_index(part.index))
            sizes.append(1)
        else:
            starts.append(compiler.compile_index(part.start if part.start is not None else Literal(0)))
            sizes.append(part.size if part.size is not None else dim)
    return starts, tuple(sizes)


def compile_box_place(site: Site, arg: str) -> Callable[[Worker], BoxRef]:
    """Return a lookup of a tensor's box, which may differ from lane to lane."""
    e = site.args[arg]
    tensor = find_tensor(site, arg)
    dims = next(t.dims for t in site.compiler.checked.tensors if t.name == root_name(e))
    view = _get_view(site.compiler, e, len(dims))
    starts, sizes = _split_view(site.compiler, view, dims)
    static_sizes = tuple([n if isinstance(n, int) else 0 for n in sizes])
    whole = [d for d, n in enumerate(sizes) if not isinstance(n, int)]  # their lengths come from the launch
    text = show(e)

    def place(w: Worker) -> BoxRef:
        t = tensor(w)
        lengths = static_sizes if not whole else tuple([t.shape[d] if d in whole else n for d, n in enumerate(static_sizes)])
        return BoxRef(t, tuple([collapse(s(w)) for s in starts]), lengths, text)

    return place


def compile_indices(site: Site, arg: str) -> list[Evaluate]:
    """Compile the indices of an element or a gather, one for each dim."""
    e = site.args[arg]
    assert isinstance(e, Subscript)
    return [site.compiler.compile_index(i) for i in e.indices]  # type: ignore[arg-type]


def compile_barrier_place(site: Site, arg: str) -> Callable[[Worker], Any]:
    """Return a lookup of the barrier in the worker's own CTA.

    Raises CuirError M412 outside of a ring.
    """
    e = site.args[arg]
    if isinstance(e, Name):
        name = e.id
        return lambda w: w.m.barriers[name, w.cta][0]
    assert isinstance(e, Subscript) and isinstance(e.value, Name)
    name, stage = e.value.id, site.compiler.compile_index(e.indices[0])  # type: ignore[arg-type]
    return lambda w: pick(w, name, require_uniform(stage(w)), site.span)


def pick(w: Worker, name: str, stage: int, span: Span) -> Mbarrier | NamedBarrier:
    ring = w.m.barriers[name, w.cta]
    if not 0 <= stage < len(ring):
        raise make_fault(
            w.m,
            "M412",
            f"{w.label} reaches stage {stage} of `{name}`, which has {len(ring)}",
            span,
            "stages run from 0: i % STAGES",
            [(f"`{name}` is declared here", ring[0].span)],
        )
    return ring[stage]


def list_peers(m: Machine, w: Worker, bar: Mbarrier, site: Site, along: bool | str) -> list[Mbarrier]:
    """Return the same barrier in the CTAs of the cluster that `along` names (`Checked.ctas`), by rank."""
    if not along:
        return [bar]
    for (name, cta), ring in m.barriers.items():
        if cta == w.cta and bar in ring:
            barriers = [m.barriers[name, c][ring.index(bar)] for c in m.launch.checked.ctas(w.cta, along)]
            return barriers  # type: ignore[return-value]
    raise AssertionError(site.op.name)

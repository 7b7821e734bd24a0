"""Places in memory: the view, box, element or barrier that a subscript reaches when it runs.

Bounds of stages and views are checked here.

Elements of tensors: gathers, scatters and single elements, each checked as it happens.

Invariant: no element outside of a tensor is read or written; where faults are looked for, a tile stores one value to
an element, or adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from ..checking.views import Drop, View, make_view, root_name
from ..ops.meaning.tiles import add_at, view_bits
from ..syntax.nodes import Expr, Literal, Name, Subscript
from ..syntax.printer import show
from ..text.source import Span
from .access_records import Actor
from .barrier_state import Mbarrier, NamedBarrier
from .code import Compiler, Site
from .faults import make_fault
from .machine import Evaluate, Machine, Worker
from .memory import SharedRef, compute_view_intervals, count_bytes
from .tensor_races import enter_elements
from .tensors import BoxRef, GatherRef, TensorArg
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


def compile_gather_place(site: Site, arg: str) -> Callable[[Worker], GatherRef]:
    """Return a lookup of the elements of a subscript with index tiles.

    They have no indices in a run without data, unless the tensor's accesses are watched.
    """
    tensor, indices, text, values = find_tensor(site, arg), compile_indices(site, arg), show(site.args[arg]), site.values

    def place(w: Worker) -> GatherRef:
        t = tensor(w)
        return GatherRef(t, [collapse(i(w)) for i in indices] if values or t.shadow is not None else [], text)

    return place


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


# ---- gathers and scatters
def gather(m: Machine, actor: Actor, tensor: TensorArg, indices: list[Any]) -> torch.Tensor:
    """Gather elements at index tiles and scalars, one for each dim; outside of the tensor 0.

    Returns [lanes or 1, R, C].
    """
    offset, inside, whole = tensor.offsets(indices, tensor.strides)
    if not tensor.t.numel():
        return torch.zeros(offset.shape, dtype=tensor.storage_dtype, device=tensor.t.device)
    elements = tensor.flat[offset if whole else torch.where(inside, offset, 0)].to(tensor.storage_dtype)
    enter_elements(m, actor, tensor, indices, inside, "read", offset, whole)
    return elements if whole else elements.masked_fill_(~inside, 0)


def scatter(m: Machine, actor: Actor, tensor: TensorArg, indices: list[Any], values: Any, mask: torch.Tensor | None, add: bool) -> None:
    """Write values to the elements at the indices, where inside of the tensor and mask is True."""
    offset, inside, whole = tensor.offsets(indices, tensor.strides)
    lanes = len(m.clusters)
    rows, cols = values.shape[1:] if isinstance(values, torch.Tensor) else (1, 1)
    # torch.broadcast_shapes would import sympy, which takes a second
    shape = (lanes, max(rows, offset.shape[1]), max(cols, offset.shape[2]))
    inside = (inside if mask is None else inside & mask).expand(shape)
    if not tensor.t.numel():
        return
    whole = whole and (mask is None or bool(mask.all()))
    enter_elements(m, actor, tensor, indices, inside, "add" if add else "write", offset, whole)
    if not m.launch.data:
        return
    data = torch.as_tensor(values, dtype=tensor.storage_dtype, device=tensor.t.device).expand(shape)
    offsets = offset.expand(shape).reshape(-1) if whole else offset.expand(shape)[inside]
    data = (data.reshape(-1) if whole else data[inside]).to(tensor.flat.dtype)
    if add:
        add_at(tensor.flat, offsets, data)
    else:
        tensor.flat.index_put_((offsets,), data)
    if not add and m.launch.detect and offsets.numel() > 1:
        lost = view_bits(tensor.flat[offsets]) != view_bits(data)
        if bool(lost.any()):
            raise _make_two_values_fault(m, actor, tensor, offsets, lost, inside)


def _make_two_values_fault(
    m: Machine, actor: Actor, tensor: TensorArg, offsets: torch.Tensor, lost: torch.Tensor, inside: torch.Tensor
) -> Exception:
    """Make R402: one tile writes different values to the same element.

    Args:
        offsets: memory offsets of the written elements.
        lost: elements whose value was overwritten.
        inside: elements of the tile that are written.
    """
    lost_at = int(lost.nonzero()[0])
    kept_at = int(((offsets == offsets[lost_at]) & ~lost).nonzero()[0])
    (lane, *a), (_, *b) = inside.nonzero()[[min(lost_at, kept_at), max(lost_at, kept_at)]].tolist()
    column = inside.shape[2] > 1 and a[1] != b[1]
    labels = [f"({x[0]}, {x[1]})" if column else str(x[0]) for x in (a, b)]
    place, rest = [], int(offsets[lost_at])
    for d in sorted(range(len(tensor.shape)), key=lambda d: -tensor.strides[d]):
        i, rest = divmod(rest, tensor.strides[d]) if tensor.shape[d] > 1 else (0, rest)
        place.append((d, i))
    element = ", ".join(str(i) for _, i in sorted(place))
    kind = "elements (row, column)" if column else "rows"
    unit = "cluster" if m.launch.checked.cluster > 1 else "CTA"
    return make_fault(
        m,
        "R402",
        f"{kind} {labels[0]} and {labels[1]} of a tile store different values to one element, `{tensor.name}[{element}]`, in {unit} {int(m.clusters[lane])}: either may stay",
        actor.span,
        "each element gets one value: indices that differ for all rows, a mask that leaves one of them, or add=True for the sum",
    )


# ---- single elements
def read_element(m: Machine, actor: Actor, tensor: TensorArg, indices: list[Any]) -> Any:
    """Read one element as a scalar for each lane.

    Raises CuirError M402 outside of the tensor.
    """
    _require_inside(m, actor, tensor, indices)
    position: Any = sum(i * s for i, s in zip(indices, tensor.strides))
    if tensor.shadow is not None:
        tiles = [torch.full((1, 1, 1), i, device=tensor.t.device) if isinstance(i, int) else i for i in indices]
        enter_elements(m, actor, tensor, tiles, torch.ones((1, 1, 1), dtype=torch.bool, device=tensor.t.device), "read")
    if isinstance(position, np.ndarray):
        elements = tensor.flat[torch.from_numpy(position).to(tensor.t.device)].cpu().numpy()
        return elements.astype(np.int64) if elements.dtype == np.int32 else elements
    return tensor.flat[position].item()


def set_element(m: Machine, actor: Actor, tensor: TensorArg, indices: list[Any], value: Any, add: bool) -> None:
    """Write a scalar to the element at scalar indices.

    Raises CuirError M402 outside of the tensor.
    """
    _require_inside(m, actor, tensor, indices)
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value).to(tensor.t.device).to(tensor.storage_dtype).reshape(-1, 1, 1)
    scatter(m, actor, tensor, indices, value, None, add)


def _require_inside(m: Machine, actor: Actor, tensor: TensorArg, indices: list[Any]) -> None:
    for d, (i, size) in enumerate(zip(indices, tensor.shape)):
        low, high = (int(i.min()), int(i.max())) if isinstance(i, np.ndarray) else (i, i)
        if low < 0 or high >= size:
            outside = low if low < 0 else high
            raise make_fault(
                m,
                "M402",
                f"{actor.label} reaches for an element outside of `{tensor.name}`: index {outside} in dim {d} of length {size}",
                actor.span,
                "guard it by an if; a gather with index tiles reads 0 outside, a box too",
                [(f"`{tensor.name}` is declared here", tensor.param.span)],
            )

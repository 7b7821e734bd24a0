"""Elements of tensors: gathers, scatters and single elements, each checked as it happens.

Invariant: no element outside of a tensor is read or written; where faults are looked for, a tile stores one value to
an element, or adds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..ops.meaning.tiles import add_at, view_bits
from .access_records import Actor
from .faults import make_fault
from .machine import Machine
from .tensor_races import enter_elements
from .tensors import TensorArg


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

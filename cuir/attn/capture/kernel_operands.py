"""Tensors of a call as the kernels read and write them, without a copy where they can.

A kernel's copy engine takes rows that begin at multiples of 16 bytes (strides of 0 are fine: results of `expand` are
read in place). Other tensors are copied once a call, into such rows; `packed_copies` counts these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from ...arguments.requirements import COPY_ALIGNMENT
from .symbolic_sizes import is_contiguous, is_known, order_from_outermost

T = TypeVar("T")


@dataclass
class PackedCopies:
    """Counters of copied tensors, since the process began or `reset`.

    Attributes:
        calls: copied tensors.
        nbytes: bytes of the copies.
    """

    calls: int = 0
    nbytes: int = 0

    def reset(self) -> None:
        self.calls = self.nbytes = 0


_COPIES = PackedCopies()


def packed_copies() -> PackedCopies:
    """Return the counters of tensors that `flex_attention` had to copy.

    No kernel can read them in place: strides or starts are odd, or columns are not contiguous.
    """
    return _COPIES


def autocast(x: T, device: str) -> T | torch.Tensor:
    """Cast a tensor to the dtype of torch.autocast for the device, where it would be cast.

    As PyTorch's own flex_attention: all floats but float64.
    """
    if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(device))
    return x


def autocasts(x: object) -> bool:
    """Return True if torch.autocast is enabled for a tensor's device."""
    return isinstance(x, torch.Tensor) and x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def strides_fit(x: torch.Tensor) -> bool:
    """Return True if rows of x [..., D] are contiguous and aligned to 16 bytes, if the first one is."""
    if is_contiguous(x):
        return x.shape[-1] * x.element_size() % COPY_ALIGNMENT == 0 or is_known(math.prod(x.shape[:-1]) <= 1)
    *outer, (columns, step) = zip(x.shape, x.stride(), strict=True)
    return (step == 1 or columns == 1) and all(
        is_known(size == 1) or is_known(stride * x.element_size() % COPY_ALIGNMENT == 0) for size, stride in outer
    )


def pack_rows(x: torch.Tensor) -> torch.Tensor:
    """Copy x [..., D] into rows that begin at multiples of 16 bytes; dims of `expand` stay expanded."""
    once = x[
        tuple(
            slice(0, 1) if stride == 0 and size > 1 and d < x.dim() - 1 else slice(None)
            for d, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True))
        )
    ]
    copy = _rows(once, once.shape[:-1], x.shape[-1]).copy_(once)
    _COPIES.calls += 1
    _COPIES.nbytes += copy.numel() * copy.element_size()
    return copy.expand(x.shape)


def as_kernels_read(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return tensors as kernels read them, copies where they must be."""
    return tuple(x if strides_fit(x) and x.data_ptr() % COPY_ALIGNMENT == 0 else pack_rows(x) for x in tensors)


def output_for(query: torch.Tensor, columns: int) -> torch.Tensor:
    """Return O [B, H, M, columns] as a kernel writes it, not initialised.

    Its dims lie in memory in the order of query's; rows are padded to a multiple of 16 bytes. It is bfloat16 for 8-bit
    queries.
    """
    dtype = torch.bfloat16 if query.dtype.itemsize == 1 else query.dtype
    if columns == query.shape[-1]:
        o = torch.empty_like(query, dtype=dtype, requires_grad=False)
        if strides_fit(o):
            return o
    order = _order(query)
    rows = _rows(query.new_empty(0, dtype=dtype), [query.shape[d] for d in order], columns)
    return rows.permute(*(order.index(d) for d in range(3)), 3)


def without_room(o: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return O [B, H, M, DV] as a caller gets it: dense, in the order of query's dims."""
    if o.shape[-1] * o.element_size() % COPY_ALIGNMENT == 0:
        return o
    return torch.empty_permuted(o.shape, (*_order(query), 3), dtype=o.dtype, device=o.device).copy_(o)


def empty_as(x: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor of x's shape and dtype, not initialised.

    Its dims lie in memory in the order of x's, columns too; in plain order where x repeats elements.
    """
    return torch.empty_permuted(x.shape, _whole_order(x), dtype=x.dtype, device=x.device)


def as_it_lies(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return g, of x's shape, with the strides that `empty_as` gives.

    This is g's own memory if its dims lie so.
    """
    if x.is_contiguous() and g.stride() == x.stride():
        return g
    strides = [1] * g.dim()
    for inner, outer in itertools.pairwise(reversed(_whole_order(x))):
        strides[outer] = strides[inner] * g.shape[inner]
    if all(size == 1 or a == b for size, a, b in zip(g.shape, g.stride(), strides, strict=True)):
        return g.as_strided(g.shape, strides)
    return empty_as(x).copy_(g)


def is_output_layout(x: torch.Tensor) -> bool:
    """Return True if `as_it_lies` returns the result of `output_for` for x, in its dtype, unchanged.

    This holds for contiguous tensors and for whole views, such as heads of a projection.
    """
    output = torch.empty_like(x, device="meta")
    return strides_fit(output) and (
        x.is_contiguous() or output.stride() == torch.empty_permuted(x.shape, _whole_order(x), device="meta").stride()
    )


def _whole_order(x: torch.Tensor) -> list[int]:
    """Return the dims of x from the outermost in memory to the innermost."""
    if any(is_known(stride == 0) and not is_known(size == 1) for size, stride in zip(x.shape, x.stride(), strict=True)):
        return list(range(x.dim()))
    return order_from_outermost(x.stride())


def make_placeholder(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of x's shape, one row in memory, for a kernel that neither reads nor writes it."""
    return _rows(x.new_empty(0, dtype=dtype), [1] * (x.dim() - 1), x.shape[-1]).expand(x.shape)


def _order(query: torch.Tensor) -> list[int]:
    """Return the dims batch, head and length from the outermost in memory to the innermost."""
    return order_from_outermost(query.stride()[:3])


def _rows(like: torch.Tensor, outer: Sequence[int], columns: int) -> torch.Tensor:
    """Return a tensor [*outer, columns], not initialised, with rows padded to a multiple of 16 bytes."""
    unit = COPY_ALIGNMENT // like.element_size()
    room = math.ceil(columns / unit) * unit
    return torch.empty((*outer, room), dtype=like.dtype, device=like.device)[..., :columns]


__all__ = [
    "PackedCopies",
    "as_it_lies",
    "as_kernels_read",
    "autocast",
    "autocasts",
    "empty_as",
    "is_output_layout",
    "make_placeholder",
    "output_for",
    "pack_rows",
    "packed_copies",
    "strides_fit",
    "without_room",
]

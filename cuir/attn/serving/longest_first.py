"""The order in which sequences of different lengths are processed: the longest first.

So no long sequence is left at the end. Any order is right, and gives the same bits. So an order is computed from a
tensor of lengths once, until it is written to: the layers of a model share it. In a CUDA graph every replay computes it
anew, from the current lengths, once for all calls that are captured with it. The kernel is longest_first.cuir: one
launch.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...caching import Memo
from ...checking.checked import Checked
from ...checking.checker import check
from ...runtime.launch import get_capture_id
from ...syntax.nodes import Program
from ..capture.device_tensors import constant
from ..kernels.experts import parse_shipped
from ..splicing.captured_arguments import state_of

if TYPE_CHECKING:
    from ...runtime.compiled import CompiledKernel

PROGRAM = Path(__file__).with_name("longest_first.cuir")


@dataclass(frozen=True)
class _CachedOrder:
    lengths: weakref.ref[torch.Tensor]
    when: tuple[object, ...]
    order: torch.Tensor


# the last order only: a step of serving has one tensor of lengths
_CACHE: Memo[torch.device, _CachedOrder] = Memo(
    "flex.longest_first", key="device", invalidation="other lengths, a write to them, another stream or capture", limit=64
)


def longest_first(lengths: torch.Tensor) -> torch.Tensor:
    """Return int32 [B], the numbers of sequences by their lengths [B], the longest first.

    It is on the device, and nothing waits for it.
    """
    device, state = lengths.device, state_of(lengths)
    stream = torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0
    when = state, stream, get_capture_id(stream) if device.type == "cuda" else 0
    entry = _CACHE.get(device)
    if entry is not None and state is not None and entry.when == when and entry.lengths() is lengths:
        return entry.order
    order = _rank(lengths.to(torch.int32))
    if state is not None:
        _CACHE[device] = _CachedOrder(weakref.ref(lengths), when, order)
    return order


def _rank(lengths: torch.Tensor) -> torch.Tensor:
    if lengths.device.type == "cuda":
        order: torch.Tensor = _compile_kernel()(LENGTHS=lengths)
    else:
        from ...interp import run

        order = torch.empty_like(lengths)
        run(_check_kernel(), {"LENGTHS": lengths, "ORDER": order})
    return order


def _read_program() -> Program:
    return parse_shipped(PROGRAM.read_text(encoding="utf-8"), str(PROGRAM))


@functools.cache
def _check_kernel() -> Checked:
    return check(_read_program())


@functools.cache
def _compile_kernel() -> CompiledKernel:
    from ...runtime.compiled import compile

    return compile(_read_program())


def as_they_stand(B: int, device: torch.device) -> torch.Tensor:
    """Return int32 [B], the order for sequences of one length."""
    return constant(torch.arange, B, dtype=torch.int32, device=device)


__all__ = ["as_they_stand", "longest_first"]

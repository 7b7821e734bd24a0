"""The order in which sequences of different lengths are begun: the longest first, so that none is left when the others are done. Owns how long an order is kept.

Any order is right, and gives the same bits. So one is made of a tensor of lengths once, until it is written to: the layers of a model share it. What goes into a CUDA graph makes it
anew at every replay, from the lengths that there are then, once for all calls that are captured with it. The kernel that makes it is longest_first.cuir: one launch.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..checking.checked import Checked
from ..checking.checker import check
from ..interp import run
from ..runtime.launch import capture_id
from ..syntax.parser import parse
from ..variants.arguments import state_of
from .constants import constant

if TYPE_CHECKING:
    from ..runtime.compiled import CompiledKernel

PROGRAM = Path(__file__).with_name("longest_first.cuir")


@dataclass(frozen=True)
class _Kept:
    lengths: weakref.ref[torch.Tensor]
    when: tuple[object, ...]
    order: torch.Tensor


_KEPT: dict[torch.device, _Kept] = {}  # the last one: a step of serving has one tensor of lengths


def longest_first(lengths: torch.Tensor) -> torch.Tensor:
    """int32 [B]: the numbers of sequences by their lengths [B], the longest first. On the device, without waiting for it."""
    device, state = lengths.device, state_of(lengths)
    stream = torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0
    when = state, stream, capture_id(stream) if device.type == "cuda" else 0
    kept = _KEPT.get(device)
    if kept is not None and state is not None and kept.when == when and kept.lengths() is lengths:
        return kept.order
    order = _ranked(lengths.to(torch.int32))
    if state is not None:
        _KEPT[device] = _Kept(weakref.ref(lengths), when, order)
    return order


def _ranked(lengths: torch.Tensor) -> torch.Tensor:
    if lengths.device.type == "cuda":
        order: torch.Tensor = _compiled()(LENGTHS=lengths)
    else:
        order = torch.empty_like(lengths)
        run(_checked(), {"LENGTHS": lengths, "ORDER": order})
    return order


@functools.cache
def _checked() -> Checked:
    return check(parse(PROGRAM.read_text(encoding="utf-8"), str(PROGRAM)))


@functools.cache
def _compiled() -> CompiledKernel:
    from ..runtime.compiled import compile

    return compile(PROGRAM)


def as_they_stand(B: int, device: torch.device) -> torch.Tensor:
    """int32 [B]: sequences of one length."""
    return constant(torch.arange, B, dtype=torch.int32, device=device)


__all__ = ["as_they_stand", "longest_first"]

"""Calls that go to PyTorch's dispatcher as an operator.

These are calls of fake and meta tensors, of tensor subclasses that wrap others, and calls under a dispatch mode.
"""

from __future__ import annotations

import sys

import torch
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad

from .call_inputs import IN_TRANSFORM, wrong
from .graph_errors import at_tracing

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_MODES = torch._C._len_torch_dispatch_stack
_TRANSFORM = torch._C._functorch.maybe_current_level


def is_dispatched(x: object) -> bool:
    """Return True if a call with this tensor goes to the dispatcher.

    Warm calls run this.
    """
    if _MODES() or _TRANSFORM() is not None or forward_ad._current_level >= 0:
        return True
    return type(x) not in _PLAIN and wraps_tensors(x)


def wraps_tensors(x: object) -> bool:
    """Return True for a tensor of a subclass that PyTorch's dispatcher asks."""
    return isinstance(x, torch.Tensor) and type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def check_local(*tensors: object) -> None:
    """Raise CuirError U403 for a DTensor, and within torch.func."""
    if torch.compiler.is_compiling():
        _check_transform()
    for x in tensors:
        if type(x).__name__ == "DTensor" and type(x).__module__.startswith("torch.distributed"):
            wrong(
                "U403",
                "query, key and value must be tensors of this process, found a DTensor",
                "call on x.to_local() of tensors that are sharded by batch or heads, and DTensor.from_local(o, mesh, placements); mods count batches and heads of the local tensors",
            )


@at_tracing
def _check_transform() -> None:
    if _TRANSFORM() is not None:
        wrong("U403", *IN_TRANSFORM)


def has_no_numbers(x: torch.Tensor) -> bool:
    """Return True for a tensor that has a shape and no data."""
    return isinstance(x, FakeTensor) or (isinstance(x, torch.Tensor) and x.is_meta)


def is_traced() -> bool:
    """Return True while operators of this thread are recorded into a graph."""
    module = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return torch.compiler.is_compiling() or (module is not None and module.get_proxy_mode() is not None)


__all__ = ["check_local", "has_no_numbers", "is_dispatched", "is_traced", "wraps_tensors"]

"""Gradients of tensors that mods capture: found, computed by PyTorch, compared.

PyTorch computes them in float64 and in their dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ..attn.capture.capture_keys import follow, make_capture_key
from ..attn.capture.capture_walk import Path

DRAWS = 8  # gradients of O by which PyTorch's own error is estimated
DEVIATIONS = 3.0  # of that estimate: a tensor of few elements has an error by chance, a table has its mean
_OF_MODULES = ("_parameters", "_buffers", "_modules")  # whose entries are attributes of a torch.nn.Module


@dataclass(frozen=True)
class CapturedTensor:
    """A float tensor that a mod captures and that requires a gradient, with its name in the mod."""

    name: str
    tensor: torch.Tensor


def list_learned(*mods: Callable[..., object] | None) -> list[CapturedTensor]:
    """List the captured tensors of mods that require gradients."""
    key = make_capture_key(*mods)
    paths = [(path, value) for kind, path, value in key.places if kind == "tensor"]
    names = {id(value): _name_place(mods, path) for path, value in reversed(paths)}  # the first place counts
    return [
        CapturedTensor(names.get(id(t), f"captured tensor {i}"), t)
        for i, t in enumerate(key.tensors)
        if t.requires_grad and t.is_floating_point()
    ]


def _name_place(roots: tuple[object, ...], path: Path) -> str:
    """Return the text by which a mod reads a captured value, such as `self.table`."""
    name = ""
    for i, (step, key) in enumerate(path):
        if step == "cell":
            holder: Any = follow(roots, path[:i])  # a function
            name = holder.__code__.co_freevars[int(key)]
        elif step == "global":
            name = str(key)
        elif step == "attribute" and key == "__self__":
            name = "self"
        elif step == "attribute" and not str(key).startswith("__") and key not in _OF_MODULES:
            name += f".{key}" if name else str(key)
        elif step == "key" and i > 0 and path[i - 1][1] in _OF_MODULES:
            name += f".{key}"
        elif step in ("key", "item") and name:
            name += f"[{key!r}]" if step == "key" else f"[{key}]"
    return name or "captured tensor"


class SubstituteTensors(TorchFunctionMode):
    """Mode in which PyTorch's functions read other tensors in place of some.

    The other tensors are copies on the CPU that require gradients.

    dtype: of the copies; None for the tensors' own.
    """

    def __init__(self, tensors: Sequence[CapturedTensor], dtype: torch.dtype | None = None):
        super().__init__()
        self.leaves = [c.tensor.detach().cpu().to(dtype or c.tensor.dtype, copy=True).requires_grad_() for c in tensors]
        self.by_id = {id(c.tensor): leaf for c, leaf in zip(tensors, self.leaves)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda x: self.by_id.get(id(x), x), (args, kwargs or {}))
        return func(*args, **kwargs)


@dataclass(frozen=True)
class GradientError:
    """Error of a gradient in the norm, and the allowed one, relative to the gradient's norm."""

    error: float
    allowed: float
    pytorch: float


def measure_gradient(
    ours: torch.Tensor, exact: Sequence[torch.Tensor], pytorch: Sequence[torch.Tensor], ratio: float, rounding: float
) -> GradientError:
    """Compare a gradient with float64.

    Args:
        exact: the gradient in float64, for each of `DRAWS` gradients of O; `ours` is that of the first.
        pytorch: the same in the captured tensor's dtype.
        ratio: allowed multiple of PyTorch's error.
        rounding: allowed beside it, relative.
    """
    size = exact[0].norm().item() or 1.0
    squares = torch.stack([(x.double() - y).square() for x, y in zip(pytorch, exact)])
    magnitude = squares.sum().div(len(exact)).sqrt().item()
    shares = squares.sum(0)  # of each element
    count = (shares.sum().square() / shares.square().sum()).item() if magnitude > 0 else 1.0  # elements that share the error
    allowed = ratio * magnitude * (1 + DEVIATIONS / math.sqrt(2 * count)) + rounding * size
    error = (ours.double() - exact[0]).norm().item()
    return GradientError(error / size, allowed / size, magnitude / size)


__all__ = ["DRAWS", "CapturedTensor", "GradientError", "SubstituteTensors", "list_learned", "measure_gradient"]

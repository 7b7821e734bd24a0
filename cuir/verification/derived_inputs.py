"""Floats that a specification's `inputs` computes, such as the LSE of a forward pass."""

from __future__ import annotations

import torch

from ..checking.checked import Checked
from ..spec.function_specification import FunctionSpecification
from .inputs import make_function_launch
from .values.cases import Draw


def keeps_units(checked: Checked, spec: FunctionSpecification, draw: Draw) -> bool:
    """Return whether f32 tensors that `inputs` computes are rounded by less than one unit.

    A logarithm of 1e12 has lost thousands of units, and no kernel can recover them: its exponentials are meaningless.
    The reference does not read such a tensor, so PyTorch's error does not show it.
    """
    if spec.inputs is None:
        return True
    launch = make_function_launch(checked, spec, draw)
    tensors = [x for n in launch.from_inputs if isinstance(x := launch.inputs.get(n), torch.Tensor) and x.dtype == torch.float32]
    return not any(bool((x.isfinite() & (x.abs() * torch.finfo(x.dtype).eps >= 1)).any()) for x in tensors)


__all__ = ["keeps_units"]

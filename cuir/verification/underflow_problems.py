"""Problems with inputs so small that their products underflow: long in each dim that additions sum."""

from __future__ import annotations

import torch

from ..attn.verification.problems import is_attention
from ..checking.checked import Checked
from ..spec.function_specification import FunctionSpecification
from ..syntax.types import F32
from ..text.diagnostics import CuirError
from .inputs import make_function_launch
from .tile_steps import align_heads, find_steps
from .values.cases import Draw, select_fitting
from .values.underflowing_sums import KIND

_PARTS = 256  # steps of the summed dim
_TINY = 2.0**-30  # smaller than all drawn numbers


def make_underflow_draws(checked: Checked, spec: FunctionSpecification, added: set[str]) -> list[Draw]:
    """Return one problem for each dim that the kernel sums by additions to an f32 output.

    added: names of outputs that it adds to.
    """
    if is_attention(checked.origin) or not any(t.dtype == F32 and not t.written and not t.scratch for t in checked.tensors):
        return []
    steps, draws = find_steps(checked, spec), list[Draw]()
    for t in checked.outputs:
        if t.name not in added or t.dtype != F32:
            continue
        for d in (d for d in checked.dims if d not in t.dims and steps[d]):
            sizes = [align_heads({**dict.fromkeys(checked.dims, 1), d: n * steps[d]}) for n in (1, _PARTS)]
            if any(_underflows(checked, spec, short) for short in select_fitting(checked, spec, [Draw("one step", sizes[0], KIND)])[0]):
                draws += select_fitting(checked, spec, [Draw(f"{KIND} along {d}", sizes[1], KIND)])[0]
    return draws


def _underflows(checked: Checked, spec: FunctionSpecification, draw: Draw) -> bool:
    """Return whether the kind applies: some input is then tiny."""
    try:
        inputs = make_function_launch(checked, spec, draw).inputs.values()
    except CuirError:
        return False
    return any(
        isinstance(x, torch.Tensor) and x.numel() > 0 and x.dtype == torch.float32 and bool((x.abs() < _TINY).all()) and bool(x.any())
        for x in inputs
    )


__all__ = ["make_underflow_draws"]

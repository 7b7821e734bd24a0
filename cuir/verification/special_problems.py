"""Problems with special values: a few at level quick; all tensors, pairs and scalars at full.

Problems with inputs so small that their products underflow: long in each dim that additions sum.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..attn.verification.problems import is_attention
from ..checking.checked import Checked
from ..spec.function_specification import FunctionSpecification
from ..syntax.types import F32
from ..text.diagnostics import CuirError
from .inputs import make_function_launch
from .tile_steps import align_heads, find_steps, find_unit_dims
from .values.cases import Draw, select_fitting
from .values.special_plan import SPECIAL, SpecialPlan
from .values.special_values import HIDDEN_COLUMNS, UNDERFLOW

_QUICK = {
    "hidden": 4,
    "bounds": 2,
    "infinite": 4,
    "nan": 1,
    "steep": 2,
    "vast": 6,
    "near": 3,
    "both": 3,
    "edges": 6,
}  # the largest number of problems of a kind
_FULL = 36  # at level full
_TURNS = {"hidden": 3, "edges": 3}  # the number of forms of each
_ROWS = 19  # enough rows for all forms


def make_special_draws(checked: Checked, spec: FunctionSpecification, plan: SpecialPlan, level: str) -> list[Draw]:
    """Draw problems of each applicable kind of special values, with about the length of a tile.

    Rows with runs of -inf have several tiles.
    """
    steps, draws = find_steps(checked, spec), list[Draw]()
    for kind in SPECIAL:
        several = plan.count(kind) * (_TURNS.get(kind, 1) if level == "full" or kind == "hidden" else 1)
        count = min(several, _QUICK[kind] if level == "quick" else _FULL)
        for i in range(count):  # the first, the last, and some between
            seed = i if several <= count else i * (several - 1) // max(1, count - 1)
            sizes = _choose_long_rows(checked, plan, seed, steps) if kind == "hidden" else _choose_tile_sizes(checked, steps)
            admitted = _admit(checked, spec, Draw(f"{kind} {i}", sizes, kind, seed), steps)
            if kind == "both" and (level == "full" or i in (0, count - 1)) and (short := _choose_short_rows(checked, steps)):
                shorter = select_fitting(checked, spec, [Draw(f"{kind} {i}, short rows", short, kind, seed)])[0]
                admitted += [d for d in shorter if d.sizes not in [a.sizes for a in admitted]]  # the specification may fix lengths
            draws += admitted
    return draws


def _admit(checked: Checked, spec: FunctionSpecification, draw: Draw, steps: Mapping[str, int]) -> list[Draw]:
    """Return the problem, or one of two tiles of each dim where the specification or memory refuses it."""
    for sizes in (draw.sizes, {d: 2 * n or 2 for d, n in steps.items()}):
        if admitted := select_fitting(checked, spec, [Draw(draw.name, align_heads(sizes), draw.kind, draw.seed)])[0]:
            return admitted
    return []


def _choose_tile_sizes(checked: Checked, steps: Mapping[str, int]) -> dict[str, int]:
    return {d: steps[d] + 9 if steps[d] and d not in ("B", "H", "HK") else 2 for d in checked.dims}


def _choose_short_rows(checked: Checked, steps: Mapping[str, int]) -> dict[str, int]:
    """Return sizes with two elements of each dim that is stepped through within a unit.

    The result is {} if there is no such dim. With two elements, all results of a row may be far below 0, which a padded
    0 exceeds.
    """
    units = find_unit_dims(checked)
    inner = {d: 2 for d in checked.dims if steps[d] > 2 and d not in units}
    return align_heads({**_choose_tile_sizes(checked, steps), **inner}) if inner and units else {}


def _choose_long_rows(checked: Checked, plan: SpecialPlan, seed: int, steps: Mapping[str, int]) -> dict[str, int]:
    """Return sizes for a hidden tensor: several blocks in its last dim, and enough rows for all forms.

    More than two blocks, and more than the longest run.
    """
    name = plan.hidden[seed % len(plan.hidden)]
    dims = next(t.dims for t in checked.tensors if t.name == name)
    long = dims[-1]
    sizes = {d: max(2 * steps[d], HIDDEN_COLUMNS + min(steps[d], HIDDEN_COLUMNS)) + 17 if d == long else 1 for d in checked.dims}
    row_dims = [d for d in dims[:-1] if isinstance(d, str) and d in sizes]
    tiled = [d for d in row_dims if steps[d]] or row_dims
    sizes |= {d: _ROWS if d == tiled[-1] else 1 for d in row_dims}
    if is_attention(checked.origin):
        sizes |= {"N": 2 * max(steps["N"], HIDDEN_COLUMNS) + 17, "M": max(sizes["M"], _ROWS), "H": max(sizes["H"], 2)}
    return {d: max(n, 1) for d, n in sizes.items()}


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
            if any(
                _underflows(checked, spec, short) for short in select_fitting(checked, spec, [Draw("one step", sizes[0], UNDERFLOW)])[0]
            ):
                draws += select_fitting(checked, spec, [Draw(f"{UNDERFLOW} along {d}", sizes[1], UNDERFLOW)])[0]
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


__all__ = ["make_special_draws", "make_underflow_draws"]

"""Problems for the numbers of a function specification: lengths with the kinds of inputs that matter.

Floats that a specification's `inputs` computes, such as the LSE of a forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from ..attn.tracing.splice_names import BACKWARD
from ..attn.verification.problems import is_attention
from ..checking.checked import Checked
from ..spec.function_specification import FunctionSpecification
from ..text.diagnostics import CuirError
from .inputs import (
    ask_small,
    collect_readable,
    find_small_problem,
    get_small_scalars,
    get_special_plan,
    list_applicable_kinds,
    make_function_launch,
)
from .lengths import make_all_draws, make_first_draws
from .special_problems import make_special_draws
from .values.cases import Draw, compute_shape, count_elements, get_integer_consts
from .values.step_inputs import make_decisive_draws


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


_SMALL = ("tiny", "zero")  # kinds for which a threshold of the specification may drop everything
_WARP_ROWS = 16  # rows of a tile that a warp has
_PLAIN = 3_000_000  # elements of all tensors of a problem that is repeated with other values


def make_draws(checked: Checked, spec: FunctionSpecification, level: str) -> list[Draw]:
    """Return problems for the numbers: those of lengths.py for which the specification is defined.

    With small ones among them repeated with other values.
    """
    problems = _select_defined(checked, spec, make_all_draws(checked, spec, level))
    special = make_special_draws(checked, spec, get_special_plan(checked, spec), level)
    problems_of_kinds = restrict_kinds(checked, spec, problems + make_value_draws(checked, spec, problems) + special)
    return problems_of_kinds + _make_decisive(checked, spec, problems, level)


def make_first_plain_draws(checked: Checked, spec: FunctionSpecification, level: str, count: int) -> list[Draw]:
    """Return at most `count` of the first problems of `make_draws`, without making the others."""
    return restrict_kinds(checked, spec, _select_defined(checked, spec, make_first_draws(checked, spec, level, count)))


def _select_defined(checked: Checked, spec: FunctionSpecification, draws: Sequence[Draw]) -> list[Draw]:
    return [d for d in draws if min(d.sizes.values(), default=1) or says_something(checked, spec, d)]


def _make_decisive(checked: Checked, spec: FunctionSpecification, problems: Sequence[Draw], level: str) -> list[Draw]:
    """Return problems whose inputs lie at jumps of functions."""
    # LSE must be that of Q and K
    if is_attention(checked.origin) or set(BACKWARD) <= {p.name for p in checked.origin.params}:
        return []
    return [
        d for d in make_decisive_draws(checked, spec, problems, level, lambda: ask_small(checked, spec)) if says_something(checked, spec, d)
    ]


def restrict_kinds(checked: Checked, spec: FunctionSpecification, problems: Iterable[Draw]) -> list[Draw]:
    """Return the problems, with normal inputs where their kind does not apply.

    Nor where the specification gives only NaN for it, as where `mask > 0.5` holds nowhere.
    """
    kinds, small = list_applicable_kinds(checked, spec), find_small_problem(checked, spec)
    tensors = sum(t.dtype.is_float and not t.scratch for t in checked.tensors) or 1
    cache: dict[tuple[str, int], bool] = {}

    def is_defined(draw: Draw) -> bool:
        if small is None or draw.kind not in _SMALL:
            return True
        form = (draw.kind, draw.seed % tensors)  # seeds choose the tensor
        if form not in cache:
            cache[form] = says_something(checked, spec, replace(small, kind=draw.kind, seed=form[1]))
        return cache[form]

    return [d if d.kind in kinds and is_defined(d) else replace(d, kind="normal") for d in problems]


def make_value_draws(checked: Checked, spec: FunctionSpecification, problems: Sequence[Draw]) -> list[Draw]:
    """Return problems of the remaining kinds.

    Where a mean far above the deviation, or a scalar below a root, matters, each tensor takes its turn; for the other
    kinds one tensor.
    """
    if is_attention(checked.origin):
        return []
    small, kinds = get_small_scalars(checked, spec), list_applicable_kinds(checked, spec)
    plain = sorted((d for d in problems if min(d.sizes.values(), default=1) > 1), key=lambda d: _sum_elements(checked, d)) or list(problems)
    bases = [d for d in plain if _sum_elements(checked, d) <= _PLAIN][: 1 + len(plain) // 3] or plain[:1]
    shaped = [t for t in checked.tensors if t.dtype.is_float and not t.written and not t.scratch]
    tensor_count = max(1, min(3, sum(len(t.dims) > 1 for t in shaped) or len(shaped)))
    kinds_and_seeds = [("offset", i) for i in range(2 * tensor_count)]
    kinds_and_seeds += [("faint", i) for i in range(max(tensor_count, min(4, 4 * len(small))))]
    kinds_and_seeds += [(kind, i) for i, kind in enumerate(("largest", "ties", "onehot", "equal", "growing", "wide"))]
    candidates = [Draw(f"{kind} {i}", bases[n % len(bases)].sizes, kind, i) for n, (kind, i) in enumerate(kinds_and_seeds) if kind in kinds]
    if "aligned" in kinds and shaped:  # of the first tensor: conditions that all rows of a warp share
        shapes = [compute_shape(shaped[0], {**get_integer_consts(checked), **d.sizes}) for d in problems]
        tall = [d for d, x in zip(problems, shapes, strict=True) if math.prod(x) and x[-2:-1] >= [_WARP_ROWS]]
        by_rows = sorted(bases, key=lambda d: count_elements(shaped[0], {**get_integer_consts(checked), **d.sizes}))
        chosen = by_rows[-2:] + sorted(tall, key=lambda d: _sum_elements(checked, d))[:1]
        candidates += [Draw(f"aligned {i}", d.sizes, "aligned") for i, d in enumerate(chosen)]
    return [d for d in candidates if d.kind != "largest" or keeps_units(checked, spec, d)]


def _has_nan(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point() and bool(x.double().isnan().any())


def _sum_elements(checked: Checked, draw: Draw) -> int:
    sizes = {**get_integer_consts(checked), **draw.sizes}
    return sum(math.prod(compute_shape(t, sizes)) for t in checked.tensors)


def says_something(checked: Checked, spec: FunctionSpecification, draw: Draw) -> bool:
    """Return whether the specification gives numbers for a problem.

    With a length of 0 many fail or give NaN.
    """
    try:
        launch = make_function_launch(checked, spec, draw)
        if not min(draw.sizes.values(), default=1) and any(_has_nan(launch.inputs.get(n)) for n in launch.from_inputs):
            return False
        return not any(
            x.numel() and bool(x.isnan().all()) for x in spec.exact(collect_readable(checked, launch), list(launch.before)).values()
        )
    except CuirError as error:
        if error.diagnostics[0].code != "X113":
            raise
        return False


__all__ = ["keeps_units", "make_draws", "make_first_plain_draws", "make_value_draws", "restrict_kinds", "says_something"]

"""Inputs at steps: of floor, round, fmod and casts to i32, and of comparisons of computed values.

A rounding of the operand changes the result there. Such inputs are whole numbers and halves, divided and multiplied by
the numbers of the kernel's and the specification's text and its scalars, powers of 2 and their neighbours. A quotient
of whole numbers is exact, or far from a step. So float64 and PyTorch's float32 agree, and a kernel with a result on the
other side is wrong. Elements for which the two do not agree are not compared.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...checking.checked import Checked, TensorParam
from ...checking.decisions import entry, jumps, list_placed_deciders, walk_sources
from ...checking.kernel_results import ResultKey, SameObject, keep_with_kernel
from ...spec.function_specification import FunctionSpecification, Value
from ...syntax.nodes import Expr, Literal
from ...syntax.types import F32
from ...text.diagnostics import CuirError, Note
from .cases import Draw, compute_shape, get_integer_consts

KIND = "decisive"
QUICK, FULL = 3, 8  # problems

_ENOUGH = 4096  # elements of a problem
_MOST = 8  # numbers of the texts that are used
_FAR = 513  # whole numbers are below
_NEAR = 41
_WHOLE = (
    61.0,
    7.0,
    41.0,
    109.0,
    3.0,
    10.0,
    55.0,
    6.0,
)  # the product with the rounded inverse usually differs from the quotient, above or below
_SMALL = (3.0, 7.0, 5.0)  # whose multiples have few bits
_PARTS = (0.1, 0.7, 0.3, 1.0 / 3.0, 0.05, 1.7, 0.01)
_BINARY = (2.0, 0.5, 4.0, 0.25, 1.0)
_SHORT = 12  # bits: a row's largest element falls short of a power of 2 by at most 2^-12
_STEP_DISTANCE = 2.0**-17  # relative difference of float32 and float64 on two sides of a step


ArgumentsOf = Callable[
    [], tuple[Mapping[str, Value], Sequence[str]] | None
]  # arguments of the function for a small problem, and names of outputs


def make_decisive_draws(
    checked: Checked, spec: FunctionSpecification, problems: Sequence[Draw], level: str, arguments_of: ArgumentsOf
) -> list[Draw]:
    """Make problems whose inputs lie at steps, with the lengths of these problems.

    Empty where nothing decides by arithmetic, in the kernel or in the function.
    """
    by_size = sorted((d for d in problems if min(d.sizes.values(), default=1) > 0), key=lambda d: _count_elements(checked, d))
    if not _find_kernel_decisions(checked)[0] and not _find_function_decisions(checked, spec, arguments_of)[0]:
        return []
    enough = [d for d in by_size if _count_elements(checked, d) >= _ENOUGH] or by_size[-1:]
    sizes = [d.sizes for i, d in enumerate(enough) if all(d.sizes != e.sizes for e in enough[:i])][:3]
    return [Draw(f"decisive {i}", sizes[i % len(sizes)], KIND, i) for i in range((QUICK if level == "quick" else FULL) if sizes else 0)]


def _count_elements(checked: Checked, draw: Draw) -> int:
    """Count the elements of the largest tensor of floats that is drawn."""
    sizes = {**get_integer_consts(checked), **draw.sizes}
    floats = (t for t in checked.tensors if t.dtype.is_float and not t.scratch)
    return max((math.prod(compute_shape(t, sizes)) for t in floats), default=0)


def make_decisive_inputs(
    checked: Checked,
    spec: FunctionSpecification,
    drawn: Mapping[str, Value],
    tensors: Iterable[TensorParam],
    keep_scalars: Collection[str],
    seed: int,
    arguments_of: ArgumentsOf,
) -> dict[str, Value]:
    """Replace drawn floats by values at steps.

    keep_scalars: scalars that stay as they are. seed: scalars are whole, fractions or powers of 2 in turn, tensors of
    all signs every second time.
    """
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, Value] = {}
    scalars = [s.name for s in checked.scalars if s.dtype == F32 and s.name not in keep_scalars]
    choices = (_WHOLE, _PARTS, _WHOLE, _BINARY)[seed % 4]
    for i, name in enumerate(scalars):
        values[name] = float(np.float32(choices[(seed // 2 + i) % len(choices)]))
    numbers = [
        *_find_kernel_decisions(checked)[1],
        *_find_function_decisions(checked, spec, arguments_of)[1],
        *(abs(float(values.get(n, drawn[n]))) for n in scalars),
    ]
    numbers = [n for n in dict.fromkeys(numbers) if 1e-6 < n < 1e6][: 2 * _MOST] or [1.0]
    for t in tensors:
        x = drawn[t.name]
        assert isinstance(x, torch.Tensor)
        values[t.name] = _draw_at_steps(x.shape, x.dtype, numbers, generator, signed=seed % 4 in (1, 2))
    return values


def move_to_steps(evaluate: Callable[[], object], tensors: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Scale elements so that an operand of a step function of the specification becomes whole, or halfway.

    Draws cannot know the numbers that the specification's `inputs` gives, such as a random scale for each column. An
    element that is proportional to the operand lands on the step where the product is exact.

    Args:
        evaluate: evaluates the function in float64, on the drawn inputs.
        tensors: drawn floats, by name; those with the shape of an operand are moved, every second element.
    """
    mode = _Jumps()
    with contextlib.suppress(CuirError), mode:  # reported by the evaluation of its numbers
        evaluate()
    generator = torch.Generator().manual_seed(seed)
    moved: dict[str, torch.Tensor] = {}
    for operand in mode.operands:
        magnitude = operand.abs()
        usable = magnitude.isfinite() & (magnitude > 0) & (magnitude < _FAR)
        for name, x in tensors.items():
            if x.shape == operand.shape and name not in moved:
                choice = torch.randint(0, 4, x.shape, generator=generator)
                step = torch.where(choice == 0, magnitude.floor() + 0.5, torch.where(choice == 1, magnitude.ceil(), magnitude))
                moved[name] = torch.where(usable, x.double() * (step / torch.where(usable, magnitude, 1.0)), x.double()).to(x.dtype)
    return moved


def _draw_at_steps(
    shape: Sequence[int], dtype: torch.dtype, numbers: Sequence[float], generator: torch.Generator, signed: bool
) -> torch.Tensor:
    """Draw numbers of a tensor at steps.

    They are whole numbers, halves, quotients and products with `numbers`, sums with them, powers of 2 and their
    neighbours.
    """

    def draw(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, list(shape), generator=generator).double()

    whole = torch.where(draw(0, 4) == 0, draw(1, _FAR), draw(1, _NEAR))
    half = whole - 0.5 * draw(0, 2)
    number_tensor = torch.tensor(numbers, dtype=torch.float64)
    a, b = number_tensor[draw(0, len(number_tensor)).long()], number_tensor[draw(0, len(number_tensor)).long()]
    power = 2.0 ** draw(-3, 13)
    neighbour = power + torch.where((power >= 4) & (power <= 256), draw(-1, 2), 0.0)
    kind = draw(0, 10)
    addend = torch.where(draw(0, 2) == 0, b, -b)
    x = torch.where(kind < 4, whole, half)
    for number, values in ((5, half * a), (6, half * a), (7, half / a), (8, (half + addend) / a), (9, neighbour)):
        x = torch.where(kind == number, values, x)
    # every second row is scaled by its largest element: a whole number, a power of 2, or just below one
    if len(shape) > 1:
        rows = torch.randint(0, 1 << 16, (*shape[:-1], 1), generator=generator)
        unit = torch.tensor(_WHOLE if dtype == torch.float32 else _SMALL, dtype=torch.float64)
        most = torch.tensor([n for n in numbers if n >= 2 and n.is_integer()] or [127.0], dtype=torch.float64)
        whole_most = rows % 4 == 0
        unit = torch.where(whole_most, unit[rows // 4 % len(unit)], 1.0)
        most = torch.where(whole_most, most[rows // 64 % len(most)], 2.0 ** (rows // 64 % 9))
        short = torch.where((rows % 8 == 2), 2.0 ** -(_SHORT + rows // 1024 % 7), 0.0)  # smaller than an error margin
        scaled = torch.where(draw(0, 16) == 0, most * (1 - short), (half - 0.5).remainder(most) + 0.5) * unit
        x = torch.where(rows % 2 == 0, scaled, x)
    least = torch.finfo(dtype).smallest_normal
    x = torch.where(x.abs() < least, whole, x.abs())  # a divisor is not 0
    if signed:
        x = torch.where(draw(0, 2) == 0, x, -x)
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).float().to(dtype)


@keep_with_kernel
def _find_kernel_decisions(checked: Checked) -> tuple[bool, list[float]]:
    """Return whether the kernel decides by rounded floats, and the numbers that feed the decisions."""
    deciding = []
    for i, e, floats in list_placed_deciders(checked):
        operands = [(i, a) for a in floats]
        if jumps(checked, e) or any(_is_rounded(checked, x) for x in walk_sources(checked, operands)):
            deciding += operands
    numbers = [abs(float(e.value)) for e in walk_sources(checked, deciding) if isinstance(e, Literal)]
    return bool(deciding), list(dict.fromkeys(numbers))[:_MOST]


def _is_rounded(checked: Checked, e: Expr) -> bool:
    """Return whether the result is rounded, so that another formula may give another number."""
    operation = entry(checked, e)
    if operation is None:
        return False
    operator = operation[0].traits
    return bool(operation[0].ulps or operator.multiplies or len(operator.linear) > 1)


_FUNCTION_DECISIONS = ResultKey[tuple[bool, list[float]]]("decisions of a function")


def _find_function_decisions(checked: Checked, spec: FunctionSpecification, arguments_of: ArgumentsOf) -> tuple[bool, list[float]]:
    """Return whether the function has a step function, and the numbers that floats meet there."""
    decisions = checked.results.find(_FUNCTION_DECISIONS, SameObject(spec))
    if decisions is None:
        mode = _Jumps()
        with contextlib.suppress(CuirError):  # reported by the evaluation of its numbers
            if (arguments := arguments_of()) is not None:
                with mode:
                    spec.single(*arguments)
        decisions = mode.is_found, list(dict.fromkeys(mode.numbers))[:_MOST]
        checked.results.store(_FUNCTION_DECISIONS, decisions, SameObject(spec))
    return decisions


JUMPS = frozenset([
    "floor", "ceil", "round", "trunc", "fix", "frac", "remainder", "fmod", "floor_divide", "floor_", "ceil_", "round_",
    "trunc_", "bucketize", "searchsorted",
])  # fmt: skip

_ARITHMETIC = frozenset(["add", "sub", "rsub", "mul", "div", "remainder", "fmod", "floor_divide"])


def jumps_in_torch(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> bool:
    """Return whether a rounding of the operands changes the integer that a PyTorch operation returns."""
    if not any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args):
        return False
    if name in JUMPS or (name in ("div", "div_") and kwargs.get("rounding_mode") is not None):
        return True
    return name in ("_to_copy", "to") and isinstance(result, torch.Tensor) and not result.is_floating_point() and result.dtype != torch.bool


class _Jumps(TorchDispatchMode):
    """Recorder of operations that jump, their operands, and Python numbers that floats meet."""

    def __init__(self) -> None:
        super().__init__()
        self.is_found, self.numbers, self.operands = False, list[float](), list[torch.Tensor]()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if jumps_in_torch(name, args, kwargs or {}, result):
            self.is_found = True
            self.operands += [a for a in args[:1] if isinstance(a, torch.Tensor) and a.dim() and a.dtype == torch.float64]
        if name.rstrip("_") in _ARITHMETIC:
            for a in args[:2]:
                if isinstance(a, torch.Tensor) and not a.dim() and a.is_floating_point():
                    a = a.item() if a.device.type == "cpu" else 0.0
                if isinstance(a, float) and a:
                    self.numbers.append(abs(a))
        return result


def find_undecided(single: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the elements for which PyTorch's float32 lies on another side of a step than float64."""
    x, w = single.double(), exact.double()
    return ~((x - w).abs() <= _STEP_DISTANCE * torch.maximum(x.abs(), w.abs())) & ~(x == w)


def describe_steps(checked: Checked) -> list[Note]:
    """Return notes on the deciding operation of the kernel, for a wrong output with inputs at steps."""
    first = next((e for _, e, _ in list_placed_deciders(checked) if jumps(checked, e)), None)
    if first is None:
        return []
    return [
        Note(
            "the inputs lie at steps: a quotient is whole there, or halfway, and a product with an inverse is beside it. This comes out on another side than the function's",
            first.span,
        )
    ]


__all__ = ["KIND", "describe_steps", "find_undecided", "jumps_in_torch", "make_decisive_draws", "make_decisive_inputs", "move_to_steps"]

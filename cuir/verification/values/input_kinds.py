"""Values of a tensor, by the kind of inputs of a problem, for function specifications.

problems.py defines the kinds for Q, K and V.

Floats that a specification draws and whose elements are arbitrary, such as scales of cached tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ...arguments.binding import TORCH
from ...spec.function_specification import Value
from ...syntax.types import DType
from ...text.diagnostics import CuirError

SHAPED = (
    "large",
    "wide",
    "zero",
    "constant",
    "equal",
    "growing",
    "offset",
    "aligned",
    "largest",
    "ties",
    "onehot",
    "faint",
)  # kinds that concern one tensor
MEAN = 1020.0  # of `offset`, about a thousand times the deviation
_DIRECTION = 30.0  # of `aligned`: the part that all rows share, beside their deviations
_STEP = {"f16": 0.5, "bf16": 4.0}  # the distance of numbers below MEAN
SQUARED = 60  # the exponent of values whose squares f32 holds
_FAR = (17, 40, SQUARED)  # exponents beyond f16
LARGEST = 125  # largest exponent: up to 8.5e37, which may be doubled; its square overflows f32
# levels of the rows of `equal`: functions saturate or underflow there
_LEVELS = (0.0, -18.0, 7.0, -40.0, 18.0, -7.0, 40.0)
_FAINT = 1e-6  # the second moment of faint rows without a scalar

SMALL = (1e-5, 1e-12, 1e-3, 1.0, 1e-6, 1e-8)  # values of a scalar that keeps a root or a quotient away from 0


def draw_tensor(
    dtype: DType,
    shape: Sequence[int],
    kind: str,
    generator: torch.Generator,
    chosen: bool,
    small: Sequence[float] = (),
    turn: int = 0,
    top: int = LARGEST,
) -> torch.Tensor:
    """Return floats of a kind, in a dtype.

    chosen: the tensor is the one that kinds in SHAPED are about; others stay N(0, 1), so that products do not overflow.
    small: scalars of the problem that are added to something squared; faint rows are as small. turn: for kinds that
    have two forms. top: the exponent of the largest values, at most LARGEST.
    """
    x = torch.randn(list(shape), generator=generator)
    if kind == "tiny":
        x = x * 2.0**-12
    elif kind == "huge":
        x = x * 64
    elif kind == "spikes":
        x = torch.where(torch.rand(x.shape, generator=generator) < 1 / 256, torch.sign(x) * 40, x * 0.1)
    elif chosen and x.dim():
        x = _draw_shaped(x, kind, generator, dtype, small, turn, top)
    largest = torch.finfo(TORCH[dtype]).max
    return x.clamp(-largest, largest).to(TORCH[dtype])


def _draw_shaped(
    x: torch.Tensor, kind: str, generator: torch.Generator, dtype: DType, small: Sequence[float], turn: int, top: int
) -> torch.Tensor:
    columns, rows = x.shape[-1], (*x.shape[:-1], 1)
    if kind == "large":
        return x * 30
    if kind == "wide":  # deviations from 6e-5 to 8e3
        return x * 2.0 ** torch.randint(-14, 14, rows, generator=generator)
    if kind == "zero":
        return torch.zeros_like(x)
    if kind == "constant" and x.dim() > 1 and x.shape[-2]:
        return x[..., :1, :].expand(x.shape).clone()
    if kind == "equal" and columns:
        return (x[..., :1] + torch.tensor(_LEVELS)[_number_rows(rows) % len(_LEVELS)]).expand(x.shape).clone()
    if kind == "growing":  # each block of columns has a larger maximum than the one before, or a smaller one
        ramp = torch.linspace(-8, 8, columns)
        return x * 0.5 + torch.where(_number_rows(rows) % 2 == 0, ramp, -ramp)
    if kind == "aligned" and x.numel():  # rows of a tile agree on which product is the largest
        return x.flatten(0, -2)[0] * _DIRECTION + x
    if kind == "offset":
        return _draw_offset(x, generator, dtype, turn % 2 == 1)
    if kind == "largest":
        bound = torch.finfo(TORCH[dtype]).max
        if bound < 1e6:  # f16
            return torch.where(torch.rand(x.shape, generator=generator) < 1 / 64, torch.sign(x) * bound, x * 2.0**12)
        far = torch.tensor([*(f for f in _FAR if f < top), top])
        return x.clamp(-2, 2) * 2.0 ** far[_number_rows(rows) % len(far)]
    if kind == "ties":
        return torch.randint(-2, 3, x.shape, generator=generator).float()
    if kind == "onehot" and columns:
        columns_of_ones = torch.randint(columns, rows, generator=generator)
        return torch.zeros_like(x).scatter(-1, columns_of_ones, torch.where(torch.rand(rows, generator=generator) < 0.5, 1.0, -3.0))
    if kind == "faint":  # of the size of the scalar's root, larger, 0, smaller, and of the size of the scalar
        least = min(small, default=_FAINT)
        depth = torch.tensor([least**0.5, 4 * least**0.5, 0.0, 0.25 * least**0.5, least])
        return x * depth[_number_rows(rows) % len(depth)]
    return x


def _draw_offset(x: torch.Tensor, generator: torch.Generator, dtype: DType, even: bool) -> torch.Tensor:
    """Return rows around MEAN and -MEAN in turn.

    even: each row has pairs of opposite deviations, so that the dtype represents its mean exactly and half precision
    makes no error. The deviations are a few steps of the dtype, in fewer elements where these are large.
    """
    columns, step = x.shape[-1], _STEP.get(dtype.name, 0.0)
    count = columns if dtype.name != "bf16" else min(columns, max(1 + even, columns // 32))
    off = torch.zeros_like(x)
    if step:
        most = 4 if dtype.name != "bf16" else 2
        off[..., :count] = torch.sign(x[..., :count]) * step * torch.randint(1, most, x[..., :count].shape, generator=generator)
    else:
        off = x * MEAN / 1000
    if even:
        half = count // 2
        off[..., half : 2 * half], off[..., 2 * half : count] = -off[..., :half], 0.0
    order = torch.rand(x.shape, generator=generator).argsort(-1)
    side = torch.where(_number_rows(x.shape[:-1]) % 2 == 0, MEAN, -MEAN)[..., None] if x.dim() > 1 else MEAN
    return side + off.gather(-1, order)


def _number_rows(rows: Sequence[int]) -> torch.Tensor:
    """Return the number of each row."""
    total = 1
    for n in rows:
        total *= n
    return torch.arange(total).view(*rows)


def is_deep_enough(kind: str, dims: int) -> bool:
    """Return whether a tensor of so many dims can be of the kind."""
    return dims >= {"strided": 3, "aligned": 2, "constant": 2, "equal": 2, "onehot": 2}.get(kind, 1)


def draw_small_value(index: int, generator: torch.Generator) -> float:
    """Return a value for a scalar that keeps a root away from 0.

    Usual values, and one between 1e-12 and 1, evenly in its logarithm.
    """
    drawn = float(10 ** (-12 * torch.rand((), generator=generator, dtype=torch.float64)))
    return (*SMALL, drawn)[index % (len(SMALL) + 1)]


_FILLERS = 2  # at most so many distinct values in unread elements are a filling, such as zeros or ones


def find_arbitrary(inputs: Mapping[str, Value], redraw: Callable[[], Mapping[str, Value]]) -> list[str]:
    """Return names of floats that take other values under another generator.

    Not tables, and not what follows from other inputs alone.
    """
    floats = {n: x for n, x in inputs.items() if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel()}
    if not floats:
        return []
    try:
        redrawn = {n.lower(): x for n, x in redraw().items()}
    except CuirError:
        return []

    def differs(name: str, x: torch.Tensor) -> bool:
        second = redrawn.get(name.lower())
        if not isinstance(second, torch.Tensor) or second.shape != x.shape:
            return False
        a, b = second.to(x.dtype).double(), x.double()  # the kernel's dtype has rounded x
        return 2 * int(((a != b) & ~(a.isnan() & b.isnan())).sum()) > x.numel()

    return [n for n, x in floats.items() if differs(n, x)]


def without_fillers(inputs: Mapping[str, Value], places: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the places of unread elements, except in tensors that the specification fills there.

    A kernel may rely on such a filling.
    """
    unfilled: dict[str, torch.Tensor] = {}
    for n, places_of_name in places.items():
        x = inputs[n]
        assert isinstance(x, torch.Tensor)
        values = x.double()[places_of_name]
        if bool(values.isfinite().all()) and len(values.unique()) > _FILLERS:
            unfilled[n] = places_of_name
    return unfilled


__all__ = [
    "LARGEST",
    "MEAN",
    "SHAPED",
    "SMALL",
    "SQUARED",
    "draw_small_value",
    "draw_tensor",
    "find_arbitrary",
    "is_deep_enough",
    "without_fillers",
]

"""Special values of inputs: infinities, signed zeros, vast and tiny numbers, cancelling pairs.

Compared numbers, and runs of -inf, are among them.

NaN that a selecting function spreads: an extreme of elements is NaN if one of them is.

A kernel that selects by comparisons drops it, since a NaN is greater than nothing.

Inputs for which products of normal f32 numbers are subnormal, and their sum is not.

Atomic additions of f32 flush each part to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from ...spec.function_specification import Value

HIDDEN_COLUMNS = 64  # columns of the longest run at the start of a row, besides the first block
_NEAR = ((30.0, 1e-3), (1e6, 1.0), (-30.0, 1e-3), (1000.0, 0.5))  # a number, and the difference of others from it
ALONE, SMALL, END, OPPOSED = "alone", "small", "end", "opposed"  # forms of problems

# factors of N(0, 1), for rows in turn
_VAST = (1e25, 1e-25, 1.0, 1e-40)
_VAST_F16 = (2.0**13, 2.0**-14, 1.0, 2.0**-22)
_SMALL = (1e-8, 1e-13, 1.0, 1e-18)  # the squares of most are normal numbers of f32
_SMALL_F16 = (2.0**-10, 2.0**-14, 1.0, 2.0**-18)
_END, _END_F16 = 2.0**125, 2.0**14  # products with log2(e), and sums of two, are finite
_OPPOSED = (1e20, 1e-20, 1.0)  # quotients of two leave f32
_OPPOSED_F16 = (2.0**13, 2.0**-14, 1.0)
_WIDEST = 2.0  # deviations from 0, of rows at the end of a dtype
_BELOW = 1 / 64  # of a floor: rows of a hundred such numbers have a norm below it
_LARGE = 40  # a power of 2: products of two such numbers, and their sums, do not overflow f32
_LARGE_F16 = 12
_LEAST = 1e-30  # the neighbour of 0
_HIDDEN = 9  # the number of forms of rows with -inf

Values = Sequence[float]


def number_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the number of each row, of the shape of x with 1 in place of the last dim."""
    return torch.arange(math.prod(x.shape[:-1])).view(*x.shape[:-1], 1)


def hide(
    x: torch.Tensor,
    turn: int,
    block: int,
    generator: torch.Generator,
    has_lowest: bool = True,
    has_empty: bool = True,
    share: float = 1.0,
) -> torch.Tensor:
    """Put -inf into runs of each row, as additive masks do.

    The start, the end, scattered, everywhere; or the dtype's lowest number, or half of it. block: columns that a kernel
    processes at once. has_lowest, has_empty: rows of the lowest number occur, beside which errors of other results are
    small, and rows of -inf alone. share: of the lowest number; below 0.69 a product with log2(e) stays finite.
    """
    columns = x.shape[-1]
    if not columns:
        return x
    place, form = torch.arange(columns), (number_rows(x) + turn) % _HIDDEN
    first = min(block, columns - 1)
    start = min(HIDDEN_COLUMNS, max(first, columns // 2), columns - 1)
    single = torch.randint(columns, form.shape, generator=generator)
    runs = (
        place < first,
        place < start,
        place >= columns - max(1, columns // 3),
        place != columns - 1,
        torch.ones(columns, dtype=torch.bool) & has_empty,
        torch.rand(x.shape, generator=generator) < 0.5,
        place != single,
        (place >= columns // 4) & (place < columns // 2),
    )
    least = torch.finfo(x.dtype).min * share
    visible = torch.where(torch.rand(x.shape, generator=generator) < 0.25, torch.full_like(x, -0.0), x)
    is_hidden = torch.zeros_like(x, dtype=torch.bool)
    for number, run in enumerate(runs):
        is_hidden |= (form == number) & run
    lowest = torch.where(number_rows(x) // _HIDDEN % 2 == 0, least, least / 2).to(x.dtype)
    if has_lowest:
        visible = torch.where(form == len(runs), lowest.expand(x.shape), visible)
    return torch.where(is_hidden, torch.full_like(x, -math.inf), visible)


def scatter(x: torch.Tensor, values: Values, turn: int, block: int, generator: torch.Generator) -> torch.Tensor:
    """Replace elements by values, by rows in turn: half of them, all, an eighth, or runs.

    A run has one value for the first columns and one for the rest.
    """
    if not values or not x.numel():
        return x

    def draw(shape: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)[torch.randint(len(values), list(shape), generator=generator)].to(x.dtype)

    form = (number_rows(x) + turn) % 4
    share = torch.tensor([0.5, 1.0, 0.125, 0.0])[form] if x.dim() > 1 else torch.tensor(0.5)
    y = torch.where(torch.rand(x.shape, generator=generator) < share, draw(x.shape), x)
    if x.dim() == 1 and turn % 2 == 0:
        return y
    first = min(block if x.dim() == 1 else HIDDEN_COLUMNS, max(1, x.shape[-1] // 2)) if x.shape[-1] > 1 else 1
    starts = torch.where(number_rows(x) // 4 % 2 == 0, min(block, max(1, x.shape[-1] - 1)), first)
    runs = torch.where(torch.arange(x.shape[-1]) < starts, draw(form.shape), draw(form.shape))
    return torch.where(torch.tensor(True) if x.dim() == 1 else form == 3, runs, y)


def scatter_few(x: torch.Tensor, values: Values, turn: int, generator: torch.Generator) -> torch.Tensor:
    """Put values into a sixteenth of the elements of every second row."""
    if not values or not x.numel():
        return x
    chosen = torch.tensor(values, dtype=torch.float64)[torch.randint(len(values), x.shape, generator=generator)]
    odd = (number_rows(x) + turn) % 2 == 0 if x.dim() > 1 else torch.tensor(True)
    return torch.where((torch.rand(x.shape, generator=generator) < 1 / 16) & odd, chosen.to(x.dtype), x)


def list_vast_factors(form: str, dtype: torch.dtype, place: int, vast: bool, floors: Sequence[float]) -> tuple[float, ...]:
    """List the factors of a tensor's rows, in turn.

    place: of the tensor among those of the problem; the first two, and each two after, meet in all combinations, except
    that both are large, or both small.
    vast: numbers beyond f16 occur. floors: small numbers that values are compared with.
    """
    half = dtype == torch.float16
    if form == SMALL:
        return (*(_SMALL_F16 if half else _SMALL), *(f * _BELOW for f in floors))
    if form == END:
        return (_END_F16 if half else _END, 1.0)
    if form == OPPOSED:
        factors = _OPPOSED_F16 if half else _OPPOSED
        # rows that are large in both overflow in (a * b) * c, which users write where the result is small
        return tuple((f, g)[place % 2] for f in factors for g in factors if f != g or f == 1)
    return (_VAST_F16 if half else _VAST)[not vast :]


def make_vast(x: torch.Tensor, turn: int, factors: Sequence[float]) -> torch.Tensor:
    """Return rows of numbers multiplied by the factors in turn, as far as the dtype holds them."""
    factor = torch.tensor(factors, dtype=torch.float64)[(number_rows(x) + turn) % len(factors)]
    return _clamp(torch.where(factor >= _END_F16 * 1e9, x.double().clamp(-_WIDEST, _WIDEST), x.double()) * factor, x.dtype)


def make_near(x: torch.Tensor, turn: int) -> torch.Tensor:
    """Return rows of numbers that differ by little relative to their size; every fourth row stays."""
    forms = [_fit(base, step, x.dtype) for base, step in _NEAR]
    number = (number_rows(x) + turn) % (len(forms) + 1)
    near = x.double()
    for i, (base, step) in enumerate(forms):
        near = torch.where(number == i, base + step * torch.round(x.double()).clamp(-2, 2), near)
    return _clamp(near, x.dtype)


def _fit(base: float, step: float, dtype: torch.dtype) -> tuple[float, float]:
    """Return a number that the dtype represents, and a step of at least one unit in its last place."""
    base = max(-1000.0, min(1000.0, base)) if dtype == torch.float16 else base
    unit = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(abs(base)))
    return torch.tensor(base, dtype=dtype).item(), max(step, unit)


def make_close(x: torch.Tensor, y: torch.Tensor, turn: int) -> torch.Tensor:
    """Return a tensor of y's dtype that equals x, or differs by a few units in the last place.

    Some rows also have the opposite sign.
    """
    unit = max(torch.finfo(x.dtype).eps, torch.finfo(y.dtype).eps)
    sign = torch.where((number_rows(x) + turn) % 3 == 2, -1.0, 1.0)
    distance = torch.where((number_rows(x) + turn) % 2 == 0, 2 * unit, max(unit, 1e-3))
    return _clamp(x.double() * (1 + distance * torch.round(y.double()).clamp(-2, 2)) * sign, y.dtype)


def make_large(x: torch.Tensor, far: bool) -> torch.Tensor:
    """Multiply the numbers by 10 or 30, by rows; far: so that products of two leave f16, but not f32."""
    most = 2.0 ** (_LARGE_F16 if x.dtype == torch.float16 else _LARGE)
    factors = torch.tensor([30.0, most if far else 10.0], dtype=torch.float64)
    return _clamp(x.double() * factors[number_rows(x) % 2 if x.dim() > 1 else int(far)], x.dtype)


def _clamp(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def list_neighbours(number: float, dtype: torch.dtype) -> list[float]:
    """Return the number and its neighbours in a dtype.

    Without neighbours for which float32 and float64 may compare differently.
    """
    if abs(number) > torch.finfo(dtype).max:
        return []
    if not number:  # subnormal numbers may be flushed to 0
        least = max(_LEAST, torch.finfo(dtype).smallest_normal)
        return [0.0, least, -least]
    rounded = torch.tensor(number, dtype=dtype)
    up, down = (torch.nextafter(rounded, torch.tensor(side * math.inf, dtype=dtype)) for side in (1, -1))
    single = torch.tensor(number, dtype=torch.float32).item()
    return [v for v in (rounded.item(), up.item(), down.item()) if math.isfinite(v) and (v != single or single == number)]


SPREAD_NAN = "nan"  # the kind of inputs
_FAR = 1e3  # elements at this value and its negative show which outputs read them

Outputs = Mapping[str, torch.Tensor]


def put_few(x: torch.Tensor, value: float, turn: int) -> torch.Tensor:
    """Put a value into some elements, the same ones for each value."""
    return scatter_few(x, (value,), turn, torch.Generator().manual_seed(0))


def list_others(inputs: Mapping[str, object], name: str) -> list[torch.Tensor]:
    """Return the float tensors among inputs but the named one."""
    return [x for n, x in inputs.items() if n != name and isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel()]


def find_spread(
    x: torch.Tensor,
    turn: int,
    plain: Outputs | None,
    evaluate: Callable[[torch.Tensor], Outputs | None],
    others: Sequence[torch.Tensor] = (),
) -> dict[str, torch.Tensor]:
    """Return the elements of outputs that NaN in some elements of x makes NaN, by name.

    The result is {} if the function does not say so.

    Only of outputs whose numbers are elements of inputs or their magnitudes, and that are a large number where x holds
    it, or x's element itself: a NaN times 0 is of no extreme. Results that NaN moves to another place, as a sort does,
    are left out.

    plain: the function's results for x. evaluate: returns those for another x, None if it fails. others: other inputs
    of which outputs may have elements, such as bounds.
    """
    selections = [n for n, y in (plain or {}).items() if y.is_floating_point() and _is_selection(y, [x, *others])]
    if plain is None or not selections:
        return {}
    spread, above, below = (evaluate(put_few(x, v, turn)) for v in (math.nan, _FAR, -_FAR))
    if spread is None or above is None or below is None:
        return {}
    places: dict[str, torch.Tensor] = {}
    for n, y in spread.items():
        before = plain[n]
        new = y.isnan() & ~before.isnan() if y.shape == before.shape else torch.zeros_like(y, dtype=torch.bool)
        if y.shape != before.shape or not _is_equal(y[~new], before[~new]):
            return {}
        reads = (above[n].double() == _FAR) | (below[n].double().abs() == _FAR)
        if others and y.shape == x.shape:  # a bound hides the large number
            reads |= before.double() == x.double()
        if n in selections and bool((new & reads).any()):
            places[n] = new & reads
    return places


def _is_selection(output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Return whether all numbers of an output are elements of inputs, or their magnitudes."""
    numbers, elements = output.double(), torch.cat([x.double().flatten() for x in inputs])
    numbers = numbers[numbers.isfinite()]
    return numbers.numel() > 0 and bool(torch.isin(numbers, torch.cat([elements, elements.abs()])).all())


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


UNDERFLOW = "underflow"  # the kind of inputs
_SUM = -121.5  # binary exponent of the sums: far above 2^-126, with parts below
_PROBES = (-20, -30)  # exponents of inputs at which the growth of the outputs is measured
_LEAST_NORMAL = -120  # the least exponent of inputs, which stay normal


def make_underflowing(tensors: Mapping[str, torch.Tensor], evaluate: Callable[[Mapping[str, Value]], Outputs]) -> dict[str, Value] | None:
    """Return positive values as small as their sums of products may be.

    None if outputs do not fall as products do. evaluate: returns outputs that are added to, for values in place of the
    tensors.
    """

    def scale(exponent: float) -> dict[str, Value]:
        return {n: (x.double().abs() * 2.0**exponent).to(x.dtype) for n, x in tensors.items()}

    if not tensors:
        return None
    high, low = (_compute_exponent(evaluate(scale(e))) for e in _PROBES)
    if not math.isfinite(high) or not math.isfinite(low):
        return None
    degree = (high - low) / (_PROBES[0] - _PROBES[1])
    exponent = _PROBES[0] - (high - _SUM) / degree if degree >= 1.9 else -math.inf
    return scale(math.floor(exponent)) if exponent >= _LEAST_NORMAL else None


def _compute_exponent(outputs: Outputs) -> float:
    """Return the binary exponent of the root mean square of all outputs; infinite if there is none."""
    squares = torch.cat([x.double().flatten() ** 2 for x in outputs.values()]) if outputs else torch.zeros(1)
    mean = squares.mean().item() if squares.numel() else 0.0
    return math.log2(mean) / 2 if 0 < mean < math.inf else math.inf


__all__ = [
    "ALONE",
    "END",
    "OPPOSED",
    "SMALL",
    "SPREAD_NAN",
    "UNDERFLOW",
    "find_spread",
    "hide",
    "list_neighbours",
    "list_others",
    "list_vast_factors",
    "make_close",
    "make_large",
    "make_near",
    "make_underflowing",
    "make_vast",
    "put_few",
    "scatter",
    "scatter_few",
]

"""Evaluation of each operation on torch tensors: f32 as float32, i32 as int32, bool as bool.

Of a binary operation, one operand may be a Python number where PyTorch takes it. `out=` gives a result its tensor,
which may be an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ...syntax.types import BOOL, DTYPES, F32, I32, DType
from .scalars import HIGH, LEAST_NORMAL, LOW, PLAIN, DivisionByZero, Value

Function = Callable[..., torch.Tensor]
STORED: dict[DType, torch.dtype] = {d: getattr(torch, d.torch) for d in DTYPES.values()}
HELD_DTYPES = {d: torch.float32 if d.narrow else stored for d, stored in STORED.items()}
_LARGEST_SUBNORMAL = LEAST_NORMAL - 2.0**-149
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}  # by bytes of an element


def operand(v: Value) -> torch.Tensor:
    """Return a tensor as it is, or a number as one without dims.

    That one is on the host, where operations with tensors on any device take it.
    """
    return v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=_OF[v.__class__])


_OF = {bool: torch.bool, int: torch.int32, float: torch.float32}


def view_bits(t: torch.Tensor) -> torch.Tensor:
    """View the elements of a contiguous tensor as integers of their size."""
    return t.view(_INTEGERS[t.element_size()])


def round_to(t: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Round a fresh float32 tensor to the dtype, in place."""
    return t.copy_(_narrow(t, dtype)) if dtype.narrow else t


def _narrow(t: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Convert a float32 tensor to the dtype itself."""
    return (t.clamp(-float(dtype.largest), float(dtype.largest)) if dtype.saturates else t).to(STORED[dtype])


# Sums of 8-bit products on Hopper's tensor core: products that an instruction adds, bits that it keeps.
NARROW_STEP, NARROW_SUM_BITS = 32, 14


def narrow_sum_error(k: int) -> float:
    """Bound the error of such a sum of k products, relative to the largest product or partial sum.

    An instruction aligns its products and the accumulator to the largest of them, truncates each behind the bits that it keeps,
    and truncates their sum: tests/ptx/card/sums.py has the model, which gives an H200's results bit by bit.
    """
    truncated = NARROW_STEP + 2
    return -(-k // NARROW_STEP) * truncated * 2.0 ** (1 - NARROW_SUM_BITS)


def multiply_narrow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b of 8-bit numbers as that tensor core sums them, in float64; see `narrow_sum_error`."""
    total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=torch.float64)
    for k in range(0, a.shape[-1], NARROW_STEP):
        x, y = a[..., k : k + NARROW_STEP].unsqueeze(-2), b[..., k : k + NARROW_STEP, :].mT.unsqueeze(-3)
        largest = torch.maximum((_find_exponents(x) + _find_exponents(y)).amax(-1), _find_exponents(total))
        total = _cut_off(x * y, largest[..., None]).sum(-1) + _cut_off(total, largest)
        total = _cut_off(total, _find_exponents(total))
    return total


def _find_exponents(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == 0, -(1 << 10), torch.frexp(x).exponent - 1)


def _cut_off(x: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Return numbers without what lies behind the bits that a sum keeps, counted from these exponents."""
    units = torch.ldexp(torch.ones_like(exponents, dtype=torch.float64), exponents.clamp(min=-900) - (NARROW_SUM_BITS - 1))
    return torch.trunc(x / units) * units


def flush_subnormals(t: torch.Tensor) -> torch.Tensor:
    """Replace numbers below the least normal one by zeros of their sign."""
    return torch.where(t.abs() < LEAST_NORMAL, t * 0.0, t)


def add_by_engine(old: torch.Tensor, new: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
    """Compute the sum that a bulk addition leaves in a tensor of this dtype.

    Subnormal numbers are kept in every dtype, as measured on an H200.
    """
    return old + new


def add_atomically(old: torch.Tensor, new: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
    """Compute the sum that a worker's atomic addition leaves in a tensor of this dtype.

    In float32 subnormal operands and results are flushed (PTX ISA, red.add.f32 on global memory); 16 bits keep them.
    """
    if stored != torch.float32:
        return old + new
    return flush_subnormals(flush_subnormals(old) + flush_subnormals(new))


def add_at(flat: torch.Tensor, offsets: torch.Tensor, data: torch.Tensor) -> None:
    """Add data to elements of a tensor as `add_atomically`; addends of one element are summed first."""
    single = flat.dtype == torch.float32
    if single:
        flat[offsets], data = flush_subnormals(flat[offsets]), flush_subnormals(data)
    flat.index_put_((offsets,), data, accumulate=True)
    if single:
        flat[offsets] = flush_subnormals(flat[offsets])


def cast(t: torch.Tensor, source: DType, target: DType) -> torch.Tensor:
    """Convert a tensor to a new one of another dtype.

    Floats round to nearest even, f32 to i32 truncates and saturates (a NaN gives 0), to bool compares with 0. i32
    becomes a narrow float by way of f32.
    """
    if target == BOOL:
        return t != 0
    if target != source and target.narrow:
        return _narrow(t.to(torch.float32), target).to(torch.float32)
    if source.is_float and target == I32:
        return torch.nan_to_num(t.to(torch.float64), nan=0.0, posinf=HIGH, neginf=LOW).trunc_().clamp_(LOW, HIGH).to(torch.int32)
    return t.to(HELD_DTYPES[target], copy=True)


def _divide(x: torch.Tensor, y: Value, out: torch.Tensor | None = None) -> torch.Tensor:
    """Divide with correct rounding.

    By a number on the host, PyTorch's division on a GPU multiplies with the reciprocal.
    """
    if x.is_cuda and (y.__class__ in PLAIN or not y.is_cuda):
        y = torch.full((), float(y), dtype=torch.float32, device=x.device)
    return torch.true_divide(x, y, out=out)


def require_nonzero(y: Value) -> Value:
    """Return a divisor.

    Raises DivisionByZero if an element is 0.
    """
    if (y == 0).any() if isinstance(y, torch.Tensor) else y == 0:
        raise DivisionByZero("a division by 0")
    return y


def _widen(x: torch.Tensor) -> torch.Tensor:
    """Convert to int64, where -2**31 // -1 does not trap; it wraps on the way back."""
    return x.to(torch.int64)


def _widen_dividend(x: torch.Tensor, y: Value) -> tuple[torch.Tensor, Value]:
    """Return dividend and divisor, unwidened where the divisor is a number other than -1."""
    if isinstance(y, torch.Tensor) and y.dim() == 0 and not y.is_cuda:
        y = int(y)
    return (x if y.__class__ is int and y != -1 else _widen(x)), y


def _floor_divide(x: torch.Tensor, y: Value, out: torch.Tensor | None = None) -> torch.Tensor:
    x, y = _widen_dividend(x, y)
    return torch.div(x, y, rounding_mode="floor").to(torch.int32)


def _remainder(x: torch.Tensor, y: Value, out: torch.Tensor | None = None) -> torch.Tensor:
    return torch.remainder(*_widen_dividend(x, y)).to(torch.int32)


def _ceil_divide(x: torch.Tensor, y: Value, out: torch.Tensor | None = None) -> torch.Tensor:
    return torch.div(_widen(x).neg(), y, rounding_mode="floor").neg().to(torch.int32)


def _bit(x: Value, i: Value, out: torch.Tensor | None = None) -> torch.Tensor:
    shifted = torch.bitwise_right_shift(torch.as_tensor(x), torch.as_tensor(i).remainder(32))
    return torch.eq(shifted.bitwise_and(1), 1, out=out)


_REGISTERS = 64  # most elements that PyTorch computes at a time; the remainder of a tensor goes through other code


def per_element(function: Function) -> Function:
    """Make a function of one element have the same bits at every position.

    Independent of the number of CTAs that are computed at once, and of the layout.
    """

    def run(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        n = x.numel()
        if x.requires_grad:  # of a reference, whose last bits do not matter
            return function(x)
        if n % _REGISTERS:
            padded = torch.ones(n + -n % _REGISTERS, dtype=x.dtype, device=x.device)
            padded[:n] = x.reshape(-1)
            return function(padded, out=padded)[:n].view(x.shape)
        return function(x, out=out) if x.is_contiguous() else function(x.contiguous())

    return run


def _exp2(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Compute 2 ** x; results below the least normal number are 0, as the hardware's."""
    power = torch.exp2(x, out=out)
    return (torch.threshold if power.requires_grad else torch.threshold_)(power, _LARGEST_SUBNORMAL, 0.0)


def _round_from_double(function: Function) -> Function:
    """Make a function that is evaluated in double and rounded once.

    It has the same bits at every position, and is within half a unit over the whole range.
    """

    def run(x: torch.Tensor, *operands: Value, out: torch.Tensor | None = None) -> torch.Tensor:
        double = function(x.double(), *(y.double() if isinstance(y, torch.Tensor) else y for y in operands))
        return double.float() if out is None else out.copy_(double)

    return run


def _row_sum(x: torch.Tensor) -> torch.Tensor:
    """Add each row in an order that does not depend on the layout."""
    return x.contiguous().sum(-1, keepdim=True)


def _col_sum(x: torch.Tensor) -> torch.Tensor:
    """Add each column in an order that depends on neither the layout nor the number of CTAs in a batch."""
    return x.contiguous().sum(-2, keepdim=True)


WARP_ROWS = 16  # consecutive rows of a tile that a warp holds


def _warp_any(x: torch.Tensor) -> torch.Tensor:
    rows = x.any(-1, keepdim=True)
    if rows.shape[-2] % WARP_ROWS == 0:  # the common case, by views
        warps = rows.reshape(*rows.shape[:-2], -1, WARP_ROWS, 1)
        return warps.any(-2, keepdim=True).expand(warps.shape).reshape(rows.shape).contiguous()
    padded = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[-2] % WARP_ROWS))
    groups = padded.unflatten(-2, (-1, WARP_ROWS)).any(-2, keepdim=True)
    return groups.expand(*groups.shape[:-2], WARP_ROWS, 1).flatten(-3, -2)[..., : rows.shape[-2], :].contiguous()


def interleave(x: torch.Tensor) -> torch.Tensor:
    """Return columns of each 16 in pairs of either half in turn: 0 1 8 9 2 3 10 11 and so on."""
    return x.unflatten(-1, (-1, 2, 4, 2)).transpose(-3, -2).reshape(x.shape)


@contextmanager
def force_exact_products() -> Iterator[None]:
    """Compute on a CPU in the dtypes of operands, products of float32 in float32, whatever torch.autocast and the user allow."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by backend: there is no common value
        before = "highest"
    with torch.autocast("cpu", enabled=False):
        if before == "highest":
            yield
            return
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


@contextmanager
def force_one_thread() -> Iterator[None]:
    """Run PyTorch's operations on the calling thread alone.

    Tiles are small, and where other processes use the cores, waiting for helper threads takes many times as long as
    the work.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_LOW = 0x1FFF  # bits of an f32 that TF32 lacks
# factor before truncation: half a unit in TF32's last place on average, always less than one
_RAISED = 1 + 355 * 2.0**-20


def round_operand(x: torch.Tensor) -> torch.Tensor:
    """Return an f32 operand as a product in one number of TF32 takes it."""
    return _truncate(x * _RAISED)


def split_operands(a: torch.Tensor, b: torch.Tensor, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return operands [..., R, K] and [..., K, C] of f32 as the tensor core multiplies them in `parts`.

    Their product is that of operands taken in `parts` numbers of TF32: of two the small products come first.
    """
    if parts == 1:
        return round_operand(a), round_operand(b)
    (x, y), (u, v) = _split(a), _split(b)
    return torch.cat([y, x, x], -1), torch.cat([u, v, u], -2)


def _truncate(x: torch.Tensor) -> torch.Tensor:
    return (x.contiguous().view(torch.int32) & ~_LOW).view(torch.float32)


def _round_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Return the nearest number of TF32, ties away from 0."""
    bits = x.contiguous().view(torch.int32)
    return torch.where(x.isfinite(), (bits + (_LOW + 1) // 2) & ~_LOW, bits).view(torch.float32)


def _split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nearest number of TF32, and the rest of x, cut off to TF32; NaN of an infinity."""
    near = _round_to_tf32(x)
    return near, _truncate(x - near)


def _share(function: Function, *dtypes: DType) -> dict[DType, Function]:
    return dict.fromkeys(dtypes, function)


TILES: dict[str, dict[DType, Function]] = {
    "+": _share(torch.add, I32, F32),
    "-": _share(torch.sub, I32, F32),
    "*": _share(torch.mul, I32, F32),
    "/": {F32: _divide},
    "//": {I32: _floor_divide},
    "%": {I32: _remainder},
    "cdiv": {I32: _ceil_divide},
    "neg": _share(torch.neg, I32, F32),
    "abs": _share(torch.abs, I32, F32),
    "min": _share(torch.minimum, I32, F32),
    "max": _share(torch.maximum, I32, F32),
    "&": _share(torch.bitwise_and, I32, BOOL),
    "|": _share(torch.bitwise_or, I32, BOOL),
    "^": _share(torch.bitwise_xor, I32, BOOL),
    "~": _share(torch.bitwise_not, I32, BOOL),
    "not": _share(torch.logical_not, BOOL),
    "and": _share(torch.logical_and, BOOL),
    "or": _share(torch.logical_or, BOOL),
    "==": _share(torch.eq, I32, F32, BOOL),
    "!=": _share(torch.ne, I32, F32, BOOL),
    "<": _share(torch.lt, I32, F32, BOOL),
    "<=": _share(torch.le, I32, F32, BOOL),
    ">": _share(torch.gt, I32, F32, BOOL),
    ">=": _share(torch.ge, I32, F32, BOOL),
    "ifexp": _share(torch.where, I32, F32, BOOL),
    "where": _share(torch.where, I32, F32, BOOL),
    "bit": {I32: _bit},
    "exp2": {F32: per_element(_exp2)},
    "log2": {F32: per_element(torch.log2)},
    "tanh": {F32: per_element(torch.tanh)},
    "sqrt": {F32: _round_from_double(torch.sqrt)},
    "floor": {F32: torch.floor},
    "round": {F32: torch.round},
    "sin": {F32: _round_from_double(torch.sin)},
    "cos": {F32: _round_from_double(torch.cos)},
    "atan": {F32: _round_from_double(torch.atan)},
    "log1p": {F32: _round_from_double(torch.log1p)},
    "erf": {F32: _round_from_double(torch.erf)},
    "erfc": {F32: _round_from_double(torch.erfc)},
    "power": {F32: _round_from_double(lambda x, y: torch.pow(x, torch.as_tensor(y, dtype=torch.float64, device=x.device)))},
    "fmod": {F32: _round_from_double(torch.fmod)},
    "round_tf32": {F32: round_operand},
    "row_max": {F32: lambda x: x.amax(-1, keepdim=True)},
    "row_sum": {F32: _row_sum},
    "col_max": {F32: lambda x: x.amax(-2, keepdim=True)},
    "col_sum": {F32: _col_sum},
    "warp_any": {BOOL: _warp_any},
    "interleave": {F32: interleave},
}

"""Error of float32 for a function, with that of the language's operations and of TF32.

PyTorch evaluates the function in float32 as it is, with each operation off by as much as the language's may be, and with factors of products in TF32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..ops.meaning.tiles import force_exact_products, split_operands
from ..spec.functions import FunctionSpecification, Value
from .decisive import jumps_in_torch

TURNS = 3  # evaluations with other signs of the errors
_ULP = 2.0**-23
_OFF = 4 * _ULP  # a quotient is a reciprocal and a product; sums have another order
_OFF_ABSOLUTE = 2.0**-20  # tanh and logarithms where they are near 0
_FLOATS = (torch.float32, torch.float64)

# Operations that round nothing: they choose, move or negate.
_EXACT = frozenset(
    [
        "abs",
        "amax",
        "amin",
        "argmax",
        "argmin",
        "as_strided",
        "bernoulli",
        "cat",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clone",
        "constant_pad_nd",
        "copy",
        "copy_",
        "cummax",
        "cummin",
        "detach",
        "diagonal",
        "embedding",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "eye",
        "fill",
        "fill_",
        "flip",
        "floor",
        "ceil",
        "full",
        "full_like",
        "gather",
        "index",
        "index_copy",
        "index_put",
        "index_put_",
        "index_select",
        "lift_fresh",
        "masked_fill",
        "masked_fill_",
        "masked_scatter",
        "masked_select",
        "max",
        "maximum",
        "min",
        "minimum",
        "neg",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "nan_to_num",
        "ones",
        "ones_like",
        "pad",
        "permute",
        "relu",
        "repeat",
        "roll",
        "round",
        "scatter",
        "scatter_",
        "select",
        "select_backward",
        "select_scatter",
        "sgn",
        "sign",
        "slice",
        "slice_backward",
        "slice_scatter",
        "sort",
        "split",
        "squeeze",
        "stack",
        "t",
        "threshold",
        "topk",
        "transpose",
        "tril",
        "triu",
        "trunc",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
        "where",
        "zero_",
        "zeros",
        "zeros_like",
        "_to_copy",
        "_unsafe_view",
        "_reshape_copy",
        "alias",
        "arange",
        "set_",
        "fmax",
        "fmin",
    ]
)
# Operations whose result may be off by that much though it is near 0.
_ABSOLUTE = frozenset(
    [
        "log",
        "log_",
        "log2",
        "log10",
        "log1p",
        "tanh",
        "tanh_",
        "erf",
        "erfc",
        "gelu",
        "logsumexp",
        "logaddexp",
        "_log_softmax",
        "softplus",
        "sin",
        "cos",
        "log_sigmoid_forward",
        "mish",
        "atan",
        "asin",
        "acos",
    ]
)
# Operations that the language has as such; any other is made of logarithms and powers, whose errors grow with the exponent.
_OWN = frozenset(
    [
        "add",
        "add_",
        "sub",
        "sub_",
        "mul",
        "mul_",
        "div",
        "div_",
        "rsub",
        "sum",
        "mean",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "mv",
        "dot",
        "matmul",
        "addcmul",
        "addcdiv",
        "lerp",
        "cumsum",
        "reciprocal",
        "var",
        "var_mean",
        "square",
        "addmv",
        "linalg_vector_norm",
        "native_layer_norm",
        "convolution",
    ]
)

# Operations that add up any number of terms: a kernel may do so in another order, of blocks and within them.
_SUMS = frozenset(["sum", "mean", "cumsum", "mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "matmul", "convolution"])

# Products, and where their factors stand among the arguments.
_FACTORS = dict.fromkeys(("mm", "bmm", "mv", "dot", "matmul", "convolution"), 0) | dict.fromkeys(("addmm", "baddbmm", "addmv"), 1)
# Operations that decide by a float operand and give floats, and where that stands among the arguments.
_STEPS = {
    **dict.fromkeys(("sgn", "sign", "floor", "ceil", "round", "trunc", "frac", "hardshrink", "threshold"), 0),
    **dict.fromkeys(("threshold_backward", "hardtanh_backward", "leaky_relu_backward", "softshrink_backward", "hardshrink_backward"), 1),
    **dict.fromkeys(("hardsigmoid_backward", "hardswish_backward"), 1),
    "elu_backward": 5,
    "heaviside": 0,
    "copysign": 1,
}
_TF32 = 0.7 * 2.0**-10  # relative: how far the number of TF32 may be that an operand is taken as


class SingleError:
    """Evaluations of one function for one problem; those with errors are made when they are asked for.

    steps: what is decided within an operation (a sign, a slope on either side of a corner) stays as well: operands lie there exactly.
    """

    def __init__(self, spec: FunctionSpecification, given: Mapping[str, Value], outputs: Sequence[str], steps: bool = False):
        self.spec, self.given, self.outputs = spec, given, outputs
        self.decided = _Noted(steps)
        self.jumped: list[torch.Tensor] = []
        with (mode := _Decisions(self.decided, self.jumped)):
            self.plain = spec.single(given, outputs)
        self.overflows = mode.overflows  # whether some operation gave infinity for finite numbers
        self._off: list[dict[str, torch.Tensor]] | None = None
        self._between: list[dict[str, torch.Tensor]] | None = None
        self._ordered: dict[str, torch.Tensor] | None = None
        self._tf32: list[dict[str, torch.Tensor]] | None = None

    def tf32(self) -> list[dict[str, torch.Tensor]]:
        """The outputs where products take their operands as numbers of TF32: as the tensor core rounds them, then with other roundings."""
        if self._tf32 is None:
            self._tf32 = []
            for generator in (None, *(torch.Generator().manual_seed(seed) for seed in range(TURNS))):
                with force_exact_products(), _OfTF32(self.decided, generator):
                    self._tf32.append(self.spec.single(dict(self.given), self.outputs))
        return self._tf32

    def tf32_undecided(self) -> list[dict[str, torch.Tensor]]:
        """`tf32`, where each evaluation takes its own decisions."""
        evaluations = []
        for generator in (None, *(torch.Generator().manual_seed(seed) for seed in range(TURNS))):
            with force_exact_products(), _OfTF32(_Noted(False), generator):
                evaluations.append(self.spec.single(dict(self.given), self.outputs))
        return evaluations

    def turned(self) -> dict[str, torch.Tensor]:
        """Return elements of the outputs, as bool tensors, that hang on decisions which the errors of operations turn; inputs are exact."""
        found: dict[str, torch.Tensor] = {}
        for seed in range(TURNS):
            alike, own = self._computed(seed, self.decided, self.jumped), self._computed(seed, _Noted(False), ())
            for n, x in own.items():
                differs = ~((x == alike[n]) | (x.isnan() & alike[n].isnan()))
                found[n] = found[n] | differs if n in found else differs
        return found

    def _computed(self, seed: int, decided: _Noted, jumped: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        with _Off(decided, torch.Generator().manual_seed(seed), jumped=jumped):
            return self.spec.single(dict(self.given), self.outputs)

    def ordered(self) -> dict[str, torch.Tensor]:
        """Which elements of the outputs hang on the order of a sum, as bool tensors: some order of its terms leaves float32, and infinities of both signs then give NaN."""
        if self._ordered is None:
            with _AnyOrder(self.decided):
                outputs = self.spec.single(self.given, self.outputs)
            self._ordered = {n: x.isnan() for n, x in outputs.items()}
        return self._ordered

    def off(self) -> list[dict[str, torch.Tensor]]:
        """The outputs of evaluations in which inputs and every operation are off by a few units in the last place. What is decided by comparisons stays as in `plain`."""
        if self._off is None:
            self._off = [self._once(seed) for seed in range(TURNS)]
        return self._off

    def off_between_steps(self) -> list[dict[str, torch.Tensor]]:
        """Evaluate as `off` does, but keep the results of step functions as they are in `plain`."""
        if self._between is None:
            self._between = [self._once(seed, self.jumped) for seed in range(TURNS)]
        return self._between

    def rounded(self, dtype: torch.dtype) -> list[dict[str, torch.Tensor]]:
        """The outputs of evaluations in which every operation is off by as much as rounding to a dtype of 16 bits may put it: other roundings than those that happened to PyTorch."""
        evaluations = []
        for seed in range(TURNS):
            with _Off(self.decided, torch.Generator().manual_seed(seed), torch.finfo(dtype).eps / 2):
                evaluations.append(self.spec.single(dict(self.given), self.outputs))
        return evaluations

    def _once(self, seed: int, jumped: Sequence[torch.Tensor] = ()) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        given = {
            n: _perturbed(x.float(), generator, "add") if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for n, x in self.given.items()
        }
        with _Off(self.decided, generator, jumped=jumped):
            return self.spec.single(given, self.outputs)


def _perturbed(x: torch.Tensor, generator: torch.Generator, name: str) -> torch.Tensor:
    """Each number off by the error that an operation of that name may have, up or down."""
    if name in _OWN:
        return _off_by(x, generator, x.abs() * _OFF)
    exponent = torch.where(x == 0, 0.0, x.abs().log2().abs()).nan_to_num(0.0, 0.0, 0.0)
    most = x.abs() * (_OFF + 2 * _ULP * exponent)
    return _off_by(x, generator, most + _OFF_ABSOLUTE if name in _ABSOLUTE else most)


def _named(name: str, args: Sequence[Any]) -> str:
    """The operation that a kernel would use: a small power is products."""
    return "mul" if name in ("pow", "pow_") and len(args) > 1 and args[1] in (2, 3, 4) else name


def _has_floats(args: Sequence[Any]) -> bool:
    return any((isinstance(a, torch.Tensor) and a.dtype in _FLOATS) or (isinstance(a, (list, tuple)) and _has_floats(a)) for a in args)


def _endless(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in _FLOATS and bool(x.isinf().any())


def _decision(x: Any) -> bool:
    """Whether a result is no float tensor: a comparison, a position, a number that Python reads."""
    return isinstance(x, (bool, int, float)) or (isinstance(x, torch.Tensor) and not x.is_floating_point())


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


class Undisturbed(TorchDispatchMode):
    """A mode that needs nothing of torch.compile, whose import takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _Noted(list[Any]):
    """Decisions in their order; steps: operands that decide within an operation, too."""

    def __init__(self, steps: bool):
        super().__init__()
        self.steps = steps

    def place(self, func: Any) -> int | None:
        """Return where the operand stands that decides within an operation, None for other operations."""
        return _STEPS.get(func.overloadpacket.__name__) if self.steps else None


class _Decisions(Undisturbed):
    """Notes what is decided by floats."""

    def __init__(self, decided: _Noted, jumped: list[torch.Tensor]):
        super().__init__()
        self.decided, self.jumped, self.overflows = decided, jumped, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (place := self.decided.place(func)) is not None:
            self.decided.append(args[place].detach().clone())
        result = func(*args, **(kwargs or {}))
        if _has_floats(args):
            self._noted(result)
            if jumps_in_torch(func.overloadpacket.__name__, args, kwargs or {}, result) and _is_float(result):
                self.jumped.append(result.clone())
            if not self.overflows and not func.is_view and func.overloadpacket.__name__ not in _EXACT:
                self.overflows = _endless(result) and not any(map(_endless, args))
        return result

    def _noted(self, result: Any) -> None:
        if isinstance(result, (list, tuple)):
            for x in result:
                self._noted(x)
        elif _decision(result):
            self.decided.append(result)


class _Again(Undisturbed):
    """Takes the decisions as they were noted."""

    def __init__(self, decided: _Noted):
        super().__init__()
        self.decided, self.next = decided, 0

    def _placed(self, func: Any, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments with the operand that decides as it was noted."""
        place = self.decided.place(func)
        return args if place is None else (*args[:place], self._decided(args[place]), *args[place + 1 :])

    def _decided(self, x: Any) -> Any:
        """What was decided without errors, if it was asked in the same order."""
        at, self.next = self.next, self.next + 1
        if at < len(self.decided):
            known = self.decided[at]
            if type(known) is type(x) and (not isinstance(x, torch.Tensor) or (known.shape == x.shape and known.dtype == x.dtype)):
                return known
        return x

    def _changed(self, func: Any, args: Sequence[Any], result: Any, change: Callable[[torch.Tensor], torch.Tensor] | None) -> Any:
        """The result of an operation: decisions as noted, its floats changed."""
        computed = _has_floats(args)

        def judged(x: Any) -> Any:
            if isinstance(x, (list, tuple)):
                return type(x)(map(judged, x)) if not hasattr(x, "_fields") else type(x)(*map(judged, x))
            if computed and _decision(x):
                return self._decided(x)
            if change is None or not computed or not isinstance(x, torch.Tensor) or x.dtype not in _FLOATS:
                return x
            return x.copy_(change(x)) if any(x is a for a in args) else change(x)

        return judged(result)


class _AnyOrder(_Again):
    """Puts NaN for each sum of which the terms' magnitudes add up to more than the dtype holds: if they do not, no order leaves it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = self._placed(func, args)
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in _SUMS:
            return self._changed(func, args, result, None)
        most = func(*map(_magnitude, args), **(kwargs or {}))
        return self._changed(func, args, result, lambda x: torch.where(most.isinf(), torch.nan, x))


def _magnitude(x: Any) -> Any:
    """Of finite numbers; others count 0."""
    return x.abs().nan_to_num(0.0, 0.0, 0.0) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


class _Off(_Again):
    """Takes the decisions as they were noted, and puts each computed number off. unit: by up to so much of itself, evenly; left out: by what the language's operations may be off. jumped: what functions that jump gave, which stays."""

    def __init__(self, decided: _Noted, generator: torch.Generator, unit: float = 0.0, jumped: Sequence[torch.Tensor] = ()):
        super().__init__(decided)
        self.generator, self.unit, self.jumped, self.jumps = generator, unit, jumped, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = self._placed(func, args)
        result = func(*args, **(kwargs or {}))
        name = _named(func.overloadpacket.__name__, args)
        if self.jumped and jumps_in_torch(name, args, kwargs or {}, result) and _is_float(result):
            at, self.jumps = self.jumps, self.jumps + 1
            if at < len(self.jumped) and self.jumped[at].shape == result.shape:
                return result.copy_(self.jumped[at]) if any(result is a for a in args) else self.jumped[at].to(result.dtype, copy=True)
        if self.unit and not (name in _EXACT or func.is_view):
            return self._changed(func, args, result, lambda x: _evenly_off(x, self.generator, self.unit))
        if name in _SUMS:  # in any order: more than the rounding of the result, and of terms that cancel by their magnitudes
            most = func(*map(_magnitude, args), **(kwargs or {}))
            return self._changed(func, args, result, lambda x: _off_by(x, self.generator, most * _of_order(name, args, x)))
        exact = name in _EXACT or func.is_view
        return self._changed(func, args, result, None if exact else lambda x: _perturbed(x, self.generator, name))


class _OfTF32(_Again):
    """Takes the decisions as they were noted, and the factors of products as numbers of TF32. generator: of other roundings than the tensor core's."""

    def __init__(self, decided: _Noted, generator: torch.Generator | None):
        super().__init__(decided)
        self.generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = self._placed(func, args)
        first = _FACTORS.get(func.overloadpacket.__name__)
        if first is not None:
            args = (*args[:first], *self._factors(*args[first : first + 2]), *args[first + 2 :])
        return self._changed(func, args, func(*args, **(kwargs or {})), None)

    def _factors(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if a.dtype != torch.float32:
            return a, b
        if self.generator is None:
            return split_operands(a, b, 1)
        return _evenly_off(a, self.generator, _TF32), _evenly_off(b, self.generator, _TF32)


def _of_order(name: str, args: Sequence[Any], x: torch.Tensor) -> float:
    """The error of a sum beside its terms' magnitudes: one by one, n roundings of which each may go either way come to about sqrt(n) / 6 units in the last place of the sum."""
    given = next((a for a in args if isinstance(a, torch.Tensor)), x)
    terms = given.numel() / max(1, x.numel()) if name in ("sum", "mean") else given.shape[-1] if given.dim() else 1
    return _OFF + _ULP * math.sqrt(max(1.0, terms)) / 2


def _evenly_off(x: torch.Tensor, generator: torch.Generator, unit: float) -> torch.Tensor:
    """Each number off by up to so much of itself; infinities stay."""
    by = (torch.rand(x.shape, generator=generator, dtype=x.dtype) * 2 - 1) * unit
    return torch.where(x.isinf(), x, x + x * by)


def _off_by(x: torch.Tensor, generator: torch.Generator, most: torch.Tensor) -> torch.Tensor:
    """Each number off by so much, up or down; infinities stay."""
    sign = torch.randint(0, 2, x.shape, generator=generator, dtype=torch.int8).to(x.dtype) * 2 - 1
    return torch.where(x.isinf() | (most == 0), x, x + sign * most)  # a zero keeps its sign

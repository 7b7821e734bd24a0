"""Error of float32 for a function, with that of the language's operations and of TF32.

PyTorch evaluates the function in float32 as it is, with each operation perturbed by the error that the language's may
have, and with factors of products in TF32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ..ops.meaning.tiles import force_exact_products, split_operands
from ..spec.function_specification import FunctionSpecification, Value
from .values.step_inputs import jumps_in_torch

TURNS = 3  # the number of evaluations with other signs of the errors
_ULP = 2.0**-23
_RELATIVE_ERROR = 4 * _ULP  # a quotient is a reciprocal and a product; sums have other orders
_ABSOLUTE_ERROR = 2.0**-20  # tanh and logarithms where they are near 0
_FLOATS = (torch.float32, torch.float64)

# Operations that round nothing: they choose, move or negate.
_EXACT = frozenset([
    "abs", "amax", "amin", "argmax", "argmin", "as_strided", "bernoulli", "cat", "clamp", "clamp_max", "clamp_min",
    "clone", "constant_pad_nd", "copy", "copy_", "cummax", "cummin", "detach", "diagonal", "embedding", "empty",
    "empty_like", "empty_strided", "expand", "eye", "fill", "fill_", "flip", "floor", "ceil", "full", "full_like",
    "gather", "index", "index_copy", "index_put", "index_put_", "index_select", "lift_fresh", "masked_fill",
    "masked_fill_", "masked_scatter", "masked_select", "max", "maximum", "min", "minimum", "neg", "new_empty",
    "new_full", "new_ones", "new_zeros", "nan_to_num", "ones", "ones_like", "pad", "permute", "relu", "repeat", "roll",
    "round", "scatter", "scatter_", "select", "select_backward", "select_scatter", "sgn", "sign", "slice",
    "slice_backward", "slice_scatter", "sort", "split", "squeeze", "stack", "t", "threshold", "topk", "transpose",
    "tril", "triu", "trunc", "unbind", "unfold", "unsqueeze", "view", "where", "zero_", "zeros", "zeros_like",
    "_to_copy", "_unsafe_view", "_reshape_copy", "alias", "arange", "set_", "fmax", "fmin",
])  # fmt: skip
# Operations whose result may have that absolute error near 0.
_ABSOLUTE = frozenset([
    "log", "log_", "log2", "log10", "tanh", "tanh_", "erf", "erfc", "gelu", "logsumexp", "logaddexp",
    "_log_softmax", "softplus", "sin", "cos", "log_sigmoid_forward", "mish", "atan", "asin", "acos",
])  # fmt: skip
# Operations of the language; others use logarithms and powers, whose errors grow with the exponent.
_LANGUAGE_OPERATIONS = frozenset([
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "rsub", "sum", "mean", "mm", "bmm", "addmm", "baddbmm",
    "mv", "dot", "matmul", "addcmul", "addcdiv", "lerp", "cumsum", "reciprocal", "var", "var_mean", "square", "addmv",
    "linalg_vector_norm", "native_layer_norm", "convolution",
])  # fmt: skip

# Operations that sum any number of terms: a kernel may use another order, of blocks and within them.
_SUMS = frozenset(["sum", "mean", "cumsum", "mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "matmul", "convolution"])

# Statistics that are sums of any number of terms, all of one sign: their error is relative to the result.
_STATISTICS = frozenset(["var", "std", "linalg_vector_norm"])

# Products, and the position of their factors among the arguments.
_FACTORS = dict.fromkeys(("mm", "bmm", "mv", "dot", "matmul", "convolution"), 0) | dict.fromkeys(("addmm", "baddbmm", "addmv"), 1)
# Operations that decide by a float operand and return floats, and the position of that operand.
_STEPS = {
    **dict.fromkeys(("sgn", "sign", "floor", "ceil", "round", "trunc", "frac", "hardshrink", "threshold"), 0),
    **dict.fromkeys(("threshold_backward", "hardtanh_backward", "leaky_relu_backward", "softshrink_backward", "hardshrink_backward"), 1),
    **dict.fromkeys(("hardsigmoid_backward", "hardswish_backward"), 1),
    "elu_backward": 5,
    "heaviside": 0,
    "copysign": 1,
}
_TF32 = 0.7 * 2.0**-10  # relative error of an operand rounded to TF32
# of an operand taken as two TF32 numbers: the end of the second, and of a subnormal number the bits that neither has
_TWO_PARTS, _TWO_PARTS_SUBNORMAL = 2.0**-21, 2.0**-137


class Evaluations(Sequence[dict[str, torch.Tensor]]):
    """Outputs of several evaluations, each of which runs when it is first read."""

    def __init__(self, runs: Sequence[Callable[[], dict[str, torch.Tensor]]]):
        self._runs = runs
        self._done: dict[int, dict[str, torch.Tensor]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index not in self._done:
            self._done[index] = self._runs[index]()
        return self._done[index]


class SingleError:
    """Evaluations of one function for one problem; those with errors are computed on demand.

    steps: decisions within an operation (a sign, a slope on either side of a corner) stay as well: operands lie there
    exactly.
    """

    def __init__(self, spec: FunctionSpecification, inputs: Mapping[str, Value], outputs: Sequence[str], steps: bool = False):
        self.spec, self.inputs, self.outputs = spec, inputs, outputs
        self.decided = _DecisionLog(steps)
        self.jumped: list[torch.Tensor] = []
        with (mode := _RecordDecisions(self.decided, self.jumped)):
            self.plain = spec.single(inputs, outputs)
        self.overflows = mode.overflows  # some operation gave infinity for finite numbers
        self._off: Evaluations | None = None
        self._between: Evaluations | None = None
        self._ordered: dict[str, torch.Tensor] | None = None
        self._tensor_core: dict[str, torch.Tensor] | None = None
        self._tf32: Evaluations | None = None
        self._tf32_between: Evaluations | None = None
        self._turned: dict[str, torch.Tensor] | None = None
        self._rounded: dict[torch.dtype, Evaluations] = {}
        self._two_parts: Evaluations | None = None

    def tensor_core(self) -> dict[str, torch.Tensor]:
        """Return the outputs with operands of products rounded to TF32 as the tensor core rounds them."""
        if self._tensor_core is None:
            self._tensor_core = self._round_factors(self.decided, None)
        return self._tensor_core

    def tf32(self) -> Evaluations:
        """Return `tensor_core`, and the outputs with other roundings."""
        if self._tf32 is None:
            self._tf32 = Evaluations([self.tensor_core, *(partial(self._round_factors, self.decided, seed) for seed in range(TURNS))])
        return self._tf32

    def tf32_undecided(self) -> Evaluations:
        """Return `tf32` with separate decisions in each evaluation."""
        return Evaluations([partial(self._round_factors, _DecisionLog(False), seed) for seed in (None, *range(TURNS))])

    def tf32_between_steps(self) -> Evaluations:
        """Return `tf32`, but keep the results of step functions as they are in `plain`."""
        if not self.jumped:
            return self.tf32()
        if self._tf32_between is None:
            seeds = (None, *range(TURNS))
            self._tf32_between = Evaluations([partial(self._round_factors, self.decided, seed, self.jumped) for seed in seeds])
        return self._tf32_between

    def two_parts(self) -> Evaluations:
        """Return the outputs with factors of products as two TF32 numbers; results of step functions stay."""
        if self._two_parts is None:
            self._two_parts = Evaluations([partial(self._round_factors, self.decided, seed, self.jumped, parts=2) for seed in range(TURNS)])
        return self._two_parts

    def _round_factors(
        self, decided: _DecisionLog, seed: int | None, jumped: Sequence[torch.Tensor] = (), parts: int = 1
    ) -> dict[str, torch.Tensor]:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        with force_exact_products(), _RoundFactors(decided, generator, jumped, parts):
            return self.spec.single(dict(self.inputs), self.outputs)

    def find_turned(self) -> dict[str, torch.Tensor]:
        """Return elements of the outputs that depend on decisions which the errors of operations change.

        As bool tensors; inputs are exact.
        """
        if self._turned is None:
            self._turned = self._compare_decisions()
        return self._turned

    def _compare_decisions(self) -> dict[str, torch.Tensor]:
        changed: dict[str, torch.Tensor] = {}
        for seed in range(TURNS):
            same_decisions, free_decisions = self._evaluate(seed, self.decided, self.jumped), self._evaluate(seed, _DecisionLog(False), ())
            for n, x in free_decisions.items():
                differs = ~((x == same_decisions[n]) | (x.isnan() & same_decisions[n].isnan()))
                changed[n] = changed[n] | differs if n in changed else differs
        return changed

    def _evaluate(self, seed: int, decided: _DecisionLog, jumped: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        with _PerturbOperations(decided, torch.Generator().manual_seed(seed), jumped=jumped):
            return self.spec.single(dict(self.inputs), self.outputs)

    def find_ordered(self) -> dict[str, torch.Tensor]:
        """Return elements of the outputs that depend on the order of a sum, as bool tensors.

        Some order of its terms overflows float32, and infinities of both signs then give NaN.
        """
        if self._ordered is None:
            with _MarkOrderOverflow(self.decided):
                outputs = self.spec.single(self.inputs, self.outputs)
            self._ordered = {n: x.isnan() for n, x in outputs.items()}
        return self._ordered

    def off(self) -> Evaluations:
        """Return the outputs of evaluations in which inputs and every operation have errors of a few ulps.

        Comparisons keep the decisions of `plain`.
        """
        if self._off is None:
            self._off = Evaluations([partial(self._evaluate_once, seed) for seed in range(TURNS)])
        return self._off

    def off_between_steps(self) -> Evaluations:
        """Evaluate as `off` does, but keep the results of step functions as they are in `plain`."""
        if self._between is None:
            self._between = Evaluations([partial(self._evaluate_once, seed, self.jumped) for seed in range(TURNS)])
        return self._between

    def evaluate_rounded(self, dtype: torch.dtype) -> Evaluations:
        """Return the outputs of evaluations in which every operation has a rounding error of a 16-bit dtype.

        Other roundings than those that happened to PyTorch.
        """
        if dtype not in self._rounded:
            self._rounded[dtype] = Evaluations([partial(self._evaluate_rounded_once, dtype, seed) for seed in range(TURNS)])
        return self._rounded[dtype]

    def _evaluate_rounded_once(self, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
        with _PerturbOperations(self.decided, torch.Generator().manual_seed(seed), torch.finfo(dtype).eps / 2):
            return self.spec.single(dict(self.inputs), self.outputs)

    def _evaluate_once(self, seed: int, jumped: Sequence[torch.Tensor] = ()) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        perturbed = {
            n: _perturb(x.float(), generator, "add") if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for n, x in self.inputs.items()
        }
        with _PerturbOperations(self.decided, generator, jumped=jumped):
            return self.spec.single(perturbed, self.outputs)


def _perturb(x: torch.Tensor, generator: torch.Generator, name: str) -> torch.Tensor:
    """Perturb each number by the error that an operation of that name may have, up or down."""
    if name in _LANGUAGE_OPERATIONS:
        return torch.where(_is_lowest(x), x, _perturb_by(x, generator, x.abs() * _RELATIVE_ERROR))
    exponent = torch.where(x == 0, 0.0, x.abs().log2().abs()).nan_to_num(0.0, 0.0, 0.0)
    most = x.abs() * (_RELATIVE_ERROR + 2 * _ULP * exponent)
    return _perturb_by(x, generator, most + _ABSOLUTE_ERROR if name in _ABSOLUTE else most)


def _is_lowest(x: torch.Tensor) -> torch.Tensor:
    """Return where a number is the dtype's lowest, or half of it.

    Such a number is a mask, which absorbs what is added, without an error.
    """
    least = torch.finfo(x.dtype).min
    return (x == least) | (x == least / 2)


def _get_kernel_operation(name: str, args: Sequence[Any]) -> str:
    """Return the operation that a kernel would use: a small power is products."""
    return "mul" if name in ("pow", "pow_") and len(args) > 1 and args[1] in (2, 3, 4) else name


def _has_floats(args: Sequence[Any]) -> bool:
    return any((isinstance(a, torch.Tensor) and a.dtype in _FLOATS) or (isinstance(a, (list, tuple)) and _has_floats(a)) for a in args)


def _has_infinity(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in _FLOATS and bool(x.isinf().any())


def _is_decision(x: object) -> bool:
    """Return whether a result is not a float tensor: a comparison, a position, a number that Python reads."""
    return isinstance(x, (bool, int, float)) or (isinstance(x, torch.Tensor) and not x.is_floating_point())


def _is_float(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


class Undisturbed(TorchDispatchMode):
    """A mode that does not load torch.compile, whose import takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _DecisionLog(list[Any]):
    """Decisions in their order; steps: operands that decide within an operation, too."""

    def __init__(self, steps: bool):
        super().__init__()
        self.steps = steps

    def place(self, func: Any) -> int | None:
        """Return the position of the operand that decides within an operation; None for other operations."""
        return _STEPS.get(func.overloadpacket.__name__) if self.steps else None


class _RecordDecisions(Undisturbed):
    """Mode that records decisions by floats."""

    def __init__(self, decided: _DecisionLog, jumped: list[torch.Tensor]):
        super().__init__()
        self.decided, self.jumped, self.overflows = decided, jumped, False

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if (place := self.decided.place(func)) is not None:
            self.decided.append(args[place].detach().clone())
        result = func(*args, **(kwargs or {}))
        if _has_floats(args):
            self._record(result)
            if jumps_in_torch(func.overloadpacket.__name__, args, kwargs or {}, result) and _is_float(result):
                self.jumped.append(result.clone())
            if not self.overflows and not func.is_view and func.overloadpacket.__name__ not in _EXACT:
                self.overflows = _has_infinity(result) and not any(map(_has_infinity, args))
        return result

    def _record(self, result: Any) -> None:
        if isinstance(result, (list, tuple)):
            for x in result:
                self._record(x)
        elif _is_decision(result):
            self.decided.append(result)


class _ReplayDecisions(Undisturbed):
    """Mode that replays recorded decisions.

    jumped: results of step functions, which stay.
    """

    def __init__(self, decided: _DecisionLog, jumped: Sequence[torch.Tensor] = ()):
        super().__init__()
        self.decided, self.next = decided, 0
        self.jumped, self.jumps = jumped, 0

    def _replay_operand(self, func: Any, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments with the deciding operand as it was recorded."""
        place = self.decided.place(func)
        return args if place is None else (*args[:place], self._replay(args[place]), *args[place + 1 :])

    def _replay_jump(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> torch.Tensor | None:
        """Return the recorded result of a discontinuous operation, as rounding to integers.

        None, so that the operation is computed: for continuous operations, and once their order differs from the
        recorded one.

        Args:
            result: result of the operation in this run.
        """
        if not (self.jumped and jumps_in_torch(name, args, kwargs, result) and _is_float(result)):
            return None
        index, self.jumps = self.jumps, self.jumps + 1
        if index >= len(self.jumped) or self.jumped[index].shape != result.shape:
            return None
        recorded = self.jumped[index]
        return result.copy_(recorded) if any(result is a for a in args) else recorded.to(result.dtype, copy=True)

    def _replay(self, x: Any) -> Any:
        """Return the recorded decision, if the order of decisions is the same."""
        index, self.next = self.next, self.next + 1
        if index < len(self.decided):
            recorded = self.decided[index]
            if type(recorded) is type(x) and (not isinstance(x, torch.Tensor) or (recorded.shape == x.shape and recorded.dtype == x.dtype)):
                return recorded
        return x

    def _change(self, func: Any, args: Sequence[Any], result: Any, change: Callable[[torch.Tensor], torch.Tensor] | None) -> Any:
        """Return the result of an operation: decisions as recorded, floats changed."""
        computed = _has_floats(args)

        def replace(x: Any) -> Any:
            if isinstance(x, (list, tuple)):
                return type(x)(map(replace, x)) if not hasattr(x, "_fields") else type(x)(*map(replace, x))
            if computed and _is_decision(x):
                return self._replay(x)
            if change is None or not computed or not isinstance(x, torch.Tensor) or x.dtype not in _FLOATS:
                return x
            return x.copy_(change(x)) if any(x is a for a in args) else change(x)

        return replace(result)


class _MarkOrderOverflow(_ReplayDecisions):
    """Mode that puts NaN for each sum whose terms' magnitudes add up to more than the dtype holds.

    Otherwise no order of the terms overflows.
    """

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args = self._replay_operand(func, args)
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in _SUMS:
            return self._change(func, args, result, None)
        most = func(*map(_compute_magnitude, args), **(kwargs or {}))
        return self._change(func, args, result, lambda x: torch.where(most.isinf(), torch.nan, x))


def _compute_magnitude(x: Any) -> Any:
    """Return the magnitude of each element, 0 for infinities and NaN; non-floats are returned unchanged."""
    return x.abs().nan_to_num(0.0, 0.0, 0.0) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


class _PerturbOperations(_ReplayDecisions):
    """Mode that replays recorded decisions and perturbs each computed number.

    unit: the largest relative error, evenly distributed; without it the errors of the language's operations.
    """

    def __init__(self, decided: _DecisionLog, generator: torch.Generator, unit: float = 0.0, jumped: Sequence[torch.Tensor] = ()):
        super().__init__(decided, jumped)
        self.generator, self.unit = generator, unit

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args = self._replay_operand(func, args)
        result = func(*args, **(kwargs or {}))
        name = _get_kernel_operation(func.overloadpacket.__name__, args)
        if (jump := self._replay_jump(name, args, kwargs or {}, result)) is not None:
            return jump
        if self.unit and not (name in _EXACT or func.is_view):
            return self._change(func, args, result, lambda x: _perturb_evenly(x, self.generator, self.unit))
        # in any order: more than the rounding of the result, and of terms that cancel by their magnitudes
        if name in _SUMS:
            most = func(*map(_compute_magnitude, args), **(kwargs or {}))
            return self._change(func, args, result, lambda x: _perturb_by(x, self.generator, most * _compute_order_error(name, args, x)))
        if name in _STATISTICS:
            return self._change(func, args, result, lambda x: _perturb_by(x, self.generator, x.abs() * _compute_order_error(name, args, x)))
        exact = name in _EXACT or func.is_view
        return self._change(func, args, result, None if exact else lambda x: _perturb(x, self.generator, name))


class _RoundFactors(_ReplayDecisions):
    """Mode that replays recorded decisions and rounds the factors of products to TF32.

    generator: of roundings other than the tensor core's. parts: TF32 numbers of each factor, 2 only with a generator.
    """

    def __init__(self, decided: _DecisionLog, generator: torch.Generator | None, jumped: Sequence[torch.Tensor] = (), parts: int = 1):
        super().__init__(decided, jumped)
        self.generator, self.parts = generator, parts

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args = self._replay_operand(func, args)
        name = func.overloadpacket.__name__
        first = _FACTORS.get(name)
        if first is not None:
            args = (*args[:first], *self._round_factors(*args[first : first + 2]), *args[first + 2 :])
        result = func(*args, **(kwargs or {}))
        jump = self._replay_jump(name, args, kwargs or {}, result)
        return self._change(func, args, result, None) if jump is None else jump

    def _round_factors(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if a.dtype != torch.float32:
            return a, b
        if self.generator is None:
            return split_operands(a, b, 1)
        if self.parts == 1:
            return _perturb_evenly(a, self.generator, _TF32), _perturb_evenly(b, self.generator, _TF32)
        x, y = (_perturb_by(f, self.generator, f.abs() * _TWO_PARTS + _TWO_PARTS_SUBNORMAL * (f != 0)) for f in (a, b))
        return x, y


def _compute_order_error(name: str, args: Sequence[Any], x: torch.Tensor) -> float:
    """Return the error of a sum relative to its terms' magnitudes.

    n roundings, one by one and in either direction, add up to about sqrt(n) / 6 units in the last place of the sum.
    """
    operand = next((a for a in args if isinstance(a, torch.Tensor)), x)
    terms = (
        operand.numel() / max(1, x.numel()) if name in ("sum", "mean") or name in _STATISTICS else operand.shape[-1] if operand.dim() else 1
    )
    return _RELATIVE_ERROR + _ULP * math.sqrt(max(1.0, terms)) / 2


def _perturb_evenly(x: torch.Tensor, generator: torch.Generator, unit: float) -> torch.Tensor:
    """Perturb each number by at most `unit` of itself, evenly; infinities stay."""
    by = (torch.rand(x.shape, generator=generator, dtype=x.dtype) * 2 - 1) * unit
    return torch.where(x.isinf(), x, x + x * by)


def _perturb_by(x: torch.Tensor, generator: torch.Generator, most: torch.Tensor) -> torch.Tensor:
    """Perturb each number by `most`, up or down; infinities stay."""
    sign = torch.randint(0, 2, x.shape, generator=generator, dtype=torch.int8).to(x.dtype) * 2 - 1
    return torch.where(x.isinf() | (most == 0), x, x + sign * most)  # a zero keeps its sign

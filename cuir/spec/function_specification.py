"""Specifications by PyTorch functions, evaluated in float64 and in the dtype of the kernel.

The functions take any tensors and scalars that a kernel reads. Their inputs are drawn by verification.

Products of float16 on a CPU, added up in float32 and rounded once, as a GPU does.

PyTorch computes the same there, some thirty times more slowly.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..text.diagnostics import CuirError
from ..text.source import function_span, user_span
from .function_results import as_tensor, describe_other, describe_unusable, equal_bits
from .global_state import seed_generators
from .neighbour_modules import describe_missing_module
from .specification import OTHER_SEED, Specification, default_dtype
from .user_calls import refuse_function, user_call

if TYPE_CHECKING:
    from torch._ops import OpOverload

_PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot"))


class HalfProducts(TorchDispatchMode):
    """Mode that computes products of float16 by float32."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # whose import takes seconds

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ not in _PRODUCTS or kwargs.get("out") is not None or not any(map(_is_half, args)):
            return func(*args, **kwargs)
        result: torch.Tensor = func(*(a.float() if _is_half(a) else a for a in args), **kwargs)
        return result.half()


def _is_half(x: object) -> TypeGuard[torch.Tensor]:
    return isinstance(x, torch.Tensor) and x.dtype == torch.float16 and x.device.type == "cpu"


Value = torch.Tensor | int | float | bool
Values = Mapping[str, Value]
Outputs = torch.Tensor | tuple[torch.Tensor | None, ...] | Mapping[str, torch.Tensor | None]
_BITS = {torch.float16: 11, torch.bfloat16: 8}  # of a mantissa


@dataclass(frozen=True)
class FunctionSpecification:
    """A PyTorch function as the specification of a kernel.

    `reference` takes by name what the kernel reads: its tensors and scalars, ignoring case (`q` is `Q`), and the
    lengths of its dims and its integer consts as they are written (`N`, `BM`). For an attention kernel that is
    `reference(q, k, v, scale)`. Tensors are float64 on the CPU, integers stay as they are. It returns what the kernel
    writes: one tensor (the kernel's first output), a tuple of all in the order of the kernel's parameters, or a dict by
    name. Elements that are NaN are not compared. None for a tensor, `{"W": None}`, declares it scratch; any other
    tensor that the kernel writes and the function does not return is reported as not compared, and verification does
    not pass.
    A tensor that the kernel reads and writes (in place) is a parameter with its value before the run, and a result with
    its value after it, under one name. So is one that the kernel adds to, or writes in part, if `reference` takes it;
    otherwise it is 0, or NaN, before the run. A tuple has all tensors that the kernel writes, or those that it only
    writes.

    inputs: most inputs are drawn from the kernel's signature; `inputs(sizes, generator)` returns those with a
    structure, by name: page tables, lengths, the LSE of a forward pass. It must return tensors of integers. It may take
    by name, as `reference` does, what was drawn. `sizes` are the lengths of all dims and the integer consts;
    `generator` is a torch.Generator for random values. Tensors are converted to the kernel's dtype.
    sizes: `sizes(drawn)` returns the lengths to use for those drawn, by name (omitted ones stay), or None for lengths
    that the kernel does not support. Without it every dim is free, except that H is a multiple of HK.
    parameters: for a kernel that is yet to be written: its additional parameters, as kernels declare them (`G:
    Global[T, B, H, M, D], eta: f32`).
    variant: for gradients of attention: the variant whose splice points the kernel has.

    The verdict on numbers is relative: the kernel's error is compared with that of the same function in the kernel's
    dtype, both against float64.
    """

    name: str
    reference: Callable[..., Outputs]
    inputs: Callable[..., Values] | None = None
    sizes: Callable[[dict[str, int]], Mapping[str, int] | None] | None = None
    doc: str = ""
    parameters: str = ""
    variant: Specification | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for role in ("reference", "inputs", "sizes"):
            value = getattr(self, role)
            if value is None and role != "reference":
                continue
            if not callable(value):
                raise CuirError.of("X105", f"{role} of the specification `{self.name}` must be a function, found {type(value).__name__}")
            variadic = [p for p in inspect.signature(value).parameters.values() if p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY)]
            if variadic and role != "sizes":
                raise CuirError.of(
                    "X105",
                    f"{role} of the specification `{self.name}` is called with names, found the parameter `{variadic[0]}`",
                    function_span(value),
                    "name what the kernel reads: def reference(q, k, v, scale)",
                )

    @property
    def captured(self) -> Mapping[str, Value]:
        """Empty: what a kernel reads beyond the usual comes from `inputs`."""
        return {}

    def asks(self, name: str) -> bool:
        """Return whether the reference has a parameter of this name, ignoring case."""
        return any(p.name.lower() == name.lower() for p in inspect.signature(self.reference).parameters.values())

    def asks_exactly(self, name: str) -> bool:
        """Return whether the reference has a parameter of exactly this name."""
        return name in inspect.signature(self.reference).parameters

    def exact(self, values: Values, outputs: Sequence[str]) -> dict[str, torch.Tensor]:
        """Compute the outputs in float64, by the kernel's names.

        values: what the kernel reads, dims, consts. Raises CuirError X105, X106, X113.
        """
        return _without_scratch(self._outputs(values, _as_float64, outputs, torch.float64))

    def compute_attached(self, values: Values, outputs: Sequence[str]) -> dict[str, torch.Tensor]:
        """Compute the same as `exact`, with the graph that autograd needs."""
        return _without_scratch(self._outputs(values, _as_float64, outputs, torch.float64, attached=True))

    def single(self, values: Values, outputs: Sequence[str]) -> dict[str, torch.Tensor]:
        """Compute the outputs as PyTorch does in float32. Raises CuirError as `exact`."""
        return _without_scratch(self._outputs(values, lambda v: _convert(v, torch.float32), outputs, torch.float32))

    def scratch(self, values: Values, outputs: Sequence[str]) -> list[str]:
        """List the scratch tensors among the outputs: those for which the function returns None."""
        results = self._outputs(values, _as_float64, outputs, torch.float64)
        return [n for n, x in results.items() if x is None]

    def half(self, values: Values, outputs: Sequence[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Compute the outputs as PyTorch does in the kernel's dtype.

        In the dtypes of the inputs, or, where the function mixes those, all in `dtype`. Raises CuirError as `exact`, or
        X107 if PyTorch cannot evaluate the function in that dtype.
        """
        try:
            with HalfProducts():
                return _without_scratch(
                    self._outputs(values, lambda v: v.clone() if isinstance(v, torch.Tensor) else v, outputs, torch.float32)
                )
        except CuirError as error:
            if error.diagnostics[0].code != "X113":
                raise
        try:
            with HalfProducts():
                return _without_scratch(self._outputs(values, lambda v: _convert(v, dtype), outputs, dtype))
        except CuirError as error:
            diagnostic = error.diagnostics[0]
            raise CuirError(
                [
                    replace(
                        diagnostic,
                        code="X107",
                        message=f"the specification `{self.name}` in {str(dtype).removeprefix('torch.')}: {diagnostic.message}",
                        hint="it is evaluated in float64 and in the kernel's dtype, which is the yardstick for errors",
                    )
                ]
            ) from error

    def yardstick(
        self, values: Values, outputs: Sequence[str], exact: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> dict[str, torch.Tensor]:
        """Compute `half`; where that overflows, bfloat16's error scaled to the bits of `dtype`.

        f16 overflows where a kernel, which computes in float32, does not.
        """
        half = self.half(values, outputs, dtype)
        if dtype != torch.float16 or all(
            bool((x.isfinite() | ~exact[n].isfinite() | (exact[n].abs() > 6e4)).all()) for n, x in half.items()
        ):
            return half
        coarse = self.half({n: _convert(v, torch.bfloat16) if _is(v, dtype) else v for n, v in values.items()}, outputs, torch.bfloat16)
        scale = 2.0 ** (_BITS[torch.bfloat16] - _BITS[dtype])
        return {n: exact[n] + (x.double() - exact[n]) * scale for n, x in coarse.items()}

    def make_inputs(self, sizes: Mapping[str, int], generator: torch.Generator, drawn: Values) -> dict[str, Value]:
        """Return the result of `inputs`, by its names. Raises CuirError X105, X113."""
        if self.inputs is None:
            return {}
        state = generator.get_state()

        def make_arguments() -> dict[str, object]:
            generator.set_state(state)
            return {**drawn, "sizes": dict(sizes), "generator": generator}

        values, changed = self._call(self.inputs, "inputs", make_arguments, torch.float32)
        if not isinstance(values, Mapping):
            raise CuirError.of(
                "X106",
                f"inputs of the specification `{self.name}` gives a dict by name, found {type(values).__name__}",
                function_span(self.inputs),
            )
        self._require_unchanged("inputs", self.inputs, changed, values)
        return {n: self._input(n, x) for n, x in values.items()}

    def _input(self, name: object, value: object) -> Value:
        """Validate one value of `inputs`: a number, or a tensor that a kernel can read. Raises CuirError X106."""
        plain = value.item() if isinstance(value, np.generic) else value
        plain = as_tensor(plain) if isinstance(plain, np.ndarray) else plain
        if isinstance(plain, torch.Tensor):
            unusable = describe_unusable(plain)
            plain = plain.detach()
        else:
            unusable = None if isinstance(plain, (bool, int, float)) else (f"a {type(value).__name__}", "give a tensor or a number")
        if unusable is not None or not isinstance(name, str):
            description, hint = unusable or (f"the name {name!r}", "give a dict by name")
            assert self.inputs is not None
            raise CuirError.of(
                "X106", f"inputs of the specification `{self.name}` gives `{name}` as {description}", function_span(self.inputs), hint
            )
        assert isinstance(plain, (torch.Tensor, bool, int, float))
        return plain

    def admit_lengths(self, drawn: Mapping[str, int]) -> dict[str, int] | None:
        """Return the lengths to use for those drawn, or None. Raises CuirError X106, X113."""
        if self.sizes is None:
            return dict(drawn)
        lengths, _ = self._call(self.sizes, "sizes", lambda: (dict(drawn),), torch.float32)
        if isinstance(lengths, Mapping):
            lengths = {n: int(x) if isinstance(x, np.integer) else x for n, x in lengths.items()}
        if lengths is None:
            return None
        if not isinstance(lengths, Mapping) or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in lengths.values()):
            raise CuirError.of(
                "X106",
                f"sizes of the specification `{self.name}` gives lengths by name, or None; found {lengths!r}",
                function_span(self.sizes),
            )
        unknown = [n for n in lengths if n not in drawn]
        if unknown:
            raise CuirError.of(
                "X106",
                f"sizes of the specification `{self.name}` gives `{unknown[0]}`, which is no dim or const of the kernel",
                function_span(self.sizes),
                f"it has: {', '.join(drawn)}",
            )
        return {**drawn, **lengths}

    def _outputs(
        self, arguments: Values, convert: Callable[[Value], Value], outputs: Sequence[str], dtype: torch.dtype, attached: bool = False
    ) -> dict[str, torch.Tensor | None]:
        """Call the reference and return its outputs by the kernel's names.

        arguments: by name; `convert` copies each for the function. outputs: all tensors that the kernel writes; those
        also in `arguments` are written in place.
        """
        result, changed = self._call(self.reference, "reference", lambda: {n: convert(v) for n, v in arguments.items()}, dtype)
        self._require_unchanged("reference", self.reference, changed, outputs)
        write_only = [n for n in outputs if n not in arguments] or list(outputs)  # written and not read
        if (tensor := as_tensor(result)) is not None:
            result = tensor
        if isinstance(result, torch.Tensor):
            result = {write_only[0]: result}
        elif isinstance(result, tuple):
            if len(result) not in (len(outputs), len(write_only)):
                raise CuirError.of(
                    "X106",
                    f"the specification `{self.name}` gives {len(result)} outputs, the kernel writes {len(outputs)}: {', '.join(outputs)}",
                    function_span(self.reference),
                    "give all in this order, or a dict of some by name",
                )
            result = dict(zip(outputs if len(result) == len(outputs) else write_only, result, strict=True))
        if not isinstance(result, Mapping) or not result:
            description, hint = (
                describe_other(result) if not isinstance(result, Mapping) else ("dict without entries", "return every output")
            )
            raise CuirError.of(
                "X106",
                f"the specification `{self.name}` gives a tensor, a tuple of tensors or a dict of them by name, found {description}",
                function_span(self.reference),
                hint,
            )
        result = {n: self._output(n, x) for n, x in result.items()}
        if all(x is None for x in result.values()):
            raise CuirError.of(
                "X106",
                f"the specification `{self.name}` gives None for every output, so that nothing is asked of the kernel",
                function_span(self.reference),
            )
        names = {n.lower(): n for n in outputs}
        unknown = [n for n in result if str(n).lower() not in names]
        if unknown:
            raise CuirError.of(
                "X106",
                f"the specification `{self.name}` gives `{unknown[0]}`, which the kernel does not write",
                function_span(self.reference),
                f"it writes: {', '.join(outputs)}",
            )
        return {names[n.lower()]: x if x is None or attached else x.detach().clone() for n, x in result.items()}

    def _output(self, name: object, value: object) -> torch.Tensor | None:
        """Convert an output of the function to a tensor that can be compared. Raises CuirError X106."""
        tensor = None if value is None else as_tensor(value)
        unusable = describe_unusable(tensor) if tensor is not None else None if value is None else describe_other(value)
        if unusable is not None:
            description, hint = unusable
            raise CuirError.of(
                "X106", f"the specification `{self.name}` gives `{name}` as {description}", function_span(self.reference), hint
            )
        return tensor

    def _require_unchanged(self, role: str, function: Callable[..., object], changed: Sequence[str], allowed: Collection[str]) -> None:
        """Raise CuirError X126 for an argument that a function wrote to and does not return."""
        allowed_names = {str(n).lower() for n in allowed}
        if violations := [n for n in changed if n.lower() not in allowed_names]:
            hint = (
                f"{violations[0]} = {violations[0]}.clone() before it is written"
                if role == "reference"
                else f"give it: return {{{violations[0]!r}: ...}}"
            )
            written = "which the kernel does not write" if role == "reference" else "and does not give it"
            error = CuirError.of(
                "X126",
                f"{role} of the specification `{self.name}` writes to its argument `{violations[0]}`, {written}",
                function_span(function),
                hint,
            )
            raise refuse_function(function, error)

    def _call(
        self, function: Callable[..., object], role: str, make_arguments: Callable[[], object], dtype: torch.dtype
    ) -> tuple[Any, list[str]]:
        """Call a user's function; return its result and the names of the arguments that it wrote to.

        make_arguments: called before each call. A function that drew from a global generator is called a second time,
        with another seed.
        """
        result, changed, drawn = self._call_once(function, role, make_arguments(), dtype)
        if drawn:
            second, _, _ = self._call_once(function, role, make_arguments(), dtype, seed=OTHER_SEED)
            if not _is_equal(result, second):
                generators = " and ".join(drawn)
                hint = (
                    "take what is random from the `generator` that it can ask for"
                    if role == "inputs"
                    else "a specification gives one result: model.eval() for dropout, and random numbers as inputs of the kernel"
                )
                error = CuirError.of(
                    "X118",
                    f"{role} of the specification `{self.name}` draws from {generators}: it gives something else at each call",
                    function_span(function),
                    hint,
                )
                raise refuse_function(function, error)
        return result, changed

    def _call_once(
        self, function: Callable[..., object], role: str, arguments: Any, dtype: torch.dtype, seed: int | None = None
    ) -> tuple[Any, list[str], tuple[str, ...]]:
        """Call a user's function once.

        seed: of the global generators. Returns the result, the names of the arguments that were written, and the global
        generators that were drawn from.
        """
        named = self._arguments(function, role, arguments) if isinstance(arguments, Mapping) else {}
        tensors = {n: (x, x._version) for n, x in named.items() if isinstance(x, torch.Tensor)}
        try:
            with user_call(f"{role} of the specification `{self.name}`", function) as call, default_dtype(dtype), torch.enable_grad():
                if seed is not None:
                    seed_generators(seed)
                result = function(**named) if isinstance(arguments, Mapping) else function(*arguments)
        except CuirError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise self._make_error(role, function, error) from error
        return result, [n for n, (x, version) in tensors.items() if x._version != version], call.drawn

    def _arguments(self, function: Callable[..., object], role: str, available: Mapping[str, object]) -> dict[str, object]:
        """Bind the function's parameters by name. Raises CuirError X105."""
        folded: dict[str, list[str]] = {}
        for n in available:
            folded.setdefault(n.lower(), []).append(n)
        arguments: dict[str, object] = {}
        for p in inspect.signature(function).parameters.values():
            if p.kind is p.VAR_KEYWORD:
                arguments |= {n: v for n, v in available.items() if n not in arguments}
            elif p.name in available:
                arguments[p.name] = available[p.name]
            elif len(candidates := folded.get(p.name.lower(), [])) and (
                tensors := [n for n in candidates if isinstance(available[n], torch.Tensor)] or candidates
            ):
                arguments[p.name] = available[tensors[0]]
            elif p.default is p.empty:
                raise CuirError.of(
                    "X105",
                    f"{role} of the specification `{self.name}` asks for `{p.name}`, which the kernel does not read",
                    function_span(function),
                    f"there are: {', '.join(available)}",
                )
        return arguments

    def _make_error(self, role: str, function: Callable[..., object], error: Exception) -> CuirError:
        first = (str(error).splitlines() or [""])[0]
        return CuirError.of(
            "X113",
            f"{role} of the specification `{self.name}` fails: {type(error).__name__}: {first}",
            user_span(error) or function_span(function),
            describe_missing_module(error),
        )


AnySpecification = Specification | FunctionSpecification


def scale_of(dim: int) -> float:
    """Return the value of a scalar called `scale`: 1 / sqrt(head dim), or 1 without a head dim."""
    return 1 / math.sqrt(max(1, dim))


def _without_scratch(outputs: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    return {n: x for n, x in outputs.items() if x is not None}


def _as_float64(value: Value) -> Value:
    return _convert(value, torch.float64)


def _is_equal(a: object, b: object) -> bool:
    """Return whether two results are equal bit for bit, part by part."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_is_equal(x, b[n]) for n, x in a.items())
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_is_equal(x, y) for x, y in zip(a, b, strict=True))
    x, y = (as_tensor(v) for v in (a, b))
    return equal_bits(x, y) if x is not None else type(a) is type(b)


def _is(value: object, dtype: torch.dtype) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == dtype


def _convert(value: Value, dtype: torch.dtype) -> Value:
    """Copy a value in another dtype, never the caller's own tensor: a function may write to its arguments.

    The copy is contiguous, since a function may call `view` and strides do not change what it computes.
    """
    if not isinstance(value, torch.Tensor):
        return value
    dtype = dtype if value.dtype.is_floating_point else value.dtype
    return value.to(dtype, copy=True, memory_format=torch.contiguous_format)

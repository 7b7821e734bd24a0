"""Specifications by PyTorch functions, evaluated in float64 and in the dtype of the kernel.

The functions take any tensors and scalars that a kernel reads. Their inputs are drawn by verification.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..text.diagnostics import CuirError
from ..text.user_code import function_span, user_span
from .global_state import seed_generators
from .results import as_tensor, describe_other, describe_unusable, equal_bits
from .specification import OTHER_SEED, Specification, default_dtype
from .user_calls import refuse_function, user_call

Value = torch.Tensor | int | float | bool
Values = Mapping[str, Value]
Outputs = torch.Tensor | tuple[torch.Tensor | None, ...] | Mapping[str, torch.Tensor | None]
_BITS = {torch.float16: 11, torch.bfloat16: 8}  # of a mantissa


@dataclass(frozen=True)
class FunctionSpecification:
    """What a kernel computes, as a PyTorch function.

    `reference` asks by name for what the kernel reads, its tensors and scalars in any case of letters (`q` is `Q`), and for the lengths of its dims and
    its integer consts as they are written (`N`, `BM`). For an attention kernel that is `reference(q, k, v, scale)`. Tensors are float64 on the CPU, and
    integers as they are. It gives what the kernel writes: one tensor (the kernel's first output), a tuple of all in the order of the kernel's parameters, or
    a dict by name. Where it gives NaN, nothing is asked of the kernel. None for a tensor, `{"W": None}`, says that it is scratch; of any other tensor that the kernel writes
    and the function does not give, verification says that it was not compared, and does not pass.

    A tensor that the kernel reads and writes (in place) is asked for as it was before the run, and given as it is after it, under one name. So is one that the kernel
    adds to, or writes in part, if `reference` asks for it; else it is 0, or NaN, before. A tuple has all tensors that the kernel writes, or those that it only writes.

    inputs: most are drawn from the kernel's signature; `inputs(sizes, generator)` gives those with a structure, by name: tables of pages, lengths, the
    LSE of a forward pass. It must give tensors of integers. It may ask by name, as `reference` does, for what was drawn. `sizes` are the lengths of all
    dims and the integer consts; a torch.Generator for what is random. Tensors get the kernel's dtype.
    sizes: `sizes(drawn)` gives the lengths to use for those that were drawn, by name (those that it leaves out stay), or None for lengths that the kernel
    is not made for. Without it every dim is free, except that H is a multiple of HK.

    parameters: for whom a kernel is yet to be written: what it takes besides what another one takes, as kernels declare it (`G: Global[T, B, H, M, D], eta: f32`).

    The verdict on numbers is relative: the kernel's error beside that of the same function in the kernel's dtype, both against float64.
    """

    name: str
    reference: Callable[..., Outputs]
    inputs: Callable[..., Values] | None = None
    sizes: Callable[[dict[str, int]], Mapping[str, int] | None] | None = None
    doc: str = ""
    parameters: str = ""

    def __post_init__(self) -> None:
        for what in ("reference", "inputs", "sizes"):
            value = getattr(self, what)
            if value is None and what != "reference":
                continue
            if not callable(value):
                raise CuirError.of("X105", f"{what} of the specification `{self.name}` must be a function, found {type(value).__name__}")
            variadic = [p for p in inspect.signature(value).parameters.values() if p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY)]
            if variadic and what != "sizes":
                raise CuirError.of("X105", f"{what} of the specification `{self.name}` is called with names, found the parameter `{variadic[0]}`", function_span(value),
                                   "name what the kernel reads: def reference(q, k, v, scale)")  # fmt: skip

    @property
    def captured(self) -> Mapping[str, Value]:
        """Nothing: what a kernel reads beyond the usual, `inputs` gives."""
        return {}

    def asks(self, name: str) -> bool:
        """Whether the reference asks for something of this name."""
        return any(p.name.lower() == name.lower() for p in inspect.signature(self.reference).parameters.values())

    def asks_exactly(self, name: str) -> bool:
        """Whether the reference asks for something of this name, letter by letter."""
        return name in inspect.signature(self.reference).parameters

    def exact(self, given: Values, outputs: Sequence[str]) -> dict[str, torch.Tensor]:
        """The outputs in float64, by the kernel's names. given: what the kernel reads, dims, consts. Raises CuirError X105, X106, X113."""
        return _asked(self._outputs(given, _as_float64, outputs, torch.float64))

    def attached(self, given: Values, outputs: Sequence[str]) -> dict[str, torch.Tensor]:
        """`exact`, with the graph that autograd needs."""
        return _asked(self._outputs(given, _as_float64, outputs, torch.float64, attached=True))

    def single(self, given: Values, outputs: Sequence[str]) -> dict[str, torch.Tensor]:
        """The outputs as PyTorch computes them in float32 from the inputs as they are given. Raises CuirError as `exact`."""
        return _asked(self._outputs(given, lambda v: _convert(v, torch.float32), outputs, torch.float32))

    def scratch(self, given: Values, outputs: Sequence[str]) -> list[str]:
        """Tensors that the kernel writes and that are nobody's business afterwards: those that the function gives as None."""
        results = self._outputs(given, _as_float64, outputs, torch.float64)
        return [n for n, x in results.items() if x is None]

    def half(self, given: Values, outputs: Sequence[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The outputs as PyTorch computes them in the kernel's dtype: in the dtypes of the inputs, or, where the function mixes those, all in `dtype`.

        Raises CuirError as `exact`, or X107 if PyTorch cannot evaluate the function in that dtype.
        """
        try:
            return _asked(self._outputs(given, lambda v: v.clone() if isinstance(v, torch.Tensor) else v, outputs, torch.float32))
        except CuirError as error:
            if error.diagnostics[0].code != "X113":
                raise
        try:
            return _asked(self._outputs(given, lambda v: _convert(v, dtype), outputs, dtype))
        except CuirError as error:
            diagnostic = error.diagnostics[0]
            raise CuirError([replace(diagnostic, code="X107", message=f"the specification `{self.name}` in {str(dtype).removeprefix('torch.')}: {diagnostic.message}",
                                     hint="it is evaluated in float64 and in the kernel's dtype, which is the yardstick for errors")]) from error  # fmt: skip

    def yardstick(self, given: Values, outputs: Sequence[str], exact: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:  # fmt: skip
        """`half`, and where that overflows, bfloat16's error scaled to the bits of `dtype` (f16 overflows where a kernel, in float32, does not)."""
        half = self.half(given, outputs, dtype)
        if dtype != torch.float16 or all(
            bool((x.isfinite() | ~exact[n].isfinite() | (exact[n].abs() > 6e4)).all()) for n, x in half.items()
        ):
            return half
        coarse = self.half({n: _convert(v, torch.bfloat16) if _is(v, dtype) else v for n, v in given.items()}, outputs, torch.bfloat16)
        scale = 2.0 ** (_BITS[torch.bfloat16] - _BITS[dtype])
        return {n: exact[n] + (x.double() - exact[n]) * scale for n, x in coarse.items()}

    def made(self, sizes: Mapping[str, int], generator: torch.Generator, drawn: Values) -> dict[str, Value]:
        """What `inputs` gives, by its names. Raises CuirError X105, X113."""
        if self.inputs is None:
            return {}
        state = generator.get_state()

        def given() -> dict[str, Any]:
            generator.set_state(state)
            return {**drawn, "sizes": dict(sizes), "generator": generator}

        values, changed = self._call(self.inputs, "inputs", given, torch.float32)
        if not isinstance(values, Mapping):
            raise CuirError.of(
                "X106",
                f"inputs of the specification `{self.name}` gives a dict by name, found {type(values).__name__}",
                function_span(self.inputs),
            )
        self._require_unchanged("inputs", self.inputs, changed, values)
        return {n: self._input(n, x) for n, x in values.items()}

    def _input(self, name: Any, value: Any) -> Value:
        """A value of `inputs`: a number, or a tensor that a kernel can read. Raises CuirError X106."""
        plain = value.item() if isinstance(value, np.generic) else value
        plain = as_tensor(plain) if isinstance(plain, np.ndarray) else plain
        if isinstance(plain, torch.Tensor):
            unusable = describe_unusable(plain)
            plain = plain.detach()
        else:
            unusable = None if isinstance(plain, (bool, int, float)) else (f"a {type(value).__name__}", "give a tensor or a number")
        if unusable is not None or not isinstance(name, str):
            found, hint = unusable or (f"the name {name!r}", "give a dict by name")
            assert self.inputs is not None
            raise CuirError.of(
                "X106", f"inputs of the specification `{self.name}` gives `{name}` as {found}", function_span(self.inputs), hint
            )
        return plain

    def admitted(self, drawn: Mapping[str, int]) -> dict[str, int] | None:
        """The lengths to use for those drawn, or None. Raises CuirError X106, X113."""
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
            raise CuirError.of("X106", f"sizes of the specification `{self.name}` gives `{unknown[0]}`, which is no dim or const of the kernel", function_span(self.sizes),
                               f"it has: {', '.join(drawn)}")  # fmt: skip
        return {**drawn, **lengths}

    def _outputs(self, given: Values, convert: Callable[[Value], Value], outputs: Sequence[str], dtype: torch.dtype, attached: bool = False) -> dict[str, torch.Tensor | None]:  # fmt: skip
        """Call the reference and return its outputs by the kernel's names.

        convert: copies a value for the function. outputs: all tensors that the kernel writes; those also in `given` are written in place.
        """
        result, changed = self._call(self.reference, "reference", lambda: {n: convert(v) for n, v in given.items()}, dtype)
        self._require_unchanged("reference", self.reference, changed, outputs)
        only = [n for n in outputs if n not in given] or list(outputs)  # written and not read
        if (tensor := as_tensor(result)) is not None:
            result = tensor
        if isinstance(result, torch.Tensor):
            result = {only[0]: result}
        elif isinstance(result, tuple):
            if len(result) not in (len(outputs), len(only)):
                raise CuirError.of("X106", f"the specification `{self.name}` gives {len(result)} outputs, the kernel writes {len(outputs)}: {', '.join(outputs)}",
                                   function_span(self.reference), "give all in this order, or a dict of some by name")  # fmt: skip
            result = dict(zip(outputs if len(result) == len(outputs) else only, result, strict=True))
        if not isinstance(result, Mapping) or not result:
            found, hint = describe_other(result) if not isinstance(result, Mapping) else ("dict without entries", "return every output")
            raise CuirError.of("X106", f"the specification `{self.name}` gives a tensor, a tuple of tensors or a dict of them by name, found {found}",
                               function_span(self.reference), hint)  # fmt: skip
        result = {n: self._output(n, x) for n, x in result.items()}
        if all(x is None for x in result.values()):
            raise CuirError.of(
                "X106",
                f"the specification `{self.name}` gives None for every output, so that nothing is asked of the kernel",
                function_span(self.reference),
            )
        known = {n.lower(): n for n in outputs}
        unknown = [n for n in result if str(n).lower() not in known]
        if unknown:
            raise CuirError.of("X106", f"the specification `{self.name}` gives `{unknown[0]}`, which the kernel does not write", function_span(self.reference),
                               f"it writes: {', '.join(outputs)}")  # fmt: skip
        return {known[n.lower()]: x if x is None or attached else x.detach().clone() for n, x in result.items()}

    def _output(self, name: Any, value: Any) -> torch.Tensor | None:
        """An output as the function gives it, as a tensor that can be compared. Raises CuirError X106."""
        tensor = None if value is None else as_tensor(value)
        unusable = describe_unusable(tensor) if tensor is not None else None if value is None else describe_other(value)
        if unusable is not None:
            found, hint = unusable
            raise CuirError.of("X106", f"the specification `{self.name}` gives `{name}` as {found}", function_span(self.reference), hint)
        return tensor

    def _require_unchanged(self, what: str, function: Callable[..., Any], changed: Sequence[str], allowed: Collection[str]) -> None:
        """Raises CuirError X126 for what a function wrote of its arguments, and does not give."""
        given = {str(n).lower() for n in allowed}
        if left := [n for n in changed if n.lower() not in given]:
            hint = f"{left[0]} = {left[0]}.clone() before it is written" if what == "reference" else f"give it: return {{{left[0]!r}: ...}}"
            written = "which the kernel does not write" if what == "reference" else "and does not give it"
            error = CuirError.of("X126", f"{what} of the specification `{self.name}` writes to its argument `{left[0]}`, {written}", function_span(function), hint)  # fmt: skip
            raise refuse_function(function, error)

    def _call(self, function: Callable[..., Any], what: str, given: Callable[[], Any], dtype: torch.dtype) -> tuple[Any, list[str]]:
        """Call a user's function; return its result and the names of the arguments that it wrote to.

        given: makes the arguments. A function that drew from a global generator is called a second time, under another seed.
        """
        result, changed, drawn = self._call_once(function, what, given(), dtype)
        if drawn:
            again, _, _ = self._call_once(function, what, given(), dtype, seed=OTHER_SEED)
            if not _is_equal(result, again):
                generators = " and ".join(drawn)
                hint = (
                    "take what is random from the `generator` that it can ask for"
                    if what == "inputs"
                    else "a specification gives one result: model.eval() for dropout, and random numbers as inputs of the kernel"
                )
                error = CuirError.of("X118", f"{what} of the specification `{self.name}` draws from {generators}: it gives something else at each call", function_span(function), hint)  # fmt: skip
                raise refuse_function(function, error)
        return result, changed

    def _call_once(self, function: Callable[..., Any], what: str, given: Any, dtype: torch.dtype, seed: int | None = None) -> tuple[Any, list[str], tuple[str, ...]]:  # fmt: skip
        """One call: the result, names of the arguments that it wrote to, and the global generators that it drew from. seed: of these."""
        named = self._arguments(function, what, given) if isinstance(given, Mapping) else {}
        tensors = {n: (x, x._version) for n, x in named.items() if isinstance(x, torch.Tensor)}
        try:
            with user_call(f"{what} of the specification `{self.name}`", function) as call, default_dtype(dtype), torch.enable_grad():
                if seed is not None:
                    seed_generators(seed)
                result = function(**named) if isinstance(given, Mapping) else function(*given)
        except CuirError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise self._make_error(what, function, error) from error
        return result, [n for n, (x, version) in tensors.items() if x._version != version], call.drawn

    def _arguments(self, function: Callable[..., Any], what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Bind the function's parameters by name. Raises CuirError X105."""
        folded: dict[str, list[str]] = {}
        for n in given:
            folded.setdefault(n.lower(), []).append(n)
        arguments: dict[str, Any] = {}
        for p in inspect.signature(function).parameters.values():
            if p.kind is p.VAR_KEYWORD:
                arguments |= {n: v for n, v in given.items() if n not in arguments}
            elif p.name in given:
                arguments[p.name] = given[p.name]
            elif len(near := folded.get(p.name.lower(), [])) and (
                tensors := [n for n in near if isinstance(given[n], torch.Tensor)] or near
            ):
                arguments[p.name] = given[tensors[0]]
            elif p.default is p.empty:
                raise CuirError.of("X105", f"{what} of the specification `{self.name}` asks for `{p.name}`, which the kernel does not read", function_span(function),
                                   f"there are: {', '.join(given)}")  # fmt: skip
        return arguments

    def _make_error(self, what: str, function: Callable[..., Any], error: Exception) -> CuirError:
        first = (str(error).splitlines() or [""])[0]
        return CuirError.of(
            "X113",
            f"{what} of the specification `{self.name}` fails: {type(error).__name__}: {first}",
            user_span(error) or function_span(function),
        )


AnySpecification = Specification | FunctionSpecification


def scale_of(dim: int) -> float:
    """What a scalar called `scale` is: 1 / sqrt(head dim), of none 1."""
    return 1 / math.sqrt(max(1, dim))


def _asked(outputs: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    return {n: x for n, x in outputs.items() if x is not None}


def _as_float64(value: Value) -> Value:
    return _convert(value, torch.float64)


def _is_equal(a: Any, b: Any) -> bool:
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
    """In another dtype, and never the caller's own tensor: a function may write what it is given."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(dtype, copy=True) if value.dtype.is_floating_point else value.clone()

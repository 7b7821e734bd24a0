"""Numbers of CUDA kernels: what a PyTorch function gives in float64, and how far from it a kernel may be.

The function takes the arguments of the launch in their order. It returns what the kernel writes, or writes it in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch

from ..ptx.launch.tensor_maps import TensorMap
from ..spec.neighbour_modules import describe_missing_module
from ..spec.user_calls import user_call
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.source import function_span, user_span
from .values.number_text import show_different

RATIO = 2.0  # of PyTorch's own error in the dtypes of the arguments
ORDER = 2.0**-18  # relative error that another order of f32 sums, or an approximate function, may add
ORDER_DOUBLE = 2.0**-44
CANCELLED = 2.0**-20  # of the largest input or output: smaller rows may be the remainder of what cancels
Reference = Callable[..., object]
Value = object  # an argument of a launch: a tensor, a number, bytes or None


@dataclass(frozen=True)
class ComparedOutput:
    """A tensor that a kernel wrote, beside float64.

    Attributes:
        error: The largest error, as a share of the largest element of its row.
        allowed: What it may be.
        elements: Elements that were compared.
    """

    name: str
    error: float
    allowed: float
    elements: int


def collect_tensors(values: Sequence[Value]) -> list[Value]:
    """Return the arguments with tensors in place of tensor maps, each tensor once."""
    found: list[Value] = []
    for value in values:
        value = value.tensor if isinstance(value, TensorMap) else value
        if not (isinstance(value, torch.Tensor) and any(value is f for f in found)):
            found.append(value)
    return found


def collect_places(values: Sequence[Value], tensors: Sequence[Value]) -> list[int | None]:
    """Return for each argument its index among what `collect_tensors` returned, None for what is no tensor."""
    inner = [value.tensor if isinstance(value, TensorMap) else value for value in values]
    return [next((i for i, t in enumerate(tensors) if t is v), None) if isinstance(v, torch.Tensor) else None for v in inner]


def copy_values(values: Sequence[Value]) -> list[Value]:
    """Return the arguments with copies of tensors."""
    return [v.clone() if isinstance(v, torch.Tensor) else v for v in values]


class OutputJudge:
    """Judge of what a kernel wrote, by a PyTorch function.

    tolerance: relative error that is allowed instead of what PyTorch's own error allows.
    """

    def __init__(self, reference: Reference, tolerance: float | None = None):
        self.reference, self.tolerance = reference, tolerance
        self.name = getattr(reference, "__name__", "the function")

    def judge(
        self, before: Sequence[Value], after: Sequence[Value], written: Sequence[int], names: Sequence[str]
    ) -> tuple[list[ComparedOutput], list[Diagnostic]]:
        """Compare the tensors that a kernel wrote.

        before, after: arguments before and after the launch. written: their indices that the kernel wrote. Raises
        CuirError X106, X113 for a function that cannot be compared.
        """
        exact = self._evaluate([_widen(v) for v in copy_values(before)], written, names)
        native = self._evaluate_native(before, written, names)
        largest = max([1e-30, *(float(v.double().abs().nan_to_num(0, 0, 0).max()) for v in before if _is_float(v))])
        rows, wrong = list[ComparedOutput](), list[Diagnostic]()
        for i in exact:
            actual, expected = after[i], exact[i]
            assert isinstance(actual, torch.Tensor)
            if actual.shape != expected.shape:
                message = f"`{self.name}` gives {names[i]} of shape {list(expected.shape)}, the kernel's is {list(actual.shape)}"
                raise CuirError.of("X106", message, function_span(self.reference), "the tensor of the launch gives the shape")
            row, places = self._compare(actual, expected, native.get(i), largest, names[i])
            rows.append(row)
            if places.any():
                wrong.append(self._describe(actual, expected, places, row))
        return rows, wrong

    def _evaluate(self, arguments: list[Value], written: Sequence[int], names: Sequence[str]) -> dict[int, torch.Tensor]:
        """Return the expected tensor for each written argument, None of the function left out."""
        try:
            with user_call(f"`{self.name}`", self.reference), torch.no_grad():
                results = self.reference(*arguments)
        except CuirError:
            raise
        except Exception as error:  # a user's function may raise anything
            message = f"`{self.name}` fails: {type(error).__name__}: {error}"
            raise CuirError.of(
                "X113", message, user_span(error) or function_span(self.reference), describe_missing_module(error)
            ) from error
        if results is None:
            return {i: v for i in written if isinstance(v := arguments[i], torch.Tensor)}
        given = list(results) if isinstance(results, (tuple, list)) else [results]
        told = ", ".join(names[i] for i in written) or "none"
        if len(given) != len(written):
            raise CuirError.of(
                "X106",
                f"`{self.name}` returns {len(given)} results, the launch writes {len(written)} tensors: {told}",
                function_span(self.reference),
                "return one for each in this order, None for what is not to be compared; or write to the arguments, as the kernel does",
            )
        if strange := next((g for g in given if g is not None and not isinstance(g, torch.Tensor)), None):
            message = f"`{self.name}` returns {type(strange).__name__}, no tensor"
            raise CuirError.of("X106", message, function_span(self.reference), "return a tensor for each that the kernel writes")
        return {i: g for i, g in zip(written, given) if isinstance(g, torch.Tensor)}

    def _evaluate_native(self, before: Sequence[Value], written: Sequence[int], names: Sequence[str]) -> dict[int, torch.Tensor]:
        """Return what PyTorch gives in the arguments' dtypes, as far as it can."""
        try:
            return self._evaluate(copy_values(before), written, names) if self.tolerance is None else {}
        except CuirError:
            return {}

    def _compare(
        self, actual: torch.Tensor, expected: torch.Tensor, native: torch.Tensor | None, largest: float, name: str
    ) -> tuple[ComparedOutput, torch.Tensor]:
        """Return the errors of one output, and the places of wrong elements."""
        x, e = actual.detach().double(), expected.detach().double()
        if not actual.is_floating_point():
            wrong = x != e
            return ComparedOutput(name, float(wrong.any()), 0.0, x.numel()), wrong
        narrow = expected.detach().to(actual.dtype).double()
        judged = e.isfinite() & narrow.isfinite()
        sizes = torch.where(judged, e.abs(), 0)
        rows = sizes.amax(-1, keepdim=True) if e.ndim and e.numel() else sizes
        scale = rows.clamp(min=CANCELLED * max(largest, float(sizes.max()) if e.numel() else 0.0))
        unit = float(torch.finfo(actual.dtype).eps) + (ORDER_DOUBLE if actual.dtype == torch.float64 else ORDER)
        own = torch.where(judged, (native.detach().double() - e).abs() / scale, 0) if native is not None else torch.zeros(1)
        own = own[own.isfinite()]
        allowed = self.tolerance if self.tolerance is not None else RATIO * (float(own.max()) if own.numel() else 0.0) + unit
        errors = (x - e).abs() / scale
        wrong = (judged & ~(errors <= allowed)) | (e.isinf() & (x != e))
        seen = errors[judged & errors.isfinite()]
        return ComparedOutput(name, float(seen.max()) if seen.numel() else 0.0, allowed, int(judged.sum())), wrong

    def _describe(self, actual: torch.Tensor, expected: torch.Tensor, places: torch.Tensor, row: ComparedOutput) -> Diagnostic:
        """Describe the first wrong element."""
        index = torch.nonzero(places)[0].tolist()
        x, e = show_different(actual[tuple(index)].item(), expected[tuple(index)].item())
        message = (
            f"{row.name}{index} is {x}, `{self.name}` gives {e} in float64; {int(places.sum()):,} of {places.numel():,} elements are wrong"
        )
        span = function_span(self.reference)
        notes = (Note(f"errors are at most {row.error:.1e} of the largest element of a row, {row.allowed:.1e} is allowed"),)
        return Diagnostic("V301", message, span, notes, None)


def _is_float(value: Value) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 0


def _widen(value: Value) -> Value:
    """Return a tensor of floats in float64."""
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

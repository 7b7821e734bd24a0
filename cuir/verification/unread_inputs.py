"""Search for elements of inputs that a function does not read.

Such are pages that no table names, positions beyond a length, padding. A kernel finds NaN there.

Sizes of the results within a function, by which the cost of its evaluation is estimated.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ..checking.checked import Checked
from ..checking.kernel_results import ResultKey, SameObject
from ..spec.function_specification import FunctionSpecification, Value
from ..syntax.types import I32
from ..text.diagnostics import CuirError
from .error_bounds import Undisturbed


class ResultSizes(Undisturbed):
    """Mode that remembers the number of elements of the largest result of PyTorch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor):
                self.largest = max(self.largest, x.numel())
        return result


_SCALED = ("addmm", "baddbmm", "addmv", "addbmm")
_TRIES = 12  # the largest number of evaluations of the reference
# Elements of a function's largest result, times the evaluations of a search by halves: a function of squares of
# lengths is not evaluated that often.
_WORK = 12_000_000
_LARGEST = 3_000_000  # the largest number of elements of a problem that is searched


_READS_ALL = ResultKey[bool]("reads all inputs")


def find_unread(
    checked: Checked,
    spec: FunctionSpecification,
    inputs: Mapping[str, Value],
    outputs: Sequence[str],
    names: Sequence[str],
    always: bool = False,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor] | None]:
    """Return the places where inputs may be NaN without changing any output, and the outputs in float64.

    Places are bool tensors by name, only of inputs that have some; the outputs are None if they were not computed.
    Searched where integers decide what is read, or where the function of a problem without them has once left something
    unread. An element is unread if the derivatives of all outputs by it are 0 and NaN there, together with all others,
    changes nothing: a factor of 0 does not make it unread.

    always: search this problem, whatever others have shown: a scalar of 0 may disable a tensor.
    """
    selected = always or any(t.dtype == I32 for t in checked.tensors) or any(s.dtype == I32 for s in checked.scalars)
    tensors = {n: inputs[n] for n in names}
    small = sum(x.numel() for x in tensors.values() if isinstance(x, torch.Tensor)) <= _LARGEST
    if not names or not small or (not selected and checked.results.find(_READS_ALL, SameObject(spec))):
        return {}, None
    search = _Search(spec, inputs, outputs)
    places = search.places([n for n in names if isinstance(tensors[n], torch.Tensor)])
    if not places and not selected:
        checked.results.store(_READS_ALL, True, SameObject(spec))
    return places, search.expected


class _Search:
    def __init__(self, spec: FunctionSpecification, inputs: Mapping[str, Value], outputs: Sequence[str]):
        self.spec, self.inputs, self.outputs, self.tries = spec, dict(inputs), outputs, 0
        self.expected: dict[str, torch.Tensor] | None = None

    def places(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the unread elements, by tensor.

        An expensive function is evaluated once for those that NaN does not flow to in its derivatives, or once a tensor.
        """
        attached = self.attach(names)
        if attached is None:
            return {}
        leaves, outputs, largest = attached
        if largest * _TRIES <= _WORK:
            return self.search(find_without_derivative(leaves, outputs))
        candidates = find_unreached(leaves, outputs)
        if not candidates or self.is_unchanged(candidates):
            return candidates
        places: dict[str, torch.Tensor] = {}
        for n, x in candidates.items() if len(candidates) > 1 else ():
            if self.is_unchanged({**places, n: x}):
                places[n] = x
        return places

    def search(self, candidates: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the candidates that are unread: all of them, whole rows of them, or by halves."""
        if not candidates:
            return {}
        for narrowed in (candidates, {n: _whole_rows(x) for n, x in candidates.items()}):
            nonempty = {n: x for n, x in narrowed.items() if x.any()}
            if nonempty and self.is_unchanged(nonempty):
                return nonempty
        places: dict[str, torch.Tensor] = {}
        for n, x in narrowed.items():  # one tensor after the other, by bisection
            if len(candidates) > 1 and self.is_unchanged({**places, n: candidates[n]}):
                places[n] = candidates[n]
                continue
            rows = x.reshape(-1, x.shape[-1] if x.dim() else 1)
            pending = [rows.any(1).nonzero().flatten()]
            accepted = torch.zeros_like(rows)
            while pending and self.tries < _TRIES:
                group = pending.pop(0)
                if not len(group):
                    continue
                selected = torch.zeros_like(rows)
                selected[group] = rows[group]
                if self.is_unchanged({**places, n: (selected | accepted).view(x.shape)}):
                    accepted |= selected
                elif len(group) > 1:
                    pending += [group[: len(group) // 2], group[len(group) // 2 :]]
            if accepted.any():
                places[n] = accepted.view(x.shape)
        return places

    def attach(self, names: Sequence[str]) -> tuple[dict[str, torch.Tensor], list[torch.Tensor], int] | None:
        """Evaluate the function with a graph for derivatives; None if it fails.

        Returns the inputs by name, the outputs that depend on them, and the elements of its largest result.
        """
        leaves = {n: self.inputs[n].detach().double().requires_grad_() for n in names}  # type: ignore[union-attr]
        sizes = ResultSizes()
        try:
            with sizes:
                outputs = self.spec.compute_attached({**self.inputs, **leaves}, self.outputs)
        except (CuirError, RuntimeError):
            return None
        self.expected = {n: x.detach() for n, x in outputs.items()}
        return leaves, [x for x in outputs.values() if x.requires_grad], sizes.largest

    def is_unchanged(self, places: Mapping[str, torch.Tensor]) -> bool:
        """Return whether NaN in these places leaves every output unchanged."""
        assert self.expected is not None
        self.tries += 1
        try:
            with _Spreading():
                exact = self.spec.exact(
                    {**self.inputs, **{n: torch.where(x, torch.nan, self.inputs[n]) for n, x in places.items()}}, self.outputs
                )
        except CuirError:
            return False
        return exact.keys() == self.expected.keys() and all(_is_same(x, self.expected[n]) for n, x in exact.items())


def find_without_derivative(leaves: Mapping[str, torch.Tensor], outputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the elements by which every output has the derivative 0."""
    return _find_zeros(leaves, outputs, [torch.where(x.isfinite(), _weights(x), 0.0) for x in outputs])


def find_unreached(leaves: Mapping[str, torch.Tensor], outputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the elements of each leaf whose gradient stays free of NaN if all outputs' gradients are NaN.

    A choice and an index stop NaN, a factor of 0 does not: as with NaN in inputs, but in one pass for all elements.
    """
    return _find_zeros(leaves, outputs, [torch.where(x.isfinite(), torch.nan, 0.0).to(x.dtype) for x in outputs])


def _find_zeros(
    leaves: Mapping[str, torch.Tensor], outputs: Sequence[torch.Tensor], flows: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return by tensor the elements whose gradient is 0, given the gradients of the outputs.

    Tensors without such elements are left out.

    Args:
        flows: gradient of each output.
    """
    if not outputs:
        return {}
    try:
        # a single number needs no derivatives by outputs, for whose shapes torch imports half a second of modules
        total = torch.stack([(x * flow).sum().double() for x, flow in zip(outputs, flows, strict=True)]).sum()
        grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    except RuntimeError:  # a function that cannot be differentiated
        return {}
    places = {n: torch.ones_like(x, dtype=torch.bool) if g is None else g == 0 for (n, x), g in zip(leaves.items(), grads, strict=True)}
    return {n: x for n, x in places.items() if x.any()}


class _Spreading(TorchDispatchMode):
    """Mode in which NaN to the power of 0 is NaN, and so is a matrix product whose alpha is 0.

    A kernel computes a power by a logarithm.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, result = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        if name in _SCALED and (kwargs or {}).get("alpha", 1) == 0:
            return result + func(torch.zeros_like(args[0]), *args[1:]) * 0
        if name != "pow":
            return result
        unknown = [a.isnan() for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
        return torch.where(functools.reduce(torch.logical_or, unknown), torch.nan, result) if unknown else result


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether NaN are in the same places, and all else is equal."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _weights(x: torch.Tensor) -> torch.Tensor:
    """Return numbers by which no derivatives of different outputs cancel."""
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype) + 0.5


def _whole_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the rows whose elements are all candidates."""
    return x & x.all(-1, keepdim=True) if x.dim() > 1 else x

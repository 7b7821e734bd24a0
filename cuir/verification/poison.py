"""What a function does not read of its inputs, found without being told: pages that no table names, positions beyond a length, padding. Owns the search; a kernel finds NaN there."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..checking.checked import Checked
from ..spec.functions import FunctionSpecification, Value
from ..syntax.types import I32
from ..text.diagnostics import CuirError

_SCALED = ("addmm", "baddbmm", "addmv", "addbmm")
_TRIES = 12  # evaluations of the reference, at most
_LARGEST = 3_000_000  # elements of a problem that is searched


def unread(
    checked: Checked,
    spec: FunctionSpecification,
    given: Mapping[str, Value],
    outputs: Sequence[str],
    names: Sequence[str],
    always: bool = False,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor] | None]:
    """Where inputs may be NaN and every output stays what it is, by name, as bool tensors, only those that have such a place; and the outputs in float64, if they were computed.

    Looked for where integers say what is read, or where the function of a problem without them has once left something unread. An element counts if
    the derivatives of all outputs by it are 0 and NaN there, together with all others, changes nothing: a factor of 0 does not make it unread.
    always: look in this problem, whatever others have shown: a scalar of 0 may say that a tensor is not read.
    """
    key = ("reads all", id(spec))
    selected = always or any(t.dtype == I32 for t in checked.tensors) or any(s.dtype == I32 for s in checked.scalars)
    tensors = {n: given[n] for n in names}
    small = sum(x.numel() for x in tensors.values() if isinstance(x, torch.Tensor)) <= _LARGEST
    if not names or not small or (not selected and checked.made.get(key) is spec):
        return {}, None
    search = _Search(spec, given, outputs)
    places = search.places([n for n in names if isinstance(tensors[n], torch.Tensor)])
    if not places and not selected:
        checked.made[key] = spec
    return places, search.wanted


class _Search:
    def __init__(self, spec: FunctionSpecification, given: Mapping[str, Value], outputs: Sequence[str]):
        self.spec, self.given, self.outputs, self.tries = spec, dict(given), outputs, 0
        self.wanted: dict[str, torch.Tensor] | None = None

    def places(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        candidates = self.without_derivative(names)
        if not candidates:
            return {}
        for narrowed in (candidates, {n: _whole_rows(x) for n, x in candidates.items()}):
            kept = {n: x for n, x in narrowed.items() if x.any()}
            if kept and self.unchanged(kept):
                return kept
        places: dict[str, torch.Tensor] = {}
        for n, x in narrowed.items():  # one tensor after the other, by halves
            if len(candidates) > 1 and self.unchanged({**places, n: candidates[n]}):
                places[n] = candidates[n]
                continue
            rows = x.reshape(-1, x.shape[-1] if x.dim() else 1)
            left = [rows.any(1).nonzero().flatten()]
            good = torch.zeros_like(rows)
            while left and self.tries < _TRIES:
                some = left.pop(0)
                if not len(some):
                    continue
                mine = torch.zeros_like(rows)
                mine[some] = rows[some]
                if self.unchanged({**places, n: (mine | good).view(x.shape)}):
                    good |= mine
                elif len(some) > 1:
                    left += [some[: len(some) // 2], some[len(some) // 2 :]]
            if good.any():
                places[n] = good.view(x.shape)
        return places

    def without_derivative(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Elements by which every output has the derivative 0."""
        leaves = {n: self.given[n].detach().double().requires_grad_() for n in names}  # type: ignore[union-attr]
        try:
            outputs = self.spec.attached({**self.given, **leaves}, self.outputs)
            self.wanted = {n: x.detach() for n, x in outputs.items()}
            total = sum((torch.where(x.isfinite(), x, 0.0) * _weights(x)).sum() for x in outputs.values() if x.requires_grad)
            if not isinstance(total, torch.Tensor):
                return {}
            grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        except (CuirError, RuntimeError):  # a function that is not differentiable in this way
            return {}
        places = {n: torch.ones_like(x, dtype=torch.bool) if g is None else g == 0 for (n, x), g in zip(leaves.items(), grads, strict=True)}
        return {n: x for n, x in places.items() if x.any()}

    def unchanged(self, places: Mapping[str, torch.Tensor]) -> bool:
        """Whether NaN in these places leaves every output as it is."""
        assert self.wanted is not None
        self.tries += 1
        try:
            with _Spreading():
                exact = self.spec.exact(
                    {**self.given, **{n: torch.where(x, torch.nan, self.given[n]) for n, x in places.items()}}, self.outputs
                )
        except CuirError:
            return False
        return exact.keys() == self.wanted.keys() and all(_same(x, self.wanted[n]) for n, x in exact.items())


class _Spreading(TorchDispatchMode):
    """Let NaN to the power of 0 be NaN, as a kernel makes a power of a logarithm, and so a product of matrices whose alpha is 0."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, result = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        if name in _SCALED and (kwargs or {}).get("alpha", 1) == 0:
            return result + func(torch.zeros_like(args[0]), *args[1:]) * 0
        if name != "pow":
            return result
        unknown = [a.isnan() for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
        return torch.where(functools.reduce(torch.logical_or, unknown), torch.nan, result) if unknown else result


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaN in the same places, all else equal."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _weights(x: torch.Tensor) -> torch.Tensor:
    """Numbers by which no derivatives of different outputs cancel."""
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype) + 0.5


def _whole_rows(x: torch.Tensor) -> torch.Tensor:
    """Those of rows that are candidates in all their elements."""
    return x & x.all(-1, keepdim=True) if x.dim() > 1 else x

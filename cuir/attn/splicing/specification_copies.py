"""Copies of specifications whose mods capture other tensors."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from ...spec.specification import LENGTHS, SINK, Captured, Lengths, Mod, Specification, indices
from ...text.diagnostics import CuirError
from ...text.source import function_span
from ..tracing.mod_evaluator import CONSTANTS, evaluate
from ..tracing.outside_reads import Standin, attribute_read
from ..tracing.proxy import ELEMENTWISE
from ..tracing.read_ranges import trace_without_clashes
from ..tracing.trace import _Tracer
from ..tracing.traced_result import Traced
from .captured_arguments import sources_of

_SHAPE = ("shape", "ndim", "size", "dim", "numel", "__len__")


def rebuild_mods(spec: Specification, tensor: Callable[[torch.Tensor], torch.Tensor]) -> Specification:
    """Return the same variant, its mods made anew with `tensor(x)` for every captured tensor x."""
    rebuilder = _Rebuilder(spec, tensor)
    mods = [None if mod is None else cast(Mod, rebuilder.callable(mod, "mod")) for mod in (spec.mask_mod, spec.score_mod)]
    sink = None if spec.sink is None else _copy_captured({SINK: spec.sink}, tensor)[SINK]
    return replace(spec, mask_mod=mods[0], score_mod=mods[1], captured=_copy_captured(spec.captured, tensor), sink=sink)


def _copy_captured(captured: Mapping[str, Captured], tensor: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Captured]:
    def rebuild(value: Captured) -> Captured:
        if isinstance(value, torch.Tensor):
            return tensor(value)
        if callable(value):
            function = value

            def following(lengths: Lengths) -> int | float | torch.Tensor:
                result = function(lengths)
                return tensor(result) if isinstance(result, torch.Tensor) else result

            return following
        return value

    return {name: rebuild(value) for name, value in captured.items()}


class _Rebuilder(_Tracer):
    """A walk through a mod as the tracer's, which leaves numbers unchanged."""

    def __init__(self, spec: Specification, tensor: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__(spec, set(), set())
        self.replace_tensor = tensor
        self.replacements: dict[int, torch.Tensor] = {}

    def number(self, name: str, value: int | float) -> Any:
        return value

    def tensor(self, name: str, value: torch.Tensor, key: str | None) -> Any:
        if id(value) not in self.replacements:
            self.alive.append(value)
            self.replacements[id(value)] = self.replace_tensor(value)
        return self.replacements[id(value)]


def bound_reads(spec: Specification, learns: bool = False) -> Specification:
    """Return the variant over tensors on the CPU, for which reads outside give 0, as in a kernel.

    Verification tries lengths for which the user's tensors were not made. With `learns` floating tensors are float64
    and require a gradient.
    """
    # by id, with what the id is of: one for all ways to a tensor
    replacements: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def replace_tensor(x: torch.Tensor) -> torch.Tensor:
        if (
            isinstance(x, Bounded) or x.is_meta
        ):  # a compiled function hands over what mods read: of an object that they read from, the rest stays on meta
            return x
        if id(x) not in replacements:
            replacements[id(x)] = x, _leaf(x) if learns and x.is_floating_point() else _bound_tensor(x.detach().cpu())
        return replacements[id(x)][1]

    variant = rebuild_mods(spec, replace_tensor)
    mods = [None if mod is None else cast(Mod, Standin(mod, replace_tensor)) for mod in (variant.mask_mod, variant.score_mod)]
    values = _Expressions(spec)
    values.variant = replace(variant, mask_mod=mods[0], score_mod=mods[1], evaluated=values)
    return values.variant


def fix_lengths(spec: Specification, lengths: Lengths) -> Specification:
    """Return a bounded variant for a problem of these lengths, whose captured values are computed once."""
    fixed = replace(spec, captured={n: v for n, v in spec.values(lengths).items() if n in spec.captured})
    if isinstance(spec.evaluated, _Expressions):
        values = copy.copy(spec.evaluated)
        fixed = values.variant = replace(fixed, evaluated=values)
    return fixed


class _Expressions:
    """Values of mods that work on rows, by the expressions that they trace to.

    They equal PyTorch's values for single pairs, as far as the tensors reach.
    """

    variant: Specification  # whose values these are

    def __init__(self, spec: Specification):
        self.spec, self.checked = spec, set[int]()  # the set is one for all copies: what is checked is the same of each

    @functools.cached_property
    def traced(self) -> Traced | None:
        """The trace of the mods, if they work on rows or views, computed on demand."""
        try:
            traced = trace_without_clashes(self.variant)
        except CuirError:  # a mod that no kernel can have: a program by hand is judged by its values alone
            return None
        return traced if traced.rows else None

    def __call__(self, mod_index: int, lengths: Lengths, device: torch.device | str, *scores: torch.Tensor) -> torch.Tensor | None:
        """Return values of a mod; None for mods that work on many pairs themselves."""
        if self.traced is None:
            return None
        for i in {0, 1} - self.checked:
            self.check(self.traced, i)
            self.checked.add(i)
        if mod_index == 1 and scores[0].requires_grad and _GRADIENTS not in self.checked:
            self.check_gradients(self.traced)
            self.checked.add(_GRADIENTS)
        return self.at(self.traced, mod_index, lengths, indices(lengths, device), *scores)

    def at(self, traced: Traced, mod_index: int, lengths: Lengths, places: tuple[torch.Tensor, ...], *scores: torch.Tensor) -> torch.Tensor:
        device = places[0].device
        sources = sources_of(traced.parameters, self.variant, lengths)
        names: dict[str, Any] = {p.name: p.on(sources[p.name], device) for p in traced.parameters}
        names |= {n: _plain(x) for n, x in sources.items() if isinstance(x, torch.Tensor) and x.requires_grad}
        names |= {n: getattr(lengths, n) for n in LENGTHS} | {n: x.to(torch.int32) for n, x in zip("bhqk", places)}
        if mod_index == 0:
            return torch.as_tensor(True if traced.mask is None else evaluate(traced.mask, names))
        names |= {"S": scores[0], "scale": 1.0}
        score, factor = traced.differentiated  # whose gradients are PyTorch's
        logits = evaluate(score, names) * evaluate(factor, names)
        logits = torch.as_tensor(logits if self.spec.normalize == "relu" else logits / CONSTANTS["LOG2E"])
        return logits if traced.keep is None else torch.where(torch.as_tensor(evaluate(traced.keep, names)), logits, -torch.inf)

    def check(self, traced: Traced, mod_index: int) -> None:
        """Compare with the mod itself, for single pairs.

        Raises CuirError X124.
        """
        lengths = Lengths(2, 2, 1, 3, 3)
        mod = self.spec.mods(lengths)[mod_index]
        if mod is None:
            return
        for place in itertools.product(range(2), range(2), range(3), range(3)):
            pair = tuple(torch.tensor(i) for i in place)
            scores = (torch.tensor(0.75),) * mod_index
            try:
                expected = torch.as_tensor(mod(*scores, *pair)).float().cpu()  # of tensors on a GPU
            except (IndexError, RuntimeError):  # the tensors are for fewer heads, or shorter, or on another device
                continue
            is_kept = self.spec.mask_mod is None or not mod_index or bool(self.at(traced, 0, lengths, pair))
            actual = self.at(traced, mod_index, lengths, pair, *scores).float()
            if is_kept and not torch.allclose(actual, expected, rtol=1e-3, atol=1e-3, equal_nan=True):
                pair_text = ", ".join(f"{n}={i}" for n, i in zip(("b", "h", "q_idx", "kv_idx"), place))
                raise CuirError.of(
                    "X124",
                    f"`{self.spec.name}` traces to {float(actual):g} for {pair_text}, and gives {float(expected):g}",
                    function_span(mod),
                )

    def check_gradients(self, traced: Traced) -> None:
        """Compare derivatives with those of the mod itself, for single pairs.

        Raises CuirError X124.
        """
        lengths, learned = Lengths(2, 2, 1, 3, 3), _list_learned(traced)
        parameters = [p for p in trace_without_clashes(self.spec).parameters if p.name in learned]
        variants = [
            (variant.mods(lengths)[1], [leaves_by_id[id(p.value)] for p in parameters], dtype)
            for dtype, (variant, leaves_by_id) in zip(_DTYPES, map(self.with_leaves, _DTYPES))
        ]
        for place in itertools.product(range(2), range(2), range(3), range(3)):
            pair = tuple(torch.tensor(i) for i in place)
            score, *scores = (torch.tensor(0.75, dtype=dtype, requires_grad=True) for dtype in (torch.float64, *_DTYPES))
            try:
                expected = [
                    _gradients(mod(s, *pair), [s, *leaves]) for s, (mod, leaves, _) in zip(scores, variants, strict=True) if mod is not None
                ]
            except (IndexError, RuntimeError):  # the tensors are for fewer heads, or shorter
                continue
            actual = _gradients(self.at(traced, 1, lengths, pair, score), [score, *learned.values()])
            for name, x, *candidates in zip(("the score", *(f"`{n}`" for n in learned)), actual, *expected):
                if not any(_about(x, y) for y in candidates):
                    pair_text = ", ".join(f"{n}={i}" for n, i in zip(("b", "h", "q_idx", "kv_idx"), place))
                    message = f"the derivative of `{self.spec.name}` by {name} is another one than PyTorch's for {pair_text}"
                    raise CuirError.of("X124", message, function_span(self.spec.score_mod) if self.spec.score_mod is not None else None)

    def with_leaves(self, dtype: torch.dtype) -> tuple[Specification, dict[int, torch.Tensor]]:
        """Return the variant with captured floats as leaves of a dtype, and the leaves by id of the original."""
        leaves_by_id: dict[int, torch.Tensor] = {}

        def leaf(x: torch.Tensor) -> torch.Tensor:
            if not x.is_floating_point() or x.is_meta:
                return x.detach().cpu() if not x.is_meta else x
            return leaves_by_id.setdefault(id(x), x.detach().cpu().to(dtype, copy=True).requires_grad_())

        return rebuild_mods(self.spec, leaf), leaves_by_id


_GRADIENTS = 2  # beside the mods, what is checked of expressions
_DTYPES = (torch.float64, torch.float32)  # in either, as they may decide otherwise at a corner


def _list_learned(traced: Traced) -> dict[str, torch.Tensor]:
    return {p.name: p.value for p in traced.parameters if isinstance(p.value, torch.Tensor) and p.value.requires_grad}


def _gradients(value: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    value = torch.as_tensor(value)
    if not value.requires_grad or not bool(value.isfinite().all()):  # of a pair that is masked nothing is asked
        return [torch.zeros_like(x) for x in leaves]
    return list(torch.autograd.grad(value.sum(), leaves, allow_unused=True, materialize_grads=True))


def _about(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return True if two gradients agree within a tolerance at the elements where `y` is finite."""
    a, b = (t.as_subclass(torch.Tensor).double() for t in (x, y))
    return torch.allclose(a.where(b.isfinite(), 0.0), b.where(b.isfinite(), 0.0), rtol=1e-2, atol=1e-3)


def _leaf(x: torch.Tensor) -> Bounded:
    leaf = _bound_tensor(x.detach().cpu().double())
    leaf.requires_grad_()
    return leaf


def _plain(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor as an expression reads it, with its graph."""
    plain = x.as_subclass(torch.Tensor)
    return plain if plain.ndim else plain.view(1)


def _bound_tensor(x: torch.Tensor, indices: tuple[Any, ...] = ()) -> Bounded:
    view = x.as_subclass(Bounded)
    view.leading_indices = indices
    return view


class Bounded(torch.Tensor):
    """A tensor that reads as 0 outside; it takes one index for each dim, at once or one after the other."""

    leading_indices: tuple[Any, ...] = ()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.Tensor.__getitem__ and isinstance(args[0], Bounded):
                return args[0].read(args[1])
            if (
                isinstance(first := args[0] if args else None, Bounded)
                and (attribute_read(func) or getattr(func, "__name__", "")) in _SHAPE
            ):
                return func(torch.empty(first.remaining_shape(), device="meta"), *args[1:], **(kwargs or {}))
            result = func(*args, **(kwargs or {}))
            # of an element, when it is read
            if isinstance(first, Bounded) and getattr(func, "__name__", "") in ELEMENTWISE:
                return _bound_tensor(result, first.leading_indices)
            return result.as_subclass(torch.Tensor) if isinstance(result, Bounded) and func is not torch.Tensor.as_subclass else result

    def remaining_shape(self) -> torch.Size:
        """Return the lengths of the dims without an index yet."""
        return self.as_subclass(torch.Tensor).shape[len(self.leading_indices) :]

    def read(self, item: Any) -> torch.Tensor:
        base = self.as_subclass(torch.Tensor)
        items, remaining = item if isinstance(item, tuple) else (item,), self.remaining_shape()
        # from the end
        indices = (*self.leading_indices, *(i + remaining[d] if isinstance(i, int) and i < 0 else i for d, i in enumerate(items)))
        if len(indices) < base.ndim:
            return _bound_tensor(base, indices)
        places = torch.broadcast_tensors(*(torch.as_tensor(i, dtype=torch.int64) for i in indices))
        inside = torch.ones_like(places[0], dtype=torch.bool)
        for place, size in zip(places, base.shape):
            inside = inside & (place >= 0) & (place < size)
        zero = torch.zeros((), dtype=base.dtype)
        if base.numel() == 0:
            return zero.expand(inside.shape)
        return torch.where(inside, base[tuple(p.clamp(0, n - 1) for p, n in zip(places, base.shape))], zero)


__all__ = ["Bounded", "bound_reads", "fix_lengths", "rebuild_mods"]

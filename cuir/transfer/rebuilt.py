"""A specification with other tensors in the places of those that its mods capture. Owns no capturing: that is the tracer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..spec import SINK, Captured, Lengths, Specification
from .trace import _Tracer


def rebuilt(spec: Specification, tensor: Callable[[torch.Tensor], torch.Tensor]) -> Specification:
    """The same variant, its mods made anew with `tensor(x)` for every captured tensor x."""
    rebuilder = _Rebuilder(spec, tensor)
    mods = [None if mod is None else rebuilder.capture("mod", mod) for mod in (spec.mask_mod, spec.score_mod)]
    sink = None if spec.sink is None else _captured({SINK: spec.sink}, tensor)[SINK]
    return replace(spec, mask_mod=mods[0], score_mod=mods[1], captured=_captured(spec.captured, tensor), sink=sink)


def _captured(captured: Mapping[str, Captured], tensor: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Captured]:
    def one(value: Captured) -> Captured:
        if isinstance(value, torch.Tensor):
            return tensor(value)
        if callable(value):
            made = value

            def following(lengths: Lengths) -> torch.Tensor:
                return tensor(made(lengths))

            return following
        return value

    return {name: one(value) for name, value in captured.items()}


class _Rebuilder(_Tracer):
    """Walks a mod as the tracer does, but leaves numbers as they are."""

    def __init__(self, spec: Specification, tensor: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__(spec, set(), set())
        self.other = tensor
        self.others: dict[int, torch.Tensor] = {}

    def number(self, name: str, value: int | float) -> Any:
        return value

    def tensor(self, name: str, value: torch.Tensor, key: str | None) -> Any:
        if id(value) not in self.others:
            self.alive.append(value)
            self.others[id(value)] = self.other(value)
        return self.others[id(value)]


__all__ = ["rebuilt"]

"""State that splits: the base of what a batch of lanes holds, and the selection of some of its lanes.

Invariant: every array and tensor reachable from a `State` has a leading lane axis of 1 (equal in all lanes) or of all
lanes of its batch; everything else that is reachable (text, types, tensors of the caller behind a non-State object) is
shared between the parts.
"""

from __future__ import annotations

import random
from typing import Any, TypeVar

import numpy as np
import torch


class State:
    """Base of all that is copied when a batch splits."""


T = TypeVar("T", bound=State)
_SHARED: set[type] = {int, float, str, bool, type(None)}  # classes whose objects are not copied; grows at run time


def select(state: T, lanes: np.ndarray, total: int) -> T:
    """Copy the state with only the given lanes of `total`; aliases of one object stay aliases."""
    return _Selection(lanes, total).take(state)


class _Selection:
    def __init__(self, lanes: np.ndarray, total: int):
        self.lanes, self.total = lanes, total
        self.memo: dict[int, Any] = {}
        self.originals: list[Any] = []  # keeps originals alive, so that ids stay unique
        self.index: dict[torch.device, torch.Tensor] = {}

    def take(self, x: Any) -> Any:
        if type(x) in _SHARED:
            return x
        copied = self.memo.get(id(x))
        if copied is not None:
            return copied
        new = self._copy(x)
        self.memo[id(x)] = new
        self.originals.append(x)
        return new

    def _copy(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self._rows(x) if x.shape[0] == self.total else x.clone()  # each part writes in place
        if isinstance(x, np.ndarray):
            return x[self.lanes]
        if isinstance(x, State):
            new = x.__class__.__new__(x.__class__)
            self.memo[id(x)] = new
            for name, value in x.__dict__.items():
                new.__dict__[name] = value if type(value) in _SHARED else self.take(value)
            return new
        if isinstance(x, dict):
            return {k: v if type(v) in _SHARED else self.take(v) for k, v in x.items()}
        if isinstance(x, list):
            return [v if type(v) in _SHARED else self.take(v) for v in x]
        if isinstance(x, tuple):
            return tuple([v if type(v) in _SHARED else self.take(v) for v in x])
        if isinstance(x, set):
            return set(x)
        if isinstance(x, bytearray):
            return bytearray(x)
        if isinstance(x, random.Random):
            generator = random.Random()
            generator.setstate(x.getstate())
            return generator
        _SHARED.add(type(x))
        return x

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        if x.device not in self.index:
            self.index[x.device] = torch.from_numpy(np.ascontiguousarray(self.lanes)).to(x.device)
        return x.index_select(0, self.index[x.device])

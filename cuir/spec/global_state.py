"""Process-wide state that a user's function may change, saved before a call and restored after it."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class _Entry:
    """One piece of state.

    read: returns a value that compares by `==`; write: restores it.
    """

    name: str
    read: Callable[[], object]
    write: Callable[[Any], object]


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _set_folder(path: str | None) -> None:
    if path is not None:
        os.chdir(path)


def _set_environment(items: dict[Any, Any]) -> None:
    current = dict(os.environ)
    saved = {os.environ.decodekey(k): os.environ.decodevalue(v) for k, v in items.items()}
    for name in current.keys() - saved.keys():
        del os.environ[name]
    os.environ.update({n: v for n, v in saved.items() if current.get(n) != v})


def _set_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


_ENVIRONMENT = _Entry("the environment", lambda: os.environ._data.copy(), _set_environment)  # type: ignore[attr-defined]
_ENTRIES = (
    _Entry("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Entry("the default device", torch.get_default_device, torch.set_default_device),
    _Entry("the number of threads", torch.get_num_threads, torch.set_num_threads),
    _Entry("deterministic algorithms", _deterministic, lambda x: torch.use_deterministic_algorithms(x[0], warn_only=x[1])),
    _Entry("the gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
    _Entry("the precision of products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    _Entry("the current folder", _folder, _set_folder),
    _Entry("the filters of warnings", lambda: list(warnings.filters), _set_filters),
    _Entry("NumPy's handling of errors", np.geterr, lambda x: np.seterr(**x)),
    _Entry("the limit of recursion", sys.getrecursionlimit, sys.setrecursionlimit),
)


_MT19937_BYTES = 624 * 4 + 4  # of the generator's state in C: its keys and the place among them
_last_numpy_state: list[tuple[object, bytes, Any]] = [(None, b"", None)]  # the generator, those bytes, and its state as NumPy gives it


def _numpy_state() -> Any:
    """Return the state of NumPy's global generator.

    NumPy copies it number by number, which takes longer than all else here. So the state that was read last is
    returned where its bytes are the same.
    """
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    last_generator, data, state = _last_numpy_state[0]
    current = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES) if isinstance(generator, np.random.MT19937) else None
    if current is not None and last_generator is generator and data == current:
        return state
    read: Any = np.random.get_state()
    kind, keys, *rest = read
    state = kind, keys.tobytes(), *rest
    waiting = rest[1]  # the second number of a pair of normal ones, which is drawn without a change of the bytes
    _last_numpy_state[0] = (generator, current, state) if current is not None and not waiting else (None, b"", None)
    return state


def _set_numpy_state(state: Any) -> None:
    kind, keys, *rest = state
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))
    _last_numpy_state[0] = (None, b"", None)  # a waiting number may be back behind the same bytes


_GENERATORS = (
    _Entry(
        "torch's global generator",
        lambda: torch.get_rng_state().numpy().tobytes(),
        lambda x: torch.set_rng_state(torch.frombuffer(bytearray(x), dtype=torch.uint8)),
    ),
    _Entry("Python's `random`", random.getstate, random.setstate),
    _Entry("NumPy's `random`", _numpy_state, _set_numpy_state),
)


class GlobalState:
    """State of the process at one time; `environment` includes `os.environ`."""

    def __init__(self, environment: bool = True):
        self.entries = (*_ENTRIES, _ENVIRONMENT) if environment else _ENTRIES
        self.values = [e.read() for e in self.entries]
        self.generators = [g.read() for g in _GENERATORS]

    def restore(self) -> tuple[str, ...]:
        """Restore what differs now; return the names of global generators that were drawn from or seeded."""
        for entry, value in zip(self.entries, self.values, strict=True):
            if entry.read() != value:
                entry.write(value)
        drawn = [(g, x) for g, x in zip(_GENERATORS, self.generators, strict=True) if g.read() != x]
        for generator, state in drawn:
            generator.write(state)
        return tuple(g.name for g, _ in drawn)


def seed_generators(seed: int) -> None:
    """Seed the global generators of torch, Python and NumPy."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)

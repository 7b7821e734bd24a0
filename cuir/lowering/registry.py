"""Which function emits which primitive. Owns the registration, no emitter: those lie in `cuir/lowering/ops`, one file per family.

* `value`: text of an elementwise operation from the texts of its operands; serves scalars and elements of tiles alike.
* `tile`: a call that makes a whole tile; `statement`: a call that stands alone; `structure`: part of the kernel's frame.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, Literal

from ..ops import OPERATORS, TABLE

Kind = Literal["value", "tile", "statement", "structure"]
Emitter = Callable[..., Any]

_EMITTERS: dict[str, tuple[Kind, Emitter]] = {}


def emits(name: str, kind: Kind) -> Callable[[Emitter], Emitter]:
    """Register the emitter of a primitive or operator; a second one is an error of ours."""

    def enter(function: Emitter) -> Emitter:
        if name in _EMITTERS:
            raise ValueError(f"two emitters for {name}")
        _EMITTERS[name] = (kind, function)
        return function

    return enter


def _load() -> None:
    from . import ops

    for module in pkgutil.iter_modules(ops.__path__):
        importlib.import_module(f"{ops.__name__}.{module.name}")


def emitter(name: str, kind: Kind) -> Emitter | None:
    """The emitter of a primitive, if it has one of this kind."""
    if not _EMITTERS:
        _load()
    found = _EMITTERS.get(name)
    return found[1] if found and found[0] == kind else None


def gaps() -> tuple[set[str], set[str]]:
    """Names of the table without an emitter, and emitters of names that the table lacks; both empty if all is well."""
    if not _EMITTERS:
        _load()
    known = TABLE.keys() | OPERATORS.keys()
    return set(known - _EMITTERS.keys()), set(_EMITTERS.keys() - known)

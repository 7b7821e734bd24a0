"""Which function emits which primitive. Owns the registration, no emitter: those lie in `cuir/lowering/ops`, one file per family.

* `value`: text of an elementwise operation from the texts of its operands; serves scalars and elements of tiles alike.
* `tile`: a call that makes a whole tile; `statement`: a call that stands alone; `structure`: part of the kernel's frame.
"""

from __future__ import annotations

import functools
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


@functools.cache
def _all() -> dict[str, tuple[Kind, Emitter]]:
    """Every emitter; whole before any thread sees it."""
    from . import ops

    for module in pkgutil.iter_modules(ops.__path__):
        importlib.import_module(f"{ops.__name__}.{module.name}")
    return _EMITTERS


def emitter(name: str, kind: Kind) -> Emitter | None:
    """The emitter of a primitive, if it has one of this kind."""
    found = _all().get(name)
    return found[1] if found and found[0] == kind else None


def gaps() -> tuple[set[str], set[str]]:
    """Names of the table without an emitter, and emitters of names that the table lacks; both empty if all is well."""
    known, found = TABLE.keys() | OPERATORS.keys(), _all().keys()
    return set(known - found), set(found - known)

"""Python text of a specification: its functions, and the user's functions that these are made with."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cuir.attn.tracing.trace import foreign
from cuir.attn.tracing.user_objects import EMPTY, list_cells, list_defaults, list_globals
from cuir.spec.function_specification import AnySpecification, FunctionSpecification
from cuir.spec.specification import Specification

WHOLE = 6000  # characters of a file that is shown whole, with what a function uses
MOST = 12_000  # characters of all; what comes first is nearest to the specification
_OURS = str(Path(inspect.getsourcefile(Specification) or "").parent)  # the task explains specifications


def sources(spec: AnySpecification) -> list[str]:
    """Return the texts of a specification's functions, then of those that they close over or name.

    Short files are returned whole, from others the functions alone.
    """
    texts: list[str] = []
    for function in _walk_functions(spec):
        text = _text(function)
        if text and text not in texts and (not texts or sum(map(len, texts)) + len(text) <= MOST):
            texts.append(text)
    return texts


def _walk_functions(spec: AnySpecification) -> Iterator[types.FunctionType]:
    """Yield functions of the user, each once, the specification's own first."""
    if isinstance(spec, FunctionSpecification):
        pending: list[Any] = [spec.reference, spec.inputs, spec.sizes]
    else:
        pending = [spec.mask_mod, spec.score_mod, *spec.data.values()]
    visited: set[int] = set()
    while pending:
        value = pending.pop(0)
        if isinstance(value, functools.partial):
            pending += [value.func, *value.args, *value.keywords.values()]
            continue
        value = inspect.unwrap(value) if callable(value) else value
        value = getattr(value, "__func__", value)
        if callable(value) and not isinstance(value, (type, types.FunctionType)):  # an object of the user's
            value = type(value).__call__
        if (
            not isinstance(value, types.FunctionType)
            or id(value) in visited
            or foreign(value)
            or value.__code__.co_filename.startswith(_OURS)
        ):
            continue
        visited.add(id(value))
        yield value
        pending += [m.value for m in (*list_cells(value), *list_defaults(value), *list_globals(value)) if m.value is not EMPTY]


def _text(function: Callable[..., Any]) -> str:
    """Return the text of a function, or of its file if that is short."""
    try:
        whole = Path(inspect.getsourcefile(function) or "").read_text(encoding="utf-8")
        return whole if len(whole) <= WHOLE else inspect.getsource(function)
    except (OSError, TypeError):
        return ""

"""The Python text of a specification: of its functions, and of those of the user's that they are made with. Owns what is shown, not how."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cuir.spec.functions import AnySpecification, FunctionSpecification
from cuir.spec.specification import Specification
from cuir.variants.trace import foreign, globals_read

WHOLE = 6000  # characters of a file that is shown whole, so that what a function uses is there too
MOST = 12_000  # characters of all; what comes first is nearest to the specification
_OURS = str(Path(inspect.getsourcefile(Specification) or "").parent)  # what a specification is, the task says


def sources(spec: AnySpecification) -> list[str]:
    """The files, if they are short, else the functions alone: those of the specification, then those that these close over or name, from whatever file."""
    texts: list[str] = []
    for function in _reached(spec):
        text = _text(function)
        if text and text not in texts and (not texts or sum(map(len, texts)) + len(text) <= MOST):
            texts.append(text)
    return texts


def _reached(spec: AnySpecification) -> Iterator[types.FunctionType]:
    """Functions of the user's, each once, the specification's own first."""
    if isinstance(spec, FunctionSpecification):
        left: list[Any] = [spec.reference, spec.inputs, spec.sizes]
    else:
        left = [spec.mask_mod, spec.score_mod, *spec.data.values()]
    seen: set[int] = set()
    while left:
        value = left.pop(0)
        if isinstance(value, functools.partial):
            left += [value.func, *value.args, *value.keywords.values()]
            continue
        value = inspect.unwrap(value) if callable(value) else value
        value = getattr(value, "__func__", value)
        if callable(value) and not isinstance(value, (type, types.FunctionType)):  # an object of the user's
            value = type(value).__call__
        if not isinstance(value, types.FunctionType) or id(value) in seen or foreign(value) or value.__code__.co_filename.startswith(_OURS):
            continue
        seen.add(id(value))
        yield value
        left += [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        left += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        left += [value.__globals__[name] for name in sorted(globals_read(value.__code__)) if name in value.__globals__]


def _text(function: Callable[..., Any]) -> str:
    try:
        whole = Path(inspect.getsourcefile(function) or "").read_text(encoding="utf-8")
        return whole if len(whole) <= WHOLE else inspect.getsource(function)
    except (OSError, TypeError):
        return ""

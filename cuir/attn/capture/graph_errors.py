"""Errors that are found while torch.compile traces a call.

They arrive as the CuirError that a call outside of a graph raises, not within an exception of PyTorch's.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from torch._guards import CompileContext

from ...text.diagnostics import CuirError, Diagnostic

P = ParamSpec("P")
R = TypeVar("R")
TRACER_TRIED = (2, 13)  # PyTorch's version, this or a later one
_PACKAGES = tuple(str(Path(module.__file__).parent) for module in (torch, sys.modules["cuir"]) if module.__file__)


def at_tracing(function: Callable[P, R]) -> Callable[P, R]:
    """Have torch.compile run a function when it traces a call, and take the result for a constant.

    It runs with the values at that time, as under torch.compiler.assume_constant_result, which would import all of
    torch._dynamo.
    """
    passing = _passing(function, _of_tracing)
    passing._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return passing


def has_tried_tracer() -> bool:
    """Return True if torch.compile can read mods, and take objects as constants of a graph.

    Its tracer has no public interface for this, so the answer depends on the versions with which it was tried.
    """
    return tuple(map(int, torch.__version__.split(".")[:2])) >= TRACER_TRIED


def of_operator(shapes: Callable[P, R]) -> Callable[P, R]:
    """Let errors of an operator's shape function pass through PyTorch's wrappers.

    torch.compile calls that function when it traces a call of the operator.
    """
    return _passing(shapes, _of_operator)


def _passing(function: Callable[P, R], kind: Callable[[], type[CuirError]]) -> Callable[P, R]:
    @functools.wraps(function)
    def passing(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except CuirError as error:
            if CompileContext.try_get() is None:
                raise
            raise kind()(error.diagnostics) from None

    return passing


class _InGraph(CuirError):
    """An error of a call that torch.compile traces.

    It notes the places in the code of users (`real_stack`) while the error passes.
    """

    def __str__(self) -> str:
        text = "\n\n".join(d.render() for d in self.diagnostics)  # PyTorch adds to the arguments
        place = next((f for f in reversed(getattr(self, "real_stack", ())) if not f.filename.startswith(_PACKAGES)), None)
        return text if place is None else f"{text}\n{place.filename}:{place.lineno}: note: torch.compile traced `{place.line}`"


@functools.cache
def _of_tracing() -> type[CuirError]:
    """Return an error class that torch.compile raises without the frames of its tracer."""
    from torch._dynamo.exc import ShortenTraceback

    class Traced(_InGraph, ShortenTraceback):
        def __init__(self, diagnostics: tuple[Diagnostic, ...]):
            RuntimeError.__init__(self)
            self.diagnostics = diagnostics
            frame = inspect.currentframe()
            self.first_useful_frame = frame and frame.f_back  # which raises it

    return _name_after_base(Traced)


@functools.cache
def _of_operator() -> type[CuirError]:
    """Return an error class that torch.compile does not wrap while it infers an operator's shapes.

    It re-raises IndexError.
    """

    class Operator(_InGraph, IndexError):
        pass

    return _name_after_base(Operator)


def _name_after_base(kind: type[CuirError]) -> type[CuirError]:
    kind.__name__, kind.__qualname__, kind.__module__ = CuirError.__name__, CuirError.__qualname__, CuirError.__module__
    return kind


__all__ = ["at_tracing", "of_operator"]

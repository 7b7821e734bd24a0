"""Errors that are found while torch.compile traces a call.

They arrive as the CuirError that a call outside of a graph raises, not within an exception of PyTorch's.

Locations in users' code of values that torch.compile read from it.

Diagnostics of a mod that became a graph point there, not at the text of the graph.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from torch._guards import CompileContext

from ...caching import Memo
from ...text.diagnostics import CuirError, Diagnostic
from ...text.source import Span, line_span

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


# where the values of a graph come from, by their names
_PLACES: Memo[str, dict[str, str]] = Memo(
    "flex.graph_places", key="file name of a graph's code", invalidation="a new graph of this file name", limit=256
)


def remember_places(graph: torch.fx.GraphModule) -> None:
    """Note where the values of a graph come from."""
    forward = graph.forward
    assert isinstance(forward, types.MethodType)
    _PLACES[forward.__func__.__code__.co_filename] = {n.name: n.stack_trace for n in graph.graph.nodes if n.stack_trace}


def name_in_code(placeholder: str) -> str:
    """Recover the user's name of a graph input of torch.compile: `l_self_parameters_bias_` is `bias`."""
    name = re.sub(r"^[lg]_(.+)_$", r"\1", placeholder)
    return re.split(r"_(?:parameters|buffers|modules)_", name)[-1]


def at_users_places(run: Callable[P, R]) -> Callable[P, R]:
    """Wrap an operator's function such that its diagnostics point at users' code, not into a graph."""

    def run_and_move_places(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return run(*args, **kwargs)
        except CuirError as error:
            moved = tuple(replace(d, span=_move_span(d.span)) for d in error.diagnostics)
            if moved == error.diagnostics:
                raise
            raise CuirError(moved) from None

    return run_and_move_places


def _move_span(span: Span | None) -> Span | None:
    values = None if span is None else _PLACES.get(span.source.name)
    if span is None or values is None:
        return span
    name = re.match(r"\s*(\w+) =", span.source.line(span.line))
    return span if name is None or name[1] not in values else span_of_trace(values[name[1]]) or span


def span_of_trace(trace: str) -> Span | None:
    """Return the innermost place of a stack trace as text."""
    places = list(re.finditer(r'File "([^"]+)", line (\d+), in [^\n]*\n(?:    [^\n]*\n +(\^+))?', trace))
    if not places:
        return None
    file, line, carets = places[-1].groups()
    start = places[-1].start(3)  # where the expression begins; the carets of PyTorch's traces reach too far
    return line_span(file, int(line), None if carets is None else start - trace.rindex("\n", 0, start) - 5)


def span_of_error(error: BaseException) -> Span | None:
    """Find the place in users' code where torch.compile stopped."""
    for frame in reversed(getattr(error, "real_stack", ())):
        if not frame.filename.startswith((torch.__path__[0], __file__.rsplit("/", 3)[0])):
            return line_span(frame.filename, frame.lineno)
    return None


__all__ = ["at_tracing", "at_users_places", "name_in_code", "of_operator", "remember_places", "span_of_error"]

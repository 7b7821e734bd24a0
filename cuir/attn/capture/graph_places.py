"""Locations in users' code of values that torch.compile read from it.

Diagnostics of a mod that became a graph point there, not at the text of the graph.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

import torch

from ...caching import Memo
from ...text.diagnostics import CuirError
from ...text.source import Span
from ...text.user_code import line_span

P = ParamSpec("P")
R = TypeVar("R")
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


__all__ = ["at_users_places", "name_in_code", "remember_places", "span_of_error"]

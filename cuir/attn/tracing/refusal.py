"""Refusals of mods that no kernel can have, with the line of the user's file and an offending pair."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch

from ...text.diagnostics import CuirError
from ...text.source import Source, Span
from .concrete_answers import TRACE

_HOME = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)


def user_frame() -> FrameType | None:
    """Return the innermost frame of user code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_HOME, _TORCH)):
        frame = frame.f_back
    return frame


def user_place() -> Span | None:
    """Return the expression of user code that is running, from Python's own table of columns."""
    frame = user_frame()
    if frame is None:
        return None
    positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    line, end_line, column, end_column = positions
    if line is None:
        return None
    source = Source(frame.f_code.co_filename, "".join(linecache.getlines(frame.f_code.co_filename)))
    start = (column or 0) + 1
    return Span(source, line, start, end_line or line, max(start + 1, (end_column or 0) + 1) if end_line == line else (end_column or 0) + 1)


def refuse(message: str, hint: str | None = None, code: str = "X120", at: Span | None = None) -> NoReturn:
    """Raise CuirError for a mod that no kernel can have, and record it in the running trace.

    `at` is the place, if it is not where user code is running.
    """
    error = CuirError.of(code, message, at or user_place(), hint)
    if (running := TRACE.get()) is not None:
        running.refused.append(error)
    raise error


Translate = Callable[[Mapping[str, int]], Mapping[str, int]]
_INDICES_OF_USER: ContextVar[Translate | None] = ContextVar("_INDICES_OF_USER", default=None)


@contextmanager
def translate_pairs(translate: Translate | None) -> Iterator[None]:
    """Name pairs within this context by other indices.

    This is for mods that stand for a user's, whose b, h, q and k `translate` returns.
    """
    entered = _INDICES_OF_USER.set(translate)
    try:
        yield
    finally:
        _INDICES_OF_USER.reset(entered)


def describe_pair(pair: Mapping[str, int]) -> str:
    """Return b, h, q and k of a pair as text, as the user's mods see them."""
    translate = _INDICES_OF_USER.get()
    indices = pair if translate is None else translate(pair)
    return f"(b={indices['b']}, h={indices['h']}, q_idx={indices['q']}, kv_idx={indices['k']})"


__all__ = ["Translate", "describe_pair", "refuse", "translate_pairs", "user_frame", "user_place"]

"""One folder for each card: `features.toml` (what it has), and a package whose `TARGET` says how it is printed. `sm100` shows how little a new one needs."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from ...ops import OPERATORS, TABLE
from ...ops.limits import TARGETS
from ..cuda.registry import IN_THE_IR
from ..ir.text import dialect
from .target import Target


@functools.cache
def target_of(arch: str) -> Target:
    """The card that a kernel names as its `arch`."""
    target = importlib.import_module(f"{__name__}.{TARGETS[arch].folder}").TARGET
    assert isinstance(target, Target)
    return target


def text_or_printer(name: str) -> Callable[..., Any] | None:
    """The function that gives a primitive's text on the first card that has one."""
    for arch in TARGETS:
        target = target_of(arch)
        printer = target.printer(name)
        function = target.text(name) if printer is None else printer.function
        if function is not None:
            return function
    return None


def gaps() -> tuple[set[str], set[str]]:
    """Names of the table of primitives that a card has and does not print, and printers of names that neither the table nor the IR has; both empty if all is well."""
    entries = {**TABLE, **OPERATORS}
    own = {op.name for op in dialect().operations}
    missing, printed = set(), set(IN_THE_IR)
    for arch in TARGETS:
        names = target_of(arch).names()
        missing |= {n for n, entry in entries.items() if arch in entry.archs} - names - set(IN_THE_IR)
        printed |= names
    return missing, printed - entries.keys() - own - set(IN_THE_IR)


__all__ = ["Target", "gaps", "target_of", "text_or_printer"]

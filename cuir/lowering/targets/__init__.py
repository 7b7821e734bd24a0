"""Targets, one folder for each: `features.toml`, and a package whose `TARGET` holds its printers.

`sm75` shows how little a new one needs, `sm100` what a memory of its own adds.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

from ...ops import OPERATORS, TABLE
from ...ops.limits import TARGETS
from ..cuda.registry import IN_THE_IR
from ..ir.ir_text import dialect
from .target import Target


@functools.cache
def target_of(arch: str) -> Target:
    """Return the target that a kernel names as its `arch`."""
    target = importlib.import_module(f"{__name__}.{TARGETS[arch].folder}").TARGET
    assert isinstance(target, Target)
    return target


def find_emitter(name: str) -> Callable[..., object] | None:
    """Return the function that emits a primitive on the first target that has one, or None."""
    for arch in TARGETS:
        target = target_of(arch)
        printer = target.printer(name)
        function = target.text(name) if printer is None else printer
        if function is not None:
            return function
    return None


def gaps() -> tuple[set[str], set[str]]:
    """Return names without a printer, and printers without a name; both are empty in a consistent table.

    Returns: Names of the table of primitives that a target has and does not print, and names of printers that neither
    the table nor the IR has.
    """
    entries = {**TABLE, **OPERATORS}
    machine_names = {op.name for op in dialect().operations}
    missing, printed = set(), set(IN_THE_IR)
    for arch in TARGETS:
        names = target_of(arch).names()
        missing |= {n for n, entry in entries.items() if arch in entry.archs} - names - set(IN_THE_IR)
        printed |= names
    return missing, printed - entries.keys() - machine_names - set(IN_THE_IR)


__all__ = ["Target", "find_emitter", "gaps", "target_of"]

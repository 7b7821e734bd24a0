"""Select how the target does each load, store, product and loop.

The first way that fits is recorded with its reason, the target's own before those of all targets.

Printers look up the code of the name that the attribute `selected` holds.
"""

from __future__ import annotations

from ..ir import ops
from ..select.selector import find_target, select


def run(kernel: ops.Kernel) -> None:
    """Record a way on each load, store, product and loop."""
    select(kernel, find_target(kernel.arch.data))

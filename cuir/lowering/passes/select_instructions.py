"""Select how each load, store and loop is done on the target, and record the way with the property that decides it.

Ways are tried in order: those of the target's folder, of the older target that it extends, of all targets. The first that
fits is recorded as the attribute `selected`, with its reason; printers look up the code of its name.

`cuir lower --explain` shows the record.
"""

from __future__ import annotations

from ..ir import ops
from ..select.selector import find_target, select


def run(kernel: ops.Kernel) -> None:
    """Record a way on each operation that has several."""
    select(kernel, find_target(kernel.arch.data))

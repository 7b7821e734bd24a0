"""Other orders of tiles: `tile` may be any bijection, so a kernel must be right in every order.

A kernel's own order may keep some of its lines from running in every small problem: an order inside of groups of heads,
say, of which small problems have one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...checking.checked import Checked
from ...checking.checker import check
from ...syntax.nodes import Call, ConstType, Expr, Kernel, Name, Program
from ...syntax.printer import show
from ...syntax.templates import Holes
from ...syntax.walk import names_read, walk
from ..tracing.splice_names import OPTIONAL, names_of
from .problems import get_units

_UNITS = {  # the number in the kernel's own order of the t-th of `units` units
    "backwards": "{units} - 1 - t",
    "from both ends in turn": "t // 2 if t % 2 == 0 else {units} - 1 - t // 2",
}


@dataclass(frozen=True)
class Order:
    """A kernel with its tiles in another order; `text` is the function of the order."""

    name: str
    text: str
    checked: Checked


def make_orders(program: Program, checked: Checked) -> Iterator[Order]:
    """Yield kernels that process the tiles in other orders.

    None if the program has no `tile`, or if the number of tiles does not depend on dims, scalars and consts alone.
    """
    kernel, tile = checked.origin, program.funcs().get("tile")
    units = _get_units(program, kernel)
    if tile is None or len(tile.params) != OPTIONAL["tile"] or units is None:
        return
    name = next(n for i in range(len(names_of(program)) + 1) if (n := f"tile_{i}") not in names_of(program))
    for description, expression in _UNITS.items():
        holes = Holes()
        other = holes.fill(f"@func\ndef tile(t):\n    return {name}({expression.format(units=holes.put(units))})\n")["tile"]
        items = [made for item in program.items for made in ((replace(tile, name=name), other) if item is tile else (item,))]
        yield Order(description, show(other), check(replace(program, items=tuple(items)), kernel.name, checked.consts))


def _get_units(program: Program, kernel: Kernel) -> Expr | None:
    """Return the number of units of work of the kernel, if a @func can compute it."""
    count = get_units(kernel)
    if count is None:
        return None
    free = {p.name for p in kernel.params} | {
        d for p in kernel.params if not isinstance(p.type, ConstType) for d in getattr(p.type, "dims", ())
    }
    called = {n.func.id for n in walk(count) if isinstance(n, Call) and isinstance(n.func, Name)}
    return count if names_read(count) - called <= free | set(program.constants()) else None


__all__ = ["Order", "make_orders"]

"""Any order of tiles: `tile` is any bijection, so a kernel must be right whichever tile comes after which. Owns the other orders.

A kernel's own order may keep some of its lines from running in every small problem: an order inside of groups of heads, say, of which small problems have one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..checking.checked import Checked
from ..checking.checker import check
from ..syntax.nodes import Call, ConstType, Expr, Kernel, Name, Program
from ..syntax.parser import parse
from ..syntax.printer import show
from ..syntax.walk import names_read, walk
from ..variants.names import OPTIONAL, names_of
from .problems import units_of

_UNITS = {  # which unit of the kernel's own order the t-th one is, of `units`
    "backwards": "{units} - 1 - t",
    "from both ends in turn": "t // 2 if t % 2 == 0 else {units} - 1 - t // 2",
}


@dataclass(frozen=True)
class Order:
    """The same kernel with its tiles in another order: `text` is the function that gives it."""

    name: str
    text: str
    checked: Checked


def orders(program: Program, checked: Checked) -> Iterator[Order]:
    """Kernels that do the tiles in other orders; none if the program has no `tile`, or if how many there are is not said by dims, scalars and consts alone."""
    kernel, own = checked.origin, program.funcs().get("tile")
    units = _units(program, kernel)
    if own is None or len(own.params) != OPTIONAL["tile"] or units is None:
        return
    name = next(n for i in range(len(names_of(program)) + 1) if (n := f"tile_{i}") not in names_of(program))
    for what, which in _UNITS.items():
        text = f"@func\ndef tile(t):\n    return {name}({which.format(units=f'({show(units)})')})\n"
        items = [item for one in program.items for item in ((replace(own, name=name), *parse(text).items) if one is own else (one,))]
        yield Order(what, text, check(replace(program, items=tuple(items)), kernel.name, checked.consts))


def _units(program: Program, kernel: Kernel) -> Expr | None:
    """How many units of work the kernel asks for, if a @func may say it."""
    asked = units_of(kernel)
    if asked is None:
        return None
    free = {p.name for p in kernel.params} | {
        d for p in kernel.params if not isinstance(p.type, ConstType) for d in getattr(p.type, "dims", ())
    }
    called = {n.func.id for n in walk(asked) if isinstance(n, Call) and isinstance(n.func, Name)}
    return asked if names_read(asked) - called <= free | set(program.constants()) else None


__all__ = ["Order", "orders"]

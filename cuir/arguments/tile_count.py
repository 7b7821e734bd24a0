"""The number of work items of a launch."""

from __future__ import annotations

from collections.abc import Mapping

from ..checking.checked import Checked
from ..checking.fold import specialise
from ..syntax.nodes import Assign, Expr, Literal
from ..text.diagnostics import CuirError


def count_tiles(checked: Checked, dims: Mapping[str, int], scalars: Mapping[str, int | float | bool]) -> int | None:
    """Count the work items of a launch; None for a kernel without tiles."""
    if checked.tiles is None:
        return None
    values: dict[str, Expr] = {name: Literal(value) for name, value in {**dims, **scalars}.items()}
    for stmt in checked.declarations:
        if isinstance(stmt, Assign):
            values[stmt.targets[0]] = specialise(stmt.value, values)
    count = specialise(checked.tiles.count, values)
    if not isinstance(count, Literal):
        raise CuirError.of("L002", "the number of tiles must be computable on the host: of dims and scalars", checked.tiles.count.span)
    return int(count.value)

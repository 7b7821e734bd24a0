"""Index tiles that are never stored element by element: i32 tiles linear in the column, and conditions on them.

An i32 tile whose element is (something of the row) + c * column keeps one number a row. A comparison of two such tiles becomes a
comparison of the column, known when the loop is unrolled, with a limit per row; `&` and `|` of limits become minima and maxima.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..checking.checked import Checked, Role
from ..syntax.nodes import Assign, Expr, Name, Stmt
from ..syntax.types import I32, Scalar, TileType
from .flat import integer, operation
from .layouts import shape_of
from .values import strip


@dataclass(frozen=True)
class Linear:
    """An i32 tile: element = rows[r] + slope * (column less the thread's first). One text if all rows are alike."""

    rows: tuple[str, ...]
    slope: int


def slopes(checked: Checked, role: Role, definitions: Mapping[str, list[Stmt]]) -> dict[str, int]:
    """The i32 tile names that are linear in the column wherever they are bound, with their one slope."""
    tiles = {n for n, t in role.locals.items() if isinstance(t, TileType) and t.dtype == I32 and n in definitions}
    found: dict[str, int | None] = {}
    for _ in range(len(tiles) + 2):
        before = dict(found)
        for name in tiles:
            for stmt in definitions[name]:
                assert isinstance(stmt, Assign)
                value = _slope(checked, stmt.value, found, tiles)
                if value == "unknown":
                    continue
                found[name] = value if name not in found or found[name] == value else None  # type: ignore[assignment]
        if before == found:
            break
    return {n: s for n, s in found.items() if s is not None}


def _slope(checked: Checked, expr: Expr, found: Mapping[str, int | None], tiles: set[str]) -> int | str | None:
    kind = checked.type_of(expr)
    if isinstance(kind, Scalar) or (isinstance(kind, TileType) and shape_of(kind) in ("one", "rows")):
        return 0
    if isinstance(expr, Name):
        return found.get(expr.id, "unknown") if expr.id in tiles else None
    op, args = operation(checked, expr)
    if op == "cols":
        return 1
    if op in ("zeros", "full"):
        return 0
    if op not in ("+", "-", "*", "neg"):
        return None
    parts = [_slope(checked, a, found, tiles) for a in args]
    if None in parts:
        return None
    if "unknown" in parts:
        return "unknown"
    return combined(op, [p for p in parts if isinstance(p, int)], args)


def slope_of(checked: Checked, expr: Expr, known: Mapping[str, int]) -> int | None:
    """The slope of an i32 expression, given those of names."""
    found = _slope(checked, expr, known, set(known))
    return found if isinstance(found, int) else None


def combined(op: str, parts: list[int], args: list[Expr]) -> int | None:
    """The slope of a sum, difference, negative or product; None if it is not linear."""
    if op == "+":
        return parts[0] + parts[1]
    if op == "-":
        return parts[0] - parts[1]
    if op == "neg":
        return -parts[0]
    if parts == [0, 0]:
        return 0
    for x, y in ((0, 1), (1, 0)):
        factor = integer(args[y])
        if factor is not None:
            return parts[x] * factor
    return None


# ---- conditions
@dataclass(frozen=True)
class Below:
    """column < limits[r]; one limit if all rows are alike. `at_least`: column >= limits[r]."""

    limits: tuple[str, ...]
    at_least: bool = False


@dataclass(frozen=True)
class OfRow:
    """A condition on the row alone."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Other:
    """Anything else, element by element: a text from the place in the loop."""

    text: Callable[[object], str]


@dataclass(frozen=True)
class Both:
    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Either:
    parts: tuple[Condition, ...]


Condition = Below | OfRow | Other | Both | Either


def zipped(join: Callable[[str, str], str], a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """Row by row; a single text serves all rows."""
    n = max(len(a), len(b))
    return tuple(join(a[i if len(a) > 1 else 0], b[i if len(b) > 1 else 0]) for i in range(n))


def conjunction(parts: list[Condition], both: bool) -> Condition:
    """`&` (or, not `both`: `|`) of conditions, with limits of one direction merged."""
    flat: list[Condition] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Both if both else Either) else [part])
    merged: list[Condition] = []
    for part in flat:
        for i, other in enumerate(merged):
            if isinstance(part, Below) and isinstance(other, Below) and part.at_least == other.at_least:
                function = "max" if part.at_least == both else "min"
                merged[i] = Below(zipped(lambda x, y, f=function: f"{f}({x}, {y})", other.limits, part.limits), part.at_least)  # type: ignore[misc]
                break
            if isinstance(part, OfRow) and isinstance(other, OfRow):
                sign = "&&" if both else "||"
                merged[i] = OfRow(zipped(lambda x, y, s=sign: f"({x} {s} {y})", other.texts, part.texts))  # type: ignore[misc]
                break
        else:
            merged.append(part)
    if len(merged) == 1:
        return merged[0]
    return Both(tuple(merged)) if both else Either(tuple(merged))


def negated(c: Condition) -> Condition:
    if isinstance(c, Below):
        return Below(c.limits, not c.at_least)
    if isinstance(c, OfRow):
        return OfRow(tuple(f"!{t}" if t.startswith("(") else f"!({t})" for t in c.texts))
    if isinstance(c, Other):
        return Other(lambda at: f"(!{c.text(at)})")
    parts = tuple(negated(p) for p in c.parts)
    return Either(parts) if isinstance(c, Both) else Both(parts)


def compared(sign: str, a: Linear, b: Linear, far: bool = False) -> Condition | None:
    """a `sign` b as a condition on the column or the row; None if the column's slopes leave neither. far: their difference may leave 32 bits."""
    slope = a.slope - b.slope
    if slope == 0:
        return OfRow(zipped(lambda x, y: f"({x} {sign} {y})", a.rows, b.rows))
    if slope not in (1, -1) or sign in ("==", "!="):
        return None
    if slope == -1:
        a, b = b, a
        sign = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}[sign]
    plus = int(sign in ("<=", ">"))
    if far:
        return Below(zipped(lambda y, x: f"cuir::limit<{plus}>({strip(y)}, {strip(x)})", b.rows, a.rows), sign in (">", ">="))
    return Below(zipped(lambda y, x: f"({y} - {x}{' + 1' * plus})", b.rows, a.rows), sign in (">", ">="))

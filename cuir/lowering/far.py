"""Which i32 values may be any number, so that a difference with them may leave 32 bits: those made of more than lengths, counters and places in a tile.

`q - k <= window` is a limit on the column k once `q - window` is worked out, which wraps for a window of 2^31 - 1. Owns the data flow that says where that may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..nodes import Assign, Expr, Literal, Name
from ..types import Scalar, TileType
from .flat import integer, operation

if TYPE_CHECKING:
    from .role import RoleEmitter

FAR = 2**24  # a number written in the text that is nearer to 0 is as good as a length

Ends = tuple[bool, bool]  # whether a value may lie near the lower, near the upper end of the range
NOWHERE, ANYWHERE = (False, False), (True, True)


def far(role: RoleEmitter, expr: Expr) -> bool:
    """Whether an i32 scalar or tile may lie near an end of the range."""
    return any(_ends(role, expr, frozenset()))


def _ends(role: RoleEmitter, expr: Expr, seen: frozenset[str]) -> Ends:
    checked = role.kernel.checked
    if isinstance(expr, Literal):
        return int(expr.value) <= -FAR, int(expr.value) >= FAR
    if isinstance(expr, Name):
        if any(p.name == expr.id for p in checked.scalars):
            return ANYWHERE
        bound = [s.value for s in role.facts.definitions.get(expr.id, []) if isinstance(s, Assign)]
        bound += [s.value for s in checked.declarations if isinstance(s, Assign) and s.targets[0] == expr.id]
        return NOWHERE if expr.id in seen else _either([_ends(role, v, seen | {expr.id}) for v in bound])
    op, args = operation(checked, expr)
    if op in ("gather", "element", "load") or (op == "cast" and role.dtype(args[0]).is_float):
        return ANYWHERE
    parts = [_ends(role, a, seen) for a in args if isinstance(checked.types.get(id(a)), (Scalar, TileType))]
    if op == "+":
        return _either(parts)
    if op == "-":
        return _either([parts[0], parts[1][::-1]])
    if op == "neg":
        return parts[0][::-1]
    if op == "min":
        return any(p[0] for p in parts), all(p[1] for p in parts)
    if op == "max":
        return all(p[0] for p in parts), any(p[1] for p in parts)
    if op in ("//", "cdiv") and (integer(args[1]) or 0) > 0:
        return parts[0]
    if op == "%":
        return _anywhere(parts[1:])
    if op in ("where", "ifexp"):
        return _either(parts[1:])
    return _anywhere(parts)


def _either(parts: list[Ends]) -> Ends:
    return any(p[0] for p in parts), any(p[1] for p in parts)


def _anywhere(parts: list[Ends]) -> Ends:
    return ANYWHERE if any(map(any, parts)) else NOWHERE


__all__ = ["far"]

"""Lines of a kernel that no run has reached: what stands there is well-formed, and nothing else is known of it. Owns no run."""

from __future__ import annotations

from collections.abc import Iterable

from ..checked import Checked
from ..interp.launch import entered_blocks, forget_entered
from ..nodes import Assign, AugAssign, ExprStmt, Stmt, With
from ..walk import walk

__all__ = ["forget_entered", "unreached"]
_SIMPLE = (Assign, AugAssign, ExprStmt)  # what does something; branches and loops are known by what they hold


def unreached(checked: Checked, *others: Checked) -> list[tuple[int, int]]:
    """First and last lines of statements of the roles that no run has executed since forget_entered(): the consts leave them out, or no run went there. others: the same roles, with other functions."""
    origin = checked.origin
    there = sorted(_lines(s for role in origin.body if isinstance(role, With) for s in role.body))
    reached = {
        s.span.line
        for one in (checked, *others)
        for block in entered_blocks(one)
        for s in block
        if isinstance(s, _SIMPLE) and s.span.source is origin.span.source
    }
    ranges: list[tuple[int, int]] = []
    before = False
    for line in there:
        if line not in reached:
            ranges = [*ranges[:-1], (ranges[-1][0], line)] if before else [*ranges, (line, line)]
        before = line not in reached
    return ranges


def _lines(stmts: Iterable[Stmt]) -> set[int]:
    return {n.span.line for s in stmts for n in walk(s) if isinstance(n, _SIMPLE)}

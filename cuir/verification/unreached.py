"""Lines of a kernel that its consts leave out, that no run has reached, or loops that never turned twice: of what stands there little is known. Owns no run."""

from __future__ import annotations

from collections.abc import Iterable

from ..checking.checked import Checked
from ..interp.launch import forget_entered, list_entered_blocks, list_loop_turns
from ..syntax.nodes import Assign, AugAssign, Call, ExprStmt, For, Literal, Stmt, Unary, With
from ..syntax.walk import walk

__all__ = ["forget_entered", "short_loops", "unreached"]
ENOUGH = 3  # turns: the first, one that follows another, the last
_SIMPLE = (Assign, AugAssign, ExprStmt)  # what does something; branches and loops are known by what they hold


Lines = list[tuple[int, int]]  # first and last of each range


def unreached(checked: Checked, *others: Checked) -> tuple[Lines, Lines]:
    """Lines of statements of the roles that the consts leave out of the kernel; and lines of it that no run has executed since forget_entered(). others: the same roles, with other functions."""
    origin = checked.origin
    there = sorted(_lines(s for role in origin.body if isinstance(role, With) for s in role.body))
    part = {n.span.line for role in checked.roles for s in role.body for n in walk(s) if n.span.source is origin.span.source}
    reached = {
        n.span.line
        for one in (checked, *others)
        for block in list_entered_blocks(one)
        for s in block
        if isinstance(s, _SIMPLE)
        for n in walk(s)  # an argument stands where its function was called
        if n.span.source is origin.span.source
    }
    left_out = [line not in part and line not in reached for line in there]
    return _ranges(there, left_out), _ranges(there, [line in part and line not in reached for line in there])


def short_loops(checked: Checked, *others: Checked, below: int = 2) -> list[int]:
    """Lines of loops that runs since forget_entered() came to, and that made fewer turns each time, though not the consts alone say how many. others: the same roles, with other functions."""
    source = checked.origin.span.source
    most: dict[int, int] = {}
    for turns in (t for one in (checked, *others) for t in list_loop_turns(one) if t.stmt.span.source is source and not _fixed(t.stmt)):
        line = turns.stmt.span.line
        most[line] = max(most.get(line, -1), turns.most)
    return sorted(line for line, n in most.items() if 0 < n < below)  # a body that was not entered is known as that


def unentered_loops(checked: Checked) -> list[int]:
    """Lines of loops without a turn in all runs, or that none has come to."""
    source = checked.origin.span.source
    entered = {t.stmt.span.line for t in list_loop_turns(checked) if t.most > 0}
    there = {n.span.line for role in checked.roles for s in role.body for n in walk(s) if isinstance(n, For) and n.span.source is source}
    return sorted(there - entered)


def _fixed(loop: For) -> bool:
    """Whether the number of turns is known without a launch."""
    if not isinstance(loop.iter, Call):
        return False
    return all(isinstance(a.operand if isinstance(a, Unary) else a, Literal) for a in loop.iter.args)


def _ranges(lines: list[int], wanted: list[bool]) -> Lines:
    """Of the wanted ones; what stands between two of them does nothing by itself."""
    ranges: Lines = []
    before = False
    for line, is_wanted in zip(lines, wanted):
        if is_wanted:
            ranges = [*ranges[:-1], (ranges[-1][0], line)] if before else [*ranges, (line, line)]
        before = is_wanted
    return ranges


def _lines(stmts: Iterable[Stmt]) -> set[int]:
    return {n.span.line for s in stmts for n in walk(s) if isinstance(n, _SIMPLE)}

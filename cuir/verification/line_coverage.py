"""Lines of a kernel that its consts omit or that no run has reached, and loops without a second turn."""

from __future__ import annotations

from collections.abc import Iterable

from ..checking.checked import Checked
from ..interp.interpreted_launch import forget_entered, list_entered_blocks, list_loop_turns
from ..syntax.nodes import Assign, AugAssign, Call, ExprStmt, For, Literal, Stmt, Unary, With
from ..syntax.walk import walk

__all__ = ["find_short_loops", "find_unreached", "forget_entered"]
ENOUGH = 3  # turns: the first, one after another, the last
_SIMPLE = (Assign, AugAssign, ExprStmt)  # simple statements; branches and loops are covered by their bodies


Lines = list[tuple[int, int]]  # first and last of each range


def find_unreached(checked: Checked, *variants: Checked) -> tuple[Lines, Lines]:
    """Return lines of the roles that the consts omit, and lines that no run has executed.

    Runs count since forget_entered(). variants: the same roles, with other functions.
    """
    origin = checked.origin
    lines = sorted(_collect_lines(s for role in origin.body if isinstance(role, With) for s in role.body))
    compiled_lines = {n.span.line for role in checked.roles for s in role.body for n in walk(s) if n.span.source is origin.span.source}
    reached = {
        n.span.line
        for kernel in (checked, *variants)
        for block in list_entered_blocks(kernel)
        for s in block
        if isinstance(s, _SIMPLE)
        for n in walk(s)  # an argument has the line of its function's call
        if n.span.source is origin.span.source
    }
    left_out = [line not in compiled_lines and line not in reached for line in lines]
    return _join_ranges(lines, left_out), _join_ranges(lines, [line in compiled_lines and line not in reached for line in lines])


def find_short_loops(checked: Checked, *variants: Checked, below: int = 2) -> list[int]:
    """Return lines of loops that runs entered, and that made fewer turns than `below` each time.

    Runs count since forget_entered(). Without loops whose trip count the consts decide. variants: the same roles, with
    other functions.
    """
    source = checked.origin.span.source
    most: dict[int, int] = {}
    for turns in (
        t for kernel in (checked, *variants) for t in list_loop_turns(kernel) if t.stmt.span.source is source and not _is_fixed(t.stmt)
    ):
        line = turns.stmt.span.line
        most[line] = max(most.get(line, -1), turns.most)
    # bodies that were not entered are reported as such
    return sorted(line for line, n in most.items() if 0 < n < below)


def find_unentered_loops(checked: Checked) -> list[int]:
    """Return lines of loops without a turn in all runs, or that no run has reached."""
    source = checked.origin.span.source
    entered = {t.stmt.span.line for t in list_loop_turns(checked) if t.most > 0}
    loop_lines = {
        n.span.line for role in checked.roles for s in role.body for n in walk(s) if isinstance(n, For) and n.span.source is source
    }
    return sorted(loop_lines - entered)


def _is_fixed(loop: For) -> bool:
    """Return whether the trip count is known without a launch."""
    if not isinstance(loop.iter, Call):
        return False
    return all(isinstance(a.operand if isinstance(a, Unary) else a, Literal) for a in loop.iter.args)


def _join_ranges(lines: list[int], selected: list[bool]) -> Lines:
    """Return ranges of the selected lines; what lies between two of them has no effect."""
    ranges: Lines = []
    before = False
    for line, is_selected in zip(lines, selected):
        if is_selected:
            ranges = [*ranges[:-1], (ranges[-1][0], line)] if before else [*ranges, (line, line)]
        before = is_selected
    return ranges


def _collect_lines(stmts: Iterable[Stmt]) -> set[int]:
    return {n.span.line for s in stmts for n in walk(s) if isinstance(n, _SIMPLE)}

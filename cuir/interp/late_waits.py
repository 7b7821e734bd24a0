"""Waits that stand in the text behind the access that they should guard: one line, or a few, too late.

Runs once a fault is found. causes.py and the faults of async groups add what is found here to their reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..checking.checked import BoundCall, Checked
from ..checking.views import root_name
from ..ops.base import PRODUCTS, TABLE, Group
from ..syntax.nodes import Assign, Call, For, If, Literal, Name, Stmt
from ..syntax.walk import walk
from ..text.source import Span
from .machine import Worker


@dataclass(frozen=True)
class LateWait:
    """A wait that follows the access it should guard.

    Attributes:
        span: Place of the wait.
        text: Spelling of the wait.
        can_move: True if the wait runs in each iteration in which the access does, so that it can precede it.
        needs_commit: True if the commit of the group follows the access, too.
    """

    span: Span
    text: str
    can_move: bool
    needs_commit: bool = False

    def describe(self, access: str) -> str:
        """Return the note at the wait; access: "write", "read" or another noun."""
        subject = f"copy_commit and this {self.text} stand" if self.needs_commit else f"this {self.text} stands"
        return f"{subject} behind the {access}, too late" if self.can_move else f"the next {self.text} is here, behind the {access}"

    def add_to(
        self, hint: str, notes: Sequence[tuple[str, Span | None]], access: str, at: Span
    ) -> tuple[str, list[tuple[str, Span | None]]]:
        """Return the hint and the notes of a report with those about this wait; at: the access."""
        return f"{self.hint(access, at)}; {hint}", [*notes[:1], (self.describe(access), self.span)]

    def hint(self, access: str, at: Span) -> str:
        """Return the mend: to move the wait, or to write another one."""
        if not self.can_move:
            return f"a {self.text} in front of the {access} in line {at.line}"
        subject = f"copy_commit and {self.text}" if self.needs_commit else self.text
        return f"move {subject} from line {self.span.line} to in front of the {access} in line {at.line}"


class _PlacedNode(NamedTuple):
    """A node of a role, in the order of the text.

    bound: the call of a primitive that it is. loops, branches: those around it, outermost first. target: the name that
    its statement assigns.
    """

    bound: BoundCall | None
    span: Span
    loops: tuple[int, ...]
    branches: tuple[tuple[int, bool], ...]
    target: str | None


def find_late_group_wait(checked: Checked, role: str, at: Span, issue: Span) -> LateWait | None:
    """Find the wait for an asynchronous access behind another access of the same worker.

    at: the access that comes too early. issue: the call that issued the asynchronous one, of a group.
    """
    nodes = list(_list_nodes(checked, role))
    issued = _find_issue(nodes, issue)
    if issued is None:
        return None
    index, group = issued
    return _find_behind(nodes, at, lambda bound: _completes(bound, group, nodes[index].target))


def find_lax_group_wait(checked: Checked, role: str, at: Span, issue: Span) -> tuple[Span, int] | None:
    """Find a wait between two accesses that leaves the last accesses of a group in flight.

    The earlier of the two is asynchronous, and of the group. Returns the place of the wait and how many accesses it
    leaves.
    """
    nodes = list(_list_nodes(checked, role))
    issued, position = _find_issue(nodes, issue), _find_position(nodes, at)
    if issued is None or position is None:
        return None
    index, group = issued
    loops, result = nodes[position].loops, None
    if index < position:
        between: Sequence[int] = range(index, position)
    else:  # the access is of a later turn of the loop
        between = [*range(index, len(nodes)), *range(position)] if nodes[index].loops == loops else []
    for node in (nodes[i] for i in between if nodes[i].loops == loops):
        if node.bound is not None and node.bound.op.effects.drains == group:
            remaining = next((x.value for x in node.bound.args.values() if isinstance(x, Literal)), 0)
            result = (node.span, int(remaining)) if remaining else None
    return result


def blame_late_wait(w: Worker, at: Span, access: str, issue: Span, hint: str) -> tuple[str, list[tuple[str, Span | None]]]:
    """Return the hint to move the wait for an asynchronous access, and a note on it.

    If none stands behind, the result is `hint` without a note.
    """
    late = find_late_group_wait(w.m.launch.checked, w.program.name, at, issue)
    if late is None or not late.can_move:
        return hint, []
    return late.hint(access, at), [(late.describe(access), late.span)]


def find_late_barrier_wait(checked: Checked, role: str, at: Span, ring: str) -> LateWait | None:
    """Find a wait on a ring that follows an access, where none precedes the access in the same iteration.

    Args:
        at: place of the access.
    """

    def is_wait(bound: BoundCall) -> bool:
        waits = bound.op.effects.waits
        return waits is not None and waits in bound.args and root_name(bound.args[waits]) == ring

    nodes = list(_list_nodes(checked, role))
    position = _find_position(nodes, at)
    if position is None:
        return None
    loops = nodes[position].loops
    if any(n.bound is not None and is_wait(n.bound) and n.loops == loops[: len(n.loops)] for n in nodes[:position]):
        return None
    late = _find_behind(nodes, at, is_wait)
    return late if late is not None and late.can_move else None


def _find_issue(nodes: Sequence[_PlacedNode], issue: Span) -> tuple[int, Group] | None:
    """Return the position of the call that issued an asynchronous access, and its group."""
    for i, node in enumerate(nodes):
        if node.span == issue and node.bound is not None and node.bound.op.effects.group is not None:
            return i, node.bound.op.effects.group
    return None


def _find_position(nodes: Sequence[_PlacedNode], at: Span) -> int | None:
    return next((i for i, node in enumerate(nodes) if node.span == at), None)


def _find_behind(nodes: Sequence[_PlacedNode], at: Span, is_wait: Callable[[BoundCall], bool]) -> LateWait | None:
    """Return the first wait after a place in the text; waits that can move come before all others."""
    position = _find_position(nodes, at)
    if position is None:
        return None
    access = nodes[position]
    waits = [(i, n, n.bound) for i, n in enumerate(nodes) if i > position and n.bound is not None and is_wait(n.bound) and n.span != at]
    movable = [w for w in waits if w[1].loops == access.loops and w[1].branches == access.branches[: len(w[1].branches)]]
    if not waits:
        return None
    index, first, bound = (movable or waits)[0]
    group = bound.op.effects.drains
    between = (n.bound for n in nodes[position:index] if n.bound is not None)
    needs_commit = group is not None and any(b.op.effects.commits == group for b in between)
    return LateWait(first.span, first.span.text(), bool(movable), needs_commit)


def name_product_wait(arch: str) -> str:
    """Return the call that waits for a value in flight in registers."""
    return next(op.written for op in TABLE.values() if op.effects.drains == PRODUCTS and arch in op.archs)


def _completes(bound: BoundCall, group: Group, target: str | None) -> bool:
    """Return True if a call waits for all of a group, or for the product that a name holds."""
    if bound.op.effects.drains != group:
        return False
    if group == PRODUCTS:
        return any(isinstance(x, Name) and x.id == target for x in bound.args.values())
    return all(isinstance(x, Literal) and not x.value for x in bound.args.values())


def _list_nodes(checked: Checked, role: str) -> Iterator[_PlacedNode]:
    """Yield the nodes of a role in the order of the text."""

    def visit(stmts: Sequence[Stmt], loops: tuple[int, ...] = (), branches: tuple[tuple[int, bool], ...] = ()) -> Iterator[_PlacedNode]:
        for stmt in stmts:
            if isinstance(stmt, For):
                yield from visit(stmt.body, (*loops, id(stmt)), branches)
            elif isinstance(stmt, If):
                yield from visit(stmt.body, loops, (*branches, (id(stmt), True)))
                yield from visit(stmt.orelse, loops, (*branches, (id(stmt), False)))
            else:
                target = stmt.targets[0] if isinstance(stmt, Assign) else None
                for node in walk(stmt):
                    bound = checked.find_call(node) if isinstance(node, Call) else None
                    yield _PlacedNode(bound, node.span, loops, branches, target)

    yield from visit(next(r.body for r in checked.roles if r.name == role))

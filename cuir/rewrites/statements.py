"""Other spellings of statements: branches swapped, assignments split, merged and put in another order. None moves across an effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..ops.expressions import traits
from ..syntax.nodes import Assign, AugAssign, Binary, Expr, If, Name, Stmt, Tuple
from ..syntax.walk import names_read
from .expressions import negated
from .facts import Facts, Site
from .table import Rewrite, head, kind, text


def neighbours(of: Facts) -> Iterator[tuple[Site, Stmt, Stmt]]:
    """Statements of functions and roles beside each other, with the place of the first."""
    for holder, name, body in of.blocks():
        for i in range(len(body) - 1):
            yield of.at[(*holder.path, (name, i))], body[i], body[i + 1]


def two_replaced(of: Facts, name: str, at: Site, both: tuple[Stmt, Stmt], put: tuple[Stmt, ...]) -> Rewrite:
    """A rewrite that puts statements in the place of two neighbours."""
    *path, (field, index) = at.path
    holder = of.at[tuple(path)]
    body = getattr(holder.node, field)
    changed = (*body[:index], *put, *body[index + 2 :])  # type: ignore[operator]
    return Rewrite(name, at.node.span.line, text(*both), text(*put), lambda: of.put(holder, replace(holder.node, **{field: changed})))  # type: ignore[arg-type]


def writes(stmt: Assign | AugAssign) -> set[str]:
    return set(stmt.targets) if isinstance(stmt, Assign) else {stmt.target}


def reads(stmt: Assign | AugAssign) -> set[str]:
    return names_read(stmt.value) | ({stmt.target} if isinstance(stmt, AugAssign) else set())


@kind("negate branch")
def negate_branch(of: Facts) -> Iterator[Rewrite]:
    """`if c: A else: B` to `if not c: B else: A`. A branch without `else` stays: no statement does nothing."""
    for site in of.sites:
        s = site.node
        if isinstance(s, If) and s.orelse and of.scalar(s.cond):
            put = replace(s, cond=negated(s.cond, "not"), body=s.orelse, orelse=s.body)
            yield Rewrite("negate branch", s.span.line, head(s), head(put), lambda site=site, put=put: of.put(site, put))  # type: ignore[misc]


@kind("split assignment")
def split_assignment(of: Facts) -> Iterator[Rewrite]:
    """`a, b = x, y` to `a = x` and `b = y`, where no later value reads an earlier name."""
    for site in of.sites:
        s = site.node
        if not (isinstance(s, Assign) and isinstance(s.value, Tuple) and len(s.targets) == len(s.value.items) > 1):
            continue
        if "_" in s.targets or len(set(s.targets)) < len(s.targets):
            continue
        if any(set(s.targets[:i]) & names_read(value) for i, value in enumerate(s.value.items)):
            continue
        put = tuple(Assign((name,), value) for name, value in zip(s.targets, s.value.items))
        put = (replace(put[0], comments=s.comments), *put[1:])
        yield Rewrite("split assignment", s.span.line, text(s), text(*put), lambda site=site, put=put: of.put(site, put))  # type: ignore[misc]


@kind("merge assignments")
def merge_assignments(of: Facts) -> Iterator[Rewrite]:
    """`a = x` and `b = y` to `a, b = x, y`, where both only compute and y does not read a."""
    for at, one, other in neighbours(of):
        if not (isinstance(one, Assign) and isinstance(other, Assign) and of.computes(one) and of.computes(other)):
            continue
        if len(one.targets) != 1 or len(other.targets) != 1 or writes(one) & (writes(other) | reads(other)):
            continue
        if not any(isinstance(v, Tuple) for v in (one.value, other.value)):
            put = Assign((*one.targets, *other.targets), Tuple((one.value, other.value)), comments=one.comments)
            yield two_replaced(of, "merge assignments", at, (one, other), (put,))


@kind("reorder")
def reorder(of: Facts) -> Iterator[Rewrite]:
    """Two neighbouring assignments that only compute, and of which neither binds what the other reads or binds, change places."""
    for at, one, other in neighbours(of):
        if not (
            isinstance(one, (Assign, AugAssign)) and isinstance(other, (Assign, AugAssign)) and of.computes(one) and of.computes(other)
        ):
            continue
        if not (writes(one) & (writes(other) | reads(other)) or writes(other) & reads(one)):
            yield two_replaced(of, "reorder", at, (one, other), (other, one))


@kind("augment")
def augment(of: Facts) -> Iterator[Rewrite]:
    """`x += e` to `x = x + e`, and back."""
    for site in of.sites:
        s = site.node
        put: Stmt | None = None
        if isinstance(s, AugAssign):
            put = Assign((s.target,), Binary(s.op, Name(s.target), s.value), comments=s.comments)
        elif isinstance(s, Assign) and len(s.targets) == 1 and of.in_body(site) and _grows(s.targets[0], s.value):
            put = AugAssign(s.targets[0], s.value.op, s.value.right, comments=s.comments)  # type: ignore[union-attr]
        if put is not None:
            yield Rewrite("augment", s.span.line, text(s), text(put), lambda site=site, put=put: of.put(site, put))  # type: ignore[misc]


def _grows(name: str, value: Expr) -> bool:
    """Whether a value is arithmetic on the name: no other operator has an augmented assignment."""
    t = traits(value)
    return isinstance(value, Binary) and value.left == Name(name) and bool(t.linear or t.multiplies or t.divisor)

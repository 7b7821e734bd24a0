"""Rewrites of statements: swapped branches; split, merged and reordered assignments.

No rewrite moves a statement across an effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..ops.expressions import traits
from ..syntax.nodes import Assign, AugAssign, Binary, Expr, If, Name, Stmt, Tuple
from ..syntax.walk import names_read
from .expression_rewrites import negate
from .facts import Facts, Site
from .rewrites_table import Rewrite, get_head, register_kind, show_text


def list_neighbours(facts: Facts) -> Iterator[tuple[Site, Stmt, Stmt]]:
    """Yield adjacent statements of functions and roles, with the place of the first."""
    for holder, name, body in facts.list_blocks():
        for i in range(len(body) - 1):
            yield facts.at[(*holder.path, (name, i))], body[i], body[i + 1]


def replace_pair(facts: Facts, name: str, place: Site, pair: tuple[Stmt, Stmt], replacement: tuple[Stmt, ...]) -> Rewrite:
    """Return a rewrite that replaces two neighbours by statements."""
    *path, (field, index) = place.path
    holder = facts.at[tuple(path)]
    body = getattr(holder.node, field)
    changed = (*body[:index], *replacement, *body[index + 2 :])  # type: ignore[operator]
    return Rewrite(
        name,
        place.node.span.line,
        show_text(*pair),
        show_text(*replacement),
        lambda: facts.replace_at(holder, replace(holder.node, **{field: changed})),  # type: ignore[arg-type]
    )


def list_written(stmt: Assign | AugAssign) -> set[str]:
    """Return the names that an assignment binds."""
    return set(stmt.targets) if isinstance(stmt, Assign) else {stmt.target}


def list_read(stmt: Assign | AugAssign) -> set[str]:
    """Return the names that an assignment reads."""
    return names_read(stmt.value) | ({stmt.target} if isinstance(stmt, AugAssign) else set())


@register_kind("negate branch")
def negate_branch(facts: Facts) -> Iterator[Rewrite]:
    """Yield `if c: A else: B` -> `if not c: B else: A`.

    A branch without `else` stays: there is no empty statement.
    """
    for site in facts.sites:
        s = site.node
        if isinstance(s, If) and s.orelse and facts.is_scalar(s.cond):
            replacement = replace(s, cond=negate(s.cond, "not"), body=s.orelse, orelse=s.body)
            yield Rewrite(
                "negate branch",
                s.span.line,
                get_head(s),
                get_head(replacement),
                lambda site=site, replacement=replacement: facts.replace_at(site, replacement),  # type: ignore[misc]
            )


@register_kind("split assignment")
def split_assignment(facts: Facts) -> Iterator[Rewrite]:
    """Yield `a, b = x, y` -> `a = x` and `b = y`, where no later value reads an earlier name."""
    for site in facts.sites:
        s = site.node
        if not (isinstance(s, Assign) and isinstance(s.value, Tuple) and len(s.targets) == len(s.value.items) > 1):
            continue
        if "_" in s.targets or len(set(s.targets)) < len(s.targets):
            continue
        if any(set(s.targets[:i]) & names_read(value) for i, value in enumerate(s.value.items)):
            continue
        replacement = tuple(Assign((name,), value) for name, value in zip(s.targets, s.value.items))
        replacement = (replace(replacement[0], comments=s.comments), *replacement[1:])
        yield Rewrite(
            "split assignment",
            s.span.line,
            show_text(s),
            show_text(*replacement),
            lambda site=site, replacement=replacement: facts.replace_at(site, replacement),  # type: ignore[misc]
        )


@register_kind("merge assignments")
def merge_assignments(facts: Facts) -> Iterator[Rewrite]:
    """Yield `a = x` and `b = y` -> `a, b = x, y`, where both only compute and y does not read a."""
    for place, first, second in list_neighbours(facts):
        if not (isinstance(first, Assign) and isinstance(second, Assign) and facts.only_computes(first) and facts.only_computes(second)):
            continue
        if len(first.targets) != 1 or len(second.targets) != 1 or list_written(first) & (list_written(second) | list_read(second)):
            continue
        if not any(isinstance(v, Tuple) for v in (first.value, second.value)):
            replacement = Assign((*first.targets, *second.targets), Tuple((first.value, second.value)), comments=first.comments)
            yield replace_pair(facts, "merge assignments", place, (first, second), (replacement,))


@register_kind("reorder")
def reorder(facts: Facts) -> Iterator[Rewrite]:
    """Exchange two adjacent assignments that only compute and are independent."""
    for place, first, second in list_neighbours(facts):
        if not (
            isinstance(first, (Assign, AugAssign))
            and isinstance(second, (Assign, AugAssign))
            and facts.only_computes(first)
            and facts.only_computes(second)
        ):
            continue
        if not (list_written(first) & (list_written(second) | list_read(second)) or list_written(second) & list_read(first)):
            yield replace_pair(facts, "reorder", place, (first, second), (second, first))


@register_kind("augment")
def augment(facts: Facts) -> Iterator[Rewrite]:
    """Yield `x += e` -> `x = x + e`, and back."""
    for site in facts.sites:
        s = site.node
        replacement: Stmt | None = None
        if isinstance(s, AugAssign):
            replacement = Assign((s.target,), Binary(s.op, Name(s.target), s.value), comments=s.comments)
        elif isinstance(s, Assign) and len(s.targets) == 1 and facts.is_in_body(site) and _is_augmentable(s.targets[0], s.value):
            replacement = AugAssign(s.targets[0], s.value.op, s.value.right, comments=s.comments)  # type: ignore[union-attr]
        if replacement is not None:
            yield Rewrite(
                "augment",
                s.span.line,
                show_text(s),
                show_text(replacement),
                lambda site=site, replacement=replacement: facts.replace_at(site, replacement),  # type: ignore[misc]
            )


def _is_augmentable(name: str, value: Expr) -> bool:
    """Return whether a value is arithmetic on the name: no other operator has an augmented assignment."""
    t = traits(value)
    return isinstance(value, Binary) and value.left == Name(name) and bool(t.linear or t.multiplies or t.divisor)

"""Rewrites of names: new ones for parts and copies, inlining of single uses, renaming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from ..mutation.mutation_sites import list_sites, replace_node
from ..syntax.nodes import (
    Assign,
    Attribute,
    AugAssign,
    Binary,
    Call,
    For,
    Func,
    IfExp,
    Kernel,
    Keyword,
    Name,
    Node,
    Program,
    Stmt,
    Subscript,
    Unary,
    With,
)
from ..syntax.walk import count_assignments, names_read, walk
from .facts import Facts, Site, awaits_products, get_child
from .rewrites_table import Rewrite, get_head, register_kind, show_text

N = TypeVar("N", bound=Node)


def name_expression(facts: Facts, name: str, site: Site, base: str) -> Rewrite:
    """Return a rewrite that names an expression right before its statement."""
    stmt, fresh, e = facts.find_statement(site), facts.make_free_name(base), site.node
    bound = Assign((fresh,), e)  # type: ignore[arg-type]
    after = replace_node(stmt.node, site.path[len(stmt.path) :], Name(fresh))
    return Rewrite(
        name,
        e.span.line,
        get_head(stmt.node),
        f"{show_text(bound)}\n{get_head(after)}",
        lambda: facts.insert_before(stmt, bound, facts.replace_at(site, Name(fresh))),
    )


def is_movable(facts: Facts, site: Site) -> bool:
    """Return whether an expression may be evaluated right before its statement, as a named value.

    Operands of a product keep their registers.
    """
    if not facts.is_in_body(facts.find_statement(site)) or facts.operand(site) or not facts.is_pure(site.node):
        return False
    return facts.is_always_evaluated(site) or facts.is_speculatable(site.node)


def is_sole_binding(site: Site) -> bool:
    """Return whether an expression is all that an assignment to one name binds."""
    parent = site.parents[-1]
    return isinstance(parent, Assign) and len(parent.targets) == 1


@register_kind("name")
def name_parts(facts: Facts) -> Iterator[Rewrite]:
    """Yield `f(a + b)` -> `x = a + b` and `f(x)`."""
    for site in facts.expressions:
        e = site.node
        compound = isinstance(e, (Binary, Unary, IfExp, Call)) and facts.is_number(e) and not facts.takes_any_dtype(e)
        if compound and is_movable(facts, site) and not is_sole_binding(site):
            yield name_expression(facts, "name", site, "part")


@register_kind("name view")
def name_views(facts: Facts) -> Iterator[Rewrite]:
    """Yield `bar[s].wait(p)` -> `x = bar[s]` and `x.wait(p)`; views of arrays and tensors too."""
    for site in facts.expressions:
        e = site.node
        view = (
            isinstance(e, (Subscript, Attribute)) and facts.is_view(e) and facts.is_in_body(facts.find_statement(site)) and facts.is_pure(e)
        )
        if view and facts.is_always_evaluated(site) and not is_sole_binding(site) and not isinstance(site.parents[-1], Subscript):
            yield name_expression(facts, "name view", site, "view")


@register_kind("copy")
def copy(facts: Facts) -> Iterator[Rewrite]:
    """Yield `f(x)` -> `y = x` and `f(y)`.

    For a possible product in flight only where a number is computed from it.
    """
    for site in facts.expressions:
        e, parent = site.node, site.parents[-1]
        value = (
            isinstance(e, Name)
            and facts.is_number(e)
            and not facts.takes_any_dtype(e)
            and is_movable(facts, site)
            and not is_sole_binding(site)
        )
        if isinstance(e, Name) and value and (e.id not in facts.list_in_flight(site) or isinstance(parent, Binary)):
            yield name_expression(facts, "copy", site, "same")


@register_kind("inline")
def inline(facts: Facts) -> Iterator[Rewrite]:
    """Yield `x = e` and `f(x)` -> `f(e)`, where x is bound once and read once.

    The statements between only compute, and bind nothing that e reads.
    """
    for holder, field, body in facts.list_blocks():
        for i, s in enumerate(body):
            if isinstance(s, Assign) and len(s.targets) == 1 and facts.is_pure(s.value):
                at = facts.at[(*holder.path, (field, i))]
                use = _find_only_use(facts, at, s, body)
                if use is not None:
                    yield _inline_use(facts, s, at, use)


def _find_only_use(facts: Facts, at: Site, s: Assign, body: tuple[Stmt, ...]) -> Site | None:
    """Return the only place that reads the name bound by a statement, if the value may stand there."""
    name = s.targets[0]
    if facts.count_locals(at)[name] != 1 or sum(n == Name(name) for top in facts.get_scope(at) for n in walk(top)) != 1:
        return None
    (field, i), needed = at.path[-1], names_read(s.value)
    assert i is not None
    for j in range(i + 1, len(body)):
        later = body[j]
        if name in names_read(later):
            path = (*at.path[:-1], (field, j))
            return next((u for u in facts.expressions if u.path[: len(path)] == path and _accepts_value(facts, u, name, path)), None)
        bound = set(later.targets) if isinstance(later, Assign) else {later.target} if isinstance(later, AugAssign) else None
        if bound is None or bound & needed or not facts.only_computes(later):
            return None
    return None


def _accepts_value(facts: Facts, use: Site, name: str, path: object) -> bool:
    """Return True if a use of a name is a number that any expression may replace.

    The use must stand in the statement itself, not in the body of a loop or branch.
    """
    if use.node != Name(name) or facts.find_statement(use).path != path or not facts.is_number(use.node):
        return False
    return not any(map(awaits_products, use.parents))


def _inline_use(facts: Facts, s: Assign, at: Site, use: Site) -> Rewrite:
    stmt = facts.find_statement(use)
    after = replace_node(stmt.node, use.path[len(stmt.path) :], s.value)

    def make_program() -> Program:
        inlined: Program = replace_node(facts.replace_at(use, s.value), at.path, ())  # the later place first
        return inlined

    return Rewrite("inline", s.span.line, f"{show_text(s)}\n{get_head(stmt.node)}", get_head(after), make_program)


# ---- renaming
@register_kind("rename")
def rename(facts: Facts) -> Iterator[Rewrite]:
    """Rename a local of a function or a role, or what the kernel declares.

    The new names sort before and after the others, in turn.
    """
    for site in facts.sites:
        n = site.node
        if isinstance(n, Func):
            names = {*count_assignments(n.body), *n.params}
        elif isinstance(n, Kernel):
            names = facts.list_declared()
        elif isinstance(n, With):
            names = {*count_assignments(n.body), *([n.name] if n.name else [])}
        else:
            continue
        for i, old in enumerate(sorted(names - {"_"})):
            yield _rename(facts, site, old, facts.make_free_name(f"{'az'[i % 2]}_{old}"))


def _rename(facts: Facts, site: Site, old: str, new: str) -> Rewrite:
    return Rewrite("rename", site.node.span.line, old, new, lambda: _rename_local(facts, site, old, new))


def _rename_local(facts: Facts, site: Site, old: str, new: str) -> Program:
    node, names = site.node, {old: new}
    if isinstance(node, With):
        return facts.replace_at(site, replace(node, name=names.get(node.name or "", node.name), body=_rename_block(node.body, names)))
    if isinstance(node, Func):
        params = tuple(names.get(p, p) for p in node.params)
        changed = facts.replace_at(site, replace(node, params=params, body=_rename_block(node.body, names)))
        return _rename_keywords(changed, node.name, old, new) if old in node.params else changed
    assert isinstance(node, Kernel)
    # a role that binds the name shadows it, except in the role's call
    shadowing = [s for s in node.body if isinstance(s, With) and (old in count_assignments(s.body) or s.name == old)]
    body = tuple(replace(s, call=rename_names(s.call, names)) if s in shadowing else rename_names(s, names) for s in node.body)
    return facts.replace_at(site, replace(node, body=body))


def _rename_block(body: tuple[Stmt, ...], names: Mapping[str, str]) -> tuple[Stmt, ...]:
    return tuple(rename_names(s, names) for s in body)


def rename_names(node: N, names: Mapping[str, str]) -> N:
    """Rename names in a tree, where they are bound and where they are read.

    A callee is a primitive or a function, also where a value has its name.
    """
    renamed: N = node
    for s in list_sites(node):
        if s.parents and isinstance(s.parents[-1], Call) and s.path[-1] == ("func", None) and isinstance(s.node, Name):
            continue
        n = get_child(renamed, s.path)
        replacement: Node | None = None
        if isinstance(n, Name) and n.id in names:
            replacement = replace(n, id=names[n.id])
        elif isinstance(n, Assign) and set(n.targets) & set(names):
            replacement = replace(n, targets=tuple(names.get(t, t) for t in n.targets))
        elif isinstance(n, (AugAssign, For)) and n.target in names:
            replacement = replace(n, target=names[n.target])
        elif isinstance(n, With) and n.name is not None and n.name in names:
            replacement = replace(n, name=names[n.name])
        renamed = renamed if replacement is None else replace_node(renamed, s.path, replacement)
    return renamed


def _rename_keywords(program: Program, func: str, old: str, new: str) -> Program:
    """Rename the keyword arguments of a function along with its parameter."""
    renamed = program
    for s in list_sites(program):
        if isinstance(s.node, Keyword) and s.node.name == old and isinstance(call := s.parents[-1], Call) and call.func == Name(func):
            renamed = replace_node(renamed, (*s.path,), replace(get_child(renamed, s.path), name=new))
    return renamed

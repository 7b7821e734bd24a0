"""Other names: for a part of an expression, for a value that has one, none for what is used once. Owns which values may have a name of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from ..mutation.places import edited, sites
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
from ..syntax.walk import assigned, names_read, walk
from .facts import Facts, Site, awaits_products, child
from .table import Rewrite, head, kind, text

N = TypeVar("N", bound=Node)


def named(of: Facts, name: str, site: Site, base: str) -> Rewrite:
    """A rewrite that names an expression right before its statement."""
    stmt, fresh, e = of.statement(site), of.free_name(base), site.node
    bound = Assign((fresh,), e)  # type: ignore[arg-type]
    after = edited(stmt.node, site.path[len(stmt.path) :], Name(fresh))
    return Rewrite(
        name, e.span.line, head(stmt.node), f"{text(bound)}\n{head(after)}", lambda: of.put_before(stmt, bound, of.put(site, Name(fresh)))
    )


def movable(of: Facts, site: Site) -> bool:
    """Whether an expression may be evaluated right before its statement, as a value of its own. A product's operands keep the registers that they have."""
    if not of.in_body(of.statement(site)) or of.operand(site) or not of.pure(site.node):
        return False
    return of.always_evaluated(site) or of.cheap_and_safe(site.node)


def bound_alone(site: Site) -> bool:
    """Whether an expression is all that an assignment to one name binds."""
    parent = site.parents[-1]
    return isinstance(parent, Assign) and len(parent.targets) == 1


@kind("name")
def name_parts(of: Facts) -> Iterator[Rewrite]:
    """`f(a + b)` to `x = a + b` and `f(x)`."""
    for site in of.expressions:
        e = site.node
        compound = isinstance(e, (Binary, Unary, IfExp, Call)) and of.numbers(e) and not of.takes_any_dtype(e)
        if compound and movable(of, site) and not bound_alone(site):
            yield named(of, "name", site, "part")


@kind("name view")
def name_views(of: Facts) -> Iterator[Rewrite]:
    """`bar[s].wait(p)` to `x = bar[s]` and `x.wait(p)`; views of arrays and tensors too."""
    for site in of.expressions:
        e = site.node
        view = isinstance(e, (Subscript, Attribute)) and of.view(e) and of.in_body(of.statement(site)) and of.pure(e)
        if view and of.always_evaluated(site) and not bound_alone(site) and not isinstance(site.parents[-1], Subscript):
            yield named(of, "name view", site, "view")


@kind("copy")
def copy(of: Facts) -> Iterator[Rewrite]:
    """`f(x)` to `y = x` and `f(y)`; of what may be a product in flight only where a number is computed of it."""
    for site in of.expressions:
        e, parent = site.node, site.parents[-1]
        value = isinstance(e, Name) and of.numbers(e) and not of.takes_any_dtype(e) and movable(of, site) and not bound_alone(site)
        if isinstance(e, Name) and value and (e.id not in of.in_flight(site) or isinstance(parent, Binary)):
            yield named(of, "copy", site, "same")


@kind("inline")
def inline(of: Facts) -> Iterator[Rewrite]:
    """`x = e` and `f(x)` to `f(e)`, where x is bound once and read once, and what lies between only computes, and nothing that e reads."""
    for holder, field, body in of.blocks():
        for i, s in enumerate(body):
            if isinstance(s, Assign) and len(s.targets) == 1 and of.pure(s.value):
                at = of.at[(*holder.path, (field, i))]
                use = _only_use(of, at, s, body)
                if use is not None:
                    yield _inlined(of, s, at, use)


def _only_use(of: Facts, at: Site, s: Assign, body: tuple[Stmt, ...]) -> Site | None:
    """Where the name that a statement binds is read, if that is one place, which may have the value instead."""
    name = s.targets[0]
    if of.locals_of(at)[name] != 1 or sum(n == Name(name) for top in of.scope(at) for n in walk(top)) != 1:
        return None
    (field, i), needed = at.path[-1], names_read(s.value)
    assert i is not None
    for j in range(i + 1, len(body)):
        later = body[j]
        if name in names_read(later):
            path = (*at.path[:-1], (field, j))
            return next((u for u in of.expressions if u.path[: len(path)] == path and _takes(of, u, name, path)), None)
        bound = set(later.targets) if isinstance(later, Assign) else {later.target} if isinstance(later, AugAssign) else None
        if bound is None or bound & needed or not of.computes(later):
            return None
    return None


def _takes(of: Facts, use: Site, name: str, path: object) -> bool:
    """Whether a place reads the name as a number, in the head of its statement, and any expression may stand there."""
    if use.node != Name(name) or of.statement(use).path != path or not of.numbers(use.node):
        return False
    return not any(map(awaits_products, use.parents))


def _inlined(of: Facts, s: Assign, at: Site, use: Site) -> Rewrite:
    stmt = of.statement(use)
    after = edited(stmt.node, use.path[len(stmt.path) :], s.value)

    def made() -> Program:
        inlined: Program = edited(of.put(use, s.value), at.path, ())  # the later place first
        return inlined

    return Rewrite("inline", s.span.line, f"{text(s)}\n{head(stmt.node)}", head(after), made)


# ---- renaming
@kind("rename")
def rename(of: Facts) -> Iterator[Rewrite]:
    """A local of a function or a role, or what the kernel declares, is called otherwise: by names that sort before and behind the others, in turn."""
    for site in of.sites:
        n = site.node
        if isinstance(n, Func):
            names = {*assigned(n.body), *n.params}
        elif isinstance(n, Kernel):
            names = of.declared()
        elif isinstance(n, With):
            names = {*assigned(n.body), *([n.name] if n.name else [])}
        else:
            continue
        for i, old in enumerate(sorted(names - {"_"})):
            yield _rename(of, site, old, of.free_name(f"{'az'[i % 2]}_{old}"))


def _rename(of: Facts, site: Site, old: str, new: str) -> Rewrite:
    return Rewrite("rename", site.node.span.line, old, new, lambda: _renamed(of, site, old, new))


def _renamed(of: Facts, site: Site, old: str, new: str) -> Program:
    node, names = site.node, {old: new}
    if isinstance(node, With):
        return of.put(site, replace(node, name=names.get(node.name or "", node.name), body=_all(node.body, names)))
    if isinstance(node, Func):
        params = tuple(names.get(p, p) for p in node.params)
        changed = of.put(site, replace(node, params=params, body=_all(node.body, names)))
        return _keywords(changed, node.name, old, new) if old in node.params else changed
    assert isinstance(node, Kernel)
    # a role that binds the name itself has its own; its call does not see that one
    own = [s for s in node.body if isinstance(s, With) and (old in assigned(s.body) or s.name == old)]
    body = tuple(replace(s, call=with_names(s.call, names)) if s in own else with_names(s, names) for s in node.body)
    return of.put(site, replace(node, body=body))


def _all(body: tuple[Stmt, ...], names: Mapping[str, str]) -> tuple[Stmt, ...]:
    return tuple(with_names(s, names) for s in body)


def with_names(node: N, names: Mapping[str, str]) -> N:
    """A tree in which names are called otherwise, where they are bound and where they are read. What is called is a primitive or a function, also where a value has its name."""
    renamed: N = node
    for s in sites(node):
        if s.parents and isinstance(s.parents[-1], Call) and s.path[-1] == ("func", None) and isinstance(s.node, Name):
            continue
        n = child(renamed, s.path)
        put: Node | None = None
        if isinstance(n, Name) and n.id in names:
            put = replace(n, id=names[n.id])
        elif isinstance(n, Assign) and set(n.targets) & set(names):
            put = replace(n, targets=tuple(names.get(t, t) for t in n.targets))
        elif isinstance(n, (AugAssign, For)) and n.target in names:
            put = replace(n, target=names[n.target])
        elif isinstance(n, With) and n.name is not None and n.name in names:
            put = replace(n, name=names[n.name])
        renamed = renamed if put is None else edited(renamed, s.path, put)
    return renamed


def _keywords(program: Program, func: str, old: str, new: str) -> Program:
    """Arguments of a function that are given by name follow its parameter."""
    renamed = program
    for s in sites(program):
        if isinstance(s.node, Keyword) and s.node.name == old and isinstance(call := s.parents[-1], Call) and call.func == Name(func):
            renamed = edited(renamed, (*s.path,), replace(child(renamed, s.path), name=new))
    return renamed

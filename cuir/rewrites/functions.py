"""Functions of a program called otherwise, put in the place of a call, or made of an expression. Owns what a body may see where it is put."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..mutation.places import edited, sites
from ..syntax.nodes import Assign, Binary, Call, Expr, ExprStmt, Func, IfExp, Literal, Name, Node, Program, Return, Stmt, Subscript
from ..syntax.walk import assigned, names_read, walk
from .facts import Facts, Site, child
from .names import movable, with_names
from .table import Rewrite, head, kind, text


@kind("rename function")
def rename_function(of: Facts) -> Iterator[Rewrite]:
    """A function of the program, and its calls, by another name. A splice point is found by its name: the transfer no longer sees one that was renamed."""
    for i, func in enumerate(f for f in of.used if isinstance(f, Func)):
        yield _rename(of, func, of.free_name(f"{'az'[i % 2]}_{func.name}"))


def _rename(of: Facts, func: Func, new: str) -> Rewrite:
    def made() -> Program:
        renamed = of.program
        for s in sites(of.program):
            n = child(renamed, s.path)
            if isinstance(n, Func) and n.name == func.name:
                renamed = edited(renamed, s.path, replace(n, name=new))
            elif isinstance(n, Call) and n.func == Name(func.name):
                renamed = edited(renamed, s.path, replace(n, func=Name(new)))
        return renamed

    return Rewrite("rename function", func.span.line, func.name, new, made)


@kind("inline function")
def inline_function(of: Facts) -> Iterator[Rewrite]:
    """`a, b = f(x + 1)` to `p = x + 1`, the body of f with names of its own, and `a, b =` what it returns."""
    for site in of.sites:
        s = site.node
        if not (isinstance(s, (Assign, ExprStmt, Return)) and isinstance(s.value, Call) and of.in_body(site)):
            continue
        func = of.program.funcs().get(s.value.func.id) if isinstance(s.value.func, Name) else None
        if func is None or not _closed(of, func, site) or (isinstance(s, ExprStmt) and not of.pure(func.body[-1].value)):  # type: ignore[union-attr]
            continue
        put = _body(of, func, s)
        if put:
            yield Rewrite("inline function", s.span.line, head(s), text(*put), lambda site=site, put=put: of.put(site, put))  # type: ignore[misc]


def _closed(of: Facts, func: Func, site: Site) -> bool:
    """Whether what a function reads beside its own names means the same where it is called, and each argument is given."""
    call: Call = site.node.value  # type: ignore[attr-defined]
    own = {*func.params, *assigned(func.body)}
    free = {n for s in func.body for n in names_read(s)} - own
    given = [*func.params[: len(call.args)], *(k.name for k in call.keywords)]
    return not free & {*of.locals_of(site), *of.declared()} and func.name not in free and sorted(given) == sorted(func.params)


def _body(of: Facts, func: Func, s: Assign | ExprStmt | Return) -> tuple[Stmt, ...]:
    call = s.value
    assert isinstance(call, Call)
    given = dict(zip(func.params, call.args)) | {k.name: k.value for k in call.keywords}
    bound = assigned(func.body)
    names = {n: of.free_name(f"{n}_of_{func.name}") for n in (*func.params, *bound) if n != "_"}
    body = [with_names(b, names) for b in func.body]
    put: list[Stmt] = []
    for param, value in given.items():
        if isinstance(value, (Name, Literal)) and not bound[param]:
            body = [_with_value(b, names[param], value) for b in body]
        else:
            put.append(Assign((names[param],), value))
    *before, last = body
    assert isinstance(last, Return)
    return (*put, *before) if isinstance(s, ExprStmt) else (*put, *before, replace(s, value=last.value))


def _with_value(stmt: Stmt, name: str, value: Expr) -> Stmt:
    changed = stmt
    for s in sites(stmt):
        if s.node == Name(name):
            changed = edited(changed, s.path, value)
    return changed


@kind("outline function")
def outline_function(of: Facts) -> Iterator[Rewrite]:
    """`x = a * b + c` to `x = f(a, b, c)`, with a function of its own for it."""
    for site in of.expressions:
        e = site.node
        if not (isinstance(e, (Binary, IfExp, Call)) and of.numbers(e) and movable(of, site)):
            continue
        seen = {*of.locals_of(site), *of.declared()} if not isinstance(of.top(site), Func) else {*of.locals_of(site)}
        params = tuple(dict.fromkeys(n.id for n in walk(e) if isinstance(n, Name) and n.id in seen))
        plain = not any(isinstance(n, Subscript) for n in walk(e)) and sum(isinstance(n, (Binary, Call)) for n in walk(e)) > 1
        if plain and 1 <= len(params) <= 4:
            yield _outline(of, site, e, params)


def _outline(of: Facts, site: Site, e: Expr, params: tuple[str, ...]) -> Rewrite:
    func = Func(of.free_name("outlined"), params, (Return(e),))
    call = Call(Name(func.name), tuple(map(Name, params)))

    def made() -> Program:
        changed: Node = of.put(site, call)
        outlined: Program = edited(changed, site.path[:1], (func, child(changed, site.path[:1])))
        return outlined

    return Rewrite("outline function", e.span.line, text(e), f"{text(call)}  # {text(Return(e))}", made)

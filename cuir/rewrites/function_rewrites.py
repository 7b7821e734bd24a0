"""Rewrites of functions: renaming, inlining a call, outlining an expression."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..mutation.mutation_sites import list_sites, replace_node
from ..syntax.nodes import Assign, Binary, Call, Expr, ExprStmt, Func, IfExp, Literal, Name, Node, Program, Return, Stmt, Subscript
from ..syntax.walk import count_assignments, names_read, walk
from .facts import Facts, Site, get_child
from .renaming import is_movable, rename_names
from .rewrites_table import Rewrite, get_head, register_kind, show_text


@register_kind("rename function")
def rename_function(facts: Facts) -> Iterator[Rewrite]:
    """Rename a function of the program, and its calls.

    A splice point is found by its name: the transfer no longer sees a renamed one.
    """
    for i, func in enumerate(f for f in facts.used if isinstance(f, Func)):
        yield _rename(facts, func, facts.make_free_name(f"{'az'[i % 2]}_{func.name}"))


def _rename(facts: Facts, func: Func, new: str) -> Rewrite:
    def make_program() -> Program:
        renamed = facts.program
        for s in list_sites(facts.program):
            n = get_child(renamed, s.path)
            if isinstance(n, Func) and n.name == func.name:
                renamed = replace_node(renamed, s.path, replace(n, name=new))
            elif isinstance(n, Call) and n.func == Name(func.name):
                renamed = replace_node(renamed, s.path, replace(n, func=Name(new)))
        return renamed

    return Rewrite("rename function", func.span.line, func.name, new, make_program)


@register_kind("inline function")
def inline_function(facts: Facts) -> Iterator[Rewrite]:
    """Replace `a, b = f(x + 1)` by `p = x + 1`, the body of f with fresh names, and `a, b = result`."""
    for site in facts.sites:
        s = site.node
        if not (isinstance(s, (Assign, ExprStmt, Return)) and isinstance(s.value, Call) and facts.is_in_body(site)):
            continue
        func = facts.program.funcs().get(s.value.func.id) if isinstance(s.value.func, Name) else None
        if func is None or not _is_closed(facts, func, site) or (isinstance(s, ExprStmt) and not facts.is_pure(func.body[-1].value)):  # type: ignore[union-attr]
            continue
        replacement = _inline_body(facts, func, s)
        if replacement:
            yield Rewrite(
                "inline function",
                s.span.line,
                get_head(s),
                show_text(*replacement),
                lambda site=site, replacement=replacement: facts.replace_at(site, replacement),  # type: ignore[misc]
            )


def _is_closed(facts: Facts, func: Func, site: Site) -> bool:
    """Return whether the free names of a function mean the same at a call, and each argument is passed."""
    call: Call = site.node.value  # type: ignore[attr-defined]
    local_names = {*func.params, *count_assignments(func.body)}
    free = {n for s in func.body for n in names_read(s)} - local_names
    passed = [*func.params[: len(call.args)], *(k.name for k in call.keywords)]
    return (
        not free & {*facts.count_locals(site), *facts.list_declared()} and func.name not in free and sorted(passed) == sorted(func.params)
    )


def _inline_body(facts: Facts, func: Func, s: Assign | ExprStmt | Return) -> tuple[Stmt, ...]:
    call = s.value
    assert isinstance(call, Call)
    arguments = dict(zip(func.params, call.args)) | {k.name: k.value for k in call.keywords}
    bound = count_assignments(func.body)
    names = {n: facts.make_free_name(f"{n}_of_{func.name}") for n in (*func.params, *bound) if n != "_"}
    body = [rename_names(b, names) for b in func.body]
    replacement: list[Stmt] = []
    for param, value in arguments.items():
        if isinstance(value, (Name, Literal)) and not bound[param]:
            body = [_replace_name(b, names[param], value) for b in body]
        else:
            replacement.append(Assign((names[param],), value))
    *before, last = body
    assert isinstance(last, Return)
    return (*replacement, *before) if isinstance(s, ExprStmt) else (*replacement, *before, replace(s, value=last.value))


def _replace_name(stmt: Stmt, name: str, value: Expr) -> Stmt:
    changed = stmt
    for s in list_sites(stmt):
        if s.node == Name(name):
            changed = replace_node(changed, s.path, value)
    return changed


@register_kind("outline function")
def outline_function(facts: Facts) -> Iterator[Rewrite]:
    """Yield `x = a * b + c` -> `x = f(a, b, c)`, with a new function for it."""
    for site in facts.expressions:
        e = site.node
        if not (isinstance(e, (Binary, IfExp, Call)) and facts.is_number(e) and is_movable(facts, site)):
            continue
        visible = (
            {*facts.count_locals(site), *facts.list_declared()}
            if not isinstance(facts.get_definition(site), Func)
            else {*facts.count_locals(site)}
        )
        params = tuple(dict.fromkeys(n.id for n in walk(e) if isinstance(n, Name) and n.id in visible))
        plain = not any(isinstance(n, Subscript) for n in walk(e)) and sum(isinstance(n, (Binary, Call)) for n in walk(e)) > 1
        if plain and 1 <= len(params) <= 4:
            yield _outline(facts, site, e, params)


def _outline(facts: Facts, site: Site, e: Expr, params: tuple[str, ...]) -> Rewrite:
    func = Func(facts.make_free_name("outlined"), params, (Return(e),))
    call = Call(Name(func.name), tuple(map(Name, params)))

    def make_program() -> Program:
        changed: Node = facts.replace_at(site, call)
        outlined: Program = replace_node(changed, site.path[:1], (func, get_child(changed, site.path[:1])))
        return outlined

    return Rewrite("outline function", e.span.line, show_text(e), f"{show_text(call)}  # {show_text(Return(e))}", make_program)

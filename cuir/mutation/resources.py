"""Faults of resources and of memory that is shared: registers, sizes, rings of other lengths, arrays over others (classes 14 and 15)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..ops.expressions import traits
from ..syntax.nodes import Assign, Binary, Call, Keyword, List, Literal, Name, Program, Slice, Subscript, Tuple
from ..syntax.printer import show
from ..syntax.walk import names_read
from .operators import Mutant, made, operator
from .places import Places, Site, root


@operator
def registers(of: Places) -> Iterator[Mutant]:
    for site in of.sites:
        node, call = site.node, site.parents[-1] if site.parents else None
        if isinstance(node, Keyword) and node.name == "registers" and isinstance(call, Call) and traits(call).makes == "workers":
            role = show(call.args[0]) if call.args else ""
            for put, name in (
                (Binary("+", node.value, Literal(4)), "registers not by 8"),
                (Binary("+", node.value, Literal(256)), "too many registers"),
            ):
                yield made(of, 14, name, site, f"{show(put)} registers in role {role}", replace(node, value=put))


@operator
def sizes(of: Places) -> Iterator[Mutant]:
    """Arrays that do not fit, or that are shorter than the ring of barriers that guards them; rings of barriers shorter than their use."""
    for name, call in of.declared.items():
        site = next(s for s in of.sites if s.node is call)
        dims = call.args[1] if name in of.arrays and len(call.args) > 1 else None
        if isinstance(dims, List) and dims.items:
            at = of.at[(*site.path, ("args", 1))]
            first = dims.items[0]
            others = [(Binary("*", first, Literal(16)), 14, "too much shared memory")]
            if of.stages(name) is not None:
                others.append((Binary("-", first, Literal(1)), 15, "a stage too few"))
            for length, fault, word in others:
                put = List((length, *dims.items[1:]))
                yield made(of, fault, word, at, f"{name}: `{show(put)}` instead of `{show(dims)}`", put)
        for k in call.keywords:
            if k.name == "stages":
                less = tuple(replace(x, value=Binary("-", x.value, Literal(1))) if x is k else x for x in call.keywords)
                yield made(of, 15, "a stage too few", site, f"{name}: one stage less than `{show(k.value)}`", replace(call, keywords=less))


@operator
def rings(of: Places) -> Iterator[Mutant]:
    """One use of a ring counts with another number of stages."""
    for site in of.sites:
        node = site.node
        if isinstance(node, Call) and root(node.func) in of.parities and len(node.args) == 2:
            at = of.at[(*site.path, ("args", 1))]
            for op in "+-":
                put = Binary(op, node.args[1], Literal(1))
                yield made(of, 15, "ring of another length", at, f"`{show(node)}` with `{show(put)}` stages", put)


@operator
def over(of: Places) -> Iterator[Mutant]:
    """An array in the bytes of another that is still in use."""
    shapes = {n: of.declared[n].args[1] for n in of.arrays if len(of.declared[n].args) > 1}
    for i, name in enumerate(of.arrays):
        call = of.declared[name]
        site = next(s for s in of.sites if s.node is call)
        if any(k.name == "over" for k in call.keywords):
            continue
        for other in of.arrays[:i]:
            if name not in shapes or other not in shapes or len(shapes[name].items) > len(shapes[other].items):  # type: ignore[union-attr]
                continue
            put = replace(call, keywords=(*call.keywords, Keyword("over", Name(other))))
            yield made(of, 15, "array over another", site, f"{name} over {other}", _declared(of, site, name, put))


def _declared(of: Places, site: Site, name: str, call: Call) -> Program:
    """With another declaration; a tuple of declarations is taken apart, so that one may lie over another of them."""
    statement = of.at[site.path[:2]]
    if not (isinstance(statement.node, Assign) and isinstance(statement.node.value, Tuple)):
        return of.put(site, call)
    pairs = zip(statement.node.targets, statement.node.value.items)
    return of.put(statement, tuple(Assign((t,), call if t == name else v) for t, v in pairs))


@operator
def slices(of: Places) -> Iterator[Mutant]:
    """The part of an array that belongs to one worker of a role: every worker takes the first."""
    for site in of.sites:
        node, owner, role = site.node, site.parents[-1] if site.parents else None, of.role(site)
        if not (isinstance(node, Slice) and node.start is not None and role is not None and role.name and isinstance(owner, Subscript)):
            continue
        if root(owner) in of.arrays and role.name in names_read(node.start) and isinstance(node.stop, Binary):
            yield made(of, 15, "slice of another worker", site, f"`{show(owner)}` for every `{role.name}`", Slice(Literal(0), Binary("+", Literal(0), node.stop.right)))  # fmt: skip

"""Faults of resources and of shared memory: registers, sizes, lengths of rings, aliased arrays.

These are the classes 14 and 15.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..ops.expressions import traits
from ..syntax.nodes import Assign, Binary, Call, Keyword, List, Literal, Name, Program, Slice, Subscript, Tuple
from ..syntax.printer import show
from ..syntax.walk import names_read
from .mutation_sites import Mutant, Places, Site, get_root, make_mutant, operator


@operator
def mutate_registers(places: Places) -> Iterator[Mutant]:
    """Yield register counts that are not allowed."""
    for site in places.sites:
        node, call = site.node, site.parents[-1] if site.parents else None
        if isinstance(node, Keyword) and node.name == "registers" and isinstance(call, Call) and traits(call).makes == "workers":
            role = show(call.args[0]) if call.args else ""
            for replacement, name in (
                (Binary("+", node.value, Literal(4)), "registers not by 8"),
                (Binary("+", node.value, Literal(256)), "too many registers"),
            ):
                yield make_mutant(places, 14, name, site, f"{show(replacement)} registers in role {role}", replace(node, value=replacement))


@operator
def mutate_sizes(places: Places) -> Iterator[Mutant]:
    """Yield arrays that do not fit, or are shorter than the ring of barriers that guards them.

    Also rings of barriers shorter than their use.
    """
    for name, call in places.declared.items():
        site = next(s for s in places.sites if s.node is call)
        dims = call.args[1] if name in places.arrays and len(call.args) > 1 else None
        if isinstance(dims, List) and dims.items:
            at = places.at[(*site.path, ("args", 1))]
            first = dims.items[0]
            variants = [(Binary("*", first, Literal(16)), 14, "too much shared memory")]
            if places.stages(name) is not None:
                variants.append((Binary("-", first, Literal(1)), 15, "a stage too few"))
            for length, fault, word in variants:
                replacement = List((length, *dims.items[1:]))
                yield make_mutant(places, fault, word, at, f"{name}: `{show(replacement)}` instead of `{show(dims)}`", replacement)
        for k in call.keywords:
            if k.name == "stages":
                less = tuple(replace(x, value=Binary("-", x.value, Literal(1))) if x is k else x for x in call.keywords)
                yield make_mutant(
                    places, 15, "a stage too few", site, f"{name}: one stage less than `{show(k.value)}`", replace(call, keywords=less)
                )


@operator
def mutate_rings(places: Places) -> Iterator[Mutant]:
    """Yield uses of a ring that count with another number of stages."""
    for site in places.sites:
        node = site.node
        if isinstance(node, Call) and get_root(node.func) in places.parities and len(node.args) == 2:
            at = places.at[(*site.path, ("args", 1))]
            for op in "+-":
                replacement = Binary(op, node.args[1], Literal(1))
                yield make_mutant(
                    places, 15, "ring of another length", at, f"`{show(node)}` with `{show(replacement)}` stages", replacement
                )


@operator
def mutate_aliases(places: Places) -> Iterator[Mutant]:
    """Yield arrays in the bytes of another that is still in use."""
    shapes = {n: places.declared[n].args[1] for n in places.arrays if len(places.declared[n].args) > 1}
    for i, name in enumerate(places.arrays):
        call = places.declared[name]
        site = next(s for s in places.sites if s.node is call)
        if any(k.name == "over" for k in call.keywords):
            continue
        for earlier in places.arrays[:i]:
            if name not in shapes or earlier not in shapes or len(shapes[name].items) > len(shapes[earlier].items):  # type: ignore[union-attr]
                continue
            replacement = replace(call, keywords=(*call.keywords, Keyword("over", Name(earlier))))
            yield make_mutant(places, 15, "array over another", site, f"{name} over {earlier}", _redeclare(places, site, name, replacement))


def _redeclare(places: Places, site: Site, name: str, call: Call) -> Program:
    """Replace a declaration; a tuple of declarations is split, so that one may alias another of them."""
    statement = places.at[site.path[:2]]
    if not (isinstance(statement.node, Assign) and isinstance(statement.node.value, Tuple)):
        return places.replace_at(site, call)
    pairs = zip(statement.node.targets, statement.node.value.items)
    return places.replace_at(statement, tuple(Assign((t,), call if t == name else v) for t, v in pairs))


@operator
def mutate_slices(places: Places) -> Iterator[Mutant]:
    """Yield slices of the first worker's part of an array in place of each worker's part."""
    for site in places.sites:
        node, owner, role = site.node, site.parents[-1] if site.parents else None, places.role(site)
        if not (isinstance(node, Slice) and node.start is not None and role is not None and role.name and isinstance(owner, Subscript)):
            continue
        if get_root(owner) in places.arrays and role.name in names_read(node.start) and isinstance(node.stop, Binary):
            yield make_mutant(
                places,
                15,
                "slice of another worker",
                site,
                f"`{show(owner)}` for every `{role.name}`",
                Slice(Literal(0), Binary("+", Literal(0), node.stop.right)),
            )

"""Faults of computed values: masks, bounds, factors and heads, wrong tiles, roles that disagree.

These are the classes 11 to 13.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checking.views import get_written_size
from ..ops import OPERATORS
from ..ops.expressions import is_where, traits
from ..syntax.nodes import Assign, Binary, Call, Constant, Expr, For, Func, Literal, Name, Node, Slice, Subscript
from ..syntax.printer import show
from ..syntax.walk import count_assignments, names_read, walk
from .mutation_sites import Mutant, Places, Site, get_root, make_mutant, operator


def _computes(places: Places, site: Site) -> bool:
    """Return whether a place is in a function that computes values.

    Not a ring's stages and parities, and not the order of the tiles.
    """
    func = site.inside(Func)
    return func is not None and func.name not in places.parities and func.name != "tile"


@operator
def mutate_expressions(places: Places) -> Iterator[Mutant]:
    """Yield mutants of expressions in functions of the program.

    Their comparisons, sums, factors, extrema or numbers differ.
    """
    for site in places.sites:
        node = site.node
        if not _computes(places, site) or any(isinstance(p, Slice) for p in site.parents):
            continue
        for replacement, name in _list_variants(node):
            yield make_mutant(places, 11, name, site, f"`{show(node)}` becomes `{show(replacement)}`", replacement)


def _list_variants(node: Node) -> Iterator[tuple[Expr, str]]:
    t = traits(node)
    if isinstance(node, Binary):
        if t.compares:
            yield replace(node, op=t.slip), "comparison"
        elif t.linear:
            yield replace(node, op=t.slip), "sum"
            yield node.left, "term left out"
        elif t.factors or t.divisor:
            yield node.left, "factor left out"
        elif t.decided_by is not None:
            yield node.left, "condition left out"
            yield node.right, "condition left out"
    elif isinstance(node, Call) and t.slip:
        if t.slip not in OPERATORS:
            yield replace(node, func=Name(t.slip)), "other function"
        elif len(node.args) == 2:
            yield Binary(t.slip, *node.args), "rounded down"
    elif isinstance(node, Call) and is_where(node) and len(node.args) == 3:
        yield node.args[1], "condition left out"
        yield replace(node, args=(node.args[0], node.args[2], node.args[1])), "other function"
    elif isinstance(node, Literal) and node.kind in ("int", "float"):
        yield Literal(node.value + 1), "number"


@operator
def mutate_constants(places: Places) -> Iterator[Mutant]:
    """Change floating-point constants by 1 %."""
    for i, item in enumerate(places.program.items):
        if isinstance(item, Constant) and isinstance(item.value, Literal) and item.value.kind == "float":
            replacement = Literal(item.value.value * 1.01)
            yield make_mutant(
                places, 11, "constant", places.at[(("items", i), ("value", None))], f"{item.name} is `{show(replacement)}`", replacement
            )


@operator
def rescale(places: Places) -> Iterator[Mutant]:
    """Omit or repeat `x = x * factor` in a role, or divide by the factor."""
    for site in places.sites:
        node = site.node
        if (
            isinstance(node, Assign)
            and places.role(site)
            and isinstance(node.value, Binary)
            and "y" in traits(node.value).factors
            and node.value.left == Name(node.targets[0])
        ):
            program = places.drop(site)
            if program is not None:
                yield make_mutant(places, 11, "rescale left out", site, f"without `{show(node).strip()}`", program)
            yield make_mutant(places, 11, "rescaled twice", site, f"`{show(node).strip()}` twice", (node, node))
            inverse = replace(node, value=replace(node.value, op="/"))
            yield make_mutant(places, 11, "rescaled by the inverse", site, f"`{show(inverse).strip()}`", inverse)


@operator
def mutate_heads(places: Places) -> Iterator[Mutant]:
    """Change the KV head of a query head, which the kernel computes with HK."""
    for site in places.sites:
        node = site.node
        if isinstance(node, Assign) and places.role(site) and isinstance(node.value, Binary) and "HK" in names_read(node.value):
            at = places.at[(*site.path, ("value", None))]
            for replacement in (node.value.left, Binary("%", node.value.left, Name("HK")), Literal(0)):
                yield make_mutant(places, 11, "other KV head", at, f"`{show(node.value)}` becomes `{show(replacement)}`", replacement)


@operator
def exchange_arguments(places: Places) -> Iterator[Mutant]:
    """Exchange two adjacent names in the call of a function: query and key, batch and head."""
    for site in places.sites:
        node = site.node
        if not (
            isinstance(node, Call) and get_root(node.func) in places.funcs and get_root(node.func) not in places.parities
        ) or site.inside(Slice):
            continue
        for i in range(len(node.args) - 1):
            first, second = node.args[i : i + 2]
            if isinstance(first, Name) and isinstance(second, Name) and first != second:
                replacement = replace(node, args=(*node.args[:i], second, first, *node.args[i + 2 :]))
                yield make_mutant(places, 11, "arguments exchanged", site, f"`{show(replacement)}` instead of `{show(node)}`", replacement)


@operator
def mutate_flags(places: Places) -> Iterator[Mutant]:
    """Make a condition that a function is called with false, true or off by one.

    Such a condition is whether a block needs the mask.
    """
    for site in places.sites:
        node, call = site.node, site.parents[-1] if site.parents else None
        if isinstance(call, Call) and get_root(call.func) in places.funcs and isinstance(node, Binary) and traits(node).compares:
            for replacement in (Literal(False), Literal(True), replace(node, op=traits(node).slip)):
                yield make_mutant(
                    places,
                    11,
                    "condition of a function",
                    site,
                    f"`{show(node)}` becomes `{show(replacement)}` in `{show(call)}`",
                    replacement,
                )


@operator
def keep_stale_values(places: Places) -> Iterator[Mutant]:
    """Keep the previous tile's value of a variable that is set anew for each tile and changes in a loop."""
    for site in places.sites:
        node, loop = site.node, site.inside(For)
        if not (isinstance(node, Assign) and loop is not None and places.role(site) is not None):
            continue
        position = site.path[-1][1]
        later = places.block(site)[position + 1 :] if position is not None else ()
        changed = set(count_assignments(tuple(s for s in later if isinstance(s, For))))
        if changed & set(node.targets):
            program = places.drop(site)
            if program is not None:
                yield make_mutant(places, 12, "not set anew", site, f"without `{show(node).strip()}`", program)


@operator
def shift_boxes(places: Places) -> Iterator[Mutant]:
    """Shift boxes and gathers of tensors by one tile or one element."""
    tensors = {p.name for p in places.kernel.params}
    for site in places.sites:
        node, owner = site.node, site.parents[-1] if site.parents else None
        if not (isinstance(owner, Subscript) and get_root(owner) in tensors):
            continue
        size = get_written_size(node) if isinstance(node, Slice) else None
        if isinstance(node, Slice) and node.start is not None and size is not None:
            start = Binary("+", node.start, size)
            replacement: Node = Slice(start, Binary("+", start, size))
            yield make_mutant(places, 12, "box of the next tile", site, f"`{show(owner)}` one box further", replacement)
        elif any(traits(n).index_of for n in walk(node)) and site.path[-1][0] == "indices":
            yield make_mutant(places, 12, "index one further", site, f"`{show(owner)}` one element further", Binary("+", node, Literal(1)))  # type: ignore[arg-type]


@operator
def mutate_trips(places: Places) -> Iterator[Mutant]:
    """Let one role make another number of trips than the others."""
    for site in places.sites:
        node, loop = site.node, site.parents[-1] if site.parents else None
        if not (isinstance(loop, For) and isinstance(node, Call) and node.func == Name("range") and places.role(site) is not None):
            continue
        role = places.role(site).call.args[0]  # type: ignore[union-attr]
        last = node.args[-1]
        for replacement in (Binary("+", last, Literal(1)), Binary("-", last, Literal(1))):
            yield make_mutant(
                places,
                13,
                "other trip count",
                site,
                f"`{show(replacement)}` trips instead of `{show(last)}` in role {show(role)}",
                replace(node, args=(*node.args[:-1], replacement)),
            )
        if len(node.args) > 1:
            replacement = Binary("+", node.args[0], Literal(1))
            yield make_mutant(
                places,
                13,
                "other trip count",
                site,
                f"from `{show(replacement)}` on in role {show(role)}",
                replace(node, args=(replacement, *node.args[1:])),
            )


@operator
def let_roles_disagree(places: Places) -> Iterator[Mutant]:
    """Yield mutants in which one role unpacks its work item, or counts its blocks, unlike the others."""
    for site in places.sites:
        node = site.node
        if places.role(site) is None:
            continue
        role = show(places.role(site).call.args[0])  # type: ignore[union-attr]
        if (
            isinstance(node, Assign)
            and len(node.targets) > 1
            and isinstance(node.value, Call)
            and get_root(node.value.func) in set(places.funcs) - places.parities
        ):
            for i in range(len(node.targets) - 1):
                t = list(node.targets)
                t[i], t[i + 1] = t[i + 1], t[i]
                replacement = replace(node, targets=tuple(t))
                yield make_mutant(
                    places, 13, "unpacked in another order", site, f"`{show(replacement).strip()}` in role {role}", replacement
                )
        if isinstance(node, Call) and get_root(node.func) in {"tile", "kv_count", "kv_block"} & set(places.funcs):
            for i, arg in enumerate(node.args):
                for changed in (Binary("+", arg, Literal(1)), Literal(0)):
                    at = places.at[(*site.path, ("args", i))]
                    if changed != arg:
                        call = replace(node, args=(*node.args[:i], changed, *node.args[i + 1 :]))
                        yield make_mutant(
                            places, 13, "asked for another", at, f"`{show(node)}` becomes `{show(call)}` in role {role}", changed
                        )

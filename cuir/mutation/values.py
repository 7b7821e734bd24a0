"""Faults of what is computed: masks, bounds, factors and heads, tiles that are stale or others, roles that disagree (classes 11 to 13)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checking.views import written_size
from ..ops import OPERATORS
from ..ops.expressions import is_where, traits
from ..syntax.nodes import Assign, Binary, Call, Constant, Expr, For, Func, Literal, Name, Node, Slice, Subscript
from ..syntax.printer import show
from ..syntax.walk import assigned, names_read, walk
from .operators import Mutant, made, operator
from .places import Places, Site, root


def _computes(of: Places, site: Site) -> bool:
    """Inside of a function that computes values: not a ring's stages and parities, and not the order of the tiles."""
    func = site.inside(Func)
    return func is not None and func.name not in of.parities and func.name != "tile"


@operator
def expressions(of: Places) -> Iterator[Mutant]:
    """Comparisons, sums, factors, extremes and numbers in the functions of the kernel."""
    for site in of.sites:
        node = site.node
        if not _computes(of, site) or any(isinstance(p, Slice) for p in site.parents):
            continue
        for put, name in _others(node):
            yield made(of, 11, name, site, f"`{show(node)}` becomes `{show(put)}`", put)


def _others(node: Node) -> Iterator[tuple[Expr, str]]:
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
def constants(of: Places) -> Iterator[Mutant]:
    for i, item in enumerate(of.program.items):
        if isinstance(item, Constant) and isinstance(item.value, Literal) and item.value.kind == "float":
            put = Literal(item.value.value * 1.01)
            yield made(of, 11, "constant", of.at[(("items", i), ("value", None))], f"{item.name} is `{show(put)}`", put)


@operator
def rescale(of: Places) -> Iterator[Mutant]:
    """`x = x * factor` in a role, left out or once more."""
    for site in of.sites:
        node = site.node
        if (
            isinstance(node, Assign)
            and of.role(site)
            and isinstance(node.value, Binary)
            and "y" in traits(node.value).factors
            and node.value.left == Name(node.targets[0])
        ):
            program = of.dropped(site)
            if program is not None:
                yield made(of, 11, "rescale left out", site, f"without `{show(node).strip()}`", program)
            yield made(of, 11, "rescaled twice", site, f"`{show(node).strip()}` twice", (node, node))
            inverse = replace(node, value=replace(node.value, op="/"))
            yield made(of, 11, "rescaled by the inverse", site, f"`{show(inverse).strip()}`", inverse)


@operator
def heads(of: Places) -> Iterator[Mutant]:
    """The KV head of a query head, which the kernel computes with HK."""
    for site in of.sites:
        node = site.node
        if isinstance(node, Assign) and of.role(site) and isinstance(node.value, Binary) and "HK" in names_read(node.value):
            at = of.at[(*site.path, ("value", None))]
            for put in (node.value.left, Binary("%", node.value.left, Name("HK")), Literal(0)):
                yield made(of, 11, "other KV head", at, f"`{show(node.value)}` becomes `{show(put)}`", put)


@operator
def arguments(of: Places) -> Iterator[Mutant]:
    """A function of the kernel is called with two neighbouring names exchanged: query and key, batch and head."""
    for site in of.sites:
        node = site.node
        if not (isinstance(node, Call) and root(node.func) in of.funcs and root(node.func) not in of.parities) or site.inside(Slice):
            continue
        for i in range(len(node.args) - 1):
            one, other = node.args[i : i + 2]
            if isinstance(one, Name) and isinstance(other, Name) and one != other:
                put = replace(node, args=(*node.args[:i], other, one, *node.args[i + 2 :]))
                yield made(of, 11, "arguments exchanged", site, f"`{show(put)}` instead of `{show(node)}`", put)


@operator
def flags(of: Places) -> Iterator[Mutant]:
    """A condition that a function is called with (whether a block needs the mask): false, true or off by one."""
    for site in of.sites:
        node, call = site.node, site.parents[-1] if site.parents else None
        if isinstance(call, Call) and root(call.func) in of.funcs and isinstance(node, Binary) and traits(node).compares:
            for put in (Literal(False), Literal(True), replace(node, op=traits(node).slip)):
                yield made(of, 11, "condition of a function", site, f"`{show(node)}` becomes `{show(put)}` in `{show(call)}`", put)


@operator
def stale(of: Places) -> Iterator[Mutant]:
    """A value that is set anew for each tile and changes in a loop keeps what the tile before left."""
    for site in of.sites:
        node, loop = site.node, site.inside(For)
        if not (isinstance(node, Assign) and loop is not None and of.role(site) is not None):
            continue
        position = site.path[-1][1]
        behind = of.block(site)[position + 1 :] if position is not None else ()
        changed = set(assigned(tuple(s for s in behind if isinstance(s, For))))
        if changed & set(node.targets):
            program = of.dropped(site)
            if program is not None:
                yield made(of, 12, "not set anew", site, f"without `{show(node).strip()}`", program)


@operator
def other_box(of: Places) -> Iterator[Mutant]:
    """Boxes and gathers of tensors one tile or one element further."""
    tensors = {p.name for p in of.kernel.params}
    for site in of.sites:
        node, owner = site.node, site.parents[-1] if site.parents else None
        if not (isinstance(owner, Subscript) and root(owner) in tensors):
            continue
        size = written_size(node) if isinstance(node, Slice) else None
        if isinstance(node, Slice) and node.start is not None and size is not None:
            start = Binary("+", node.start, size)
            put: Node = Slice(start, Binary("+", start, size))
            yield made(of, 12, "box of the next tile", site, f"`{show(owner)}` one box further", put)
        elif any(traits(n).index_of for n in walk(node)) and site.path[-1][0] == "indices":
            yield made(of, 12, "index one further", site, f"`{show(owner)}` one element further", Binary("+", node, Literal(1)))  # type: ignore[arg-type]


@operator
def trips(of: Places) -> Iterator[Mutant]:
    """One role makes another number of trips than the others."""
    for site in of.sites:
        node, loop = site.node, site.parents[-1] if site.parents else None
        if not (isinstance(loop, For) and isinstance(node, Call) and node.func == Name("range") and of.role(site) is not None):
            continue
        role = of.role(site).call.args[0]  # type: ignore[union-attr]
        last = node.args[-1]
        for put in (Binary("+", last, Literal(1)), Binary("-", last, Literal(1))):
            yield made(of, 13, "other trip count", site, f"`{show(put)}` trips instead of `{show(last)}` in role {show(role)}",
                       replace(node, args=(*node.args[:-1], put)))  # fmt: skip
        if len(node.args) > 1:
            put = Binary("+", node.args[0], Literal(1))
            yield made(of, 13, "other trip count", site, f"from `{show(put)}` on in role {show(role)}", replace(node, args=(put, *node.args[1:])))  # fmt: skip


@operator
def disagreement(of: Places) -> Iterator[Mutant]:
    """One role unpacks the unit of work, or asks for its blocks, otherwise than the others."""
    for site in of.sites:
        node = site.node
        if of.role(site) is None:
            continue
        role = show(of.role(site).call.args[0])  # type: ignore[union-attr]
        if (
            isinstance(node, Assign)
            and len(node.targets) > 1
            and isinstance(node.value, Call)
            and root(node.value.func) in set(of.funcs) - of.parities
        ):
            for i in range(len(node.targets) - 1):
                t = list(node.targets)
                t[i], t[i + 1] = t[i + 1], t[i]
                put = replace(node, targets=tuple(t))
                yield made(of, 13, "unpacked in another order", site, f"`{show(put).strip()}` in role {role}", put)
        if isinstance(node, Call) and root(node.func) in {"tile", "kv_count", "kv_block"} & set(of.funcs):
            for i, arg in enumerate(node.args):
                for other in (Binary("+", arg, Literal(1)), Literal(0)):
                    at = of.at[(*site.path, ("args", i))]
                    if other != arg:
                        call = replace(node, args=(*node.args[:i], other, *node.args[i + 1 :]))
                        yield made(of, 13, "asked for another", at, f"`{show(node)}` becomes `{show(call)}` in role {role}", other)

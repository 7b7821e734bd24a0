"""Faults of synchronisation: waits, arrivals, fences, bytes, parities and stages.

They are missing, misplaced or wrong (classes 1 to 10).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..ops import Op
from ..ops.base import PRODUCTS
from ..ops.build_calls import arrival
from ..ops.expressions import traits
from ..syntax.nodes import Assign, Attribute, AugAssign, Binary, Call, Expr, ExprStmt, For, If, Literal, Name, Return, Str, Subscript
from ..syntax.printer import show
from ..syntax.walk import walk
from .mutation_sites import Mutant, Places, get_root, make_mutant, operator

UNSEEN = "the statements that it passes compute in registers alone: no other worker and no engine can tell"
ONCE_MORE = "{} again at once: nothing is left to wait for, and in between the worker did nothing that others see"


def classify_fault(places: Places, call: Call, op: Op) -> int:
    """Return the class that omitting or misplacing a primitive's call belongs to."""
    e = op.effects
    if e.waits and not op.traits.hardware:
        return 1 if get_root(call.func) in places.filled else 2
    if e.drains:
        return {PRODUCTS: 4, "cp_async": 1, "bulk_store": 15}[e.drains]
    if e.arrives:
        return 7 if e.expects else 10 if e.waits else 9
    if e.fences:
        return 5
    return 1 if e.commits else 15 if e.joins else 9 if e.completes else 12


@operator
def drop(places: Places) -> Iterator[Mutant]:
    """Yield programs without one call of a primitive."""
    for site, call, op in places.calls:
        program = places.drop(site) if isinstance(site.node, ExprStmt) else None
        if program is not None:
            yield make_mutant(
                places, classify_fault(places, call, op), f"drop {op.written.rpartition('.')[2]}", site, f"without `{show(call)}`", program
            )


@operator
def duplicate(places: Places) -> Iterator[Mutant]:
    """Yield programs that repeat a call of a primitive."""
    for site, call, op in places.calls:
        e = op.effects
        if not isinstance(site.node, ExprStmt) or e == type(e)():
            continue
        idempotent = (e.waits and not e.arrives) or e.drains or e.fences
        fault = (
            classify_fault(places, call, op)
            if idempotent
            else 6
            if e.releases and not op.traits.hardware
            else 7
            if e.completes or e.arrives
            else 9
        )
        if e.accesses and not e.completes:
            continue  # a repeated store only costs time
        why = ONCE_MORE.format(f"`{show(call)}`") if idempotent else None
        yield make_mutant(
            places, fault, f"repeat {op.written.rpartition('.')[2]}", site, f"`{show(call)}` twice", (site.node, site.node), why
        )


@operator
def swap(places: Places) -> Iterator[Mutant]:
    """Yield mutants that exchange a synchronising statement with the next statement, or with the previous."""
    for site, call, op in places.calls:
        e, body, at = op.effects, places.block(site), site.path[-1][1]
        if at is None or not isinstance(site.node, ExprStmt) or not (e.waits or e.arrives or e.drains or e.fences):
            continue
        word, fault = op.written.rpartition(".")[2], classify_fault(places, call, op)
        for to, how in ((at + 1, "behind"), (at - 1, "before")):
            if not 0 <= to < len(body) or isinstance(body[to], Return):
                continue
            late = how == "behind"
            kind = (9 if late else 3) if e.releases else (fault if late or e.fences else 10)
            neighbour = body[to]
            why = None
            if e.expects and late and isinstance(neighbour, ExprStmt) and isinstance(neighbour.value, Call):
                copied = places.op(neighbour.value)
                if copied is not None and copied.effects.completes:
                    why = "bytes may land before the expect that announces them; the phase still lacks its arrival"
            if places.is_unobservable(call, (neighbour,)) and not (late and e.drains == PRODUCTS):
                why = UNSEEN
            yield make_mutant(
                places,
                kind,
                f"{'late' if late else 'early'} {word}",
                site,
                f"`{show(call)}` {how} `{_get_first_line(neighbour)}`",
                places.move(site, to),
                why,
            )


def _get_first_line(node: object) -> str:
    return show(node).strip().split("\n")[0]  # type: ignore[arg-type]


@operator
def release_early(places: Places) -> Iterator[Mutant]:
    """Move an arrival before the wait for the product that reads what it releases.

    Or to the start of its block.
    """
    for site, call, op in places.calls:
        at = site.path[-1][1]
        if at is None or not op.effects.releases:
            continue
        before = places.block(site)[:at]
        waits = [i for i, s in enumerate(before) if isinstance(s, ExprStmt) and isinstance(s.value, Call) and _drains(places, s.value)]
        for to, how in ((waits[-1] if waits else None, "before the wait for the product"), (0, "at the start of its block")):
            if to is not None and to < at:
                why = UNSEEN if places.is_unobservable(call, before[to:]) else None
                yield make_mutant(places, 3, "release early", site, f"`{show(call)}` {how}", places.move(site, to), why)


def _drains(places: Places, call: Call) -> bool:
    op = places.op(call)
    return op is not None and op.effects.drains == "wgmma"


def _issues(places: Places, call: Call) -> bool:
    op = places.op(call)
    return op is not None and op.effects.group == "wgmma"


@operator
def wait_for_another_product(places: Places) -> Iterator[Mutant]:
    """Let mma_wait wait for another value that is in flight in the role."""
    products = [(s, op) for s, _, op in places.calls if op.effects.group == "wgmma" and isinstance(s.node, Assign)]
    for site, call, op in places.calls:
        at = site.path[-1][1]
        if op.effects.drains != "wgmma" or at is None:
            continue
        names = {s.node.targets[0] for s, _ in products if places.role(s) is places.role(site)}  # type: ignore[attr-defined]
        issued = [
            s.targets[0]
            for s in places.block(site)[:at]
            if isinstance(s, Assign) and isinstance(s.value, Call) and _issues(places, s.value)
        ]
        for name in sorted(names - {get_root(a) for a in call.args}):
            why = None
            if issued and issued[-1] == name and all(get_root(a) in issued for a in call.args):
                why = f"`{name}` was issued last in this block, and a wait retires all products issued before"
            replacement = ExprStmt(replace(call, args=(Name(name),)))
            yield make_mutant(places, 4, "wait for another product", site, f"`{show(call)}` waits for `{name}`", replacement, why)


@operator
def redirect(places: Places) -> Iterator[Mutant]:
    """Redirect a call to another barrier of the same form, or to another stage of the ring."""
    for site, call, op in places.calls:
        if isinstance(call.func, Attribute):
            barrier, path = call.func.value, (*site.path, ("value", None), ("func", None), ("value", None))
        elif op.effects.completes and len(call.args) > 2:
            barrier, path = call.args[2], (*site.path, ("value", None), ("args", 2))
        else:
            continue
        name, fault = get_root(barrier), classify_fault(places, call, op)
        fault, word = 7 if op.effects.completes else fault, op.written.rpartition(".")[2]
        for neighbour, kind in places.barriers.items():
            if (
                name is None
                or neighbour == name
                or kind != places.barriers.get(name)
                or (places.stages(neighbour) is None) != (places.stages(name) is None)
            ):
                continue
            replacement = replace(barrier, value=Name(neighbour)) if isinstance(barrier, Subscript) else Name(neighbour)
            yield make_mutant(places, fault, f"{word} on another barrier", places.at[path], f"`{show(call)}` on `{neighbour}`", replacement)
        for stage in _list_stages(places, barrier):
            fault = 3 if fault == 9 else fault
            yield make_mutant(places, fault, f"{word} on another stage", places.at[path], f"`{show(call)}` on `{show(stage)}`", stage)


def _list_stages(places: Places, e: Expr) -> Iterator[Subscript]:
    """Yield the same ring at stage 0, and at the next stage."""
    count = places.stages(get_root(e) or "")
    if isinstance(e, Subscript) and count is not None and e.indices and not isinstance(e.indices[0], Literal):
        for index in (Literal(0), Binary("%", Binary("+", e.indices[0], Literal(1)), count)):  # type: ignore[arg-type]
            yield replace(e, indices=(index, *e.indices[1:]))


@operator
def move_array_stage(places: Places) -> Iterator[Mutant]:
    """Let copies and products access another stage of the array."""
    for site, call, op in places.calls:
        for a, arg in enumerate(call.args):
            inner, path = arg, (*site.path, ("value", None), ("args", a))
            while isinstance(inner, Attribute):
                inner, path = inner.value, (*path, ("value", None))
            if op.effects.accesses and get_root(inner) in places.arrays:
                for replacement in _list_stages(places, inner):
                    yield make_mutant(
                        places, 12, "array at another stage", places.at[path], f"`{show(arg)}` becomes `{show(replacement)}`", replacement
                    )


@operator
def mutate_parity(places: Places) -> Iterator[Mutant]:
    """Yield waits with the opposite parity, or a fixed one."""
    for site, call, op in places.calls:
        if not (op.effects.waits and call.args):
            continue
        old, at = call.args[0], places.at[(*site.path, ("value", None), ("args", 0))]
        turned = old.left if isinstance(old, Binary) and traits(old).involutive else Binary("^", old, Literal(1))
        for replacement, name in ((turned, "parity turned"), (Literal(0), "parity fixed"), (Literal(1), "parity fixed")):
            yield make_mutant(places, 8, name, at, f"`{show(call)}` with parity `{show(replacement)}`", replacement)


@operator
def mutate_phase(places: Places) -> Iterator[Mutant]:
    """Yield parities without `% 2`, and counters of a ring's uses that stand still or run twice as fast."""
    for site in places.sites:
        node, func = site.node, site.parents[1] if len(site.parents) > 1 else None
        if isinstance(node, Binary) and traits(node).remainder and node.right == Literal(2):
            if getattr(func, "name", None) in places.parities or any(
                isinstance(p, Call) and isinstance(p.func, Attribute) for p in site.parents
            ):
                yield make_mutant(places, 8, "phase without % 2", site, f"`{show(node)}` becomes `{show(node.left)}`", node.left)
        elif (
            isinstance(node, Binary) and (traits(node).rounds or traits(node).remainder) and getattr(func, "name", None) in places.parities
        ):
            yield make_mutant(places, 8, "stage or phase of a ring", site, f"`{show(node)}` becomes `{show(node.left)}`", node.left)
        elif isinstance(node, AugAssign) and places.role(site) is not None:
            program = places.drop(site)
            if program is not None:
                yield make_mutant(places, 8, "use not counted", site, f"without `{show(node).strip()}`", program)
            twice = replace(node, value=Binary("*", node.value, Literal(2)))
            yield make_mutant(places, 8, "use counted twice", site, f"`{show(node).strip()}` by twice as much", twice)


@operator
def mutate_counts(places: Places) -> Iterator[Mutant]:
    """Yield barriers with one arrival more or less."""
    for site in places.sites:
        node = site.node
        if not (isinstance(node, Call) and traits(node).makes == "barrier" and node.args):
            continue
        names = [n for n, c in places.declared.items() if c is node]
        fault = 9 if traits(node).hardware else 6
        at, n = places.at[(*site.path, ("args", 0))], node.args[0]
        yield make_mutant(
            places, fault, "one arrival more", at, f"{', '.join(names)}: `{show(n)}` and one more", Binary("+", n, Literal(1))
        )
        if n != Literal(1):
            fault = 2 if fault == 6 and not set(names) & places.filled else fault
            yield make_mutant(
                places, fault, "one arrival less", at, f"{', '.join(names)}: one less than `{show(n)}`", Binary("-", n, Literal(1))
            )


@operator
def move_to_end(places: Places) -> Iterator[Mutant]:
    """Move a wait or a fence to the end of its block, after all that it should protect."""
    for site, call, op in places.calls:
        e, body, at = op.effects, places.block(site), site.path[-1][1]
        last = len(body) - 1 - isinstance(body[-1], Return)
        if at is None or not isinstance(site.node, ExprStmt) or not (e.waits or e.drains or e.fences) or at + 1 >= last:
            continue
        why = UNSEEN if places.is_unobservable(call, body[at + 1 : last + 1]) and e.drains != "wgmma" else None
        word = op.written.rpartition(".")[2]
        yield make_mutant(
            places,
            classify_fault(places, call, op),
            f"{word} at the end",
            site,
            f"`{show(call)}` at the end of its block",
            places.move(site, last),
            why,
        )


@operator
def hide_by_timing(places: Places) -> Iterator[Mutant]:
    """Omit waits in one worker of several, or after the first trip.

    What they wait for has mostly happened by then.
    """
    for site, call, op in places.calls:
        e, role, loop = op.effects, places.role(site), site.inside(For)
        if not (e.waits or e.fences or e.drains == "bulk_store") or e.arrives or not isinstance(site.node, ExprStmt) or role is None:
            continue
        fault = 5 if e.fences else 10
        if role.name:
            for condition in (Binary("==", Name(role.name), Literal(0)), Binary(">", Name(role.name), Literal(0))):
                description = f"`{show(call)}` only if `{show(condition)}`"
                yield make_mutant(
                    places,
                    fault,
                    "some workers wait" if fault == 10 else "some workers fence",
                    site,
                    description,
                    If(condition, (site.node,)),
                )
        if isinstance(loop, For) and isinstance(loop.iter, Call) and loop.iter.func == Name("range"):
            first = loop.iter.args[0] if len(loop.iter.args) > 1 else Literal(0)
            condition = Binary("==", Name(loop.target), first)
            yield make_mutant(
                places, fault, "wait in the first trip", site, f"`{show(call)}` only if `{show(condition)}`", If(condition, (site.node,))
            )


@operator
def restrict_arrivals(places: Places) -> Iterator[Mutant]:
    """Yield arrivals by one worker alone, fences of shared memory alone, and calls for other CTAs."""
    for site, call, op in places.calls:
        role = places.role(site)
        if op.effects.arrives and isinstance(site.node, ExprStmt) and role is not None and role.name:
            replacement = If(Binary("==", Name(role.name), Literal(0)), (site.node,))
            yield make_mutant(places, 6, "one worker arrives", site, f"`{show(call)}` by worker 0 of `{role.name}` alone", replacement)
        for k in call.keywords:
            if k.name == "tensors" and op.effects.fences:
                restricted = ExprStmt(replace(call, keywords=tuple(x for x in call.keywords if x is not k)))
                yield make_mutant(places, 5, "fence of shared memory alone", site, f"`{show(call)}` without `tensors`", restricted)
            if k.name == "cluster":
                restricted = ExprStmt(replace(call, keywords=tuple(x for x in call.keywords if x is not k)))
                yield make_mutant(
                    places, 6 if op.effects.arrives else 9, "own CTA alone", site, f"`{show(call)}` without `cluster`", restricted
                )
                if isinstance(k.value, Str):
                    for value in (Literal(True), Str("y" if k.value.value == "x" else "x")):
                        redirected = ExprStmt(
                            replace(call, keywords=tuple(replace(x, value=value) if x is k else x for x in call.keywords))
                        )
                        yield make_mutant(
                            places,
                            6 if op.effects.arrives else 9,
                            "other CTAs",
                            site,
                            f"`{show(call)}` with cluster={show(value)}",
                            redirected,
                        )


@operator
def mutate_transaction_bytes(places: Places) -> Iterator[Mutant]:
    """Yield wrong byte counts, and fills without their copy."""
    for site, call, op in places.calls:
        if not op.effects.expects or not call.args or not isinstance(call.func, Attribute):
            continue
        e, at = call.args[0], places.at[(*site.path, ("value", None), ("args", 0))]
        for replacement in (Binary("//", e, Literal(2)), Binary("*", e, Literal(2)), Binary("-", e, Literal(16)), Literal(0)):
            yield make_mutant(places, 7, "wrong bytes", at, f"`{show(e)}` becomes `{show(replacement)}`", replacement)
        yield make_mutant(places, 7, "arrive instead of expect", site, f"`{show(call)}` only arrives", ExprStmt(arrival(call.func.value)))
        body, i = places.block(site), site.path[-1][1]
        following = body[i + 1] if i is not None and i + 1 < len(body) else None
        copied = places.op(following.value) if isinstance(following, ExprStmt) and isinstance(following.value, Call) else None
        if i is not None and following is not None and copied is not None and copied.effects.completes:
            arrives = ExprStmt(arrival(call.func.value))
            block = places.replace_block(site, (*body[:i], arrives, *body[i + 2 :]))
            yield make_mutant(
                places, 12, "filled without a copy", site, f"only an arrival instead of `{_get_first_line(following)}`", block
            )


@operator
def mutate_guards(places: Places) -> Iterator[Mutant]:
    """Omit conditions around waits and arrivals or shift them by one; move arrivals out of them."""
    for site in places.sites:
        node = site.node
        if not isinstance(node, If) or places.role(site) is None or not _synchronises(places, node):
            continue
        head = f"if {show(node.cond)}"
        of_cond = traits(node.cond)
        if isinstance(node.cond, Binary) and of_cond.compares and not of_cond.commutative:
            replacement = replace(node, cond=replace(node.cond, op=of_cond.slip))
            yield make_mutant(places, 9, "condition off by one", site, f"`{head}` becomes `if {show(replacement.cond)}`", replacement)
        yield make_mutant(places, 9, "condition left out", site, f"without `{head}`", node.body)
        last = node.body[-1]
        for i, stmt in enumerate(node.body):
            inner = places.at[(*site.path, ("body", i))]
            if len(node.body) > 1 and isinstance(stmt, ExprStmt) and isinstance(stmt.value, Call):
                op = places.op(stmt.value)
                if op is not None and op.effects.arrives:
                    rest = replace(node, body=tuple(s for s in node.body if s is not stmt))
                    how = f"`{show(stmt.value)}` also where `{head}` does not hold" + ("" if stmt is last else ", later")
                    yield make_mutant(places, 9, "arrival outside of its condition", inner, how, places.replace_at(site, (rest, stmt)))


def _synchronises(places: Places, node: If) -> bool:
    return any(
        isinstance(n, Call) and (op := places.op(n)) is not None and bool(op.effects.waits or op.effects.arrives) for n in walk(node)
    )

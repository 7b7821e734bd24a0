"""Faults of synchronisation: waits, arrivals, fences, bytes, parities and stages that are missing, misplaced or wrong (classes 1 to 10)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..ops import Op
from ..ops.base import PRODUCTS
from ..ops.build import arrival
from ..ops.expressions import traits
from ..syntax.nodes import Assign, Attribute, AugAssign, Binary, Call, Expr, ExprStmt, For, If, Literal, Name, Return, Str, Subscript
from ..syntax.printer import show
from ..syntax.walk import walk
from .operators import Mutant, made, operator
from .places import Places, root

UNSEEN = "the statements that it passes compute in registers alone: no other worker and no engine can tell"
ONCE_MORE = "{} again at once: nothing is left to wait for, and in between the worker did nothing that others see"


def fault_of(of: Places, call: Call, op: Op) -> int:
    """The class that leaving out or misplacing a primitive's call belongs to."""
    e = op.effects
    if e.waits and not op.traits.hardware:
        return 1 if root(call.func) in of.filled else 2
    if e.drains:
        return {PRODUCTS: 4, "cp_async": 1, "bulk_store": 15}[e.drains]
    if e.arrives:
        return 7 if e.expects else 10 if e.waits else 9
    if e.fences:
        return 5
    return 1 if e.commits else 15 if e.joins else 9 if e.completes else 12


@operator
def drop(of: Places) -> Iterator[Mutant]:
    for site, call, op in of.calls:
        program = of.dropped(site) if isinstance(site.node, ExprStmt) else None
        if program is not None:
            yield made(of, fault_of(of, call, op), f"drop {op.written.rpartition('.')[2]}", site, f"without `{show(call)}`", program)


@operator
def duplicate(of: Places) -> Iterator[Mutant]:
    for site, call, op in of.calls:
        e = op.effects
        if not isinstance(site.node, ExprStmt) or e == type(e)():
            continue
        idempotent = (e.waits and not e.arrives) or e.drains or e.fences
        fault = (
            fault_of(of, call, op) if idempotent else 6 if e.releases and not op.traits.hardware else 7 if e.completes or e.arrives else 9
        )
        if e.accesses and not e.completes:
            continue  # the same store twice is a matter of speed
        why = ONCE_MORE.format(f"`{show(call)}`") if idempotent else None
        yield made(of, fault, f"repeat {op.written.rpartition('.')[2]}", site, f"`{show(call)}` twice", (site.node, site.node), why)


@operator
def swap(of: Places) -> Iterator[Mutant]:
    """A statement that synchronises changes places with the one behind it, and with the one before it."""
    for site, call, op in of.calls:
        e, body, at = op.effects, of.block(site), site.path[-1][1]
        if at is None or not isinstance(site.node, ExprStmt) or not (e.waits or e.arrives or e.drains or e.fences):
            continue
        word, fault = op.written.rpartition(".")[2], fault_of(of, call, op)
        for to, how in ((at + 1, "behind"), (at - 1, "before")):
            if not 0 <= to < len(body) or isinstance(body[to], Return):
                continue
            late = how == "behind"
            kind = (9 if late else 3) if e.releases else (fault if late or e.fences else 10)
            other = body[to]
            why = None
            if e.expects and late and isinstance(other, ExprStmt) and isinstance(other.value, Call):
                copied = of.op(other.value)
                if copied is not None and copied.effects.completes:
                    why = "bytes may land before the expect that announces them; the phase still lacks its arrival"
            if of.passes_unseen(call, (other,)) and not (late and e.drains == PRODUCTS):
                why = UNSEEN
            yield made(of, kind, f"{'late' if late else 'early'} {word}", site, f"`{show(call)}` {how} `{_first_line(other)}`", of.moved(site, to), why)  # fmt: skip


def _first_line(node: object) -> str:
    return show(node).strip().split("\n")[0]  # type: ignore[arg-type]


@operator
def release_early(of: Places) -> Iterator[Mutant]:
    """An arrival, before the wait for the product that reads what it releases; or at the start of its block."""
    for site, call, op in of.calls:
        at = site.path[-1][1]
        if at is None or not op.effects.releases:
            continue
        before = of.block(site)[:at]
        waits = [i for i, s in enumerate(before) if isinstance(s, ExprStmt) and isinstance(s.value, Call) and _drains(of, s.value)]
        for to, how in ((waits[-1] if waits else None, "before the wait for the product"), (0, "at the start of its block")):
            if to is not None and to < at:
                why = UNSEEN if of.passes_unseen(call, before[to:]) else None
                yield made(of, 3, "release early", site, f"`{show(call)}` {how}", of.moved(site, to), why)


def _drains(of: Places, call: Call) -> bool:
    op = of.op(call)
    return op is not None and op.effects.drains == "wgmma"


def _issues(of: Places, call: Call) -> bool:
    op = of.op(call)
    return op is not None and op.effects.group == "wgmma"


@operator
def other_product(of: Places) -> Iterator[Mutant]:
    """mma_wait of another value that is in flight somewhere in the role."""
    products = [(s, op) for s, _, op in of.calls if op.effects.group == "wgmma" and isinstance(s.node, Assign)]
    for site, call, op in of.calls:
        at = site.path[-1][1]
        if op.effects.drains != "wgmma" or at is None:
            continue
        names = {s.node.targets[0] for s, _ in products if of.role(s) is of.role(site)}  # type: ignore[attr-defined]
        issued = [s.targets[0] for s in of.block(site)[:at] if isinstance(s, Assign) and isinstance(s.value, Call) and _issues(of, s.value)]
        for name in sorted(names - {root(a) for a in call.args}):
            why = None
            if issued and issued[-1] == name and all(root(a) in issued for a in call.args):
                why = f"`{name}` was issued last in this block, and a wait retires all products issued before"
            put = ExprStmt(replace(call, args=(Name(name),)))
            yield made(of, 4, "wait for another product", site, f"`{show(call)}` waits for `{name}`", put, why)


@operator
def redirect(of: Places) -> Iterator[Mutant]:
    """Another barrier of the same form; another stage of the ring."""
    for site, call, op in of.calls:
        if isinstance(call.func, Attribute):
            barrier, path = call.func.value, (*site.path, ("value", None), ("func", None), ("value", None))
        elif op.effects.completes and len(call.args) > 2:
            barrier, path = call.args[2], (*site.path, ("value", None), ("args", 2))
        else:
            continue
        name, fault = root(barrier), fault_of(of, call, op)
        fault, word = 7 if op.effects.completes else fault, op.written.rpartition(".")[2]
        for other, kind in of.barriers.items():
            if name is None or other == name or kind != of.barriers.get(name) or (of.stages(other) is None) != (of.stages(name) is None):
                continue
            put = replace(barrier, value=Name(other)) if isinstance(barrier, Subscript) else Name(other)
            yield made(of, fault, f"{word} on another barrier", of.at[path], f"`{show(call)}` on `{other}`", put)
        for stage in _stages(of, barrier):
            fault = 3 if fault == 9 else fault
            yield made(of, fault, f"{word} on another stage", of.at[path], f"`{show(call)}` on `{show(stage)}`", stage)


def _stages(of: Places, e: Expr) -> Iterator[Subscript]:
    """The same ring at stage 0, and at the next stage."""
    count = of.stages(root(e) or "")
    if isinstance(e, Subscript) and count is not None and e.indices and not isinstance(e.indices[0], Literal):
        for index in (Literal(0), Binary("%", Binary("+", e.indices[0], Literal(1)), count)):  # type: ignore[arg-type]
            yield replace(e, indices=(index, *e.indices[1:]))


@operator
def other_stage_of_array(of: Places) -> Iterator[Mutant]:
    """Copies and products that touch another stage of the array than the one they may."""
    for site, call, op in of.calls:
        for a, arg in enumerate(call.args):
            inner, path = arg, (*site.path, ("value", None), ("args", a))
            while isinstance(inner, Attribute):
                inner, path = inner.value, (*path, ("value", None))
            if op.effects.accesses and root(inner) in of.arrays:
                for put in _stages(of, inner):
                    yield made(of, 12, "array at another stage", of.at[path], f"`{show(arg)}` becomes `{show(put)}`", put)


@operator
def parity(of: Places) -> Iterator[Mutant]:
    for site, call, op in of.calls:
        if not (op.effects.waits and call.args):
            continue
        old, at = call.args[0], of.at[(*site.path, ("value", None), ("args", 0))]
        turned = old.left if isinstance(old, Binary) and traits(old).involutive else Binary("^", old, Literal(1))
        for put, name in ((turned, "parity turned"), (Literal(0), "parity fixed"), (Literal(1), "parity fixed")):
            yield made(of, 8, name, at, f"`{show(call)}` with parity `{show(put)}`", put)


@operator
def phase(of: Places) -> Iterator[Mutant]:
    """Parities without `% 2`; counters of a ring's uses that stand still or run twice as fast."""
    for site in of.sites:
        node, func = site.node, site.parents[1] if len(site.parents) > 1 else None
        if isinstance(node, Binary) and traits(node).remainder and node.right == Literal(2):
            if getattr(func, "name", None) in of.parities or any(
                isinstance(p, Call) and isinstance(p.func, Attribute) for p in site.parents
            ):
                yield made(of, 8, "phase without % 2", site, f"`{show(node)}` becomes `{show(node.left)}`", node.left)
        elif isinstance(node, Binary) and (traits(node).rounds or traits(node).remainder) and getattr(func, "name", None) in of.parities:
            yield made(of, 8, "stage or phase of a ring", site, f"`{show(node)}` becomes `{show(node.left)}`", node.left)
        elif isinstance(node, AugAssign) and of.role(site) is not None:
            program = of.dropped(site)
            if program is not None:
                yield made(of, 8, "use not counted", site, f"without `{show(node).strip()}`", program)
            twice = replace(node, value=Binary("*", node.value, Literal(2)))
            yield made(of, 8, "use counted twice", site, f"`{show(node).strip()}` by twice as much", twice)


@operator
def counts(of: Places) -> Iterator[Mutant]:
    for site in of.sites:
        node = site.node
        if not (isinstance(node, Call) and traits(node).makes == "barrier" and node.args):
            continue
        names = [n for n, c in of.declared.items() if c is node]
        fault = 9 if traits(node).hardware else 6
        at, n = of.at[(*site.path, ("args", 0))], node.args[0]
        yield made(of, fault, "one arrival more", at, f"{', '.join(names)}: `{show(n)}` and one more", Binary("+", n, Literal(1)))
        if n != Literal(1):
            fault = 2 if fault == 6 and not set(names) & of.filled else fault
            yield made(of, fault, "one arrival less", at, f"{', '.join(names)}: one less than `{show(n)}`", Binary("-", n, Literal(1)))


@operator
def far(of: Places) -> Iterator[Mutant]:
    """A wait or a fence at the end of its block, behind all that it should protect."""
    for site, call, op in of.calls:
        e, body, at = op.effects, of.block(site), site.path[-1][1]
        last = len(body) - 1 - isinstance(body[-1], Return)
        if at is None or not isinstance(site.node, ExprStmt) or not (e.waits or e.drains or e.fences) or at + 1 >= last:
            continue
        why = UNSEEN if of.passes_unseen(call, body[at + 1 : last + 1]) and e.drains != "wgmma" else None
        word = op.written.rpartition(".")[2]
        yield made(
            of,
            fault_of(of, call, op),
            f"{word} at the end",
            site,
            f"`{show(call)}` at the end of its block",
            of.moved(site, last),
            why,
        )


@operator
def hidden_by_timing(of: Places) -> Iterator[Mutant]:
    """Waits that one worker of several leaves out, or all after the first trip: what they wait for has mostly happened by then."""
    for site, call, op in of.calls:
        e, role, loop = op.effects, of.role(site), site.inside(For)
        if not (e.waits or e.fences or e.drains == "bulk_store") or e.arrives or not isinstance(site.node, ExprStmt) or role is None:
            continue
        fault = 5 if e.fences else 10
        if role.name:
            for condition in (Binary("==", Name(role.name), Literal(0)), Binary(">", Name(role.name), Literal(0))):
                what = f"`{show(call)}` only if `{show(condition)}`"
                yield made(of, fault, "some workers wait" if fault == 10 else "some workers fence", site, what, If(condition, (site.node,)))
        if isinstance(loop, For) and isinstance(loop.iter, Call) and loop.iter.func == Name("range"):
            first = loop.iter.args[0] if len(loop.iter.args) > 1 else Literal(0)
            condition = Binary("==", Name(loop.target), first)
            yield made(
                of, fault, "wait in the first trip", site, f"`{show(call)}` only if `{show(condition)}`", If(condition, (site.node,))
            )


@operator
def one_worker_arrives(of: Places) -> Iterator[Mutant]:
    for site, call, op in of.calls:
        role = of.role(site)
        if op.effects.arrives and isinstance(site.node, ExprStmt) and role is not None and role.name:
            put = If(Binary("==", Name(role.name), Literal(0)), (site.node,))
            yield made(of, 6, "one worker arrives", site, f"`{show(call)}` by worker 0 of `{role.name}` alone", put)
        for k in call.keywords:
            if k.name == "tensors" and op.effects.fences:
                alone = ExprStmt(replace(call, keywords=tuple(x for x in call.keywords if x is not k)))
                yield made(of, 5, "fence of shared memory alone", site, f"`{show(call)}` without `tensors`", alone)
            if k.name == "cluster":
                alone = ExprStmt(replace(call, keywords=tuple(x for x in call.keywords if x is not k)))
                yield made(of, 6 if op.effects.arrives else 9, "own CTA alone", site, f"`{show(call)}` without `cluster`", alone)
                if isinstance(k.value, Str):
                    for value in (Literal(True), Str("y" if k.value.value == "x" else "x")):
                        others = ExprStmt(replace(call, keywords=tuple(replace(x, value=value) if x is k else x for x in call.keywords)))
                        yield made(
                            of, 6 if op.effects.arrives else 9, "other CTAs", site, f"`{show(call)}` with cluster={show(value)}", others
                        )


@operator
def transaction_bytes(of: Places) -> Iterator[Mutant]:
    for site, call, op in of.calls:
        if not op.effects.expects or not call.args or not isinstance(call.func, Attribute):
            continue
        e, at = call.args[0], of.at[(*site.path, ("value", None), ("args", 0))]
        for put in (Binary("//", e, Literal(2)), Binary("*", e, Literal(2)), Binary("-", e, Literal(16)), Literal(0)):
            yield made(of, 7, "wrong bytes", at, f"`{show(e)}` becomes `{show(put)}`", put)
        yield made(of, 7, "arrive instead of expect", site, f"`{show(call)}` only arrives", ExprStmt(arrival(call.func.value)))  # fmt: skip
        body, i = of.block(site), site.path[-1][1]
        following = body[i + 1] if i is not None and i + 1 < len(body) else None
        copied = of.op(following.value) if isinstance(following, ExprStmt) and isinstance(following.value, Call) else None
        if i is not None and following is not None and copied is not None and copied.effects.completes:
            arrives = ExprStmt(arrival(call.func.value))
            block = of.with_block(site, (*body[:i], arrives, *body[i + 2 :]))
            yield made(of, 12, "filled without a copy", site, f"only an arrival instead of `{_first_line(following)}`", block)


@operator
def guards(of: Places) -> Iterator[Mutant]:
    """Conditions around waits and arrivals: left out, or off by one; an arrival behind the condition that it stands under."""
    for site in of.sites:
        node = site.node
        if not isinstance(node, If) or of.role(site) is None or not _synchronises(of, node):
            continue
        head = f"if {show(node.cond)}"
        of_cond = traits(node.cond)
        if isinstance(node.cond, Binary) and of_cond.compares and not of_cond.commutative:
            put = replace(node, cond=replace(node.cond, op=of_cond.slip))
            yield made(of, 9, "condition off by one", site, f"`{head}` becomes `if {show(put.cond)}`", put)
        yield made(of, 9, "condition left out", site, f"without `{head}`", node.body)
        last = node.body[-1]
        for i, stmt in enumerate(node.body):
            inner = of.at[(*site.path, ("body", i))]
            if len(node.body) > 1 and isinstance(stmt, ExprStmt) and isinstance(stmt.value, Call):
                op = of.op(stmt.value)
                if op is not None and op.effects.arrives:
                    rest = replace(node, body=tuple(s for s in node.body if s is not stmt))
                    how = f"`{show(stmt.value)}` also where `{head}` does not hold" + ("" if stmt is last else ", later")
                    yield made(of, 9, "arrival outside of its condition", inner, how, of.put(site, (rest, stmt)))


def _synchronises(of: Places, node: If) -> bool:
    return any(isinstance(n, Call) and (op := of.op(n)) is not None and bool(op.effects.waits or op.effects.arrives) for n in walk(node))

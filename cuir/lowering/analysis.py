"""Side tables of a role, computed from the flat kernel: scopes, liveness, wait counts, late row sums, signs. Emits nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..checking.checked import Checked, Role
from ..syntax.nodes import Assign, Binary, Call, Expr, ExprStmt, For, If, Name, Node, Stmt
from ..syntax.types import F32, I32, Scalar, TileType
from .flat import bodies, called, integer, names, operation, own_expressions, statements

MAX_IN_FLIGHT = 7  # wgmma.wait_group counts that make sense; ages saturate here


@dataclass
class Facts:
    """What the emitter knows about a role. Statements are keyed by id()."""

    definitions: dict[str, list[Stmt]] = field(default_factory=dict)
    declare_at: dict[int, list[str]] = field(default_factory=dict)  # names to declare before a statement
    inline: set[int] = field(default_factory=set)  # assignments that declare their target
    live_after: dict[int, frozenset[str]] = field(default_factory=dict)
    waits: dict[int, int | None] = field(default_factory=dict)  # of mma_wait: products that may stay in flight; None: nothing to wait for
    retired: dict[int, list[str]] = field(default_factory=dict)  # of mma_wait: names of products that are finished after it
    in_flight: dict[int, frozenset[str]] = field(default_factory=dict)  # of assignments: names that may be in flight after them
    deferred_row_sums: set[str] = field(default_factory=set)  # [R, 1] sums kept per thread, not yet summed over the quad
    additive: set[str] = field(default_factory=set)  # those, and [R, 1] values that are always zero
    lazy: set[int] = field(default_factory=set)  # assignments of zeros that only a product reads, as its accumulator
    counters: dict[str, int] = field(default_factory=dict)  # i32 scalars bound once to a literal, then only increased by one -> first value
    nonnegative: set[str] = field(default_factory=set)  # i32 scalars that are never negative


def analyse(checked: Checked, role: Role) -> Facts:
    facts = Facts()
    for stmt in statements(role.body):
        target = _target(stmt)
        if target:
            facts.definitions.setdefault(target, []).append(stmt)
    _scopes(role, facts)
    _live(checked, role.body, frozenset(), facts.live_after)
    _waits(checked, role.body, {}, facts)
    facts.deferred_row_sums, facts.additive = _late_sums(checked, role, facts.definitions)
    facts.lazy = _lazy_zeros(checked, role, facts.definitions)
    facts.counters = _counters(role, facts.definitions)
    facts.nonnegative = _nonnegative(checked, role, facts.definitions)
    return facts


def flights(checked: Checked, role: Role) -> Facts:
    """Of the facts those about products in flight and about liveness alone."""
    facts = Facts()
    _live(checked, role.body, frozenset(), facts.live_after)
    _waits(checked, role.body, {}, facts)
    return facts


def _target(stmt: Stmt) -> str | None:
    return stmt.targets[0] if isinstance(stmt, Assign) else stmt.target if isinstance(stmt, For) else None


# ---- scopes: where a name must be declared so that all its uses lie in the C++ block
def _scopes(role: Role, facts: Facts) -> None:
    places: dict[str, list[tuple[int, ...]]] = {}  # name -> paths (index of a statement, index of its body, index ...)

    def visit(body: tuple[Stmt, ...], path: tuple[int, ...]) -> None:
        for i, stmt in enumerate(body):
            here = (*path, i)
            for expr in own_expressions(stmt):
                for name in names(expr):
                    places.setdefault(name, []).append(here)
            if isinstance(stmt, Assign):
                places.setdefault(stmt.targets[0], []).append(here)
            if isinstance(stmt, For):
                places.setdefault(stmt.target, []).append((*here, 0, 0))
            for k, inner in enumerate(bodies(stmt)):
                visit(inner, (*here, k))

    visit(role.body, ())
    for name in facts.definitions:
        if all(isinstance(d, For) for d in facts.definitions[name]) and _only_in_own_loops(
            name, facts.definitions[name], places[name], role
        ):
            continue  # declared in the heads of its loops
        paths = places[name]
        common = 0
        while all(len(p) > common for p in paths) and len({p[common] for p in paths}) == 1:
            common += 1
        common -= common % 2  # whole steps: (statement, body); the block is the path of even length
        first = min(p[common] for p in paths)
        block = _block(role.body, paths[0][:common])
        stmt = block[first]
        if isinstance(stmt, Assign) and stmt.targets[0] == name and name not in names(stmt.value):
            facts.inline.add(id(stmt))
        else:
            facts.declare_at.setdefault(id(stmt), []).append(name)


def _block(body: tuple[Stmt, ...], path: tuple[int, ...]) -> tuple[Stmt, ...]:
    for i in range(0, len(path), 2):
        body = bodies(body[path[i]])[path[i + 1]]
    return body


def _only_in_own_loops(name: str, loops: list[Stmt], paths: list[tuple[int, ...]], role: Role) -> bool:
    inside = set()
    for loop in loops:
        for stmt in [loop, *statements(loop.body)]:  # type: ignore[union-attr]
            inside.add(id(stmt))
    for stmt in statements(role.body):
        used = any(name in names(e) for e in own_expressions(stmt))
        if used and (id(stmt) not in inside or stmt in loops):
            return False
    return True


# ---- liveness: names whose values are still read after a statement (being waited for is no reading)
def _reads(checked: Checked, stmt: Stmt) -> set[str]:
    if isinstance(stmt, ExprStmt) and called(checked, stmt.value) == "mma_wait":
        return set()
    found: set[str] = set()
    for expr in own_expressions(stmt):
        found |= names(expr)
    return found


def _live(checked: Checked, body: tuple[Stmt, ...], after: frozenset[str], out: dict[int, frozenset[str]]) -> frozenset[str]:
    for stmt in reversed(body):
        out[id(stmt)] = out.get(id(stmt), frozenset()) | after
        if isinstance(stmt, Assign):
            dead_copy = stmt.targets[0] not in after and isinstance(stmt.value, Name)
            after = (after - {stmt.targets[0]}) | (set() if dead_copy else _reads(checked, stmt))
        elif isinstance(stmt, If):
            after = _live(checked, stmt.body, after, out) | _live(checked, stmt.orelse, after, out) | _reads(checked, stmt)
        elif isinstance(stmt, For):
            while True:
                before = after | _live(checked, stmt.body, after, out) - {stmt.target}
                if before == after:
                    break
                after = before
            after = after | _reads(checked, stmt)
        else:
            after = after | _reads(checked, stmt)
    return after


# ---- wait counts: for each name in flight, how many products were issued after it, at least
def _waits(checked: Checked, body: tuple[Stmt, ...], state: Mapping[str, int], facts: Facts) -> dict[str, int]:
    out = facts.waits
    ages = dict(state)
    for stmt in body:
        if isinstance(stmt, Assign):
            target, value = stmt.targets[0], stmt.value
            if called(checked, value) == "mma_async":
                ages = {n: min(a + 1, MAX_IN_FLIGHT) for n, a in ages.items()}
                ages[target] = 0
            elif isinstance(value, Name) and value.id in ages:
                ages[target] = ages[value.id]
            else:
                ages.pop(target, None)
            facts.in_flight[id(stmt)] = facts.in_flight.get(id(stmt), frozenset()) | ages.keys()
        elif isinstance(stmt, ExprStmt) and called(checked, stmt.value) == "mma_wait":
            waited = [ages[a.id] for a in checked.call(stmt.value).args.values() if isinstance(a, Name) and a.id in ages]  # type: ignore[arg-type]
            if waited:
                count = min(waited)
                known = out.get(id(stmt))
                out[id(stmt)] = count if known is None else min(count, known)
                facts.retired[id(stmt)] = [n for n, a in ages.items() if a >= count]
                ages = {n: a for n, a in ages.items() if a < count}
            else:
                out.setdefault(id(stmt), None)
        elif isinstance(stmt, If):
            ages = _merge(_waits(checked, stmt.body, ages, facts), _waits(checked, stmt.orelse, ages, facts))
        elif isinstance(stmt, For):
            while True:
                merged = _merge(ages, _waits(checked, stmt.body, ages, facts))
                if merged == ages:
                    break
                ages = merged
    return ages


def _merge(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {n: min(a.get(n, MAX_IN_FLIGHT), b.get(n, MAX_IN_FLIGHT)) for n in a.keys() | b.keys()}


# ---- late row sums: [R, 1] values that are linear in row sums wherever they are made may stay per-thread parts of a quad's sum
def _late_sums(checked: Checked, role: Role, definitions: Mapping[str, list[Stmt]]) -> tuple[set[str], set[str]]:
    """(sums kept per thread; those and the names that are always zero, whose value and per-thread part are the same)."""
    shaped = {
        n for n, t in role.locals.items() if isinstance(t, TileType) and t.dtype == F32 and t.cols == 1 and t.rows > 1 and n in definitions
    }
    zero = shaped
    while True:
        kept = {n for n in zero if all(isinstance(d, Assign) and _zero(checked, d.value, zero) for d in definitions[n])}
        if kept == zero:
            break
        zero = kept
    fed: set[str] = set()  # names that a row sum reaches by linear operations
    while True:
        more = {n for n in shaped if any(isinstance(d, Assign) and _fed(checked, d.value, fed) for d in definitions[n])}
        if more == fed:
            break
        fed = more
    while True:
        kept = {n for n in fed if all(isinstance(d, Assign) and linear(checked, d.value, fed | zero) for d in definitions[n])}
        if kept == fed:
            return fed, fed | zero
        fed = kept


def _zero(checked: Checked, expr: Expr, zero: set[str]) -> bool:
    return expr.id in zero if isinstance(expr, Name) else operation(checked, expr)[0] == "zeros"


def _fed(checked: Checked, expr: Expr, fed: set[str]) -> bool:
    op, args = operation(checked, expr)
    if isinstance(expr, Name):
        return expr.id in fed
    if op == "where":
        args = args[1:]
    return op == "row_sum" or (op in ("+", "-", "neg", "*", "/", "where") and any(_fed(checked, a, fed) for a in args))


def _mentions_row_sum(checked: Checked, expr: Expr) -> bool:
    op, args = operation(checked, expr)
    return op == "row_sum" or (op not in ("gather", "element", "view") and any(_mentions_row_sum(checked, a) for a in args))


def linear(checked: Checked, expr: Expr, partial: set[str]) -> bool:
    """Whether an [R, 1] expression is a sum over the quad of the same expression of per-thread parts."""
    op, args = operation(checked, expr)
    if isinstance(expr, Name):
        return expr.id in partial
    if op in ("zeros", "row_sum"):
        return True
    if op in ("+", "-"):
        return all(linear(checked, a, partial) for a in args)
    if op == "neg":
        return linear(checked, args[0], partial)
    if op in ("*", "/"):
        x, y = args
        return (linear(checked, x, partial) and _whole(checked, y, partial)) or (
            op == "*" and linear(checked, y, partial) and _whole(checked, x, partial)
        )
    if op == "where":
        return _whole(checked, args[0], partial) and linear(checked, args[1], partial) and linear(checked, args[2], partial)
    return False


def _whole(checked: Checked, expr: Expr, partial: set[str]) -> bool:
    return not (names(expr) & partial) and not _mentions_row_sum(checked, expr)


# ---- zeros that need no registers written: the product that reads them as its accumulator starts anew instead
def _lazy_zeros(checked: Checked, role: Role, definitions: Mapping[str, list[Stmt]]) -> set[int]:
    found: set[int] = set()
    for name, defined in definitions.items():
        zeros = {id(d) for d in defined if isinstance(d, Assign) and operation(checked, d.value)[0] == "zeros"}
        if zeros and any(isinstance(d, Assign) and _accumulates(checked, d, name) for d in defined):
            read_otherwise: set[int] = set()
            _first_reads(checked, role.body, name, frozenset(), read_otherwise)
            found |= zeros - read_otherwise
    return found


def _accumulates(checked: Checked, stmt: Assign, name: str) -> bool:
    """Whether a statement is `name = mma_async(a, b, name)`, with name read nowhere else."""
    if stmt.targets[0] != name or called(checked, stmt.value) != "mma_async":
        return False
    args = checked.call(stmt.value).args  # type: ignore[arg-type]
    c = args.get("c")
    return isinstance(c, Name) and c.id == name and not any(name in names(a) for k, a in args.items() if k != "c")


def _first_reads(checked: Checked, body: tuple[Stmt, ...], name: str, after: frozenset[bool], others: set[int]) -> frozenset[bool]:
    """How a name's value is read first from here on, over all paths: as an accumulator (True), otherwise (False). Adds the ids of assignments whose
    value may be read otherwise."""
    for stmt in reversed(body):
        if isinstance(stmt, Assign) and stmt.targets[0] == name:
            if False in after:
                others.add(id(stmt))
            reads = name in _reads(checked, stmt)
            after = frozenset([_accumulates(checked, stmt, name)]) if reads else frozenset()
        elif isinstance(stmt, If):
            after = _first_reads(checked, stmt.body, name, after, others) | _first_reads(checked, stmt.orelse, name, after, others)
            after |= frozenset([False]) if name in _reads(checked, stmt) else frozenset()
        elif isinstance(stmt, For):
            while (before := after | _first_reads(checked, stmt.body, name, after, others)) != after:
                after = before
            after |= frozenset([False]) if name in _reads(checked, stmt) else frozenset()
        elif name in _reads(checked, stmt):
            after = frozenset([False])
    return after


# ---- counters: their place in a ring of stages, and its parity, can be carried along instead of divided out
def _counters(role: Role, definitions: Mapping[str, list[Stmt]]) -> dict[str, int]:
    found = {}
    for name, defined in definitions.items():
        first = [d for d in defined if not _increases(d, name)]
        if len(first) == 1 and first[0] in role.body and isinstance(first[0], Assign) and len(defined) > 1:
            value = integer(first[0].value)
            if value is not None and value >= 0 and role.locals[name] == Scalar(I32):
                found[name] = value
    return found


def _increases(stmt: Stmt, name: str) -> bool:
    """Whether a statement is `name = name + 1`."""
    if not (isinstance(stmt, Assign) and isinstance(stmt.value, Binary) and stmt.value.op == "+"):
        return False
    left, right = stmt.value.left, stmt.value.right
    return stmt.targets[0] == name and isinstance(left, Name) and left.id == name and integer(right) == 1


def ring_place(expr: Node, counters: Mapping[str, int]) -> tuple[str, int, bool] | None:
    """(counter c, stages n, whether it is the parity) of `c % n` and `c // n % 2`."""
    if not (isinstance(expr, Binary) and expr.op == "%"):
        return None
    n, left = integer(expr.right), expr.left
    if isinstance(left, Name) and left.id in counters and n is not None and n > 1:
        return left.id, n, False
    if isinstance(left, Binary) and left.op == "//" and isinstance(left.left, Name) and left.left.id in counters and n == 2:
        stages = integer(left.right)
        if stages is not None and stages > 1:
            return left.left.id, stages, True
    return None


# ---- signs: i32 scalars that are never negative divide by shifts
def _nonnegative(checked: Checked, role: Role, definitions: Mapping[str, list[Stmt]]) -> set[str]:
    known = {n for n, t in [*role.locals.items(), *checked.declared.items()] if t == Scalar(I32)} | set(checked.dims)
    if role.index:
        known.add(role.index)
    outer = {s.targets[0]: s.value for s in checked.declarations if isinstance(s, Assign)}
    while True:
        bad = set()
        for name in known:
            if name in outer and not nonnegative(checked, outer[name], known):
                bad.add(name)
            for stmt in definitions.get(name, []):
                value = _first(checked, stmt) if isinstance(stmt, For) else stmt.value  # type: ignore[union-attr]
                if value is not None and not nonnegative(checked, value, known):
                    bad.add(name)
        bad |= {n for n in known if n not in definitions and n not in outer and n not in checked.dims and n != role.index}
        if not bad:
            return known
        known -= bad


def _first(checked: Checked, loop: For) -> Expr | None:
    """The least value of a loop variable; None if it is 0."""
    if not isinstance(loop.iter, Call):
        return None
    args = loop.iter.args
    if len(args) == 3 and (integer(args[2]) or -1) < 0:
        return args[1]
    return args[0] if len(args) > 1 else None


def nonnegative(checked: Checked, expr: Expr, known: set[str]) -> bool:
    """Whether an i32 scalar is certainly not negative."""
    value = integer(expr)
    if value is not None:
        return value >= 0
    if isinstance(expr, Name):
        return expr.id in known
    op, args = operation(checked, expr)
    if op in ("+", "*", "//", "min", "cdiv", "|", "^"):
        return all(nonnegative(checked, a, known) for a in args)
    if op == "%":
        return nonnegative(checked, args[1], known)
    if op in ("max", "&"):
        return any(nonnegative(checked, a, known) for a in args)
    if op == "ifexp":
        return nonnegative(checked, args[1], known) and nonnegative(checked, args[2], known)
    return op in ("cta_rank", "nbytes")


__all__ = ["Facts", "analyse", "flights", "linear", "nonnegative", "ring_place"]

"""What follows from a unit of work alone: scalars of tile loops that a CTA need compute only once. Owns their numbering and choice, emits nothing.

Equal values have one number (operation and numbers of the operands), whatever their names are and in whichever role they stand: functions are inlined
and their names made different. A value travels from the warp that hands out the units to the others if every tile loop of some role computes it
unconditionally, if it depends on the unit and on nothing that a role does, and if it is more than one cheap operation away from what is there anyway.
A value that also depends on which worker of its role reads it travels once for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..checking.checked import Checked, Role
from ..syntax.nodes import Assign, Expr, For, If, Literal, Name, Stmt, Subscript
from ..syntax.types import I32, DType, Scalar, TileType
from ..syntax.walk import assigned
from .analysis import Facts, analyse
from .flat import bodies, called, integer, names, operation, own_expressions, statements

PURE = {"+", "-", "*", "/", "//", "%", "cdiv", "neg", "min", "max", "abs", "cast", "exp2", "log2", "tanh", "where",
        "==", "!=", "<", "<=", ">", ">=", "and", "or", "not", "&", "|", "^", "~", "ifexp"}  # fmt: skip
MOST = 23  # words that travel; four slots of them and the unit's number fit into what resources.RESERVED keeps
DIVISION, LOAD = 10, 10  # instructions, about; what counts is that they are many


@dataclass(frozen=True)
class Value:
    """A value by number. `operands`: id of an operand in `expr` -> its number; `nonnegative`: names in `expr` that are never negative."""

    number: int
    op: str  # "" of a leaf: a literal, a name of the kernel's frame, the unit's or the worker's number (expr None)
    dtype: DType
    expr: Expr | None
    args: tuple[Expr, ...] = ()
    operands: Mapping[int, int] = field(default_factory=dict)
    nonnegative: frozenset[str] = frozenset()
    of_unit: bool = False  # depends on the unit of work
    worker: Role | None = None  # depends on which worker of this role it is for
    cost: int = 0  # of the operation itself

    @property
    def below(self) -> set[int]:
        return set(self.operands.values())

    @property
    def copies(self) -> int:
        return self.worker.workers if self.worker else 1


@dataclass(frozen=True)
class RolePart:
    """What a role does with its scalars. Statements are keyed by id()."""

    carried: Mapping[int, int]  # assignment -> word of the slot, the first of those that the role's workers have
    own: Mapping[int, int]  # words that hold a value of worker 0 -> how many words the workers have there
    dead: frozenset[int]  # assignments whose value nobody reads any more
    uniform: tuple[int, ...]  # words that branches and descriptors follow from


@dataclass(frozen=True)
class BroadcastPlan:
    values: tuple[int, ...]  # numbers of the values
    words: Mapping[int, int]  # number -> its first word in a slot; one word for each copy
    table: Mapping[int, Value]
    anchors: Mapping[int, Assign]  # number -> the first assignment of it that every unit runs through
    parts: Mapping[str, RolePart]  # by role

    @property
    def nwords(self) -> int:
        """Words of a slot, the unit's number among them."""
        return 1 + sum(self.table[n].copies for n in self.values)

    @property
    def costly(self) -> bool:
        """Whether a division or a read of memory is saved."""
        return any(cost(self.table, v, set()) >= min(DIVISION, LOAD) for v in self.values)


def tile_loops(body: tuple[Stmt, ...]) -> list[For]:
    """Loops over units of work, nested ones too."""
    return [s for s in statements(body) if isinstance(s, For) and isinstance(s.iter, Name)]


def travelling(checked: Checked, roles: list[Role]) -> BroadcastPlan:
    """The values that travel to these roles, each with one loop over the units at the top of its body."""
    numbering = Numbering(checked)
    facts = {role.name: analyse(checked, role) for role in roles}
    for role in roles:
        numbering.role(role, facts[role.name])
    table, anchors = numbering.table, numbering.anchors
    may = {n for n in anchors if _pays(table, n, set())}
    wanted: set[int] = set()
    for role in roles:
        recorded = numbering.recorded[role.name]
        live = _live(role, facts[role.name], recorded, may)
        wanted |= {number for stmt, number in recorded.values() if stmt.targets[0] in live and number in may}
    kept: list[int] = []
    words: dict[int, int] = {}
    taken = 1
    for n in sorted(wanted):  # operands come before what is made of them
        if _pays(table, n, set(kept)) and taken + table[n].copies <= MOST + 1:
            kept.append(n)
            words[n] = taken
            taken += table[n].copies
    parts = {role.name: _part(checked, role, facts[role.name], numbering.recorded[role.name], table, words) for role in roles}
    return BroadcastPlan(tuple(kept), words, table, anchors, parts)


def _pays(table: Mapping[int, Value], number: int, free: set[int]) -> bool:
    """Whether a value is worth its words: each costs a move, and picking one's own of several a few."""
    return cost(table, number, free) > 2 * table[number].copies - 1


def cost(table: Mapping[int, Value], number: int, free: set[int]) -> int:
    """Cost of all that a value takes for a unit of work; what is the same for all units, or free, costs nothing."""
    seen: set[int] = set()

    def add(n: int) -> int:
        if n in seen or n in free or not table[n].of_unit:
            return 0
        seen.add(n)
        return table[n].cost + sum(add(m) for m in table[n].below)

    return add(number)


class Numbering:
    """Numbers the scalars of roles, one after the other."""

    def __init__(self, checked: Checked):
        self.checked = checked
        self.table: dict[int, Value] = {}
        self.numbers: dict[object, int] = {}
        self.anchors: dict[int, Assign] = {}
        self.recorded: dict[str, dict[int, tuple[Assign, int]]] = {}  # role -> id of an assignment -> it and its value
        self.frame = {*checked.dims, *(s.name for s in checked.scalars), *checked.declared, "inf"}
        self.read_only = {t.name for t in checked.tensors if not t.written}

    # ---- statements
    def role(self, role: Role, facts: Facts) -> None:
        self.of, self.nonnegative = role, frozenset(facts.nonnegative)
        self.record = self.recorded.setdefault(role.name, {})
        env: dict[str, int] = {}
        if role.index is not None:
            env[role.index] = self.enter(("worker", role.name), "", I32, None, worker=role)
        for stmt in role.body:
            if isinstance(stmt, For) and isinstance(stmt.iter, Name):
                for name in assigned((stmt,)):
                    env.pop(name, None)
                env[stmt.target] = self.enter("unit", "", I32, None, of_unit=True)
                self.block(stmt.body, env, top=True)
                return
            self.block((stmt,), env)
        self.record.clear()

    def block(self, body: tuple[Stmt, ...], env: dict[str, int], top: bool = False) -> None:
        for stmt in body:
            if isinstance(stmt, Assign):
                name = stmt.targets[0]
                number = self.of_expr(stmt.value, env) if isinstance(self.of.locals.get(name), Scalar) else None
                if number is None:
                    env.pop(name, None)
                    continue
                env[name] = number
                self.record[id(stmt)] = stmt, number
                if top:
                    self.anchors.setdefault(number, stmt)
            elif isinstance(stmt, If):
                branches = [dict(env), dict(env)]
                for inner, own in zip(bodies(stmt), branches, strict=True):
                    self.block(inner, own)
                env.clear()
                env.update({k: v for k, v in branches[0].items() if branches[1].get(k) == v})
            elif isinstance(stmt, For):
                for name in assigned((stmt,)):
                    env.pop(name, None)
                self.block(stmt.body, dict(env))

    # ---- expressions
    def of_expr(self, expr: Expr, env: Mapping[str, int]) -> int | None:
        """The number of a scalar; None if it follows from more than the unit and the kernel's parameters."""
        kind = self.checked.find_type(expr)
        if not isinstance(kind, Scalar):
            return None
        if isinstance(expr, Literal):
            return self.enter(("literal", kind.dtype, repr(expr.value)), "", kind.dtype, expr)
        if isinstance(expr, Name):
            if expr.id in self.of.locals:
                return env.get(expr.id)
            return self.enter(("name", expr.id), "", kind.dtype, expr) if expr.id in self.frame else None
        op, args = operation(self.checked, expr)
        extra = ""
        if op == "element":
            assert isinstance(expr, Subscript) and isinstance(expr.value, Name)
            if expr.value.id not in self.read_only:
                return None
            extra, args = expr.value.id, list(expr.indices)  # type: ignore[arg-type]
        elif op not in PURE:
            return None
        args = [a for a in args if isinstance(self.checked.find_type(a), (Scalar, TileType))]
        operands: dict[int, int] = {}
        for a in args:
            number = self.of_expr(a, env)
            if number is None:
                return None
            operands[id(a)] = number
        numbers = tuple(operands[id(a)] for a in args)
        of_unit = any(self.table[n].of_unit for n in numbers)
        worker = next((w for n in numbers if (w := self.table[n].worker)), None)
        dtypes = tuple(self.table[n].dtype for n in numbers)
        key = (op, extra, kind.dtype, dtypes, numbers)
        return self.enter(key, op, kind.dtype, expr, tuple(args), operands, of_unit, _own_cost(op, args), worker)

    def enter(self, key: object, op: str, dtype: DType, expr: Expr | None, args: tuple[Expr, ...] = (), operands: Mapping[int, int] | None = None,
              of_unit: bool = False, own: int = 0, worker: Role | None = None) -> int:  # fmt: skip
        if key not in self.numbers:
            number = self.numbers[key] = len(self.table)
            self.table[number] = Value(number, op, dtype, expr, args, operands or {}, self.nonnegative, of_unit, worker, own)
        return self.numbers[key]


def _own_cost(op: str, args: list[Expr]) -> int:
    if op == "element":
        return LOAD
    if op in ("//", "%", "cdiv"):
        value = integer(args[1])
        power = value is not None and value > 0 and value & (value - 1) == 0
        return (2 if op == "cdiv" else 1) if power else DIVISION
    return 4 if op in ("/", "exp2", "log2", "tanh") else 1


def _removable(stmt: Assign, facts: Facts) -> bool:
    return id(stmt) in facts.inline and id(stmt) not in facts.declare_at and len(facts.definitions[stmt.targets[0]]) == 1


def _live(role: Role, facts: Facts, recorded: Mapping[int, tuple[Assign, int]], carried: set[int]) -> set[str]:
    """Names whose values are read; an assignment of a carried value reads none, one whose value nobody reads goes if it can."""
    live: set[str] = set()
    for stmt in statements(role.body):
        if id(stmt) not in recorded:
            live |= {n for e in own_expressions(stmt) for n in names(e)}
    while True:
        before = len(live)
        for stmt, number in recorded.values():
            if number not in carried and (stmt.targets[0] in live or not _removable(stmt, facts)):
                live |= names(stmt.value)
        if len(live) == before:
            return live


def _part(checked: Checked, role: Role, facts: Facts, recorded: Mapping[int, tuple[Assign, int]], table: Mapping[int, Value],
          words: Mapping[int, int]) -> RolePart:  # fmt: skip
    live = _live(role, facts, recorded, set(words))
    dead = {i for i, (stmt, _) in recorded.items() if stmt.targets[0] not in live and _removable(stmt, facts)}
    carried = {i: words[number] for i, (_, number) in recorded.items() if number in words and i not in dead}
    steering = _steering(checked, role, carried)
    own = {words[n]: table[n].copies for i, (_, n) in recorded.items() if i in carried and table[n].copies > 1}
    return RolePart(carried, own, frozenset(dead), tuple(sorted({carried[i] for i in carried if recorded[i][0].targets[0] in steering})))


def _steering(checked: Checked, role: Role, carried: Mapping[int, int]) -> set[str]:
    """Names that branches and descriptors of products follow from."""
    found: set[str] = set()
    for stmt in statements(role.body):
        if isinstance(stmt, (If, For)) or called(checked, getattr(stmt, "value", stmt)) == "mma_async":  # type: ignore[arg-type]
            found |= {n for e in own_expressions(stmt) for n in names(e)}
    while True:
        before = len(found)
        for stmt in statements(role.body):
            if (
                isinstance(stmt, Assign)
                and stmt.targets[0] in found
                and isinstance(role.locals.get(stmt.targets[0]), Scalar)
                and id(stmt) not in carried
            ):
                found |= names(stmt.value)
        if len(found) == before:
            return found

"""Slice of a kernel that its synchronisation needs, role by role.

It holds statements with effects on barriers, engines and memory, and the names that decide where, when and how often
these happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..checking.checked import BoundCall, Checked, Role
from ..checking.fact_solver import reach
from ..checking.kernel_results import keep_with_kernel
from ..checking.views import root_name
from ..ops.base import PRODUCTS, Effects
from ..ops.expressions import operator
from ..syntax.nodes import Assign, Attribute, Call, Expr, ExprStmt, For, If, Name, Node, Slice, Stmt, Subscript
from ..syntax.types import Scalar, TileType
from ..syntax.walk import IdentityKey, names_read, walk
from ..text.diagnostics import Diagnostic

MASK = "mask"  # the argument that selects the elements of a store


@dataclass
class RoleSlice:
    """The part of one role that its synchronisation needs.

    needed: names whose values the protocol needs. watched: names that may hold products in flight or their operands.
    kept: the statements.
    """

    needed: set[str] = field(default_factory=set)
    watched: set[str] = field(default_factory=set)
    kept_statements: set[IdentityKey] = field(default_factory=set)

    def keeps(self, stmt: Stmt) -> bool:
        return IdentityKey(stmt) in self.kept_statements


@dataclass
class ControlSlice:
    """The part of a kernel that its synchronisation needs.

    inputs: tensors that the kernel only reads, whose elements decide control flow or places. unwatched: written
    tensors with places that depend on data, whose races are not detected. refusal: why control flow needs data that a
    run without them lacks, if it does.
    """

    roles: dict[str, RoleSlice] = field(default_factory=dict)
    inputs: set[str] = field(default_factory=set)
    unwatched: set[str] = field(default_factory=set)
    refusal: Diagnostic | None = None


@keep_with_kernel
def control_slice(checked: Checked) -> ControlSlice:
    """Compute the slice of all roles, cached with the kernel."""
    parts = ControlSlice()
    written = {t.name for t in checked.tensors if t.written}
    for top in (*checked.declarations, *(() if checked.tiles is None else (checked.tiles.count,))):
        parts.inputs |= _collect_read_tensors(checked, top)
        if parts.inputs & written:
            parts.refusal = _refuse("what all roles share hangs on a tensor that the kernel writes", top)
    for role in checked.roles:
        _RoleSlicer(checked, role, parts).slice()
    return parts


def has_effects(checked: Checked, node: Node) -> bool:
    """Return whether the node itself acts on barriers, engines, or memory that the kernel writes.

    Nodes inside of it are not considered.
    """
    bound = checked.find_call(node)
    if bound is not None:
        if bound.op.effects == Effects():
            return False
        return _has_visible_effect(checked, bound)
    return is_read(checked, node) and is_watched(checked, root_name(node))  # type: ignore[arg-type]


def is_read(checked: Checked, node: Node) -> bool:
    """Return whether a node is a subscript that reads elements, as opposed to a place passed to a call."""
    return isinstance(node, Subscript) and not node.place and isinstance(checked.find_type(node), (Scalar, TileType))


def is_data(checked: Checked, bound: BoundCall, arg: str) -> bool:
    """Return whether an argument of a call with effects is only moved or computed with.

    Other arguments choose a place, a barrier, or whether the call has an effect.
    """
    effects = bound.op.effects
    if arg == MASK or arg in (effects.completes, effects.arrives, effects.waits, effects.expects):
        return False
    if any(a.arg == arg for a in effects.accesses) and bound.args[arg].place and isinstance(bound.args[arg], (Subscript, Attribute)):
        return False
    return isinstance(checked.find_type(bound.args[arg]), TileType) or any(a.mode != "read" and not a.late for a in effects.accesses)


def _has_visible_effect(checked: Checked, bound: BoundCall) -> bool:
    """Return whether a call has an effect that a run without data can observe.

    Reads of tensors that the kernel never writes have none.
    """
    effects = bound.op.effects
    if effects != Effects(accesses=effects.accesses):
        return True
    roots = [root_name(bound.args[a.arg]) for a in effects.accesses if a.arg in bound.args]
    return bound.op.traits.product or any(is_watched(checked, r) for r in roots)


def is_watched(checked: Checked, root: str | None) -> bool:
    """Return whether accesses are watched for races: to shared memory, or to a tensor the kernel writes."""
    return root in checked.shared or any(t.name == root and t.written for t in checked.tensors)


def _collect_read_tensors(checked: Checked, node: Node) -> set[str]:
    """Return the names of tensors whose elements a tree reads."""
    names = {t.name for t in checked.tensors}
    reads = set[str]()
    for n in walk(node):
        bound = checked.find_call(n)
        if bound is not None:
            reads |= {str(root_name(bound.args[a.arg])) for a in bound.op.effects.accesses if a.mode == "read" and a.arg in bound.args}
        elif is_read(checked, n):
            reads.add(str(root_name(n)))  # type: ignore[arg-type]
    return reads & names


def _refuse(why: str, at: Node) -> Diagnostic:
    return Diagnostic("V202", why, at.span, (), "such a launch is run with data")


@dataclass(frozen=True)
class _Facts:
    """Properties of an expression: the names that it reads, and whether any part of it has effects."""

    names: frozenset[str]
    acts: bool


@dataclass(frozen=True, eq=False)
class _Placed:
    """A statement, and the branches and loops around it."""

    stmt: Stmt
    around: tuple[Stmt, ...]

    @property
    def guards(self) -> Iterator[Expr]:
        """Conditions and bounds of the branches and loops around the statement."""
        for outer in self.around:
            yield from _list_conditions(outer)


class _RoleSlicer:
    def __init__(self, checked: Checked, role: Role, into: ControlSlice):
        self.checked, self.role, self.into = checked, role, into
        self.role_slice = RoleSlice()
        self.facts: dict[int, _Facts] = {}
        self.statements = list(_place_statements(role.body, ()))
        # name -> for each of its values, the expressions it depends on
        self.definitions: dict[str, list[list[Expr]]] = {}
        for p in self.statements:
            if isinstance(p.stmt, Assign):
                self.definitions.setdefault(p.stmt.targets[0], []).append([p.stmt.value, *p.guards])
            elif isinstance(p.stmt, For):
                self.definitions.setdefault(p.stmt.target, []).append([*_list_conditions(p.stmt), *p.guards])
        self.tainted: set[str] = set()
        self._taint()

    def find_facts(self, e: Expr) -> _Facts:
        facts = self.facts.get(id(e))
        if facts is None:
            acts = any(has_effects(self.checked, n) for n in walk(e))
            facts = self.facts[id(e)] = _Facts(frozenset(names_read(e)), acts)
        return facts

    # ---- dependence on data
    def _taint(self) -> None:
        """Collect names whose values depend on products, shared memory, or tensors that the kernel writes."""
        into: dict[str, list[str]] = {}  # the names whose values are computed from a name
        acting = set[str]()
        for name, definitions in self.definitions.items():
            for facts in (self.find_facts(e) for exprs in definitions for e in exprs):
                acting |= {name} if facts.acts else set()
                for source in facts.names:
                    into.setdefault(source, []).append(name)
        self.tainted = reach(acting, lambda name: into.get(name, ()))

    def is_tainted(self, e: Expr) -> bool:
        facts = self.find_facts(e)
        return facts.acts or not self.tainted.isdisjoint(facts.names)

    # ---- the slice
    def slice(self) -> None:
        self.into.roles[self.role.name] = self.role_slice
        self._watch()
        computed: dict[str, list[str | _Placed]] = {}  # by name, its assignments and what their values read
        for p in self.statements:
            if isinstance(p.stmt, Assign):
                computed.setdefault(p.stmt.targets[0], []).extend((p, *self.find_facts(p.stmt.value).names))

        def follow(key: str | _Placed) -> Iterable[str | _Placed]:
            return self._list_needed(key) if isinstance(key, _Placed) else computed.get(key, ())

        kept: list[str | _Placed] = [p for p in self.statements if self._is_kept(p)]
        reached = reach(kept, follow)
        self.role_slice.needed |= self.definitions.keys() & reached
        self.role_slice.kept_statements |= {IdentityKey(s) for p in reached if isinstance(p, _Placed) for s in (p.stmt, *p.around)}
        self._judge()

    def _watch(self) -> None:
        """Collect names that may hold products, and register operands of products."""
        watched, aliases = self.role_slice.watched, list[tuple[str, str]]()
        for p in self.statements:
            if not isinstance(p.stmt, (Assign, ExprStmt)):
                continue
            value = p.stmt.value
            if isinstance(p.stmt, Assign) and isinstance(value, Name):
                aliases.append((p.stmt.targets[0], value.id))
            for n in walk(value) if self.find_facts(value).acts else ():
                bound = self.checked.find_call(n)
                if bound is not None and PRODUCTS in (bound.op.effects.group, bound.op.effects.drains):
                    watched |= {e.id for e in bound.args.values() if isinstance(e, Name) and e.id in self.definitions}
                    if isinstance(p.stmt, Assign) and value is n:
                        watched.add(p.stmt.targets[0])
        watched |= reach(watched, lambda name: [n for pair in aliases if name in pair for n in pair])

    def _is_kept(self, p: _Placed) -> bool:
        """Return whether a statement is kept, whether or not its value is needed."""
        if any(self.find_facts(e).acts for e in _list_values(p.stmt)):
            return True
        # arithmetic on an accumulator under a condition on data is left out
        return isinstance(p.stmt, Assign) and p.stmt.targets[0] in self.role_slice.watched and not any(map(self.is_tainted, p.guards))

    def _list_needed(self, p: _Placed) -> list[str]:
        """Return the names that decide whether and where a kept statement has its effects."""
        roots = [*p.guards, *_list_conditions(p.stmt)]
        roots += [e for e, root in self._list_controls(p.stmt) if root is None or root in self.checked.shared or not self.is_tainted(e)]
        return [n for e in roots for n in self.find_facts(e).names]

    def _list_controls(self, stmt: Stmt) -> Iterator[tuple[Expr, str | None]]:
        """Yield the expressions of a statement's effects that decide a place, a time or a count.

        Each comes with the root of the place, or None for a time or a count.
        """
        for value in _list_values(stmt):
            for n in walk(value) if self.find_facts(value).acts else ():
                if not has_effects(self.checked, n):
                    continue
                bound = self.checked.find_call(n)
                if bound is None:
                    yield from ((i, root_name(n)) for i in _collect_indices(n))  # type: ignore[arg-type]
                    continue
                places = [a.arg for a in bound.op.effects.accesses if a.arg in bound.args]
                written = next(
                    (root_name(bound.args[a.arg]) for a in bound.op.effects.accesses if a.mode != "read" and a.arg in bound.args), None
                )
                for arg, e in bound.args.items():
                    if is_data(self.checked, bound, arg):
                        continue
                    if arg == MASK:
                        if written not in self.checked.shared:  # an array is accessed as a whole
                            yield e, written
                    elif arg not in places:
                        yield e, None
                    elif is_watched(self.checked, root_name(e)):
                        yield from ((i, root_name(e)) for i in _collect_indices(e))

    # ---- refusals
    def _judge(self) -> None:
        """Refuse control flow that depends on data; do not watch tensors accessed at data-dependent indices."""
        for p in self.statements:
            if not self.role_slice.keeps(p.stmt):
                continue
            for e in _list_conditions(p.stmt):
                self._require(e, "whether this happens, or how often, hangs on data")
                self._read(e)
            for e, root in self._list_controls(p.stmt):
                if root is None or root in self.checked.shared:
                    self._require(e, "which part of shared memory, which stage, parity or number of bytes this is hangs on data")
                elif self.is_tainted(e):
                    self.into.unwatched.add(root)
                self._read(e)
            if isinstance(p.stmt, Assign) and p.stmt.targets[0] in self.role_slice.needed and not self.is_tainted(p.stmt.value):
                self._read(p.stmt.value)
            if any(self._has_lazy_effect(e) for e in _list_values(p.stmt)):
                self._refuse("an access on one side of a choice: whether it happens hangs on data", p.stmt)

    def _read(self, e: Expr) -> None:
        self.into.inputs |= _collect_read_tensors(self.checked, e)

    def _require(self, e: Expr, why: str) -> None:
        if self.is_tainted(e):
            self._refuse(why, e)

    def _refuse(self, why: str, at: Node) -> None:
        if self.into.refusal is None:
            self.into.refusal = _refuse(why, at)

    def _has_lazy_effect(self, e: Expr) -> bool:
        for n in walk(e) if self.find_facts(e).acts else ():
            operation = operator(n)
            if operation is not None and operation[0].traits.lazy:
                sides = dict(zip((x.name for x in operation[0].params), operation[1]))
                if any(self.find_facts(sides[s]).acts for s in operation[0].traits.lazy):
                    return True
        return False


def _place_statements(body: Sequence[Stmt], around: tuple[Stmt, ...]) -> Iterator[_Placed]:
    for stmt in body:
        yield _Placed(stmt, around)
        for inner in (stmt.body, stmt.orelse) if isinstance(stmt, If) else (stmt.body,) if isinstance(stmt, For) else ():
            yield from _place_statements(inner, (*around, stmt))


def _list_conditions(stmt: Stmt) -> tuple[Expr, ...]:
    """Return the condition of a branch or the bounds of a loop."""
    if isinstance(stmt, If):
        return (stmt.cond,)
    return tuple(stmt.iter.args) if isinstance(stmt, For) and isinstance(stmt.iter, Call) else ()


def _list_values(stmt: Stmt) -> tuple[Expr, ...]:
    """Return the expressions that a statement itself evaluates, without those of nested statements."""
    return (stmt.value,) if isinstance(stmt, (Assign, ExprStmt)) else _list_conditions(stmt)


def _collect_indices(place: Expr) -> list[Expr]:
    """Collect the index expressions of a place that decide where it begins."""
    starts: list[Expr] = []
    while isinstance(place, (Subscript, Attribute)):
        for i in place.indices if isinstance(place, Subscript) else ():
            starts += [e for e in (i.start, i.stop) if e is not None] if isinstance(i, Slice) else [i]
        place = place.value
    return starts

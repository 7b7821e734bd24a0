"""One name for a product in flight: copies of names in flight are taken out of the program before it is lowered.

A copy of registers in flight makes ptxas serialise every product of a kernel. A name that takes over a product in flight (`S = X`, X a local of a `@func`
that returns it, or `S = mma_async(a, b, X)`) becomes the same name wherever the two never hold different values that are still needed. Where they
do, the copy is made once the product was waited for: after the program's own wait if that comes first, else after a wait put in for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..checking.checked import BoundCall, Checked, Role
from ..ops import TABLE
from ..syntax.nodes import Assign, Call, ExprStmt, For, If, Name, Node, Stmt
from ..syntax.types import Type, Void
from .analysis import Facts, flights
from .flat import called, calls, names, own_expressions, statements

if TYPE_CHECKING:
    from ..text.source import Span

Choice = tuple[str, "Span"]
N = TypeVar("N", bound=Node)


def coalesced(checked: Checked) -> tuple[Checked, list[Choice]]:
    """The kernel without copies of products in flight, and what was decided where two names stay; the same object if it has none."""
    work, roles, choices = _Trees(checked), [], list[Choice]()
    for role in checked.roles:
        if any(checked.call(c).op.name == "mma_async" for c in calls(checked, role.body)):
            role = _role(work, role, choices)
        roles.append(role)
    if all(new is old for new, old in zip(roles, checked.roles, strict=True)):
        return checked, []
    return replace(checked, roles=tuple(roles), types=work.types, calls=work.calls), choices


@dataclass(frozen=True)
class AccumulatorCopy:
    """A statement that gives a product in flight another name, or accumulates it into one."""

    stmt: Assign
    source: str

    @property
    def target(self) -> str:
        return self.stmt.targets[0]


def _role(work: _Trees, role: Role, choices: list[Choice]) -> Role:
    while True:
        checked, facts = work.checked, flights(work.checked, role)
        found = _handings(checked, role, facts)
        if not found:
            return role
        groups, apart = _groups(checked, role, facts, found)
        if apart is None:
            same = {name: kept for kept, group in groups.items() for name in group if name != kept}
            body = work.body(role.body, same)
            return replace(role, body=body, locals={n: t for n, t in role.locals.items() if n not in same})
        role = replace(role, body=_after_wait(work, role.body, apart, choices))


def _handings(checked: Checked, role: Role, facts: Facts) -> list[AccumulatorCopy]:
    found = []
    for stmt in statements(role.body):
        if isinstance(stmt, Assign):
            target, source = stmt.targets[0], _source(checked, stmt)
            unread = isinstance(stmt.value, Name) and target not in facts.live_after[id(stmt)]  # only waited for: it has no registers
            if source is not None and source != target and source in facts.in_flight[id(stmt)] and not unread:
                found.append(AccumulatorCopy(stmt, source))
    return found


def _source(checked: Checked, stmt: Assign) -> str | None:
    """The name that an assignment copies, or whose registers its product accumulates into."""
    value = stmt.value
    if called(checked, value) == "mma_async":
        assert isinstance(value, Call)
        value = checked.call(value).args.get("c", value)
    return value.id if isinstance(value, Name) else None


# ---- which names may be one
def _groups(checked: Checked, role: Role, facts: Facts, found: list[AccumulatorCopy]) -> tuple[dict[str, set[str]], AccumulatorCopy | None]:
    """Names that become one, by the one that stays (the last to take the product over), and the first handing whose two names cannot be one."""
    groups: dict[str, set[str]] = {}
    for handing in found:
        source = next((k for k, g in groups.items() if handing.source in g), handing.source)
        target = next((k for k, g in groups.items() if handing.target in g), handing.target)
        union = groups.get(source, {source}) | groups.get(target, {target})
        if source != target and _differ(checked, role, facts, union):
            return groups, handing
        for name in (source, target):
            groups.pop(name, None)
        groups[handing.target] = union
    return groups, None


def _differ(checked: Checked, role: Role, facts: Facts, group: set[str]) -> bool:
    """Whether one of the names is bound to another value while the value of another one is needed, or its product in flight."""
    for stmt in statements(role.body):
        if isinstance(stmt, Assign) and stmt.targets[0] in group:
            others = group - {stmt.targets[0]}
            if _source(checked, stmt) in group:  # a copy moves nothing; a chained product leaves what it takes over in flight
                others = set() if isinstance(stmt.value, Name) else others & facts.live_after[id(stmt)]
            else:
                others &= facts.live_after[id(stmt)] | facts.in_flight[id(stmt)]
            if others:
                return True
    return False


# ---- two names that hold different values: the copy comes after a wait
def _after_wait(work: _Trees, body: tuple[Stmt, ...], handing: AccumulatorCopy, choices: list[Choice]) -> tuple[Stmt, ...]:
    """The block with the handing behind a wait for the product that it hands on."""
    new: list[Stmt] = []
    for i, stmt in enumerate(body):
        if stmt is handing.stmt:
            return (*new, *_waited(work, handing, body[i + 1 :], choices))
        if isinstance(stmt, For):
            stmt = replace(stmt, body=_after_wait(work, stmt.body, handing, choices))
        elif isinstance(stmt, If):
            stmt = replace(
                stmt, body=_after_wait(work, stmt.body, handing, choices), orelse=_after_wait(work, stmt.orelse, handing, choices)
            )
        new.append(stmt)
    return tuple(new)


def _waited(work: _Trees, handing: AccumulatorCopy, following: tuple[Stmt, ...], choices: list[Choice]) -> list[Stmt]:
    stmt, source, target = handing.stmt, handing.source, handing.target
    for i, after in enumerate(following if isinstance(stmt.value, Name) else ()):
        if isinstance(after, ExprStmt) and called(work.checked, after.value) == "mma_wait" and {source, target} & names(after.value):
            choices.append(
                ("a product in flight is copied to its other name after the wait for it: both values are needed later", stmt.span)
            )
            wait = replace(after, value=work.node(after.value, {target: source}))
            return [*following[:i], wait, stmt, *following[i + 1 :]]
        if _mentions(after, target) or _mentions(after, source):
            break
    choices.append(("a product in flight is waited for here, and then gets its other name: both values are needed later", stmt.span))
    return [work.wait(source, work.checked.type_of(stmt.value), stmt.span), stmt, *following]


def _mentions(stmt: Stmt, name: str) -> bool:
    return any(
        (isinstance(s, Assign) and s.targets[0] == name) or any(name in names(e) for e in own_expressions(s)) for s in statements((stmt,))
    )


class _Trees:
    """Makes new nodes of a kernel, and keeps their types and bound arguments."""

    def __init__(self, checked: Checked):
        self.types, self.calls = dict(checked.types), dict(checked.calls)
        self.checked = replace(checked, types=self.types, calls=self.calls)
        self._new: dict[int, Node] = {}  # by id() of the node that it stands for
        self._kept: list[Node] = []  # ids of nodes that are gone are used again

    def body(self, body: tuple[Stmt, ...], same: Mapping[str, str]) -> tuple[Stmt, ...]:
        """Statements with names replaced, less those that then copy a name to itself."""
        new: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Assign):
                target, value = same.get(stmt.targets[0], stmt.targets[0]), self.node(stmt.value, same)
                if target != stmt.targets[0] or value is not stmt.value:
                    if isinstance(value, Name) and value.id == target:
                        continue
                    stmt = replace(stmt, targets=(target,), value=value)
            elif isinstance(stmt, ExprStmt):
                stmt = replace(stmt, value=self.node(stmt.value, same))
            elif isinstance(stmt, For):
                stmt = replace(stmt, iter=self.node(stmt.iter, same), body=self.body(stmt.body, same))
            elif isinstance(stmt, If):
                stmt = replace(stmt, cond=self.node(stmt.cond, same), body=self.body(stmt.body, same), orelse=self.body(stmt.orelse, same))
            new.append(stmt)
        return tuple(new)

    def node(self, node: N, same: Mapping[str, str]) -> N:
        """An expression with names replaced; itself if it has none of them."""
        if isinstance(node, Name):
            return self._made(node, replace(node, id=same[node.id])) if node.id in same else node
        parts: dict[str, Any] = {}
        for f in fields(node):
            value = getattr(node, f.name)
            if isinstance(value, Node) and not (isinstance(node, Call) and isinstance(value, Name) and value is node.func):
                new: object = self.node(value, same)
            elif isinstance(value, tuple):
                new = tuple(self.node(v, same) if isinstance(v, Node) else v for v in value)
                new = new if any(a is not b for a, b in zip(new, value, strict=True)) else value
            else:
                continue
            if new is not value:
                parts[f.name] = new
        return self._made(node, replace(node, **parts)) if parts else node

    def _made(self, old: N, new: N) -> N:
        """A node of the same type as another one, which it stands for."""
        self._new[id(old)] = new
        self._kept.append(old)
        if id(old) in self.types:
            self.types[id(new)] = self.types[id(old)]
        if isinstance(new, Call) and id(old) in self.calls:
            bound = self.calls[id(old)]
            args = {name: self._new.get(id(arg), arg) for name, arg in bound.args.items()}
            self.calls[id(new)] = BoundCall(bound.op, args, new)  # type: ignore[arg-type]
        return new

    def wait(self, name: str, t: Type, span: Span) -> ExprStmt:
        """mma_wait(name) for a tile of type t."""
        arg = Name(name, span=span)
        call = Call(Name("mma_wait", span=span), (arg,), span=span)
        self.types |= {id(arg): t, id(call): Void()}
        self.calls[id(call)] = BoundCall(TABLE["mma_wait"], {"x0": arg}, call)
        return ExprStmt(call, span=span)

"""One name for a product in flight: copies of names in flight are taken out of the program before it is lowered.

A copy of registers in flight makes ptxas serialise every product of a kernel. A name that takes over a product in flight (`S = X`, X a local of a `@func`
that returns it, or `S = mma_async(a, b, X)`) becomes the same name wherever the two never hold different values that are still needed. Where they
do, the copy is made once the product was waited for: after the program's own wait if that comes first, else after a wait put in for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..checking.checked import Checked, Role, bind, typed
from ..ops import TABLE
from ..syntax.nodes import Assign, Call, Expr, ExprStmt, For, If, Name, Stmt
from ..syntax.rewrite import rewrite_block, substitute, with_children
from ..syntax.types import Type, Void
from .analysis import Facts, flights
from .flat import called, calls, names, own_expressions, statements

if TYPE_CHECKING:
    from ..text.source import Span

Choice = tuple[str, "Span"]


def coalesced(checked: Checked) -> tuple[Checked, list[Choice]]:
    """The kernel without copies of products in flight, and what was decided where two names stay; the same object if it has none."""
    roles, choices = list[Role](), list[Choice]()
    for role in checked.roles:
        if any(checked.call(c).op.name == "mma_async" for c in calls(checked, role.body)):
            role = _role(checked, role, choices)
        roles.append(role)
    if all(new is old for new, old in zip(roles, checked.roles, strict=True)):
        return checked, []
    return replace(checked, roles=tuple(roles)), choices


@dataclass(frozen=True)
class AccumulatorCopy:
    """A statement that gives a product in flight another name, or accumulates it into one."""

    stmt: Assign
    source: str

    @property
    def target(self) -> str:
        return self.stmt.targets[0]


def _role(checked: Checked, role: Role, choices: list[Choice]) -> Role:
    while True:
        facts = flights(checked, role)
        found = _handings(checked, role, facts)
        if not found:
            return role
        groups, apart = _groups(checked, role, facts, found)
        if apart is None:
            same = {name: kept for kept, group in groups.items() for name in group if name != kept}
            body = _one_name(role.body, same)
            return replace(role, body=body, locals={n: t for n, t in role.locals.items() if n not in same})
        role = replace(role, body=_after_wait(checked, role.body, apart, choices))


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
def _after_wait(checked: Checked, body: tuple[Stmt, ...], handing: AccumulatorCopy, choices: list[Choice]) -> tuple[Stmt, ...]:
    """The block with the handing behind a wait for the product that it hands on."""
    new: list[Stmt] = []
    for i, stmt in enumerate(body):
        if stmt is handing.stmt:
            return (*new, *_waited(checked, handing, body[i + 1 :], choices))
        if isinstance(stmt, For):
            stmt = replace(stmt, body=_after_wait(checked, stmt.body, handing, choices))
        elif isinstance(stmt, If):
            stmt = replace(
                stmt, body=_after_wait(checked, stmt.body, handing, choices), orelse=_after_wait(checked, stmt.orelse, handing, choices)
            )
        new.append(stmt)
    return tuple(new)


def _waited(checked: Checked, handing: AccumulatorCopy, following: tuple[Stmt, ...], choices: list[Choice]) -> list[Stmt]:
    stmt, source, target = handing.stmt, handing.source, handing.target
    for i, after in enumerate(following if isinstance(stmt.value, Name) else ()):
        if isinstance(after, ExprStmt) and called(checked, after.value) == "mma_wait" and {source, target} & names(after.value):
            choices.append(
                ("a product in flight is copied to its other name after the wait for it: both values are needed later", stmt.span)
            )
            wait = replace(after, value=substitute(after.value, {target: Name(source)}))
            return [*following[:i], wait, stmt, *following[i + 1 :]]
        if _mentions(after, target) or _mentions(after, source):
            break
    choices.append(("a product in flight is waited for here, and then gets its other name: both values are needed later", stmt.span))
    return [_wait(source, checked.type_of(stmt.value), stmt.span), stmt, *following]


def _mentions(stmt: Stmt, name: str) -> bool:
    return any(
        (isinstance(s, Assign) and s.targets[0] == name) or any(name in names(e) for e in own_expressions(s)) for s in statements((stmt,))
    )


def _one_name(body: tuple[Stmt, ...], same: Mapping[str, str]) -> tuple[Stmt, ...]:
    """Statements with names replaced, less those that then copy a name to itself."""
    names = {old: Name(new) for old, new in same.items()}

    def renamed(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        new = with_children(stmt, lambda child: substitute(child, names) if isinstance(child, Expr) else child)
        if not isinstance(new, Assign):
            return new
        target = same.get(new.targets[0], new.targets[0])
        if new is not stmt or target != new.targets[0]:
            return () if isinstance(new.value, Name) and new.value.id == target else replace(new, targets=(target,))
        return new

    return rewrite_block(body, renamed)


def _wait(name: str, t: Type, span: Span) -> ExprStmt:
    """mma_wait(name) for a tile of type t."""
    arg = typed(Name(name, span=span), t)
    call = typed(Call(Name("mma_wait", span=span), (arg,), span=span), Void())
    bind(call, TABLE["mma_wait"], {"x0": arg})
    return ExprStmt(call, span=span)

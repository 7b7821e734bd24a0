"""Orchestration of a checked program, from the checker's tables."""

from __future__ import annotations

from collections.abc import Iterator

from cuir.checking.checked import BoundCall, Checked, Role
from cuir.syntax.nodes import Assign, Attribute, Call, Expr, For, If, Literal, Name, Stmt, Subscript
from cuir.syntax.walk import walk
from cuir.text.source import Span

from .orchestration import BarrierUse, Groups, Memory, Orchestration, Workers

AGENT = {"copy_async.bulk": "bulk load", "copy_async.cp": "cp.async", "store_async": "bulk store", "mma_async": "wgmma", "mma": "mma"}


def of_program(checked: Checked) -> Orchestration:
    """Return the orchestration of a program; spans are the text's."""
    arrives: dict[str, set[str]] = {name: set() for name in checked.barriers}
    waits: dict[str, set[str]] = {name: set() for name in checked.barriers}
    carriers: set[str] = set()
    roles: list[Workers] = []
    joins: Span | None = None
    for role in checked.roles:
        does: set[str] = set()
        for node, call in calls(checked, role.body):
            if call.op.name in AGENT:
                does.add(AGENT[call.op.name])
            effects = call.op.effects
            if effects.joins and joins is None:
                joins = node.span
            for argument, users in ((effects.arrives, arrives), (effects.waits, waits)):
                if argument is not None and (name := _root(call.args[argument])) in users:
                    users[name].add(role.name)
            if effects.completes is not None and effects.completes in call.args:
                carriers.add(_root(call.args[effects.completes]))
        roles.append(Workers(role.name, role.workers, role.threads, role.registers, frozenset(does), role.span))
    barriers = tuple(
        BarrierUse(b.name, b.kind, b.count, b.stages or 1, b.name in carriers, frozenset(arrives[b.name]), frozenset(waits[b.name]), b.span)
        for b in checked.barriers.values()
    )
    memory = tuple(Memory(s.name, s.nbytes, s.dims[0] if len(s.dims) > 2 else 1, s.span) for s in checked.shared.values() if s.over is None)
    return Orchestration(tuple(roles), barriers, memory, _groups(checked), joins)


def calls(checked: Checked, body: tuple[Stmt, ...]) -> Iterator[tuple[Call, BoundCall]]:
    """Yield every primitive's call of a text, nested ones too."""
    for stmt in body:
        for node in walk(stmt):
            if isinstance(node, Call) and checked.find_call(node) is not None:
                yield node, checked.call(node)


def _root(expr: Expr) -> str:
    """Return the name that a view or subscript starts from."""
    while isinstance(expr, Subscript | Attribute):
        expr = expr.value
    return expr.id if isinstance(expr, Name) else ""


def _groups(checked: Checked) -> dict[str, Groups]:
    """Return the waits for asynchronous groups by agent."""
    products: list[tuple[int, Span]] = []
    waits_by_agent: dict[str, list[tuple[int, Span]]] = {"cp.async": [], "bulk store": []}
    for role in checked.roles:
        products += _count_later_products(checked, role)
        for node, call in calls(checked, role.body):
            agent = {"cp_async": "cp.async", "bulk_store": "bulk store"}.get(call.op.effects.drains or "")
            if agent is not None:
                in_flight = next((a.value for a in call.args.values() if isinstance(a, Literal)), 0)
                waits_by_agent[agent].append((int(in_flight), node.span))
    groups = {"wgmma": Groups("wgmma", tuple(products))} | {
        agent: Groups(agent, tuple(in_flight)) for agent, in_flight in waits_by_agent.items()
    }
    return {agent: g for agent, g in groups.items() if g.remaining}


def _count_later_products(checked: Checked, role: Role) -> list[tuple[int, Span]]:
    """Return for each mma_wait, in the order of the text, the number of later products that may still run.

    A loop's body is walked twice.
    """
    in_flight: list[tuple[int, Span]] = []
    flying: list[set[str]] = []  # products in flight in order of issue, each with its names

    def go(body: tuple[Stmt, ...]) -> None:
        """Walk statements."""
        for stmt in body:
            if isinstance(stmt, For):
                go(stmt.body)
                go(stmt.body)
                continue
            if isinstance(stmt, If):
                go(stmt.body)
                go(stmt.orelse)
                continue
            if isinstance(stmt, Assign) and isinstance(stmt.value, Name):  # a second name for the same product
                same = next((product for product in reversed(flying) if stmt.value.id in product), None)
                bind(stmt.targets[0])
                if same is not None:
                    same.add(stmt.targets[0])
            for node in walk(stmt):
                if isinstance(node, Call) and checked.find_call(node) is not None:
                    record(node, checked.call(node), stmt)

    def record(node: Call, call: BoundCall, stmt: Stmt) -> None:
        """Record a product, or the products that a wait leaves in flight."""
        if call.op.name == "mma_async" and isinstance(stmt, Assign):
            bind(stmt.targets[0])
            flying.append({stmt.targets[0]})
        elif call.op.effects.drains == "wgmma":
            names = {_root(a) for a in call.args.values()}
            last = max((i for i, product in enumerate(flying) if product & names), default=None)
            if last is not None:
                in_flight.append((len(flying) - last - 1, node.span))
                del flying[: last + 1]

    def bind(name: str) -> None:
        """Remove a name from the products in flight."""
        for product in flying:
            product.discard(name)

    go(role.body)
    return in_flight

"""Where the lanes of a worker must meet because one touches memory that another one has touched. Owns the places; `role.py` emits the joins.

A worker is sequential as a whole, its lanes are not: a read of what other lanes wrote, and a write of what other lanes wrote or read, come after a join.
Primitives at which all lanes meet anyway (asynchronous copies and stores, their waits, barriers) end the account. Arrays are taken as wholes: which lane
touches which element is asked only of stores to a tensor, of which a row always belongs to the same lanes if it starts at a multiple of a worker's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..checking.checked import Checked, Role
from ..checking.views import root_name
from ..syntax.nodes import Assign, Binary, Call, Expr, For, If, Name, Node, Slice, Stmt, Subscript
from ..syntax.types import GlobalView, SharedView, TileType
from ..syntax.walk import children
from .flat import called, integer, operation, own_expressions, statements, subexpressions

JOINING = {"sync", "named_barrier.sync", "copy_wait", "copy_async.bulk", "copy_async.cp", "store_async", "store_wait"}


@dataclass(frozen=True)
class Touched:
    """Arrays and tensors that lanes have written, and read, since they last met. stable: tensors written, but each element by one and the same lane."""

    written: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    stable: frozenset[str] = frozenset()

    def __or__(self, other: Touched) -> Touched:
        return Touched(self.written | other.written, self.read | other.read, self.stable | other.stable)

    def before(self, now: Touched) -> bool:
        """Whether the lanes must meet between these accesses and later ones."""
        wrote = self.written | self.stable
        return bool(now.read & wrote or now.written & (wrote | self.read) or now.stable & (self.written | self.read))


def joins_of(checked: Checked, role: Role, definitions: Mapping[str, list[Stmt]], by_warps: str | None) -> tuple[set[int], set[int]]:
    """Statements, by id(), before which the worker's lanes must meet, and stores between whose reads and writes. definitions: of the role's names.

    by_warps: the array that the worker's asynchronous stores read, if each warp stores what it wrote there itself; then these stores join nothing.
    """
    return _Joins(checked, role, definitions, by_warps).run()


class _Joins:
    def __init__(self, checked: Checked, role: Role, definitions: Mapping[str, list[Stmt]], by_warps: str | None):
        self.checked, self.role = checked, role
        before: dict[str, list[Stmt]] = {s.targets[0]: [s] for s in checked.declarations if isinstance(s, Assign)}
        self.definitions = {**before, **definitions}
        self.joining = JOINING - {"store_async", "store_wait"} if by_warps else JOINING
        self.found: set[int] = set()
        self.inside: set[int] = set()
        self.ignored: set[str] = set()
        if by_warps and all(name in ("store", "store_async") for name in self._users(by_warps)):
            self.ignored = self.roots(Name(by_warps))

    def run(self) -> tuple[set[int], set[int]]:
        self.block(self.role.body, Touched())
        return self.found, self.inside

    def _users(self, array: str) -> set[str]:
        """The primitives that access an array, or one that shares its memory."""
        memory, found = self.roots(Name(array)), set[str]()
        for stmt in statements(self.role.body):
            for expr in own_expressions(stmt):
                for sub in subexpressions(expr):
                    if any(root in memory for _, root, _ in self._direct(sub)):
                        found.add(called(self.checked, sub) if isinstance(sub, Call) else "element")
        return found

    def block(self, body: tuple[Stmt, ...], state: Touched) -> Touched:
        for stmt in body:
            state = self.statement(stmt, state)
        return state

    def statement(self, stmt: Stmt, state: Touched) -> Touched:
        state = self._own(stmt, state)
        if isinstance(stmt, If):
            return self.block(stmt.body, state) | self.block(stmt.orelse, state)
        if isinstance(stmt, For):
            while (
                after := state | self.block(stmt.body, state)
            ) != state:  # what the end of the body leaves is there at its beginning, too
                state = after
        return state

    def _own(self, stmt: Stmt, state: Touched) -> Touched:
        """The statement's own accesses: reads, then writes."""
        value = getattr(stmt, "value", None)
        if isinstance(value, Call) and called(self.checked, value) in self.joining:
            return Touched()
        found = [a for expr in own_expressions(stmt) for sub in self.evaluated(expr) for a in self._direct(sub)]
        now = Touched(*(frozenset(root for mode, root, stable in found if (mode, stable) == kind and root not in self.ignored)
                        for kind in (("write", False), ("read", False), ("write", True))))  # fmt: skip
        if now.read & (now.written | now.stable):  # a store of what is read from the same memory
            self.inside.add(id(stmt))
        if state.before(now):
            self.found.add(id(stmt))
            state = Touched()
        return state | now

    def evaluated(self, node: Node) -> Iterator[Node]:
        """The node and all below it, but not the place of a store, which is no read; its indices are."""
        yield node
        place = self.checked.call(node).args.get("place") if isinstance(node, Call) and called(self.checked, node) == "store" else None
        for child in children(node):
            for part in child.indices if child is place and isinstance(child, Subscript) else (child,):
                yield from self.evaluated(part)

    def _direct(self, node: Node) -> Iterator[tuple[str, str, bool]]:
        """("read" or "write", array or tensor, whether its elements keep their lanes) of a node itself."""
        if isinstance(node, Call) and self.checked.find_call(node) is not None:
            bound = self.checked.call(node)
            for access in bound.op.effects.accesses:
                place = bound.args.get(access.arg)
                kind = self.checked.type_of(place) if place is not None else None
                if place is None or (access.proxy == "async" and isinstance(kind, GlobalView)):
                    continue
                if access.mode != "read":
                    stable = self._keeps_lanes(bound.args.get("tile"), place)
                    yield from (("write", root, root not in self.checked.shared and stable) for root in self.roots(place))
                elif isinstance(kind, (SharedView, GlobalView)):
                    yield from (("read", root, False) for root in self.roots(place))
        elif isinstance(node, Subscript) and operation(self.checked, node)[0] in ("element", "gather"):
            yield from (("read", root, False) for root in self.roots(node))

    def roots(self, place: Expr) -> set[str]:
        """The arrays whose memory a place may lie in."""
        name = root_name(place)
        if name is None:
            return set()
        if name in self.role.locals:
            return {root for s in self.definitions.get(name, []) if isinstance(s, Assign) for root in self.roots(s.value)}
        while name in self.checked.shared and (under := self.checked.shared[name].over):
            name = under
        return {name}

    def _keeps_lanes(self, tile: Expr | None, place: Expr) -> bool:
        """Whether a store to a tensor gives each of its elements to the lane that any other such store gives it to: rows and columns start at multiples."""
        kind = self.checked.type_of(tile) if tile is not None else None
        if not isinstance(place, Subscript) or not isinstance(kind, TileType) or kind.rows == 1:
            return False
        return all(self._whole(i.start) if isinstance(i, Slice) else self._index(i) for i in place.indices)

    def _index(self, expr: Expr, known: frozenset[str] = frozenset()) -> bool:
        """Whether an index's tile, if it is one, is the worker's rows or columns from a multiple on."""
        if not isinstance(self.checked.type_of(expr), TileType):
            return True
        if isinstance(expr, Name):
            return self._always(expr.id, known, self._index)
        if isinstance(expr, Binary) and expr.op == "+":
            one, other = (expr.right, expr.left) if isinstance(self.checked.type_of(expr.right), TileType) else (expr.left, expr.right)
            return self._index(one, known) and not isinstance(self.checked.type_of(other), TileType) and self._whole(other)
        return isinstance(expr, Call) and called(self.checked, expr) in ("rows", "cols")

    def _whole(self, expr: Expr | None, known: frozenset[str] = frozenset()) -> bool:
        """Whether a scalar is a multiple of the rows that a worker's lanes hold without beginning anew."""
        if expr is None:
            return True
        if isinstance(expr, Binary) and expr.op in "+-":
            return self._whole(expr.left, known) and self._whole(expr.right, known)
        if isinstance(expr, Binary) and expr.op == "*":
            return self._whole(expr.left, known) or self._whole(expr.right, known)
        if isinstance(expr, Name):
            return self._always(expr.id, known, self._whole)
        number = integer(expr)
        return number is not None and number % (self.role.threads // 2) == 0

    def _always(self, name: str, known: frozenset[str], holds: Callable[[Expr, frozenset[str]], bool]) -> bool:
        """Whether something holds for a name, if it holds for those in `known`: for all that it is ever bound to."""
        found = self.definitions.get(name, [])
        return name in known or (bool(found) and all(isinstance(s, Assign) and holds(s.value, known | {name}) for s in found))

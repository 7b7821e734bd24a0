"""Places of a program at which faults are made: paths into the tree, and the kernel's declarations.

The `Mutant` record, and the table of operators in which files of operators register theirs.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..ops import TABLE, Op
from ..ops.base import Effects
from ..ops.expressions import get_called_op, method
from ..syntax.nodes import (
    Assign,
    Attribute,
    Call,
    Expr,
    ExprStmt,
    For,
    Func,
    If,
    Kernel,
    List,
    Name,
    Node,
    Program,
    Stmt,
    Subscript,
    Tuple,
    Unary,
    With,
)
from ..syntax.printer import show
from ..syntax.walk import CHILD_FIELDS, Path, count_assignments, names_read, replace_node, walk

FAULTS = {
    1: "shared memory is read before its copy has landed",
    2: "a buffer is refilled before every reader released it",
    3: "a buffer is released while a product still reads it",
    4: "a product is used before its wait",
    5: "a proxy fence is missing or misplaced",
    6: "a barrier counts wrong numbers of arrivals",
    7: "a barrier expects wrong numbers of bytes",
    8: "a wait has the wrong parity, or is a lap behind",
    9: "deadlock: arrivals and waits do not match",
    10: "an order is missing that only some schedules need",
    11: "wrong values: mask, bound, scale, rescale, head",
    12: "a tile is uninitialised, stale or another one",
    13: "roles disagree about trip counts or order",
    14: "the GPU's resources are exceeded",
    15: "aliasing: memory is used again too early",
}


@dataclass(frozen=True)
class Site:
    """A node, its path from the program, and the nodes on that path (the program first)."""

    path: Path
    node: Node
    parents: tuple[Node, ...]

    def inside(self, kind: type) -> Any:
        """Return the innermost parent of a kind, or None."""
        return next((p for p in reversed(self.parents) if isinstance(p, kind)), None)


def list_sites(node: Node, path: Path = (), parents: tuple[Node, ...] = ()) -> Iterator[Site]:
    """Yield every node with its place, parents first, in the order of the text."""
    yield Site(path, node, parents)
    for name in CHILD_FIELDS[type(node)]:
        value = getattr(node, name)
        if isinstance(value, tuple):
            for i, item in enumerate(value):
                yield from list_sites(item, (*path, (name, i)), (*parents, node))
        elif value is not None:
            yield from list_sites(value, (*path, (name, None)), (*parents, node))


def get_root(e: Node) -> str | None:
    """Return the name at the start of `x[..].y`."""
    while isinstance(e, (Subscript, Attribute)):
        e = e.value
    return e.id if isinstance(e, Name) else None


class Places:
    """A program with its places, and the declarations of its kernel."""

    def __init__(self, program: Program, kernel: Kernel):
        self.program, self.kernel = program, kernel
        self.sites = [s for s in list_sites(program) if self._belongs_to_kernel(s)]
        self.at = {s.path: s for s in self.sites}
        self.declared: dict[str, Call] = {}
        for stmt in kernel.body:
            if isinstance(stmt, Assign):
                values = stmt.value.items if isinstance(stmt.value, Tuple) and len(stmt.targets) > 1 else (stmt.value,) * len(stmt.targets)
                self.declared |= {t: v for t, v in zip(stmt.targets, values) if isinstance(v, Call)}
        self.funcs = program.funcs()
        makes = {n: op for n, c in self.declared.items() if (op := get_called_op(c)) is not None}
        self.barriers = {n: op.name for n, op in makes.items() if op.traits.makes == "barrier"}
        self.passed = self._find_passed()
        self.arrays = [n for n, op in makes.items() if op.traits.makes == "array"]
        # statements that are a primitive's call, and values of assignments that are
        self.calls: list[tuple[Site, Call, Op]] = []
        for s in self.sites:
            value = s.node.value if isinstance(s.node, (ExprStmt, Assign)) else None
            op = self.op(value) if isinstance(value, Call) else None
            if isinstance(value, Call) and op is not None and op.where != "declaration":
                self.calls.append((s, value, op))
        self.filled = {get_root(c.func) for _, c, op in self.calls if op.effects.expects}
        self.parities = self._find_parities()

    def _find_passed(self) -> dict[str, str]:
        """Return the parameters of functions that receive a barrier, with its kind."""
        kinds: dict[str, str] = {}
        for s in self.sites:
            func = self.funcs.get(get_root(s.node.func) or "") if isinstance(s.node, Call) else None
            for param, arg in zip(func.params, s.node.args) if func is not None else ():  # type: ignore[attr-defined]
                kind = self.barriers.get(get_root(arg) or "") if isinstance(arg, (Name, Subscript)) else None
                if kind is not None:
                    kinds[param] = kind
        return {name: kind for name, kind in kinds.items() if name not in self.barriers}

    def _belongs_to_kernel(self, site: Site) -> bool:
        """Return whether a place belongs to the kernel; other kernels and what they alone use do not."""
        top = site.parents[1] if len(site.parents) > 1 else site.node
        if isinstance(top, Kernel):
            return top is self.kernel
        return not isinstance(top, Func) or top.name in self._find_used()

    def _find_used(self) -> set[str]:
        if not hasattr(self, "_names"):
            funcs, self._names = self.program.funcs(), set[str]()
            todo = names_read(self.kernel)
            while todo:
                name = todo.pop()
                if name in funcs and name not in self._names:
                    self._names.add(name)
                    todo |= names_read(funcs[name])
        return self._names

    def op(self, call: Call) -> Op | None:
        """Return the table's entry for a call; None for functions and values."""
        if isinstance(call.func, Attribute):
            name = get_root(call.func) or ""
            return method(self.barriers.get(name) or self.passed.get(name, "?"), call.func.attr)
        return get_called_op(call)

    def hardware(self, barrier: str) -> bool:
        """Return whether a barrier is a hardware barrier."""
        return TABLE[self.barriers[barrier]].traits.hardware

    def _find_parities(self) -> set[str]:
        """Return the functions whose results are parities of waits."""
        waited = {n for _, c, op in self.calls if op.effects.waits and c.args for n in names_read(c.args[0])}
        callees = set()
        for s in self.sites:
            if isinstance(s.node, Assign) and isinstance(s.node.value, Call) and waited & set(s.node.targets):
                callees.add(get_root(s.node.value.func))
        return {name for name in callees if name in self.funcs}

    def block(self, site: Site) -> tuple[Stmt, ...]:
        """Return the statements of the block that contains a statement."""
        name, _ = site.path[-1]
        statements: tuple[Stmt, ...] = getattr(site.parents[-1], name)
        return statements

    def replace_at(self, site: Site, node: Node | tuple[Node, ...]) -> Program:
        """Return the program with another node, or several, at a place."""
        changed: Program = replace_node(self.program, site.path, node)
        return changed

    def drop(self, site: Site) -> Program | None:
        """Remove a statement, and with it a block that it leaves empty.

        None where a body must hold something.
        """
        if len(self.block(site)) > 1:
            return self.replace_at(site, ())
        parent = self.at.get(site.path[:-1])
        if parent is None or not isinstance(parent.node, (If, For)):
            return None
        if isinstance(parent.node, If) and site.path[-1][0] == "orelse":
            return self.replace_at(parent, replace(parent.node, orelse=()))
        if isinstance(parent.node, If) and parent.node.orelse:
            return self.replace_at(parent, replace(parent.node, cond=Unary("not", parent.node.cond), body=parent.node.orelse, orelse=()))
        return self.drop(parent)

    def move(self, site: Site, to: int) -> Program:
        """Move a statement to another index of its block."""
        body = list(self.block(site))
        index = site.path[-1][1]
        assert index is not None
        body.insert(to, body.pop(index))
        return self.replace_block(site, tuple(body))

    def replace_block(self, site: Site, body: tuple[Stmt, ...]) -> Program:
        """Replace the statements of the block that contains a statement."""
        parent: Any = self.at[site.path[:-1]].node
        return self.replace_at(self.at[site.path[:-1]], replace(parent, **{site.path[-1][0]: body}))

    def is_unobservable(self, call: Call, passed: tuple[Stmt, ...]) -> bool:
        """Return whether a call that assigns nothing may change places with statements.

        They only compute in registers, and bind nothing that the call reads.
        """
        return not names_read(call) & set(count_assignments(passed)) and all(self.in_registers(s) for s in passed)

    def in_registers(self, node: Node) -> bool:
        """Return whether a statement or expression touches no memory, declares none and synchronises nothing."""
        memory = {*self.arrays, *(p.name for p in self.kernel.params)}
        for n in walk(node):
            if isinstance(n, Subscript) and get_root(n) in memory:
                return False
            if isinstance(n, Call):
                op, func = self.op(n), self.funcs.get(get_root(n.func) or "")
                if (op is not None and (op.effects != Effects() or op.traits.declares)) or (op is None and isinstance(n.func, Attribute)):
                    return False
                if func is not None and not all(self.in_registers(s) for s in func.body):
                    return False
        return True

    def role(self, site: Site) -> With | None:
        """Return the role around a place."""
        role: With | None = site.inside(With)
        return role

    def stages(self, barrier_or_array: str) -> Expr | None:
        """Return the number of stages of a ring: `stages=` of barriers, the first of three dims of an array."""
        call = self.declared.get(barrier_or_array)
        if call is None:
            return None
        if barrier_or_array in self.barriers:
            return next((k.value for k in call.keywords if k.name == "stages"), None)
        dims = call.args[1] if len(call.args) > 1 else None
        return dims.items[0] if isinstance(dims, List) and len(dims.items) > 2 else None


@dataclass(frozen=True)
class Mutant:
    """A program with one fault.

    fault: its class, a key of FAULTS. place: line and column in the original. equivalent: why it is known not to be a
    fault.
    """

    fault: int
    operator: str
    place: tuple[int, int]
    description: str
    program: Program = field(compare=False, repr=False)
    equivalent: str | None = None

    @cached_property
    def text(self) -> str:
        """Canonical text of the program."""
        return show(self.program)

    @cached_property
    def id(self) -> str:
        """Hash of the program's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def diff(self, original: str) -> str:
        """Return the unified difference to the canonical text of the original."""
        return "\n".join(difflib.unified_diff(original.splitlines(), self.text.splitlines(), "original", "mutant", lineterm="", n=2))


Operator = Callable[[Places], Iterator[Mutant]]
OPERATORS: list[Operator] = []


def operator(make: Operator) -> Operator:
    """Register a function that yields the mutants of one kind."""
    OPERATORS.append(make)
    return make


def make_mutant(
    places: Places,
    fault: int,
    name: str,
    site: Site,
    description: str,
    replacement: Node | tuple[Node, ...] | Program,
    equivalent: str | None = None,
) -> Mutant:
    """Make a mutant from a node that replaces a site, or from a whole program."""
    program = replacement if isinstance(replacement, Program) else places.replace_at(site, replacement)
    return Mutant(fault, name, (site.node.span.line, site.node.span.column), description, program, equivalent)

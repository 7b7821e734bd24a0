"""Facts about a program that rewrites rely on: types, effects, names in scope.

Types are those of the checked kernel, looked up by place in the text: an expression of a function has one for each
inlined call, and none where the consts leave it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from ..checking.checked import Const
from ..checking.checker import check
from ..checking.prelude_functions import prelude
from ..checking.rule_context import is_literal
from ..checking.scope import PRIMITIVES
from ..mutation.mutation_sites import Path, Site, list_sites, replace_node
from ..ops import WRITTEN
from ..ops.base import PRODUCTS, Effects
from ..ops.expressions import get_called_op, traits
from ..syntax.nodes import (
    Assign,
    AugAssign,
    Binary,
    Call,
    For,
    Func,
    GlobalType,
    If,
    IfExp,
    Kernel,
    Keyword,
    Literal,
    Name,
    Node,
    Param,
    Program,
    Return,
    Slice,
    Stmt,
    Subscript,
    Unary,
    With,
)
from ..syntax.types import DTYPES, I32, BarrierType, GlobalView, Scalar, SharedView, TileType, Type
from ..syntax.walk import count_assignments, names_read, walk
from ..text.source import Span

MEMORY = ("array", "barrier")  # arguments of declarations that make these are constants, or have a special form


Place = tuple[int, int, int, int]


class Facts:
    """A parsed program, and what checking one kernel of it found."""

    def __init__(self, program: Program, kernel: Kernel, consts: Mapping[str, Const]):
        self.program, self.kernel = program, kernel
        self.checked = check(program, kernel.name, consts)
        self.funcs = prelude().funcs() | program.funcs()
        self.types: dict[Place, set[Type]] = {}
        flat: list[Node] = [*self.checked.declarations, *(s for r in self.checked.roles for s in r.body)]
        flat += [self.checked.tiles.count] if self.checked.tiles is not None else []
        for n in (n for top in flat for n in walk(top)):
            if (t := self.checked.find_type(n)) is not None and n.span.source is program.span.source:
                self.types.setdefault(_make_place(n.span), set()).add(t)
        self._pure: dict[str, bool] = {}

    @cached_property
    def used_names(self) -> set[str]:
        """All names that the program uses for anything, and those of the language."""
        names = {*DTYPES, *PRIMITIVES, *self.funcs, *prelude().constants(), *(i.name for i in self.program.items)}
        for n in walk(self.program):
            if isinstance(n, Name):
                names.add(n.id)
            elif isinstance(n, Func):
                names |= {*n.params, *count_assignments(n.body)}
            elif isinstance(n, Kernel):
                names |= count_assignments(n.body).keys()
            elif isinstance(n, Param):
                names |= {n.name, *(map(str, n.type.dims) if isinstance(n.type, GlobalType) else ())}
        return names

    # ---- places
    @cached_property
    def sites(self) -> list[Site]:
        """Places in the kernel, and in the functions that it calls directly or indirectly."""
        used = set(map(id, self.used))
        return [s for s in list_sites(self.program) if s.parents and id(self.get_definition(s)) in used]

    @cached_property
    def used(self) -> list[Func | Kernel]:
        """The kernel, and the functions of the program that it uses, in the order of the text."""
        reached, todo = set[str](), names_read(self.kernel)
        while todo:
            name = todo.pop()
            if name in self.program.funcs() and name not in reached:
                reached.add(name)
                todo |= names_read(self.program.funcs()[name])
        return [i for i in self.program.items if i is self.kernel or (isinstance(i, Func) and i.name in reached)]

    @cached_property
    def at(self) -> dict[Path, Site]:
        """Places by path."""
        return {s.path: s for s in self.sites}

    def get_definition(self, site: Site) -> Node:
        """Return the function, kernel or constant that contains a site."""
        return site.parents[1] if len(site.parents) > 1 else site.node

    @cached_property
    def expressions(self) -> list[Site]:
        """Expressions that are evaluated and have types, and that may be rewritten.

        Without those whose form matters: in slices, in a role's call, in declarations of memory.
        """
        return [s for s in self.sites if self.get_types(s.node) and self._is_open(s)]

    def _is_open(self, site: Site) -> bool:
        if isinstance(site.node, (Keyword, Slice, Stmt)) or site.inside(Slice) is not None or ("call", None) in site.path:
            return False
        if site.path[-1] == ("func", None) or site.path[1][0] in ("params", "cluster"):
            return False
        return not any(isinstance(p, Call) and traits(p).makes in MEMORY for p in site.parents)

    def find_statement(self, site: Site) -> Site:
        """Return the innermost statement that contains a place."""
        path = site.path
        while not isinstance(self.at[path].node, Stmt):
            path = path[:-1]
        return self.at[path]

    def find_role(self, site: Site) -> With | None:
        """Return the role around a place, or at it."""
        role: With | None = site.node if isinstance(site.node, With) else site.inside(With)
        return role

    def is_in_body(self, site: Site) -> bool:
        """Return whether a statement is in a function or a role, not among the declarations."""
        return isinstance(self.get_definition(site), Func) or (self.find_role(site) is not None and not isinstance(site.node, With))

    def list_blocks(self) -> Iterator[tuple[Site, str, tuple[Stmt, ...]]]:
        """Yield every block of functions and roles: its parent, the parent's field, and the statements."""
        for s in self.sites:
            n = s.node
            if isinstance(n, (Func, With, For, If)):
                yield s, "body", n.body
            if isinstance(n, If) and n.orelse:
                yield s, "orelse", n.orelse

    def replace_at(self, site: Site, node: Node | tuple[Node, ...]) -> Program:
        """Return the program with another node, or several, at a place."""
        changed: Program = replace_node(self.program, site.path, node)
        return changed

    def insert_before(self, site: Site, stmt: Stmt, changed: Program) -> Program:
        """Return a changed program with another statement before the one at a place."""
        extended: Program = replace_node(changed, site.path, (stmt, get_child(changed, site.path)))
        return extended

    # ---- types
    def get_types(self, node: Node) -> set[Type]:
        """Return the types of an expression in all calls.

        Empty for one that the consts leave out, and for the prelude's.
        """
        return self.types.get(_make_place(node.span), set()) if node.span.source is self.program.span.source else set()

    def is_number(self, node: Node) -> bool:
        """Return whether an expression is a scalar or a tile in every call."""
        return bool(types := self.get_types(node)) and all(isinstance(t, (Scalar, TileType)) for t in types)

    def is_integer(self, node: Node) -> bool:
        """Return True if an expression is an i32 scalar or tile in every call of its function."""
        return self.is_number(node) and all(t.dtype == I32 for t in self.get_types(node))  # type: ignore[union-attr]

    def is_scalar(self, node: Node) -> bool:
        """Return whether an expression is a scalar in every call."""
        return bool(types := self.get_types(node)) and all(isinstance(t, Scalar) for t in types)

    def is_tile(self, node: Node) -> bool:
        """Return whether an expression is a tile in every call."""
        return bool(types := self.get_types(node)) and all(isinstance(t, TileType) for t in types)

    def is_view(self, node: Node) -> bool:
        """Return whether an expression is a view, or a barrier selected from a ring."""
        return bool(types := self.get_types(node)) and all(
            isinstance(t, (SharedView, GlobalView)) or (isinstance(t, BarrierType) and t.stages is None) for t in types
        )

    def takes_any_dtype(self, node: Node) -> bool:
        """Return whether an expression is a literal, which takes the dtype of its context."""
        return is_literal(node)  # type: ignore[arg-type]

    # ---- effects
    def is_pure(self, node: Node) -> bool:
        """Return whether evaluating an expression only computes: it reads no memory and synchronises nothing."""
        for n in walk(node):
            if isinstance(n, Subscript) and not self._is_pick(n):
                return False
            if isinstance(n, Call) and not self._is_computing(n):
                return False
        return True

    def _is_pick(self, e: Subscript) -> bool:
        types = self.get_types(e)
        if types:
            return not any(isinstance(t, (Scalar, TileType)) for t in types) or isinstance(e.value, Call)
        return isinstance(e.value, Call)  # a part of a tuple

    def _is_computing(self, e: Call) -> bool:
        if not isinstance(e.func, Name):
            return False
        name = e.func.id
        if name in self.funcs:
            if name not in self._pure:
                self._pure[name] = False  # for recursive functions
                self._pure[name] = all(self.only_computes(s) for s in self.funcs[name].body)
            return self._pure[name]
        return name in WRITTEN and all(op.effects == Effects() and op.where != "declaration" for op in WRITTEN[name])

    def only_computes(self, stmt: Stmt) -> bool:
        """Return whether a statement only computes, its blocks included."""
        if isinstance(stmt, (Assign, AugAssign, Return)):
            return self.is_pure(stmt.value)
        if isinstance(stmt, If):
            return self.is_pure(stmt.cond) and all(map(self.only_computes, (*stmt.body, *stmt.orelse)))
        return isinstance(stmt, For) and self.is_pure(stmt.iter) and all(map(self.only_computes, stmt.body))

    def is_speculatable(self, node: Node) -> bool:
        """Return whether a scalar is speculatable: it cannot fail, and costs little."""
        for n in walk(node):
            divides = isinstance(n, Binary) and traits(n).divides_integers and not (isinstance(n.right, Literal) and n.right.value)
            if divides or not isinstance(n, (Name, Literal, Unary, Binary)):
                return False
        return True

    def is_always_evaluated(self, site: Site) -> bool:
        """Return whether an expression is evaluated whenever its statement is, not for one side of a choice."""
        for parent, (name, _) in zip(site.parents, site.path):
            if isinstance(parent, IfExp) and name != "cond":
                return False
            if isinstance(parent, Binary) and traits(parent).lazy and name == "right":
                return False
        return True

    # ---- names
    def count_locals(self, site: Site) -> Counter[str]:
        """Count the bindings of each name of the function or role around a place, parameters included."""
        top, role = self.get_definition(site), self.find_role(site)
        if isinstance(top, Func):
            return count_assignments(top.body) + Counter(top.params)
        counts = count_assignments(role.body) + Counter([role.name] if role.name else []) if role is not None else Counter[str]()
        return counts

    def list_declared(self) -> set[str]:
        """Return the names that the kernel binds before its roles."""
        return set(count_assignments(tuple(s for s in self.kernel.body if not isinstance(s, With))))

    def get_scope(self, site: Site) -> tuple[Stmt, ...]:
        """Return all statements that see the locals of a place."""
        top, role = self.get_definition(site), self.find_role(site)
        return top.body if isinstance(top, Func) else role.body if role is not None else self.kernel.body

    def list_in_flight(self, site: Site) -> set[str]:
        """Return names of the function or role that are bound to asynchronous products."""
        names = set[str]()
        for stmt in (n for s in self.get_scope(site) for n in walk(s)):
            if isinstance(stmt, Assign) and any(starts_product(n) for n in walk(stmt.value)):
                names |= set(stmt.targets)
        return names

    def operand(self, site: Site) -> bool:
        """Return whether a place is an operand of a product or of a wait for one.

        Its name must keep its registers.
        """
        call = next((p for p in reversed(site.parents) if not isinstance(p, Keyword)), None)
        return call is not None and (starts_product(call) or awaits_products(call))

    def make_free_name(self, base: str) -> str:
        """Derive a name from `base` that the program does not use yet."""
        name, n = base, 1
        while name in self.used_names:
            n += 1
            name = f"{base}{n}"
        return name


def starts_product(e: Node) -> bool:
    """Return whether an expression issues an asynchronous product."""
    op = get_called_op(e)
    return op is not None and op.effects.group == PRODUCTS


def awaits_products(e: Node) -> bool:
    """Return whether an expression waits for asynchronous products."""
    op = get_called_op(e)
    return op is not None and op.effects.drains == PRODUCTS


def _make_place(span: Span) -> Place:
    return span.line, span.column, span.end_line, span.end_column


def get_child(node: Any, path: Path) -> Any:
    """Return the node at a path."""
    for name, index in path:
        value = getattr(node, name)
        node = value if index is None else value[index]
    return node

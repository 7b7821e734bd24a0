"""Names during flattening: frames, tuple values, and small helpers on trees.

Limits of a kernel's size while its functions are inlined: a page of text can expand beyond memory.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..ops import TABLE
from ..ops.expressions import attribute, get_called_op, traits
from ..syntax.nodes import (
    Assign,
    Attribute,
    Binary,
    Call,
    Expr,
    ExprStmt,
    For,
    Func,
    If,
    Kernel,
    Literal,
    Name,
    Slice,
    Stmt,
    Subscript,
    Unary,
)
from ..syntax.types import DTYPES
from ..syntax.walk import copy_tree, count_assignments, names_read, rewrite_block, walk
from ..text.diagnostics import CuirError
from ..text.source import Span
from .fold import specialise
from .views import root_name

PRIMITIVES = {op.written for op in TABLE.values() if not op.written.startswith(("bar.", "with "))} | {"range"}
UNKNOWN = "?"  # the id of a name already reported; the checker gives it the type ErrorType


@dataclass(frozen=True)
class TupleValue:
    """A tuple value: never a value of the flat kernel, only of this pass."""

    items: tuple[Value, ...]
    span: Span

    @functools.cached_property
    def size(self) -> int:
        """Number of values it holds in all."""
        return sum(i.size if isinstance(i, TupleValue) else 1 for i in self.items)


Value = Expr | TupleValue


@dataclass
class Frame:
    """Names of one instance of a function, of a role, or of the kernel's declarations."""

    counts: Counter[str]  # statements that bind each name
    parent: Frame | None  # a role sees the kernel's declarations
    via: Span | None = None  # the call, for an instance of a @func
    func: Func | None = None
    values: dict[str, Value] = field(default_factory=dict)  # current value of each name
    flat: dict[str, Name] = field(default_factory=dict)  # the flat name of each local
    stack: tuple[str, ...] = ()  # @funcs being inlined


def pair_moves(target: Value, value: Value, moves: list[tuple[Name, Expr]]) -> bool:
    """Add the move of each part of a value to the name that takes it.

    Returns whether the two have one form.
    """
    if isinstance(target, TupleValue) and isinstance(value, TupleValue) and len(target.items) == len(value.items):
        return not [0 for t, v in zip(target.items, value.items, strict=True) if not pair_moves(t, v, moves)]
    if isinstance(target, Name) and not isinstance(value, TupleValue):
        moves.append((target, value))
        return True
    return False


def count_bindings(body: tuple[Stmt, ...], constants: Mapping[str, Literal]) -> Counter[str]:
    """Count the statements that bind each name.

    Branches that known values decide against do not count, unless the body itself binds a name of theirs.
    """
    local = count_assignments(body)
    values: dict[str, Expr] = {n: v for n, v in constants.items() if n not in local}

    def select_branch(s: Stmt) -> Stmt | tuple[Stmt, ...]:
        decided = _decide(s.cond, values) if isinstance(s, If) else None
        return s if not isinstance(s, If) or decided is None else s.body if decided else s.orelse

    pruned = rewrite_block(body, select_branch)
    return local if pruned is body else count_assignments(pruned)


def _decide(cond: Expr, values: Mapping[str, Expr]) -> bool | None:
    try:
        folded = specialise(cond, values)
    except ZeroDivisionError:  # reported where the condition is flattened
        return None
    return folded.value if isinstance(folded, Literal) and isinstance(folded.value, bool) else None


def decide_by_right(e: Binary, first: Expr, second: Expr) -> Expr | None:
    """Return the value of `and` or `or` if a constant right side decides it.

    The left side must be a comparison without failures and effects; else None.
    """
    if not (isinstance(second, Literal) and isinstance(second.value, bool) and isinstance(first, Binary) and traits(first).compares):
        return None
    if second.value is not traits(e).decided_by:
        return first
    simple = (Name, Literal, Unary, Binary)
    fails = any(not isinstance(n, simple) or traits(n).divisor for n in walk(first))
    return None if fails else second


def is_empty_range(iterator: Expr) -> bool:
    """Return whether a range is known to be empty.

    Such a loop is left out, as is a branch that consts decide against.
    """
    if not (isinstance(iterator, Call) and iterator.func == Name("range")) or iterator.keywords:
        return False
    ends = [a.value for a in iterator.args if isinstance(a, Literal) and type(a.value) is int]
    return len(ends) == len(iterator.args) in (1, 2) and not range(*ends)


def remove_dead_literals(body: tuple[Stmt, ...], names: set[str]) -> tuple[Stmt, ...]:
    """Remove assignments to `names` that nothing in the block reads any more.

    Reads of these names, which have known values, were replaced before.
    """
    read = {n for s in body for n in names_read(s)}

    return rewrite_block(body, lambda s: () if isinstance(s, Assign) and s.targets[0] in names and s.targets[0] not in read else s)


class FreshNames:
    """Flat names: each is used once at a time."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def take(self, base: str) -> str:
        """Return `base`, or `base_1`, `base_2`, ... if it is in use."""
        name, n = base, 0
        while name in self.used or name in DTYPES or name in ("inf", "range"):
            n += 1
            name = f"{base}_{n}"
        self.used.add(name)
        return name


def has_effect(stmt: Stmt) -> bool:
    return any(isinstance(n, (ExprStmt, For)) for n in walk(stmt))


def remove_dead(body: tuple[Stmt, ...], has_effects: Callable[[Expr], bool]) -> tuple[Stmt, ...]:
    """Remove assignments that nobody reads, which inlining leaves of tuples.

    Reads of memory stay, they may be wrong.
    """
    assignments: dict[str, list[Assign]] = {}
    readers: Counter[str] = Counter()  # reads of each name in the remaining statements
    for s in (s for top in body for s in walk(top)):
        if isinstance(s, Name):
            readers[s.id] += 1
        elif isinstance(s, Assign):
            assignments.setdefault(s.targets[0], []).append(s)
    unread = [name for name in assignments if not readers[name]]
    for name in unread:  # grows during the loop
        for s in assignments[name]:
            if has_effects(s.value):
                continue
            for n in walk(s.value):
                if isinstance(n, Name):
                    readers[n.id] -= 1
                    if not readers[n.id] and n.id in assignments:
                        unread.append(n.id)
    dead = set(unread)
    return rewrite_block(body, lambda s: () if isinstance(s, Assign) and s.targets[0] in dead and not has_effects(s.value) else s)


def is_alias(e: Expr, ranks: Mapping[str, int | None]) -> bool:
    """Return whether an expression is a view, a picked barrier or a dtype.

    Such is no value, its text stands for it. `ranks`: of arrays; None for barriers.
    """
    if isinstance(e, Name):
        return e.id in ranks or e.id in DTYPES
    if isinstance(e, Attribute):
        return attribute(e) is not None and is_alias(e.value, ranks)
    if isinstance(e, Subscript):
        root = root_name(e)
        if root is None or root not in ranks:
            return False
        rank = ranks[root]
        return rank is None or not isinstance(e.value, Name) or len(e.indices) < rank or any(isinstance(i, Slice) for i in e.indices)
    return False


def is_rank_of_single_cta(call: Call, kernel: Kernel) -> bool:
    """Return whether a call asks for a CTA's rank in a cluster of one CTA, where the rank is always 0."""
    op = get_called_op(call)
    is_rank = op is not None and op.traits.rank and kernel.arch in op.archs and not (call.args or call.keywords)
    return is_rank and kernel.cluster == Literal(1)


def copy_value(value: Value, span: Span) -> Value:
    """Copy a value into a new tree for each use, at which it gets a type."""
    if isinstance(value, TupleValue):
        return TupleValue(tuple(copy_value(v, span) for v in value.items), span)
    if isinstance(value, Name):
        return Name(value.id, span=span)
    if isinstance(value, Literal):
        return Literal(value.value, span=span)
    return copy_tree(value)


CALLS, STATEMENTS, VALUES = 40, 5_000, 1_000  # nesting of inlined calls, statements of the kernel, values of a tuple


class Growth:
    """Counter of a kernel's statements so far."""

    def __init__(self) -> None:
        self.statements = 0

    def count_statement(self, span: Span) -> None:
        """Count one more statement or inlined call.

        Raises CuirError N121.
        """
        self.statements += 1
        if self.statements > STATEMENTS:
            message = f"the kernel has more than {STATEMENTS:,} statements once its functions are inlined"
            raise CuirError.of("N121", message, span, "call fewer functions, or loop")

    def count_call(self, caller: Frame, span: Span) -> None:
        """Count a function that is about to be inlined into its caller.

        Raises CuirError N121.
        """
        if len(caller.stack) >= CALLS:
            message = f"calls of @funcs are nested more than {CALLS} deep"
            raise CuirError.of("N121", message, span, "call fewer functions from one another")
        self.count_statement(span)

    def make_group(self, parts: list[Value], span: Span) -> TupleValue:
        """Make a tuple of `parts`, if it is not too large.

        Raises CuirError N121.
        """
        value = TupleValue(tuple(parts), span)
        if value.size > VALUES:
            hint = "tuples are taken apart when the kernel is specialised: keep what is large in an array"
            raise CuirError.of("N121", f"a tuple of more than {VALUES:,} values", span, hint)
        return value

"""The generic traversal of the AST, and trees as keys by identity.

Rewriting of trees.

A node whose children stay is itself in the new tree; a new one keeps the old one's place in the text, and the marks
that the checker wrote on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from ..text.diagnostics import Sink
from .nodes import Assign, AugAssign, Call, Expr, For, If, Name, Node, Stmt, Typed, With

MAX_DEPTH = 60  # nesting of operators and brackets in an expression: passes walk trees by recursion
_WORDS = {"str", "int", "float", "bool", "None", "tuple"}  # an annotation of these alone holds no node


class _ChildFields(dict[type, tuple[str, ...]]):
    def __missing__(self, kind: type) -> tuple[str, ...]:
        child_fields = (f.name for f in fields(kind) if f.compare and not _WORDS.issuperset(re.findall(r"\w+", str(f.type))))
        self[kind] = names = tuple(child_fields)
        return names


class _LastFirst(dict[type, tuple[str, ...]]):
    def __missing__(self, kind: type) -> tuple[str, ...]:
        self[kind] = names = CHILD_FIELDS[kind][::-1]
        return names


CHILD_FIELDS = _ChildFields()  # node class -> its fields that hold nodes, in the order of the text
_LAST_FIRST = _LastFirst()


def children(node: Node) -> list[Node]:
    """Return the nodes directly below, in the order of the text."""
    nodes: list[Node] = []
    for name in CHILD_FIELDS[node.__class__]:
        value = getattr(node, name)
        if value.__class__ is tuple:
            nodes += value
        elif value is not None:
            nodes.append(value)
    return nodes


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all below it, parents first."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        for name in _LAST_FIRST[node.__class__]:
            value = getattr(node, name)
            if value.__class__ is tuple:
                stack += value[::-1]
            elif value is not None:
                stack.append(value)


class IdentityKey:
    """A tree as a key by identity.

    Comparing by structure would cost more than most uses of a cached result.
    """

    __slots__ = ("tree",)

    def __init__(self, tree: Node):
        self.tree = tree

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.tree is other.tree

    def __hash__(self) -> int:
        return id(self.tree)


def names_read(node: Node) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, Name)}


class NamesRead:
    """Memo of `names_read` for trees that share subtrees."""

    def __init__(self) -> None:
        self.names: dict[IdentityKey, frozenset[str]] = {}

    def __call__(self, node: Node) -> frozenset[str]:
        key = IdentityKey(node)
        names = self.names.get(key)
        if names is None:
            names = frozenset((node.id,)) if isinstance(node, Name) else frozenset().union(*map(self, children(node)))
            self.names[key] = names
        return names


def count_assignments(body: tuple[Stmt, ...]) -> Counter[str]:
    """Count the statements that bind each name, in nested blocks too."""
    counts: Counter[str] = Counter()
    for stmt in body:
        if isinstance(stmt, Assign):
            counts.update(stmt.targets)
        elif isinstance(stmt, AugAssign):
            counts[stmt.target] += 1
        elif isinstance(stmt, For):
            counts[stmt.target] += 1
            counts.update(count_assignments(stmt.body))
        elif isinstance(stmt, If):
            counts.update(count_assignments(stmt.body))
            counts.update(count_assignments(stmt.orelse))
        elif isinstance(stmt, With):
            if stmt.name:
                counts[stmt.name] += 1
            counts.update(count_assignments(stmt.body))
    return counts


def measure_depth(nodes: Iterable[Node], kinds: tuple[type, ...] = (Node,)) -> int:
    """Return the length of the longest chain of nodes of these kinds, without recursion."""
    deepest, level = 0, [n for n in nodes if isinstance(n, kinds)]
    while level:
        deepest += 1
        level = [c for n in level for c in children(n) if isinstance(c, kinds)]
    return deepest


def limit_depth(node: Node, sink: Sink) -> None:
    """Report P018 for an expression or a simple statement that is nested too deep."""
    span = node.span
    short = span.line == span.end_line and span.end_column - span.column <= 2 * MAX_DEPTH
    if not short and measure_depth([node]) > MAX_DEPTH + 1:
        sink.error("P018", f"an expression is nested more than {MAX_DEPTH} deep", span.first_line(), "split it into several statements")


N = TypeVar("N", bound=Node)
T = TypeVar("T", bound=Typed)
Put = Node | tuple[Node, ...]  # a tuple replaces one of many nodes by several, or none
Path = tuple[tuple[str, int | None], ...]  # from a node to one below it: fields, and indices in those that hold many


def with_children(node: N, function: Callable[[Any], Put]) -> N:
    """Replace each child by the result of `function`; return the node itself if they all stay."""
    changed: dict[str, Any] = {}
    for name in CHILD_FIELDS[node.__class__]:
        previous = getattr(node, name)
        if isinstance(previous, tuple):
            new: Any = _map_tuple(previous, function)
        else:
            new = previous if previous is None else function(previous)
        if new is not previous:
            changed[name] = new
    return _replace_fields(node, changed) if changed else node


def _replace_fields(node: N, changed: Mapping[str, Any]) -> N:
    new = replace(node, **changed)
    return copy_marks(node, new) if isinstance(node, Typed) and isinstance(new, Typed) else new


def _map_tuple(old: tuple[Node, ...], function: Callable[[Any], Put]) -> tuple[Node, ...]:
    new: list[Node] = []
    same = True
    for item in old:
        put = function(item)
        same = same and put is item
        new.extend(put if isinstance(put, tuple) else (put,))
    return old if same else tuple(new)


def copy_marks(old: Typed, new: T) -> T:
    """Copy the checker's marks to the new node from the one that it replaces."""
    for name in ("type", "place"):
        if name in vars(old):
            object.__setattr__(new, name, getattr(old, name))
    if isinstance(old, Call) and isinstance(new, Call) and old.bound is not None:
        object.__setattr__(new, "bound", old.bound.onto(old, new))
    return new


def rewrite(node: Any, function: Callable[[Any], Put]) -> Any:
    """Replace each node by the result of `function`, bottom up: a node's children are rewritten before it."""

    def child(inner: Any) -> Any:
        return rewrite(inner, function)

    return function(with_children(node, child))


def rewrite_block(body: tuple[Stmt, ...], function: Callable[[Stmt], Stmt | tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """Replace each statement by the result of `function`, after the blocks inside it; expressions stay."""

    def statement(stmt: Stmt) -> Put:
        if isinstance(stmt, (For, With)):
            body = rewrite_block(stmt.body, function)
            stmt = stmt if body is stmt.body else replace(stmt, body=body)
        elif isinstance(stmt, If):
            body, orelse = rewrite_block(stmt.body, function), rewrite_block(stmt.orelse, function)
            stmt = stmt if body is stmt.body and orelse is stmt.orelse else replace(stmt, body=body, orelse=orelse)
        return function(stmt)

    return _map_tuple(body, statement)  # type: ignore[return-value]


def rename_names(node: Any, names: Mapping[str, str], memo: dict[int, Any] | None = None) -> Any:
    """Rename names in a tree, all exchanged at once; shared subtrees stay shared.

    memo: results by subtree, for several trees that share some.
    """
    memo = {} if memo is None else memo
    if id(node) not in memo:
        new = with_children(node, lambda inner: rename_names(inner, names, memo))
        memo[id(node)] = replace(new, id=names[new.id]) if isinstance(new, Name) and new.id in names else new
    return memo[id(node)]


def substitute(node: Any, names: Mapping[str, Expr]) -> Any:
    """Replace names by expressions in a tree, except names of functions that are called.

    If the expression is a name, it keeps the replaced name's place in the text.
    """
    if isinstance(node, Name):
        put: Any = names.get(node.id, node)
        return copy_marks(node, Name(put.id, span=node.span)) if isinstance(put, Name) and put is not node else put
    called = node.func if isinstance(node, Call) and isinstance(node.func, Name) else None

    def child(inner: Any) -> Any:
        return inner if inner is called else substitute(inner, names)

    return with_children(node, child)


def replace_node(node: Any, path: Path, put: Put) -> Any:
    """Replace the node at a path."""
    if not path:
        return put
    (name, index), rest = path[0], path[1:]
    value = getattr(node, name)
    if index is None:
        return _replace_fields(node, {name: replace_node(value, rest, put)})
    items = (replace_node(value[index], rest, put),) if rest else put if isinstance(put, tuple) else (put,)
    return _replace_fields(node, {name: value[:index] + items + value[index + 1 :]})


def copy_tree(node: N) -> N:
    """Copy a tree into new nodes for another place, since the checker's marks belong to a place."""
    parts: dict[str, Any] = {}
    for name in CHILD_FIELDS[node.__class__]:
        value = getattr(node, name)
        if value is not None:
            parts[name] = tuple(map(copy_tree, value)) if isinstance(value, tuple) else copy_tree(value)
    return replace(node, **parts)

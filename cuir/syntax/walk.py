"""The generic traversal of the AST, and trees as keys by identity."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

from .nodes import Assign, AugAssign, For, If, Name, Node, Stmt, With

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

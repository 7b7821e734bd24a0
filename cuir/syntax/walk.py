"""The only generic traversal of the AST, and trees as keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache

from .nodes import Assign, AugAssign, For, If, Name, Node, Stmt, With

_WORDS = {"str", "int", "float", "bool", "None", "tuple"}  # an annotation of these alone holds no node


@cache
def child_fields(kind: type[Node]) -> tuple[str, ...]:
    """The fields of a kind of nodes that hold nodes, in the order of the text."""
    return tuple(f.name for f in fields(kind) if f.compare and not _WORDS.issuperset(re.findall(r"\w+", str(f.type))))


def children(node: Node) -> list[Node]:
    """The nodes directly below, in the order of the text."""
    found: list[Node] = []
    for name in child_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, tuple):
            found += [v for v in value if isinstance(v, Node)]
        elif value is not None:
            found.append(value)
    return found


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, parents first."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        if child_fields(type(node)):  # most are leaves, names and numbers
            left += reversed(children(node))


class Itself:
    """A tree as the key of what is remembered of it: comparing its text would cost more than most of what is done with it."""

    __slots__ = ("tree",)

    def __init__(self, tree: Node):
        self.tree = tree

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.tree is other.tree

    def __hash__(self) -> int:
        return id(self.tree)


def names_read(node: Node) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, Name)}


def assigned(body: tuple[Stmt, ...]) -> Counter[str]:
    """How many statements bind each name, in nested blocks too."""
    found: Counter[str] = Counter()
    for stmt in body:
        if isinstance(stmt, Assign):
            found.update(stmt.targets)
        elif isinstance(stmt, AugAssign):
            found[stmt.target] += 1
        elif isinstance(stmt, For):
            found[stmt.target] += 1
            found.update(assigned(stmt.body))
        elif isinstance(stmt, If):
            found.update(assigned(stmt.body))
            found.update(assigned(stmt.orelse))
        elif isinstance(stmt, With):
            if stmt.name:
                found[stmt.name] += 1
            found.update(assigned(stmt.body))
    return found

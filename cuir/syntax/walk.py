"""The only generic traversal of the AST, and trees as keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

from .nodes import Assign, AugAssign, For, If, Name, Node, Stmt, With

_WORDS = {"str", "int", "float", "bool", "None", "tuple"}  # an annotation of these alone holds no node


@cache
def _child_fields(kind: type) -> tuple[str, ...]:
    names = (f.name for f in fields(kind) if not _WORDS.issuperset(re.findall(r"\w+", str(f.type))))
    return tuple(n for n in names if n not in ("span", "comments", "kind"))


def children(node: Node) -> list[Node]:
    """The nodes directly below, in the order of the text."""
    found: list[Node] = []
    for name in _child_fields(type(node)):  # type: ignore[arg-type]
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
        if _child_fields(type(node)):  # type: ignore[arg-type]  # most are leaves, names and numbers
            left += reversed(children(node))


class Itself:
    """A tree as the key of what is remembered of it: comparing its text would cost more than most of what is done with it."""

    def __init__(self, tree: Node):
        self.tree = tree

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.tree is other.tree

    def __hash__(self) -> int:
        return id(self.tree)


def renamed(node: Node, names: Mapping[str, str], done: dict[int, Node] | None = None) -> Node:
    """The same tree with other names, all exchanged at once. Subtrees that are shared stay shared. done: what was made of subtrees, for several trees that share some."""
    done = {} if done is None else done
    if id(node) in done:
        return done[id(node)]
    changed: dict[str, Any] = {}
    if isinstance(node, Name) and node.id in names:
        changed["id"] = names[node.id]
    for field in _child_fields(type(node)):  # type: ignore[arg-type]
        value = getattr(node, field)
        before = value if isinstance(value, tuple) else (value,)
        after = tuple(renamed(v, names, done) if isinstance(v, Node) else v for v in before)
        if any(x is not y for x, y in zip(after, before)):
            changed[field] = after if isinstance(value, tuple) else after[0]
    done[id(node)] = replace(node, **changed) if changed else node
    return done[id(node)]


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

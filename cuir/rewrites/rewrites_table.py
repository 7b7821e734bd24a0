"""The `Rewrite` record, and the table of kinds in which each file of rewrites registers its functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ..syntax.nodes import Comments, Node, Program
from ..syntax.printer import show
from .facts import Facts, Site


@dataclass(frozen=True)
class Rewrite:
    """A program with the same meaning and one change of form.

    line: in the text that it was made from. before, after: the changed text.
    """

    kind: str
    line: int
    before: str
    after: str
    make: Callable[[], Program] = field(compare=False, repr=False)

    @cached_property
    def program(self) -> Program:
        """The whole program; its places are those of the text that it was made from."""
        return self.make()

    def __str__(self) -> str:
        return f"{self.kind} in line {self.line}: `{join_lines(self.before)}` -> `{join_lines(self.after)}`"


Maker = Callable[[Facts], Iterator[Rewrite]]
KINDS: dict[str, Maker] = {}


def register_kind(name: str) -> Callable[[Maker], Maker]:
    """Register a function that yields all rewrites of one kind."""

    def enter(make: Maker) -> Maker:
        KINDS[name] = make
        return make

    return enter


def replace_node(facts: Facts, name: str, site: Site, node: Node) -> Rewrite:
    """Return a rewrite that replaces one node by another."""
    return Rewrite(name, site.node.span.line, show_text(site.node), show_text(node), lambda: facts.replace_at(site, node))


def get_head(stmt: Node) -> str:
    """Return the text of a statement without its blocks."""
    return show_text(stmt).splitlines()[len(getattr(stmt, "comments", Comments()).lead)]


def show_text(*nodes: Node) -> str:
    """Return the text of nodes, one after the other."""
    return "\n".join(show(n).rstrip("\n") for n in nodes)


def join_lines(text: str) -> str:
    """Join statements to one line."""
    return "; ".join(line.strip() for line in text.splitlines())

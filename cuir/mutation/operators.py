"""What a mutant is, and the table of the operators that make them: each file of operators enters its own."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ..syntax.nodes import Node, Program
from ..syntax.printer import show
from .places import Places, Site


@dataclass(frozen=True)
class Mutant:
    """A program with one fault. fault: its class, a key of FAULTS. place: line and column in the original. equivalent: why it is no fault at all, if that is known."""

    fault: int
    operator: str
    place: tuple[int, int]
    what: str
    program: Program = field(compare=False, repr=False)
    equivalent: str | None = None

    @cached_property
    def text(self) -> str:
        return show(self.program)

    @cached_property
    def id(self) -> str:
        """The same for the same text of the program."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def diff(self, original: str) -> str:
        """The unified difference to the canonical text of the original."""
        return "\n".join(difflib.unified_diff(original.splitlines(), self.text.splitlines(), "original", "mutant", lineterm="", n=2))


Operator = Callable[[Places], Iterator[Mutant]]
OPERATORS: list[Operator] = []


def operator(make: Operator) -> Operator:
    """Enters a function that yields the mutants of one kind."""
    OPERATORS.append(make)
    return make


def made(
    of: Places, fault: int, name: str, site: Site, what: str, put: Node | tuple[Node, ...] | Program, why: str | None = None
) -> Mutant:
    """A mutant from a node that takes a site's place, or from a whole program."""
    program = put if isinstance(put, Program) else of.put(site, put)
    return Mutant(fault, name, (site.node.span.line, site.node.span.column), what, program, why)

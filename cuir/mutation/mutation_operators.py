"""The `Mutant` record, and the table of operators in which files of operators register theirs."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ..syntax.nodes import Node, Program
from ..syntax.printer import show
from .mutation_sites import Places, Site


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

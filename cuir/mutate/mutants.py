"""What a mutant is; all mutants of a kernel, those that are the same program once, and a choice of them that is the same for the same seed."""

from __future__ import annotations

import difflib
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ..check import pick_kernel
from ..nodes import Node, Program
from ..printer import show
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


def mutants(program: Program, kernel: str | None = None) -> list[Mutant]:
    """Every mutant of a kernel, in the order of class, operator and place; those with the same text once, under their first class.

    Raises CuirError if the program has no such kernel.
    """
    from . import resources, synchronisation, values  # noqa: F401 - they enter their operators

    of, seen, found = Places(program, pick_kernel(program, kernel)), {show(program)}, list[Mutant]()
    everything = [m for make in OPERATORS for m in make(of)]
    for m in sorted(everything, key=lambda m: (m.fault, m.operator, m.place)):
        if m.text not in seen:
            seen.add(m.text)
            found.append(m)
    return found


def chosen(found: Iterable[Mutant], faults: Iterable[int] = (), limit: int | None = None, seed: int = 0) -> list[Mutant]:
    """Those of some classes (none named: of all), `limit` of them at most: the classes take turns, and within a class its operators, each at places drawn with the seed."""
    wanted = set(faults)
    groups: dict[int, dict[str, list[Mutant]]] = {}
    for m in found:
        if not wanted or m.fault in wanted:
            groups.setdefault(m.fault, {}).setdefault(m.operator, []).append(m)
    rng = random.Random(seed)
    queues: list[list[Mutant]] = []
    for fault in sorted(groups):
        operators = [rng.sample(ms, len(ms)) for ms in groups[fault].values()]
        rng.shuffle(operators)
        queues.append(list(_in_turn(operators)))
    return list(_in_turn(queues))[:limit]


def _in_turn(queues: list[list[Mutant]]) -> Iterator[Mutant]:
    for i in range(max(map(len, queues), default=0)):
        yield from (q[i] for q in queues if i < len(q))

"""All mutants of a kernel, those that are the same program once, and a choice of them that is the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from ..checking.checker import pick_kernel
from ..syntax.nodes import Program
from ..syntax.printer import show
from . import resources, synchronisation, values  # noqa: F401 - they enter their operators
from .operators import OPERATORS, Mutant
from .places import Places


def mutants(program: Program, kernel: str | None = None) -> list[Mutant]:
    """Every mutant of a kernel, in the order of class, operator and place; those with the same text once, under their first class.

    Raises CuirError if the program has no such kernel.
    """
    of, seen, distinct = Places(program, pick_kernel(program, kernel)), {show(program)}, list[Mutant]()
    everything = [m for make in OPERATORS for m in make(of)]
    for m in sorted(everything, key=lambda m: (m.fault, m.operator, m.place)):
        if m.text not in seen:
            seen.add(m.text)
            distinct.append(m)
    return distinct


def chosen(candidates: Iterable[Mutant], faults: Iterable[int] = (), limit: int | None = None, seed: int = 0) -> list[Mutant]:
    """Those of some classes (none named: of all), `limit` of them at most: the classes take turns, and within a class its operators, each at places drawn with the seed."""
    wanted = set(faults)
    groups: dict[int, dict[str, list[Mutant]]] = {}
    for m in candidates:
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

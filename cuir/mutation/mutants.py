"""All distinct mutants of a kernel, and a reproducible choice of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from ..checking.checker import pick_kernel
from ..syntax.nodes import Program
from ..syntax.printer import show
from . import resource_faults, synchronisation_faults, value_faults  # noqa: F401 - they enter their operators
from .mutation_sites import OPERATORS, Mutant, Places


def mutants(program: Program, kernel: str | None = None) -> list[Mutant]:
    """List every mutant of a kernel, in the order of class, operator and place.

    Those with the same text are listed once, under their first class. Raises CuirError if the program has no such
    kernel.
    """
    places, texts, distinct = Places(program, pick_kernel(program, kernel)), {show(program)}, list[Mutant]()
    candidates = [m for make in OPERATORS for m in make(places)]
    for m in sorted(candidates, key=lambda m: (m.fault, m.operator, m.place)):
        if m.text not in texts:
            texts.add(m.text)
            distinct.append(m)
    return distinct


def choose_mutants(candidates: Iterable[Mutant], faults: Iterable[int] = (), limit: int | None = None, seed: int = 0) -> list[Mutant]:
    """Choose mutants of some classes (empty: of all), at most `limit`.

    The classes take turns, and within a class its operators, each at places drawn with the seed.
    """
    classes = set(faults)
    groups: dict[int, dict[str, list[Mutant]]] = {}
    for m in candidates:
        if not classes or m.fault in classes:
            groups.setdefault(m.fault, {}).setdefault(m.operator, []).append(m)
    rng = random.Random(seed)
    queues: list[list[Mutant]] = []
    for fault in sorted(groups):
        operators = [rng.sample(ms, len(ms)) for ms in groups[fault].values()]
        rng.shuffle(operators)
        queues.append(list(_interleave(operators)))
    return list(_interleave(queues))[:limit]


def _interleave(queues: list[list[Mutant]]) -> Iterator[Mutant]:
    for i in range(max(map(len, queues), default=0)):
        yield from (q[i] for q in queues if i < len(q))

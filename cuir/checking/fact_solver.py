"""Solver of facts to a fixed point, on a graph of any keys: names of a program, values of the tile IR.

`ValueFlow` has a fact for each key, computed from the facts of its sources. An analysis gives the lattice (a join,
equality, a widening where chains are long) and a rule for each key. `reach` is the case of one fact, being reached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Fact = TypeVar("Fact")


def reach(roots: Iterable[Key], follow: Callable[[Key], Iterable[Key]]) -> set[Key]:
    """Return the roots and all keys that follow from them."""
    reached, worklist = set[Key](), list(roots)
    while worklist:
        key = worklist.pop()
        if key not in reached:
            reached.add(key)
            worklist += follow(key)
    return reached


Rule = Callable[[Sequence[Fact | None]], Fact | None]  # from the facts of a value's sources; None: not reached yet


@dataclass(eq=False, slots=True)
class _Step(Generic[Key, Fact]):
    """A value, and the rule that computes its fact from its sources.

    `due`: a source has changed since the step was last taken.
    """

    value: Key
    rule: Rule[Fact]
    sources: Sequence[Key]
    carried: bool
    due: bool = True
    moves: int = 0  # number of changes of a carried value


class ValueFlow(Generic[Key, Fact]):
    """Facts of values: rounds over the steps, in the order in which they were put, until none is due.

    Args:
        join: Joins the fact of a value with a new one.
        widen: Bounds a carried value's new fact, given the old one, after `rounds` changes.
        rounds: The number of changes of a carried value before it is widened.
    """

    def __init__(self, join: Callable[[Fact, Fact], Fact], widen: Callable[[Fact, Fact], Fact] | None = None, rounds: int = 0):
        self.facts: dict[Key, Fact] = {}  # without an entry: not reached yet
        self._join, self._widen, self._rounds = join, widen, rounds
        self._steps: list[_Step[Key, Fact]] = []  # put since `solve`
        self._described = set[Key]()
        self._readers: dict[Key, list[_Step[Key, Fact]]] = {}

    def put(self, value: Key, rule: Rule[Fact], sources: Sequence[Key] = (), carried: bool = False) -> None:
        """Add the step of a value."""
        step = _Step(value, rule, sources, carried)
        self._steps.append(step)
        for source in sources:
            self._readers.setdefault(source, []).append(step)

    def reach(
        self,
        roots: Iterable[Key],
        describe: Callable[[Key], tuple[Rule[Fact], Sequence[Key]]],
        carries: Callable[[Key], bool] = lambda value: True,
    ) -> None:
        """Add the steps of values and all that they are computed from, sources first, but for those added before.

        Args:
            roots: The values.
            describe: Returns the rule of a value, and its sources.
            carries: Returns whether a value is one that is widened.
        """
        described = dict[Key, tuple[Rule[Fact], Sequence[Key]]]()
        worklist = [(root, False) for root in roots]
        while worklist:
            value, is_done = worklist.pop()
            if is_done:
                self.put(value, *described[value], carries(value))
            elif value not in self._described:
                self._described.add(value)
                described[value] = describe(value)
                worklist.append((value, True))
                worklist += [(source, False) for source in described[value][1]]

    def solve(self) -> dict[Key, Fact]:
        """Return the facts of all values that are reached; steps that were solved before do not depend on later ones."""
        steps, self._steps = self._steps, []
        while any(step.due for step in steps):
            for step in steps:
                if step.due:
                    self._take(step)
        return self.facts

    def _take(self, step: _Step[Key, Fact]) -> None:
        """Compute the fact of a step's value anew, and mark its readers due if it changed."""
        step.due = False
        update = step.rule([self.facts.get(s) for s in step.sources])
        if update is None:
            return
        old = self.facts.get(step.value)
        if old is not None:
            if update == old or (update := self._join(update, old)) == old:
                return
            if step.carried and self._widen is not None:
                step.moves += 1
                if step.moves > self._rounds:
                    update = self._widen(old, update)
        self.facts[step.value] = update
        for reader in self._readers.get(step.value, ()):
            reader.due = True


__all__ = ["Rule", "ValueFlow", "reach"]

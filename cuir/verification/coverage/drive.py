"""Coverage of a verification: what its runs have seen, problems for what they have not, and what is then left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...checking.checked import Checked
from ...spec.functions import AnySpecification
from ...syntax.types import I32
from ...syntax.walk import Itself
from ...text.diagnostics import CuirError
from ..draws import Draw
from ..problems import Case
from .observed import Observed, counts_of_loops
from .origins import NUMBERS
from .ranges import Ranges
from .solve import Search, Solution, choose, solve
from .space import Problem, Space
from .targets import Target, boundaries_left, remainders_left, sides_left

LengthsOf = Callable[[Draw | Case], Mapping[str, Any]]  # the arguments of a problem, for scalars that are read from tensors


@dataclass(frozen=True)
class Effort:
    """How much may be spent. operations: on scalars, to look for problems. problems, cost: of runs, see Solution.cost."""

    operations: int
    problems: int
    cost: int


EFFORTS = {"quick": Effort(1_500_000, 6, 3_000_000), "full": Effort(100_000_000, 60, 60_000_000)}


@dataclass
class Coverage:
    """What is known of the sides of a kernel's conditions. Sides that no launch can take count for nothing."""

    observed: Observed
    impossible: list[int] = field(default_factory=list)
    driven: list[tuple[Target, Draw | Case]] = field(default_factory=list)  # sides that a problem was made for, which ran
    feasible: dict[tuple[int, int], Draw | Case] = field(default_factory=dict)  # sides that a problem has that did not run
    searched: bool = False  # for all that is left

    @property
    def seen(self) -> int:
        """How many sides some run has taken."""
        return sum(mask.bit_count() for mask in self.observed.masks())

    @property
    def total(self) -> int:
        """How many sides there are that a launch may take."""
        masks = self.observed.masks()
        return sum((c.everything & ~(self.impossible[c.number] & ~masks[c.number])).bit_count() for c in self.observed.conditions)

    def left(self) -> list[Target]:
        """Sides that no run has taken, and that are not known to be impossible."""
        seen = [mask | no for mask, no in zip(self.observed.masks(), self.impossible)]
        return sides_left(self.observed.conditions, seen)


class Driver:
    """Makes problems for what the runs of a verification have not seen."""

    def __init__(
        self,
        checked: Checked,
        spec: AnySpecification,
        observed: Observed,
        level: str,
        arguments_of: Callable[[Draw | Case], Mapping[str, Any]],
    ):
        self.checked, self.spec, self.level, self.arguments_of = checked, spec, level, arguments_of
        self.effort = EFFORTS[level]
        self.coverage = Coverage(observed, [0] * len(observed.conditions))
        self._known: dict[str, Mapping[str, Any]] = {}

    def problems(self) -> Iterator[Solution]:
        """Problems to run, the cheapest for what they show first. Whoever runs one tells by `ran`."""
        sides = sides_left(self.coverage.observed.conditions, self.coverage.observed.masks())
        if sides:
            self._exclude(sides)
            sides = self.coverage.left()
        remainders = remainders_left(self.checked, counts_of_loops(self.checked))
        near = [t for t in boundaries_left(self.coverage.observed.conditions) if any(s.condition is t.condition for s in sides)]
        wanted = [*sides, *remainders, *near]
        search = Search(self.effort.operations)
        if wanted:
            solve(self.checked, Space(self.checked, self.spec), wanted, search, self._tensors)
        self.coverage.searched = not search.exhausted
        runnable = [s for s in search.solutions if not s.problem.large]
        chosen = choose(runnable, wanted, self.effort.problems, self.effort.cost)
        for solution in search.solutions:
            for t in solution.targets:
                if t.required and t.condition.level == NUMBERS:
                    self.coverage.feasible.setdefault((t.condition.number, t.number), solution.problem.case)

        yield from chosen

    def ran(self, solution: Solution) -> None:
        """A problem has run without a fault: what it was made for has been seen."""
        self.coverage.observed.mark(solution.masks.sides)
        self.coverage.driven += [(t, solution.problem.case) for t in solution.targets if t.required]

    def _exclude(self, sides: Iterable[Target]) -> None:
        """Mark sides that no launch can take, by intervals: lengths are at least 1."""
        given = dict.fromkeys(self.checked.dims, (1, 2**31 - 1)) | {
            s.name: (-(2**31), 2**31 - 1) for s in self.checked.scalars if s.dtype == I32
        }
        ranges = Ranges(self.checked, given)
        for c in {Itself(t.condition.node): t.condition for t in sides}.values():
            self.coverage.impossible[c.number] |= ranges.impossible(c)
        for t in sides:
            self.coverage.impossible[t.condition.number] |= ranges.impossible(t.condition)

    def _tensors(self, problem: Problem) -> Callable[[str], Any]:
        """The inputs of a problem by name."""

        def read(name: str) -> torch.Tensor:
            key = str(problem.case)
            if key not in self._known:
                self._known.clear()
                try:
                    self._known[key] = self.arguments_of(problem.case)
                except CuirError:
                    self._known[key] = {}
            found = self._known[key].get(name)
            return found if isinstance(found, torch.Tensor) else torch.empty(0)

        return read


@dataclass(frozen=True)
class OneSided:
    """A side of a condition that no run has taken."""

    line: int
    condition: str
    side: str  # in words
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.side} ({self.why})"

    def as_json(self) -> dict[str, Any]:
        return {"line": self.line, "condition": self.condition, "side": self.side, "why": self.why}


def describe_left(coverage: Coverage) -> list[OneSided]:
    """The sides that stayed unseen, by lines; one of those that are written alike in a line."""
    found: dict[tuple[int, str], OneSided] = {}
    for t in coverage.left():
        c = t.condition
        case = coverage.feasible.get((c.number, t.number))
        why = f"{case} would show it" if case is not None else "data decide it" if c.level > NUMBERS else "no problem was found for it"
        side = c.describe(t.number)
        if case is not None or (c.span.line, side) not in found:
            found[c.span.line, side] = OneSided(c.span.line, c.text, side, why)
    return sorted(found.values(), key=lambda one: (one.line, one.side))


__all__ = ["Coverage", "Driver", "Effort", "OneSided", "describe_left"]

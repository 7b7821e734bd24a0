"""Search for sizes that meet coverage targets.

Candidates are made of the numbers in the text and evaluated without data, thin ones first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...checking.checked import Checked
from ...checking.decisions import definitions
from ...ops.expressions import operation
from ...syntax.nodes import Call, Expr, For
from ...syntax.nodes import Literal as Number
from ...syntax.types import BOOL, F32
from ...syntax.walk import walk
from .conditions import DECLARATIONS, WORK, Condition, boundary, collect_conditions
from .scalar_program import TURNS, Masks, ScalarProgram, Unknown
from .space import Problem, Space
from .targets import Target, names_behind, period

LONGEST = 131_072  # of a dim that is tried
NUMBERS = 12  # of the text, for one target
PAIRS = 500  # of values of two dims at once
FEW = 17  # steps of a dim that are tried one by one
EACH = 300  # operations that a problem costs besides those that are evaluated


@dataclass(frozen=True)
class Solution:
    """A problem and what of the targets it meets when it runs on so many CTAs."""

    problem: Problem
    grid: int
    masks: Masks
    targets: tuple[Target, ...]
    turns: int

    @property
    def cost(self) -> int:
        """Cost of a run with data, in elements: a turn costs about as much as a tile of few rows."""
        return self.problem.elements + 400 * self.turns


@dataclass
class Search:
    """Solutions found within so many operations on scalars; exhausted: there was more to try."""

    operations: int
    solutions: list[Solution] = field(default_factory=list)
    exhausted: bool = False


TensorsOf = Callable[[Problem], Callable[[str], Any]]  # the inputs of a problem, for scalars that are read from them


def solve(checked: Checked, space: Space, targets: Sequence[Target], search: Search, tensors_of: TensorsOf) -> None:
    """Look for problems that meet the targets; `search` takes what is found.

    First a few small problems of each dim are asked for all targets, then for each condition those that its numbers suggest.
    """
    groups = _choose_representatives(targets)
    if not groups:
        return
    together = _Solver(checked, space, [t for group in groups for t in group], search, tensors_of)
    together.probe()
    for number, group in enumerate(groups):
        left = [t for t in group if t in together.left]
        if left:
            share = max(0, search.operations) // (len(groups) - number)
            alone = Search(share, search.solutions)
            _Solver(checked, space, left, alone, tensors_of).run()
            search.operations -= share - max(0, alone.operations)
            search.exhausted |= alone.operations <= 0


def _choose_representatives(targets: Sequence[Target]) -> list[list[Target]]:
    """Targets in groups of one condition; of those with one text and place, as roles have them that call one function, the first."""
    groups: dict[object, list[Target]] = {}
    known: dict[object, int] = {}
    for t in targets:
        c = t.condition
        place = (c.span.source.name, c.span.line, c.span.column, c.text, c.kind)
        first = known.setdefault((place, t.kind, t.number, t.divisor, t.loop if t.kind == "remainder" else None), c.number)
        if first == c.number:
            groups.setdefault((c.number, t.loop), []).append(t)
    return list(groups.values())


class _Solver:
    """Tries candidates for targets of one condition."""

    def __init__(self, checked: Checked, space: Space, targets: Sequence[Target], search: Search, tensors_of: TensorsOf):
        self.checked, self.space, self.search, self.tensors_of = checked, space, search, tensors_of
        self.left = list(targets)
        self.condition = targets[0].condition
        numbers = {n for t in targets for n in (t.condition.number, t.loop) if n is not None}
        self.program = ScalarProgram(checked, [c for c in collect_conditions(checked) if c.number in numbers])
        self.numbers = _numbers(self.condition, _trace_expressions(checked, self.condition), self.left)
        self.names = self._find_influences()
        self.most = search.operations
        self.tried: set[tuple[tuple[str, Any], ...]] = set()

    def probe(self) -> None:
        """Small problems: of each dim one step, two and a ragged end, four, and so many of two dims at once."""
        step = {n: max(1, self.space.steps.get(n, 1)) for n in self.names if n not in self.space.scalars}
        few = [{n: k * step[n] + more} for k, more in ((1, 0), (2, 1), (4, 0)) for n in step]
        pairs = [{a: k * step[a] + 1, b: j * step[b] + 1} for k, j in ((2, 2), (4, 2), (2, 4)) for a, b in itertools.combinations(step, 2)]
        for sizes in [*few, *pairs]:
            if self._is_worthwhile():
                self._try({**self._make_thin(), **sizes})

    def run(self) -> None:
        """All that the numbers of the condition suggest: one dim or scalar after the other, two at once, longer and longer, and one of them among others that are longer."""
        self._try_each(self._make_thin())
        self._try_pairs()
        kept = self.search.operations // 2
        self.search.operations -= kept
        for name in self.names:
            self._grow(name)
        self.search.operations += kept
        self._try_each(self._make_thin(3))

    def _try_each(self, base: Mapping[str, Any]) -> None:
        for name, value in sorted(self._values(), key=lambda nv: (abs(nv[1]), nv[0])):
            if self._is_worthwhile():
                self._try({**base, name: value})

    def _try_pairs(self) -> None:
        values: dict[str, list[Any]] = {}
        for name, value in self._values(short=True):
            values.setdefault(name, []).append(value)
        pairs = [
            (a, v, b, w)
            for a, b in itertools.combinations(values, 2)
            for v, w in itertools.product(dict.fromkeys(values[a]), dict.fromkeys(values[b]))
        ]

        def size(pair: tuple[str, Any, str, Any]) -> int:
            """Estimate the size of a problem; scalars cost nothing."""
            return math.prod(v for n, v in (pair[:2], pair[2:]) if n not in self.space.scalars)

        for a, v, b, w in sorted(pairs, key=size)[:PAIRS]:
            if self._is_worthwhile():
                self._try({**self._make_thin(), a: v, b: w}, share=16)

    def _is_worthwhile(self) -> bool:
        """Return whether targets are left that justify a search, and operations to spend on it."""
        return self.search.operations > 0 and any(t.kind != "near" for t in self.left)

    def _make_thin(self, steps: int = 0) -> dict[str, Any]:
        return self.space.thin(self.names, steps)

    def _find_influences(self) -> list[str]:
        """Dims and scalars on which the condition may depend."""
        names = set(self.program.names)
        if self.program.reads:  # integers that are read, such as lengths, depend on sizes that the kernel's text does not name there
            names |= set(self.space.dims)
        return [n for n in self.space.names if n in names]

    def _values(self, short: bool = False) -> Iterator[tuple[str, Any]]:
        numbers = self.numbers
        for name in self.names:
            kind = self.space.scalars.get(name)
            if kind == BOOL:
                yield from ((name, False), (name, True))
                continue
            if kind is not None and short:
                yield from ((name, v) for n in (0, *numbers[:4]) for v in (n, n + 1))
                continue
            if kind is not None:
                yield from ((name, v) for n in (0, *numbers) for v in (n - 1, n, n + 1, -n))
                if kind == F32:
                    yield from ((name, v) for n in numbers for v in (n * 0.5, n * 2.0))
                continue
            step = max(1, self.space.steps.get(name, 1))
            values = list(range(1, FEW)) + [k * step for k in range(1, FEW)] if not short else [2, step + 1, 2 * step + 1]
            for n in numbers[: 5 if short else None]:
                values += (
                    [n, n + 1, (n + 1) * step]
                    if short
                    else [n - 1, n, n + 1, n * step - 1, n * step, n * step + 1, (n + 1) * step, (n - 1) * step + 1]
                )
            yield from ((name, v) for v in dict.fromkeys(values) if 1 <= v <= LONGEST)

    def _grow(self, name: str) -> None:
        """Longer and longer, then as short as will do."""
        if name in self.space.scalars:
            return
        step, before = max(1, self.space.steps.get(name, 1)), 1
        length = step
        while self._is_worthwhile() and length <= LONGEST:
            wanted = list(self.left)
            if self._try({**self._make_thin(), name: length}):
                self._shorten(name, before, length, [t for t in wanted if t not in self.left])
            before, length = length, 2 * length

    def _shorten(self, name: str, low: int, high: int, met: Sequence[Target]) -> None:
        """The shortest length between these that meets the same, if one side of it meets and the other does not."""
        while high - low > max(1, low // 16) and self.search.operations > 0:
            middle = (low + high) // 2
            solution = self._evaluated({**self._make_thin(), name: middle})
            if solution is not None and all(t.is_met(solution.masks) for t in met):
                high = middle
                self.search.solutions[-1] = solution
            else:
                low = middle

    def _try(self, sizes: Mapping[str, Any], share: int = 3) -> bool:
        """Evaluate a problem, with at most one part in `share` of what may be spent; gives whether it meets something."""
        solution = self._evaluated(sizes, share)
        if solution is None or not solution.targets:
            return False
        self.search.solutions.append(solution)
        self.left = [t for t in self.left if t not in solution.targets]
        return True

    def _evaluated(self, sizes: Mapping[str, Any], share: int = 3) -> Solution | None:
        key = tuple(sorted(sizes.items()))
        if key in self.tried:
            return None
        self.tried.add(key)
        problem = self.space.problem(sizes)
        if problem is None:
            self.search.operations -= EACH
            return None
        limit = min(max(1, self.most // share // self.program.size), TURNS)
        try:
            masks = self.program.evaluate(problem.sizes, 1, self.tensors_of(problem) if self.program.reads else None, limit)
        except Unknown:
            masks = None
        turns = limit - max(0, self.program.left)
        self.search.operations -= EACH + turns * self.program.size + (problem.elements // 10 if self.program.reads else 0)
        if masks is None:
            return None
        return Solution(problem, 1, masks, tuple(t for t in self.left if t.is_met(masks)), turns)


def _trace_expressions(checked: Checked, c: Condition) -> list[Expr]:
    """The condition and what the names in it are made of; of a loop over units the number of units."""
    roots: list[Expr] = [c.node] if not isinstance(c.node, For) else list(c.node.iter.args) if isinstance(c.node.iter, Call) else []
    roots += reversed(c.guards)  # the nearest first
    made = definitions(checked.declarations)
    if c.role not in (DECLARATIONS, WORK):
        made = {**made, **definitions(checked.roles[c.role].body)}
    names = sorted(set().union(*(names_behind(e, made) for e in roots)) if roots else set())
    return [*roots, *(e for n in names for e in made.get(n, []))]


def _numbers(c: Condition, behind: Sequence[Expr], targets: Sequence[Target]) -> list[int]:
    """Numbers of the text that lengths are made of, those of the condition first."""
    numbers = [abs(n) for n in boundary(c)]
    for t in targets:
        if t.kind == "remainder":
            numbers += [t.divisor + t.number, 2 * t.divisor + t.number]
    if (divisor := period(c)) > 1:
        numbers += [divisor, 2 * divisor]
    for e in behind:
        for node in walk(e):
            if isinstance(node, Number) and not isinstance(node.value, bool) and abs(node.value) < 2**31 and node.value == node.value:
                numbers.append(abs(int(node.value)))
    bits = [
        1 << int(x.value)
        for e in behind
        for n in walk(e)
        if (op := _tested(n)) is not None
        for x in op
        if isinstance(x, Number) and 0 <= x.value < 20
    ]
    unique = list(dict.fromkeys(n for n in [*numbers, *bits] if n > 0))
    sums = [a + b for a, b in itertools.combinations(unique[:4], 2)]
    products = [a * b for a, b in itertools.combinations(unique[:4], 2) if a > 1 and b > 1]
    return list(dict.fromkeys([*unique[:NUMBERS], *products[:4], *sums[:4]]))


def _tested(node: object) -> tuple[Expr, ...] | None:
    """The operands of a test of a bit, else None."""
    found = operation(node) if isinstance(node, Expr) else None
    return tuple(found[1]) if found is not None and found[0].traits.tests_bit else None


def choose(solutions: Sequence[Solution], targets: Iterable[Target], most: int, elements: int) -> list[Solution]:
    """Few of the solutions that meet as many targets as can be met at so much cost: the cheapest for what they meet first."""
    wanted, chosen, spent, available = list(targets), list[Solution](), 0, _merge(solutions)
    for left in ({t for t in wanted if t.required}, {t for t in wanted if not t.required}):
        for s in chosen:
            left -= set(s.targets)
        while left and len(chosen) < most:
            useful = [(s, n) for s in available if spent + s.cost <= elements and (n := sum(t in left for t in s.targets))]
            if not useful:
                break
            best = min(useful, key=lambda sn: sn[0].cost / sn[1])[0]
            chosen.append(best)
            spent += best.cost
            left -= set(best.targets)
            available.remove(best)
    return chosen


def _merge(solutions: Sequence[Solution]) -> list[Solution]:
    """One solution for each problem, with all that it meets."""
    merged: dict[tuple[str, int], Solution] = {}
    for s in solutions:
        key = (str(s.problem.case), s.grid)
        merged[key] = s if key not in merged else _join(merged[key], s)
    return list(merged.values())


def _join(one: Solution, other: Solution) -> Solution:
    masks = Masks(len(one.masks.sides))
    masks.sides = [a | b for a, b in zip(one.masks.sides, other.masks.sides)]
    return Solution(one.problem, one.grid, masks, (*one.targets, *other.targets), max(one.turns, other.turns))


__all__ = ["Search", "Solution", "choose", "solve"]

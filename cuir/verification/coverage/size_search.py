"""Search for sizes that meet coverage targets.

Candidates are made of the numbers in the text and evaluated without data, thin ones first.

Search space of problems: lengths and scalars that a specification and memory admit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...attn.verification.problems import Case, Kind, is_attention
from ...checking.checked import Checked
from ...checking.decisions import definitions
from ...ops.expressions import operation
from ...spec.function_specification import AnySpecification, FunctionSpecification
from ...spec.specification import LENGTHS, Lengths
from ...syntax.nodes import Call, Expr, For
from ...syntax.nodes import Literal as Number
from ...syntax.types import BOOL, F32, I32, DType
from ...syntax.walk import walk
from ..tile_steps import align_heads, find_steps, find_tiles
from ..values.cases import MOST_ELEMENTS, Draw, count_elements, get_integer_consts, select_fitting
from .conditions import DECLARATIONS, WORK, Condition, collect_conditions, list_boundary_numbers
from .scalar_program import TURNS, Masks, ScalarProgram, Size, Tensors, Unknown
from .targets import Target, compute_period, trace_names

NAME = "for a condition"
_HEADS = ("H", "HK")


@dataclass(frozen=True)
class Problem:
    """A problem with the lengths and scalars of its launch.

    elements: of all its tensors; large: too many for a run with data.
    """

    case: Draw | Case
    sizes: Mapping[str, Size]
    elements: int
    large: bool = False


class Space:
    """Lengths of dims, and values of scalars, by name."""

    def __init__(self, checked: Checked, spec: AnySpecification):
        self.checked, self.spec = checked, spec
        function = isinstance(spec, FunctionSpecification)
        self.dims = tuple(checked.dims) if function else LENGTHS
        self.steps = find_steps(checked, spec) if isinstance(spec, FunctionSpecification) else self._get_tiles()
        self.scalars: dict[str, DType] = {s.name: s.dtype for s in checked.scalars if s.name != "scale"} if function else {}
        self.integer_consts = get_integer_consts(checked)
        # so that state carried between blocks matters
        self.kind: Kind = "growing" if is_attention(checked.origin) else "normal"

    def _get_tiles(self) -> dict[str, int]:
        tiles = find_tiles(self.checked)
        BM, BN = (self.checked.consts.get(n) for n in ("BM", "BN"))
        return {**dict.fromkeys(LENGTHS, 0), "M": int(BM or tiles.get("M") or 0), "N": int(BN or tiles.get("N") or 0)}  # type: ignore[arg-type]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the dims and scalars that may be chosen."""
        return (*self.dims, *self.scalars)

    def make_thin(self, scalars: Collection[str] = (), steps: int = 0) -> dict[str, Size]:
        """Return the smallest problem, with a value for these scalars.

        steps: so many steps of each dim and a remainder, instead of one element.
        """
        sizes: dict[str, Size] = {
            d: steps * max(1, self.steps.get(d, 0)) + (1 if steps and self.steps.get(d) else 0) or 1 for d in self.dims
        }
        if steps > 1:
            sizes |= {d: 1 for d in _HEADS if d in sizes and d == "HK"}
        return {
            **sizes,
            **{n: 1 if kind == I32 else kind == BOOL if kind == BOOL else 1.0 for n, kind in self.scalars.items() if n in scalars},
        }

    def problem(self, sizes: Mapping[str, Size]) -> Problem | None:
        """Return the problem of these lengths and scalars, as admitted by the specification, or None."""
        lengths = align_heads({d: int(sizes[d]) for d in self.dims})
        if min(lengths.values(), default=1) < 1 or max(lengths.values(), default=1) >= 2**31:
            return None
        scalars = {n: self._convert_scalar(n, sizes[n]) for n in self.scalars if n in sizes}
        if isinstance(self.spec, FunctionSpecification):
            draw = Draw(NAME, lengths, self.kind, scalars=tuple(scalars.items()))
            admitted, large = select_fitting(self.checked, self.spec, [draw])
            chosen = admitted[0] if admitted else large[0][2] if large else None
            if chosen is None:
                return None
            return Problem(chosen, {**self.integer_consts, **chosen.sizes, **scalars}, self._count_elements(chosen.sizes), not admitted)
        if lengths["H"] % lengths["HK"]:
            return None
        elements = self._count_elements(lengths)
        return Problem(Case(NAME, Lengths(**lengths), self.kind), {**self.integer_consts, **lengths}, elements, elements > MOST_ELEMENTS)

    def _convert_scalar(self, name: str, value: Size) -> Size:
        kind = self.scalars[name]
        return float(value) if kind == F32 else bool(value) if kind == BOOL else int(value)

    def _count_elements(self, sizes: Mapping[str, int]) -> int:
        all_sizes = {**dict.fromkeys(self.checked.dims, 1), **self.integer_consts, **sizes}
        return sum(count_elements(t, all_sizes) for t in self.checked.tensors if not t.scratch)


LONGEST = 131_072  # the largest dim that is tried
NUMBERS = 12  # numbers of the text for one target
PAIRS = 500  # value pairs of two dims
FEW = 17  # multiples of a dim's step that are tried one by one
EACH = 300  # overhead of a problem, in operations


@dataclass(frozen=True)
class Solution:
    """A problem and the targets that it meets on so many CTAs."""

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
    """Solutions found within a number of scalar operations; exhausted: there was more to try."""

    operations: int
    solutions: list[Solution] = field(default_factory=list)
    exhausted: bool = False


TensorsOf = Callable[[Problem], Tensors]  # the inputs of a problem, from which scalars are read


def solve(checked: Checked, space: Space, targets: Sequence[Target], search: Search, tensors_of: TensorsOf) -> None:
    """Search problems that meet the targets; append them to `search`.

    First a few small problems of each dim are tried for all targets, then for each condition those that its numbers
    suggest.
    """
    groups = _choose_representatives(targets)
    if not groups:
        return
    together = _Solver(checked, space, [t for group in groups for t in group], search, tensors_of)
    together.probe()
    for number, group in enumerate(groups):
        open_targets = [t for t in group if t in together.open_targets]
        if open_targets:
            share = max(0, search.operations) // (len(groups) - number)
            alone = Search(share, search.solutions)
            _Solver(checked, space, open_targets, alone, tensors_of).run()
            search.operations -= share - max(0, alone.operations)
            search.exhausted |= alone.operations <= 0


def _choose_representatives(targets: Sequence[Target]) -> list[list[Target]]:
    """Group targets by condition; keep the first of those with the same text and place.

    Roles that call one function have such targets.
    """
    groups: dict[object, list[Target]] = {}
    first_numbers: dict[object, int] = {}
    for t in targets:
        c = t.condition
        place = (c.span.source.name, c.span.line, c.span.column, c.text, c.kind)
        first = first_numbers.setdefault((place, t.kind, t.number, t.divisor, t.loop if t.kind == "remainder" else None), c.number)
        if first == c.number:
            groups.setdefault((c.number, t.loop), []).append(t)
    return list(groups.values())


class _Solver:
    """Search for targets of one condition."""

    def __init__(self, checked: Checked, space: Space, targets: Sequence[Target], search: Search, tensors_of: TensorsOf):
        self.checked, self.space, self.search, self.tensors_of = checked, space, search, tensors_of
        self.open_targets = list(targets)
        self.condition = targets[0].condition
        numbers = {n for t in targets for n in (t.condition.number, t.loop) if n is not None}
        self.program = ScalarProgram(checked, [c for c in collect_conditions(checked) if c.number in numbers])
        self.numbers = _collect_numbers(self.condition, _trace_expressions(checked, self.condition), self.open_targets)
        self.names = self._find_influences()
        self.most = search.operations
        self.tried: set[tuple[tuple[str, Size], ...]] = set()

    def probe(self) -> None:
        """Try small problems: of each dim one step, two and a ragged end, four; and so of two dims at once."""
        step = {n: max(1, self.space.steps.get(n, 1)) for n in self.names if n not in self.space.scalars}
        single_dims = [{n: k * step[n] + more} for k, more in ((1, 0), (2, 1), (4, 0)) for n in step]
        pairs = [{a: k * step[a] + 1, b: j * step[b] + 1} for k, j in ((2, 2), (4, 2), (2, 4)) for a, b in itertools.combinations(step, 2)]
        for sizes in [*single_dims, *pairs]:
            if self._is_worthwhile():
                self._try({**self._make_thin(), **sizes})

    def run(self) -> None:
        """Try all that the numbers of the condition suggest.

        One dim or scalar after the other, two at once, longer and longer, and one of them among others that are longer.
        """
        self._try_each(self._make_thin())
        self._try_pairs()
        reserve = self.search.operations // 2
        self.search.operations -= reserve
        for name in self.names:
            self._grow(name)
        self.search.operations += reserve
        self._try_each(self._make_thin(3))

    def _try_each(self, base: Mapping[str, Size]) -> None:
        for name, value in sorted(self._list_values(), key=lambda nv: (abs(nv[1]), nv[0])):
            if self._is_worthwhile():
                self._try({**base, name: value})

    def _try_pairs(self) -> None:
        values: dict[str, list[Size]] = {}
        for name, value in self._list_values(short=True):
            values.setdefault(name, []).append(value)
        pairs = [
            (a, v, b, w)
            for a, b in itertools.combinations(values, 2)
            for v, w in itertools.product(dict.fromkeys(values[a]), dict.fromkeys(values[b]))
        ]

        def size(pair: tuple[str, Size, str, Size]) -> float:
            """Estimate the size of a problem; scalars cost nothing."""
            return math.prod(v for n, v in (pair[:2], pair[2:]) if n not in self.space.scalars)

        for a, v, b, w in sorted(pairs, key=size)[:PAIRS]:
            if self._is_worthwhile():
                self._try({**self._make_thin(), a: v, b: w}, share=16)

    def _is_worthwhile(self) -> bool:
        """Return whether open targets justify a search, and operations remain."""
        return self.search.operations > 0 and any(t.kind != "near" for t in self.open_targets)

    def _make_thin(self, steps: int = 0) -> dict[str, Size]:
        return self.space.make_thin(self.names, steps)

    def _find_influences(self) -> list[str]:
        """Return the dims and scalars on which the condition may depend."""
        names = set(self.program.names)
        if self.program.reads:  # integers read from tensors, such as lengths, may depend on any dim
            names |= set(self.space.dims)
        return [n for n in self.space.names if n in names]

    def _list_values(self, short: bool = False) -> Iterator[tuple[str, Size]]:
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
        """Double a length until a target is met, then shorten it."""
        if name in self.space.scalars:
            return
        step, before = max(1, self.space.steps.get(name, 1)), 1
        length = step
        while self._is_worthwhile() and length <= LONGEST:
            open_targets = list(self.open_targets)
            if self._try({**self._make_thin(), name: length}):
                self._shorten(name, before, length, [t for t in open_targets if t not in self.open_targets])
            before, length = length, 2 * length

    def _shorten(self, name: str, low: int, high: int, targets: Sequence[Target]) -> None:
        """Find the shortest length between two bounds that meets the same targets."""
        while high - low > max(1, low // 16) and self.search.operations > 0:
            middle = (low + high) // 2
            solution = self._evaluate({**self._make_thin(), name: middle})
            if solution is not None and all(t.is_met(solution.masks) for t in targets):
                high = middle
                self.search.solutions[-1] = solution
            else:
                low = middle

    def _try(self, sizes: Mapping[str, Size], share: int = 3) -> bool:
        """Evaluate a problem, with at most 1/share of the budget; return whether it meets a target."""
        solution = self._evaluate(sizes, share)
        if solution is None or not solution.targets:
            return False
        self.search.solutions.append(solution)
        self.open_targets = [t for t in self.open_targets if t not in solution.targets]
        return True

    def _evaluate(self, sizes: Mapping[str, Size], share: int = 3) -> Solution | None:
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
        turns = limit - max(0, self.program.turns_remaining)
        self.search.operations -= EACH + turns * self.program.size + (problem.elements // 10 if self.program.reads else 0)
        if masks is None:
            return None
        return Solution(problem, 1, masks, tuple(t for t in self.open_targets if t.is_met(masks)), turns)


def _trace_expressions(checked: Checked, c: Condition) -> list[Expr]:
    """Return the condition and the expressions of the names in it; for a loop over units the unit count."""
    roots: list[Expr] = [c.node] if not isinstance(c.node, For) else list(c.node.iter.args) if isinstance(c.node.iter, Call) else []
    roots += reversed(c.guards)  # the innermost first
    bound_values = definitions(checked.declarations)
    if c.role not in (DECLARATIONS, WORK):
        bound_values = {**bound_values, **definitions(checked.roles[c.role].body)}
    names = sorted(set().union(*(trace_names(e, bound_values) for e in roots)) if roots else set())
    return [*roots, *(e for n in names for e in bound_values.get(n, []))]


def _collect_numbers(c: Condition, expressions: Sequence[Expr], targets: Sequence[Target]) -> list[int]:
    """Return numbers of the text for lengths, those of the condition first."""
    numbers = [abs(n) for n in list_boundary_numbers(c)]
    for t in targets:
        if t.kind == "remainder":
            numbers += [t.divisor + t.number, 2 * t.divisor + t.number]
    if (divisor := compute_period(c)) > 1:
        numbers += [divisor, 2 * divisor]
    for e in expressions:
        for node in walk(e):
            if isinstance(node, Number) and not isinstance(node.value, bool) and abs(node.value) < 2**31 and node.value == node.value:
                numbers.append(abs(int(node.value)))
    bits = [
        1 << int(x.value)
        for e in expressions
        for n in walk(e)
        if (op := _get_tested_bit(n)) is not None
        for x in op
        if isinstance(x, Number) and 0 <= x.value < 20
    ]
    unique = list(dict.fromkeys(n for n in [*numbers, *bits] if n > 0))
    sums = [a + b for a, b in itertools.combinations(unique[:4], 2)]
    products = [a * b for a, b in itertools.combinations(unique[:4], 2) if a > 1 and b > 1]
    return list(dict.fromkeys([*unique[:NUMBERS], *products[:4], *sums[:4]]))


def _get_tested_bit(node: object) -> tuple[Expr, ...] | None:
    """Return the operands of a test of a bit, else None."""
    match = operation(node) if isinstance(node, Expr) else None
    return tuple(match[1]) if match is not None and match[0].traits.tests_bit else None


def choose(solutions: Sequence[Solution], targets: Iterable[Target], most: int, elements: int) -> list[Solution]:
    """Choose solutions that meet as many targets as possible within the cost, by cost per target."""
    all_targets, chosen, spent, available = list(targets), list[Solution](), 0, _merge(solutions)
    for uncovered in ({t for t in all_targets if t.required}, {t for t in all_targets if not t.required}):
        for s in chosen:
            uncovered -= set(s.targets)
        while uncovered and len(chosen) < most:
            useful = [(s, n) for s in available if spent + s.cost <= elements and (n := sum(t in uncovered for t in s.targets))]
            if not useful:
                break
            best = min(useful, key=lambda sn: sn[0].cost / sn[1])[0]
            chosen.append(best)
            spent += best.cost
            uncovered -= set(best.targets)
            available.remove(best)
    return chosen


def _merge(solutions: Sequence[Solution]) -> list[Solution]:
    """Merge solutions of the same problem, with all targets that they meet."""
    merged: dict[tuple[str, int], Solution] = {}
    for s in solutions:
        key = (str(s.problem.case), s.grid)
        merged[key] = s if key not in merged else _join(merged[key], s)
    return list(merged.values())


def _join(first: Solution, second: Solution) -> Solution:
    masks = Masks(len(first.masks.sides))
    masks.sides = [a | b for a, b in zip(first.masks.sides, second.masks.sides)]
    return Solution(first.problem, first.grid, masks, (*first.targets, *second.targets), max(first.turns, second.turns))


__all__ = ["NAME", "Problem", "Search", "Solution", "Space", "choose", "solve"]

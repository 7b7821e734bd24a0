"""Coverage of a verification, and the choice of problems for sides that no run has taken.

Runs of problems made for conditions.

They run with data against the specification, or only their synchronisation where a problem is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch

from ...attn.splicing.captured_arguments import CapturedArguments
from ...attn.tracing.splice_names import STANDARD
from ...attn.verification.problems import Case
from ...caching import Memo
from ...checking.checked import Checked
from ...spec.function_specification import AnySpecification, FunctionSpecification, Value
from ...spec.specification import Specification
from ...syntax.nodes import Program
from ...syntax.types import I32
from ...text.diagnostics import CuirError
from ..resource_limits import SYNCHRONISATION, require_memory
from ..spec_dispatch import check_case, prepare_launch, shrink_error
from ..synchronisation import run_synchronisation
from ..tile_steps import find_unit_dims
from ..values.cases import Draw
from .condition_ranges import PossibleSides
from .observed_sides import Observed
from .origins import NUMBERS
from .scalar_program import ScalarProgram, Tensors, Unknown
from .size_search import Problem, Search, Solution, Space, choose, solve
from .targets import Target, list_boundary_targets, list_unseen_remainders, list_unseen_sides

LANES = 32  # CTAs that run as one batch
FEW_TURNS = 100  # of a problem that runs on one CTA
_LONG_TABLE = 64  # entries of a table of integers from which its places are lengthened
_ELEMENTS = 400_000  # the largest number of elements of such a problem
_MOST_INPUTS, _SHORT = 4096, 4096  # inputs of problems that are kept, and elements of one
LONGEST_ALONE = {"quick": 4_000, "full": 40_000}  # turns of a run without data


@dataclass(frozen=True)
class Effort:
    """Budget of a search: scalar operations, problems to run, and their cost (see Solution.cost)."""

    operations: int
    problems: int
    cost: int


EFFORTS = {"quick": Effort(4_000_000, 6, 3_000_000), "full": Effort(100_000_000, 60, 60_000_000)}


@dataclass
class Coverage:
    """Coverage of a kernel's conditions by side.

    Sides that no launch can take are not counted.
    """

    observed: Observed
    impossible: list[int] = field(default_factory=list)
    driven: list[tuple[Target, Draw | Case]] = field(default_factory=list)  # sides for which a problem was made and ran
    feasible: dict[tuple[int, int], Draw | Case] = field(default_factory=dict)  # sides of problems that did not run
    refused: dict[str, str] = field(default_factory=dict)  # why a problem could not be run
    searched: bool = False  # the search was not cut short

    def case_of(self, t: Target) -> Draw | Case | None:
        """Return a problem that takes a side, if one is known."""
        return self.feasible.get((t.condition.number, t.number)) if t.condition.level == NUMBERS else None

    def list_unseen(self) -> list[Target]:
        """List sides that no run has taken, and that are not known to be impossible."""
        excluded = [mask | impossible for mask, impossible in zip(self.observed.masks(), self.impossible)]
        return list_unseen_sides(self.observed.conditions, excluded)


class Driver:
    """Source of problems for conditions whose sides the runs of a verification have not taken."""

    def __init__(
        self,
        checked: Checked,
        spec: AnySpecification,
        observed: Observed,
        level: str,
        arguments_of: Callable[[Draw | Case, str], Mapping[str, Value]],
    ):
        """Prepare the search.

        arguments_of: returns inputs of a problem, among them the one of a name.
        """
        self.checked, self.spec, self.level, self.arguments_of = checked, spec, level, arguments_of
        self.effort = EFFORTS[level]
        self.coverage = Coverage(observed, [0] * len(observed.conditions))
        self._arguments: tuple[str, Mapping[str, Value | None]] = "", {}  # inputs of the last problem
        self._arrays: Memo[tuple[str, str], np.ndarray] = Memo(
            "verification.coverage.inputs", key="problem and name", invalidation="never: of one verification", limit=_MOST_INPUTS
        )

    def problems(self) -> Iterator[tuple[Solution, bool]]:
        """Yield problems to run, in the order of their cost per target, and whether to run with data.

        The caller reports each by `ran` or `refuse`.
        """
        sides = list_unseen_sides(self.coverage.observed.conditions, self.coverage.observed.masks())
        if sides:
            self._exclude(sides)
            sides = self.coverage.list_unseen()
        remainders = list_unseen_remainders(self.checked, self.coverage.observed.counts())
        near = [t for t in list_boundary_targets(self.coverage.observed.conditions) if any(s.condition is t.condition for s in sides)]
        targets = [*sides, *remainders, *near]
        search, space = Search(self.effort.operations), Space(self.checked, self.spec)
        if targets:
            solve(self.checked, space, targets, search, self._read_tensors)
        self.coverage.searched = not search.exhausted
        for solution in search.solutions:
            for t in solution.targets:
                if t.required:
                    self.coverage.feasible.setdefault((t.condition.number, t.number), solution.problem.case)
        with_data = [s for s in search.solutions if not s.problem.large]
        chosen = choose(with_data, targets, self.effort.problems, self.effort.cost)
        for solution in chosen:
            yield self._spread(self._lengthen_places(space, self._add_head(space, solution))), True
        covered = {t for s in chosen for t in s.targets}
        without_data = [s for s in search.solutions if s.turns <= LONGEST_ALONE[self.level]]
        for solution in choose(without_data, [t for t in sides if t not in covered], self.effort.problems, 1 << 62):
            yield self._spread(solution), False

    def _add_head(self, space: Space, solution: Solution) -> Solution:
        """Double the single key head of an attention, if the problem then meets the same targets.

        Scores grow from block to block in the first head, and fall in the second.
        """
        sizes = {n: v for n, v in solution.problem.sizes.items() if n in space.names}
        if sizes.get("HK") != 1 or space.kind != "growing":
            return solution
        problem = space.problem({**sizes, "HK": 2})
        if problem is None or problem.large:
            return solution
        return self._evaluate_on_grid(replace(solution, problem=problem), solution.grid) or solution

    def _lengthen_places(self, space: Space, solution: Solution) -> Solution:
        """Lengthen a dim whose places a long table of integers names.

        This happens if the problem then meets the same targets.

        Entries of a table with fewer places hardly differ: of 257 segments of a single row the last ones are empty.
        """
        if not isinstance(self.spec, FunctionSpecification) or self.spec.inputs is None:
            return solution
        tables = [t for t in self.checked.tensors if t.dtype == I32 and not t.written and not t.scratch]
        sizes = {n: v for n, v in solution.problem.sizes.items() if n in space.names}
        entries = max((sizes[d] for t in tables for d in t.dims if isinstance(d, str)), default=1)
        excluded = {d for t in tables for d in t.dims} | find_unit_dims(self.checked)
        for d in (d for d in space.dims if d not in excluded and sizes[d] == 1) if entries >= _LONG_TABLE else ():
            problem = space.problem({**sizes, d: 2 * entries})
            if problem is not None and problem.elements <= _ELEMENTS:
                return self._evaluate_on_grid(replace(solution, problem=problem), solution.grid) or solution
        return solution

    def _evaluate_on_grid(self, solution: Solution, grid: int) -> Solution | None:
        """Return the problem on so many CTAs, if it then meets its targets."""
        numbers = {n for t in solution.targets for n in (t.condition.number, t.loop) if n is not None}
        program = ScalarProgram(self.checked, [c for c in self.coverage.observed.conditions if c.number in numbers])
        try:
            grid = min(grid, max(1, program.units(solution.problem.sizes)))
            masks = program.evaluate(solution.problem.sizes, grid, self._read_tensors(solution.problem))
        except Unknown:
            return None
        return replace(solution, grid=grid, masks=masks) if all(t.is_met(masks) for t in solution.targets) else None

    def _spread(self, solution: Solution) -> Solution:
        """Return the problem on many CTAs, which run as one batch, if it then meets the same targets."""
        if solution.turns < FEW_TURNS or self.checked.tiles is None:
            return solution
        return self._evaluate_on_grid(solution, LANES) or solution

    def refuse(self, solution: Solution, error: CuirError) -> None:
        """Record that a problem cannot be run."""
        self.coverage.refused[str(solution.problem.case)] = error.diagnostics[0].message

    def ran(self, solution: Solution) -> None:
        """Record that a problem has run without a fault: its targets are covered."""
        self.coverage.observed.mark(solution.masks.sides)
        self.coverage.driven += [(t, solution.problem.case) for t in solution.targets if t.required]

    def _exclude(self, sides: Iterable[Target]) -> None:
        """Mark sides that no launch can take."""
        possible = PossibleSides(self.checked)
        for c in {t.condition.number: t.condition for t in sides}.values():
            self.coverage.impossible[c.number] |= possible.find_impossible(c)

    def _read_tensors(self, problem: Problem) -> Tensors:
        """Return a function that returns the inputs of a problem by name."""
        key, arrays = str(problem.case), dict[str, np.ndarray]()

        def read(name: str) -> np.ndarray:
            if name not in arrays:
                arrays[name] = self._make_array(key, problem, name)
            return arrays[name]

        return read

    def _make_array(self, key: str, problem: Problem, name: str) -> np.ndarray:
        """Return an input of a problem; short ones are kept.

        Searches for several conditions try the same problems.
        """
        array: np.ndarray | None = self._arrays.get((key, name))
        if array is None:
            if self._arguments[0] != key or name not in self._arguments[1]:
                try:
                    self._arguments = key, self.arguments_of(problem.case, name)
                except CuirError:
                    self._arguments = key, {name: None}
            array = _convert_to_array(self._arguments[1].get(name))
            if array.size <= _SHORT:
                self._arrays[key, name] = array
        return array


def _convert_to_array(value: object) -> np.ndarray:
    """Convert a tensor to an array of the same numbers.

    Another value becomes an empty array, of which nothing can be read.
    """
    if not isinstance(value, torch.Tensor):
        return np.empty(0)
    value = value.detach()
    return (value.float() if value.is_floating_point() and value.dtype != torch.float64 else value).numpy()


LEFT_OUT = ("V202", "U113", "U125", "X106", "X108", "X113", "D402")  # codes of problems that cannot be run


class Cover:
    """Driver of the conditions of a kernel to both sides.

    rows: of the table of the numbers. runs: counts with data and without.
    """

    def __init__(self, program: Program, checked: Checked, spec: AnySpecification, observed: Observed, level: str, shrink: bool):
        self.program, self.checked, self.spec, self.shrink = program, checked, spec, shrink
        self.driver = Driver(checked, spec, observed, level, self._make_arguments)
        self.seconds = SYNCHRONISATION[level]
        self.rows: list[Mapping[str, object]] = []
        self.runs = [0, 0]
        self._captured: CapturedArguments | None = None  # traced when a condition reads them

    @property
    def coverage(self) -> Coverage:
        """Coverage of all runs so far."""
        return self.driver.coverage

    def _make_arguments(self, case: Draw | Case, name: str) -> Mapping[str, Value]:
        """Return the inputs of a problem; of an attention only the captured ones, if `name` is among them.

        That costs less than all inputs.
        """
        if isinstance(self.spec, Specification) and isinstance(case, Case) and name not in STANDARD:
            require_memory(self.checked, asdict(case.lengths))
            if self._captured is None:
                self._captured = CapturedArguments(self.program, self.checked.origin, self.spec)
            return self._captured.values(case.lengths, consts=self.checked.consts)
        return prepare_launch(self.program, self.checked, self.spec, case).arguments()

    def run(self, progress: Callable[[str], None]) -> None:
        """Run the problems. Raises CuirError for the first fault."""
        for solution, with_data in self.driver.problems():
            progress(f"numbers: conditions, {solution.problem.case}")
            try:
                if with_data:
                    self._run_with_data(solution)
                else:
                    run_synchronisation(
                        self.checked, self.spec, solution.problem.case, grid=lambda units, s=solution: s.grid, budget=self.seconds
                    )
            except CuirError as error:
                if error.diagnostics[0].code not in LEFT_OUT:
                    raise
                self.driver.refuse(solution, error)
                continue
            self.runs[0 if with_data else 1] += 1
            self.driver.ran(solution)

    def _run_with_data(self, solution: Solution) -> None:
        case = solution.problem.case

        def grid(units: int) -> int:
            return solution.grid

        try:
            self.rows += check_case(self.program, self.checked, self.spec, case, grid=grid)
        except CuirError as error:
            if error.diagnostics[0].code in LEFT_OUT or not self.shrink:
                raise
            raise shrink_error(self.program, self.checked, self.spec, case, error, grid=grid) from None

    def describe(self) -> str:
        """Describe the runs so far; "" if there were none."""
        data, alone = self.runs
        texts = [f"{data} more for what conditions ask"] if data else []
        return "; ".join(texts + ([f"{alone} by synchronisation alone for conditions of large problems"] if alone else []))


__all__ = ["Cover", "Coverage", "Driver", "Effort"]

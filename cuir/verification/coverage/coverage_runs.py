"""Runs of problems made for conditions.

They run with data against the specification, or only their synchronisation where a problem is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from ...attn.splicing.captured_arguments import CapturedArguments
from ...attn.tracing.splice_names import STANDARD
from ...attn.verification.problems import Case
from ...checking.checked import Checked
from ...spec.function_specification import AnySpecification, Value
from ...spec.specification import Specification
from ...syntax.nodes import Program
from ...text.diagnostics import CuirError
from ..memory_limits import require_memory
from ..spec_dispatch import check_case, prepare_launch, shrink_error
from ..synchronisation import run_synchronisation
from ..time_limits import SYNCHRONISATION
from ..values.cases import Draw
from .coverage_loop import Coverage, Driver
from .observed_sides import Observed
from .size_search import Solution

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


__all__ = ["Cover"]

"""The schedules stage: problems under many schedules, grids and orders of tiles, with equal bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

from ..attn.verification.contracts import has_splice_points
from ..attn.verification.numeric import add_note
from ..attn.verification.problems import is_attention
from ..attn.verification.tile_orders import Order, make_orders
from ..checking.checked import Checked
from ..text.diagnostics import CuirError
from ..text.phrases import ProgressMessage, get_share
from .coverage.observed_sides import Observed
from .exhaustive import check_exhaustively
from .line_coverage import forget_entered
from .report import Stage
from .request import Request
from .resource_limits import EXPLORATION
from .schedules import ScheduleOptions, check_schedules, count_parts
from .side_processes import Job
from .spec_dispatch import AnyCase, find_wider_cases, make_empty_cases, make_ring_cases, make_schedule_cases, require_outputs_of
from .step_counts import make_counted_cases, make_counted_jobs
from .synchronisation import describe_left, is_too_large

# shares of the stage that are done when problems have run, and when every count of steps has; then schedules are enumerated
SHARES_DONE = {"quick": (1.0, 1.0), "full": (0.15, 0.85)}


class SchedulesStage:
    """Runs of the problems of schedules.

    wider, counted: problems whose numbers are judged too.
    """

    def __init__(self, request: Request, checked: Checked, observed: Observed):
        self.request, self.checked, self.observed = request, checked, observed
        self.program, self.spec, self.level = request.program, request.spec, request.level
        self.runs = 0
        self.orders: list[Order] = []
        self.wider: list[AnyCase] = []
        self.skipped: list[AnyCase] = []  # problems that are too large for the time of a run
        self.skipped_error: CuirError | None = None  # the error of one of them
        self.counted: list[AnyCase] = []  # problems with every count of steps
        self.rings: list[AnyCase] = []
        self.jobs: list[Job] = []
        self.begun, self.expected = 0, 1  # jobs, for the progress

    def prepare(self) -> list[Job]:
        """List the jobs before the first runs: for mods, whose problems follow from the tiles alone."""
        self.jobs = list(self._list_jobs())
        return self.jobs

    def run(self, stage: Stage, finished: Sequence[int | None] = ()) -> None:
        """Run the problems. Raises CuirError for the first fault.

        finished: for each job its number of runs, if it has passed in another process.
        """
        runs = 0
        for job, count in itertools.zip_longest(self.jobs or self._list_jobs(), finished):
            self.begun += 1
            runs += count or job()  # a problem that was too large there is too large here, and is listed
        self.wider = find_wider_cases(self.program, self.checked, self.spec)
        runs += sum(self._try(case, ScheduleOptions(few=True)) for case in self.wider)
        if self.skipped_error is not None and not runs:
            raise self.skipped_error
        self.runs = runs
        stage.reason = self._describe(self.rings)

    def _list_jobs(self) -> Iterator[Job]:
        """Yield jobs that return their number of runs.

        Raises CuirError for outputs that do not match the specification.
        """
        checked, spec = self.checked, self.spec
        problems = make_schedule_cases(checked, spec)
        require_outputs_of(self.program, checked, spec, problems[0])
        seeded = self.request.seeded
        share = None if seeded is None else -(-seeded // len(problems))
        self.expected = len(problems) * count_parts(checked, self.level, share) + 2  # and some short ones
        if has_splice_points(self.program) and is_attention(checked.origin):
            self.orders = list(make_orders(self.program, checked))
            for order in self.orders:
                forget_entered(order.checked)
        for case in problems:
            yield partial(self._try_watched, case, ScheduleOptions(share, self.orders))
            for part in range(1, count_parts(checked, self.level, share)):
                yield partial(self._try, case, ScheduleOptions(share, part=part))
        for case in make_empty_cases(checked, spec):
            yield partial(self._try, case, ScheduleOptions(orders=self.orders, few=True, grid=1))
        self.rings = make_ring_cases(checked, spec)
        for case in self.rings:
            yield partial(self._try, case, ScheduleOptions(few=True))
        self.counted = make_counted_cases(checked, spec, self.level)
        yield from make_counted_jobs(checked, spec, self.counted, self.level, self._report_counted)

    def _try_watched(self, case: AnyCase, options: ScheduleOptions) -> int:
        """Run a problem; watch fewer conditions afterwards."""
        runs = self._try(case, options)
        self.observed.narrow()
        return runs

    def _report_progress(self, count: int, total: int) -> None:
        share = (self.begun - 1 + count / total) / max(self.expected, self.begun)
        self.request.progress(
            ProgressMessage(f"schedules: problem {self.begun}, run {count + 1} of {total}", share * SHARES_DONE[self.level][0])
        )

    def _report_counted(self, message: str) -> None:
        self._report_between(message, *SHARES_DONE[self.level])

    def _report_exploration(self, message: str) -> None:
        self._report_between(message, SHARES_DONE[self.level][1], 1.0)

    def _report_between(self, message: str, begin: float, end: float) -> None:
        self.request.progress(ProgressMessage(f"schedules: {message}", begin + (end - begin) * (get_share(message) or 0.0)))

    def _try(self, case: AnyCase, options: ScheduleOptions) -> int:
        """Run a problem; return the number of runs, 0 for one that is too large.

        Raises CuirError as `check_schedules`.
        """
        try:
            return check_schedules(self.program, self.checked, self.spec, case, self.level, options, self._report_progress)
        except CuirError as error:
            if not is_too_large(self.checked, case, error):
                raise
            self.skipped.append(case)
            self.skipped_error = error
            return 0

    def _describe(self, rings: list[AnyCase]) -> str:
        checked = self.checked
        words = f"{self.runs} runs under different schedules{' and orders of tiles' * bool(self.orders)}, on grids that give a CTA no unit of work, one, and unequal shares, all alike"
        if checked.tiles is None:
            words = f"{self.runs} runs under different schedules, all alike; without tiles(...) the kernel is launched as one {'cluster' if checked.cluster > 1 else 'CTA'}"
        if not rings and checked.longest_ring > 1:
            words += f"; no problem that the specification and memory admit goes round rings of {checked.longest_ring} stages"
        elif not rings and any(not b.hardware for b in checked.barriers.values()):
            words += "; no problem that the specification and memory admit takes a CTA to the third phase of its barriers"
        words += f"; {describe_left(self.skipped)}" if self.skipped else ""
        return words + (f"; {self._explore()}" if self.level == "full" else "")

    def _explore(self) -> str:
        """Explore every schedule of small launches, without the data; return a description.

        Raises CuirError if one fails.
        """
        try:
            launches = check_exhaustively(
                self.program,
                self.checked,
                self.spec,
                seconds=EXPLORATION,
                progress=self._report_exploration,
            )
        except CuirError as error:
            if any(d.code not in ("V202", "V203") for d in error.diagnostics):
                raise
            return f"schedules were not enumerated: {error.diagnostics[0].message}"
        last = launches[-1].result
        if last.verdict == "faulty":
            raise add_note(CuirError(last.diagnostics), f"found among all schedules of {launches[-1].case}")
        if last.verdict == "unknown":
            return f"too many schedules of {launches[-1].case} to explore all"
        return f"no schedule at all of {len(launches)} small launches fails, {sum(e.result.states for e in launches):,} states"


__all__ = ["SchedulesStage"]

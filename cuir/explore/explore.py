"""Exploration of all schedules of all clusters of a launch, and its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..arguments.binding import Argument
from ..checking.checked import Checked
from ..interp import run
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.notebook import ShownInNotebooks
from .cluster_barriers import find_cluster_conflict
from .dpor import Budget, Counts, search
from .extract import extract_single_units, extract_skeletons
from .schedule_file import Written
from .schedule_reduction import Short, find_shortest
from .skeleton import Skeleton

CLASSES = 20_000
SHORTEN = 3.0  # seconds for looking for a shorter schedule


@dataclass
class Exploration(ShownInNotebooks):
    """Result of the exploration of one launch.

    verdict: "clean": no deadlock, race, overrun or lapped wait in any schedule of this launch. "faulty": `diagnostics`
    describe the fault and `schedule` leads to it. "unknown": the budget was spent before all was explored, and nothing
    was found so far. classes: executions that differ in which arrival counts in which phase of a barrier; `alike` if
    there is one of each cluster, and for each way to hand out units of work: then all schedules are equivalent.
    """

    html_renderer = "pages.notebook_forms:render_exploration"

    verdict: str = "clean"
    states: int = 0
    transitions: int = 0
    classes: int = 0
    clusters: int = 0  # explored, or ways to choose the units of work of one
    alike: bool = True
    agents: int = 0  # workers and copies of the largest cluster
    steps: int = 0  # of its longest execution
    seconds: float = 0.0
    diagnostics: tuple[Diagnostic, ...] = ()
    schedule: Written | None = None
    lengths: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Exploration({self.summary()})"

    def __bool__(self) -> bool:
        """Return `ok`, so that `assert explore(...)` holds only for correct programs."""
        return self.ok

    @property
    def ok(self) -> bool:
        """True if the verdict is "clean"."""
        return self.verdict == "clean"

    def summary(self) -> str:
        """Summarise the exploration in one sentence."""
        classes = f"{self.classes:,} class{'es' if self.classes != 1 else ''} of schedules"
        size = f"{self.states:,} states, {self.transitions:,} transitions, {classes}"
        if self.verdict == "clean":
            each = "" if self.clusters == 1 else f" of each of {self.clusters} clusters"
            return f"no deadlock, race, overrun or lapped wait in any schedule: {size}" + (
                f", all schedules{each} are alike" if self.alike else ""
            )
        if self.verdict == "faulty":
            return f"{self.diagnostics[0].code} in a schedule of {_format_steps(len(self.schedule.steps) if self.schedule else 0)}: {size}"
        return f"not decided: the budget was spent after {size}"

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "verdict": self.verdict,
            "states": self.states,
            "transitions": self.transitions,
            "classes": self.classes,
            "clusters": self.clusters,
            "alike": self.alike,
            "agents": self.agents,
            "steps": self.steps,
            "seconds": self.seconds,
            "lengths": dict(self.lengths),
            "schedule": self.schedule.as_json() if self.schedule else None,
        }


def explore(
    checked: Checked,
    arguments: Mapping[str, Argument],
    *,
    grid: int | None = None,
    classes: int | None = CLASSES,
    seconds: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Exploration:
    """Explore every schedule of a launch without its data.

    Few units of work that are handed out dynamically are handed out in every way.

    arguments: as for `cuir.run`; tensors are read where control flow or places depend on them, and not written. grid:
    CTAs (or clusters), chosen from the work if omitted. classes, seconds: the budget. Faults of the program are part of
    the report. Raises CuirError for an invalid call, for a program whose steps depend on data that it writes (V202),
    and for faults that no schedule avoids and that are not faults of order (M..., S404, S405).
    """
    begin = time.perf_counter()
    report, budget = Exploration(lengths=_collect_lengths(checked, arguments)), Budget(None, seconds)
    for skeleton in extract_skeletons(checked, arguments, grid):
        report.clusters += 1
        report.agents = max(report.agents, len(skeleton.workers) + len(skeleton.landings))
        report.steps = max(report.steps, skeleton.size)
        for late in (False, True)[: 1 + (skeleton.lockstep and checked.tiles is not None)]:
            location = describe_place(checked, skeleton, late)
            budget.classes = None if classes is None else max(1, classes - report.classes)
            result = search(skeleton if late else skeleton.at_once(), budget, partial(_report_progress, progress, location, report))
            report.states += result.counts.states
            report.transitions += result.counts.transitions
            report.classes += 0 if late else result.counts.classes
            report.alike &= result.counts.classes == 1
            if result.faulty is not None:
                progress(f"{location}: a fault; looking for the shortest schedule that shows one")
                report.verdict = "faulty"
                _describe(report, checked, arguments, find_shortest(result.faulty, SHORTEN), result.faulty.skeleton, late)
            elif not result.complete:
                _leave_undecided(report, checked)
            if report.verdict != "clean":
                report.seconds = time.perf_counter() - begin
                return report
    single_units = extract_single_units(checked, arguments, grid)  # any two units may fall to different clusters
    conflict = find_cluster_conflict(single_units)
    if conflict is not None:
        report.verdict, report.diagnostics = "faulty", (conflict,)
        report.schedule = Written(
            checked.name, dict(checked.consts), report.lengths, len(single_units), None, None, False, (), conflict.code, conflict.message
        )
    report.seconds = time.perf_counter() - begin
    return report


def read_exploration(data: Mapping[str, Any], checked: Checked) -> Exploration:
    """Return an exploration that found no fault, from what `as_json` gave."""
    report = Exploration(**{**data, "schedule": None})
    if report.verdict == "unknown":
        _leave_undecided(report, checked)
    return report


def _leave_undecided(report: Exploration, checked: Checked) -> None:
    report.verdict, hint = "unknown", "explore a smaller launch, or give it a larger budget"
    report.diagnostics = (Diagnostic("V203", report.summary(), checked.origin.span, (), hint),)


def _report_progress(progress: Callable[[str], None], location: str, report: Exploration, counts: Counts) -> None:
    progress(f"{location}: {report.states + counts.states:,} states, {report.classes + counts.classes:,} classes")


def _collect_lengths(checked: Checked, arguments: Mapping[str, Argument]) -> dict[str, int]:
    """Return the run-time dims of the tensors."""
    lengths: dict[str, int] = {}
    for t in checked.tensors:
        shape = getattr(arguments.get(t.name), "shape", ())
        lengths.update({d: int(n) for d, n in zip(t.dims, shape) if isinstance(d, str)})
    return lengths


def _describe(
    report: Exploration, checked: Checked, arguments: Mapping[str, Argument], short: Short, skeleton: Skeleton, late: bool
) -> None:
    fault = short.fault
    names = name_steps(skeleton, short.schedule) + tuple(skeleton.workers[w].label for w in fault.after)
    report.schedule = Written(
        checked.name,
        dict(checked.consts),
        report.lengths,
        skeleton.clusters,
        skeleton.cluster,
        skeleton.units,
        late,
        names,
        fault.code,
        fault.message,
    )
    least = "no schedule of fewer steps fails" if short.least else "none of them can be left out"
    extent = Note(f"after {_format_steps(len(names))} of {describe_place(checked, skeleton, late)}; {least}")
    replayed = _replay(checked, arguments, report.schedule)
    if replayed is not None and replayed.code == fault.code and replayed.span == fault.span:
        causes = replayed.notes[:-2]  # the last two are of this run: its CTAs, and how to replay it
        report.diagnostics = (Diagnostic(replayed.code, replayed.message, replayed.span, (*causes, extent), replayed.hint),)
        return
    notes = (*(Note(text, span) for text, span in fault.notes), extent)
    report.diagnostics = (Diagnostic(fault.code, fault.message, fault.span, notes, fault.hint),)


def _replay(checked: Checked, arguments: Mapping[str, Argument], schedule: Written) -> Diagnostic | None:
    """Replay the schedule in the interpreter, on copies of the tensors, and return its diagnostic.

    The interpreter knows why a wait was over too early, or what never arrives.
    """
    copies = {n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in arguments.items()}
    try:
        run(checked, copies, schedule=schedule.schedule(), grid=schedule.grid)
    except CuirError as error:
        return error.diagnostics[0]
    return None


def describe_place(checked: Checked, skeleton: Skeleton, late: bool) -> str:
    """Describe the cluster and its units of work."""
    parts = [f"{'cluster' if checked.cluster > 1 else 'CTA'} {skeleton.cluster}"]
    if skeleton.units is not None:
        parts.append(f"which gets the units of work {', '.join(map(str, skeleton.units)) or 'none'}")
    if late:
        parts.append(
            "as late as they may be handed out" if skeleton.units is not None else "units of work handed out as late as they may be"
        )
    return ", ".join(parts)


def _format_steps(n: int) -> str:
    return f"{n} step{'s' if n != 1 else ''}"


def name_steps(skeleton: Skeleton, agents: tuple[int, ...]) -> tuple[str, ...]:
    """Name the steps of agents as the interpreter does.

    Where the last arrival lets a worker pass at once, arriving and passing are one step there.
    """
    workers = len(skeleton.workers)
    position, arrived = [0] * workers, [0] * len(skeleton.bars)
    through: set[int] = set()  # workers whose arrival let them pass at once
    names: list[str] = []
    for agent in agents:
        if agent >= workers:
            names.append(skeleton.landings[agent - workers].name)
            continue
        trace = skeleton.workers[agent]
        step = trace.steps[position[agent]]
        position[agent] += 1
        if step.kind in ("join", "named arrive"):
            bar = step.bars[0]
            arrived[bar] = (arrived[bar] + 1) % skeleton.bars[bar].count
            if step.kind == "join" and not arrived[bar]:
                through.add(agent)
        elif step.kind == "pass" and agent in through:
            through.remove(agent)
            continue
        names.append(trace.label)
    return tuple(names)

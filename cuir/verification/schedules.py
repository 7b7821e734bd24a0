"""Runs under many orders of workers and engines; each must be free of faults and give the same bits.

The interpreter finds races and deadlocks in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from ..arguments.binding import Argument
from ..attn.verification.numeric import add_note
from ..attn.verification.tile_orders import Order
from ..checking.checked import Checked
from ..interp import RunReport, Schedule, run
from ..interp.interpreted_launch import Grid
from ..ops.meaning.tiles import view_bits
from ..spec.function_specification import AnySpecification
from ..syntax.nodes import Program
from ..text.diagnostics import CuirError, Diagnostic, Note
from .inputs import find_accumulated
from .spec_dispatch import AnyCase, prepare_launch
from .values.number_text import show_different

MANY = 64  # CTAs of the largest grid that is tried
NUMBER_GRIDS: tuple[Grid | None, ...] = (None, lambda units: min(units, MANY) + 1, lambda units: 3 if units > 3 else 2)


def make_schedules(checked: Checked, level: str, seeded: int | None = None) -> list[Schedule]:
    """Return the schedules: in order, the named adversaries, every worker starved once, seeded ones.

    seeded: their number; by default that of the level.
    """
    workers = checked.cluster * sum(r.workers for r in checked.roles)
    unseeded = [Schedule.in_order(), *(Schedule.adversarial(p) for p in ("engines_first", "workers_first", "reverse", "lockstep"))]
    unseeded += [Schedule.adversarial("starve", w) for w in range(workers)]
    random, adversarial = (seeded - seeded // 2, seeded // 2) if seeded is not None else (3, 2) if level == "quick" else (16, 8)
    return [*unseeded, *(Schedule.random(s) for s in range(1, random + 1)), *(Schedule.adversarial(s) for s in range(1, adversarial + 1))]


PART = 64  # schedules of a problem that run as one task


def count_parts(checked: Checked, level: str, seeded: int | None) -> int:
    """Return the number of parts of the schedules of a problem."""
    return -(-len(make_schedules(checked, level, seeded)) // PART)


def _choose_part(schedules: Sequence[Schedule], part: int) -> list[Schedule]:
    """Return the schedules of a part; with the first one, unless it is the first part."""
    return [*schedules[: 1 if part else 0], *schedules[PART * part : PART * (part + 1)]]


_FEW = (Schedule.in_order(), Schedule.adversarial("workers_first"), Schedule.random(1))


def list_other_grids(units: int) -> list[int]:
    """Return grid sizes to test besides one and two CTAs.

    These give one unit of work to each CTA and none to the last, two units to each, and unequal shares among three or
    more.

    Args:
        units: units of work of the launch, as tiles.
    """
    one_each = min(units, MANY) + 1
    unequal = next((g for g in range(3, units) if units % g), one_each)
    return [g for g in dict.fromkeys((one_each, min(-(-units // 2), MANY), unequal)) if g > 2 or g > units]


@dataclass(frozen=True)
class ScheduleOptions:
    """Extent of a check of schedules.

    Attributes:
        seeded: Number of seeded schedules; None for that of the level.
        orders: Orders of tiles, which run under three schedules each.
        few: Three schedules instead of all.
        grid: CTAs or clusters.
        part: Number of the part of the schedules; parts after the first repeat the first schedule, to compare with.
    """

    seeded: int | None = None
    orders: Sequence[Order] = ()
    few: bool = False
    grid: int = 2
    part: int = 0


def check_schedules(
    program: Program,
    checked: Checked,
    spec: AnySpecification,
    case: AnyCase,
    level: str,
    options: ScheduleOptions = ScheduleOptions(),
    progress: Callable[[int, int], None] = lambda count, total: None,
) -> int:
    """Run one problem under each schedule, and on other grids; return the number of runs.

    Outputs that are added to are not compared. Raises CuirError: V201 results that depend on the order or on the grid,
    or the fault found.
    """
    launch = prepare_launch(program, checked, spec, case)
    few = options.few
    default_grid = options.grid if checked.tiles is not None else 1
    runs: list[tuple[Schedule, Order | None, int]] = [
        (s, None, default_grid) for s in (_FEW if few else _choose_part(make_schedules(checked, level, options.seeded), options.part))
    ]
    runs += [(s, order, default_grid) for order in options.orders for s in _FEW]
    accumulated = find_accumulated(checked)
    first: dict[str, torch.Tensor] | None = None
    count = 0
    while count < len(runs):
        schedule, order, grid_of_run = runs[count]
        progress(count, len(runs))
        count += 1
        launched = launch.fresh()
        context = f", with the tiles {order.name}: {' '.join(order.text.split())}" if order else ""
        context += f", on a grid of {grid_of_run}" if grid_of_run != default_grid else ""
        try:
            report = run(
                order.checked if order else checked, launched.arguments(), schedule=schedule, grid=grid_of_run, undefined=launched.undefined
            )
        except CuirError as error:
            raise add_note(error, f"found under the schedule {schedule}, in the case {case}{context}") from error
        if first is None:
            first = launched.outputs
            # orders of agents are covered above; a fault of a share of units shows in nearly any order
            if checked.tiles is not None and not options.part:
                grids = [g for g in list_other_grids(report.units) if g != default_grid]
                runs += [(_FEW[0], None, g) for g in grids] + [(_FEW[1], None, g) for g in grids[:1] if not few]
            continue
        for name, a in first.items():
            b = launched.outputs[name]
            if grid_of_run != default_grid:
                if name not in accumulated and (place := _find_difference(a, b)) is not None:
                    x, y = show_different(a[tuple(place)].item(), b[tuple(place)].item())
                    message = f"{name} depends on the grid: at {place} on {default_grid} CTAs {x}, on {grid_of_run} {y}"
                    raise CuirError(
                        [
                            Diagnostic(
                                "V201",
                                message,
                                checked.origin.span,
                                (Note(f"in the case {case}"), Note(f"replay: --schedule {schedule} --grid {grid_of_run}")),
                                "a unit of work is computed alike whichever others its CTA had before: reset what is accumulated, carry counters and parities on",
                            )
                        ]
                    )
                continue
            if name not in accumulated and not _is_same(a, b):
                index = torch.nonzero(~((a == b) | (a.isnan() & b.isnan())))[0].tolist()
                noun, description = (
                    ("schedule", f"under {schedule}") if order is None else ("order of tiles", f"with the tiles {order.name}")
                )
                x, y = show_different(a[tuple(index)].item(), b[tuple(index)].item())
                message = f"{name} depends on the {noun}: at {index} in order {x}, {description} {y}"
                hint = f"replay with --schedule {schedule}" if order is None else "no tile may read what another one leaves behind"
                raise CuirError([Diagnostic("V201", message, checked.origin.span, (Note(f"in the case {case}{context}"),), hint)])
    return len(runs)


def run_under_all(checked: Checked, arguments: Mapping[str, Argument], grid: int | None = None) -> list[RunReport]:
    """Run any kernel under every schedule of the full level; its outputs must not depend on it.

    They are overwritten. Outputs that are added to are not compared: the order of atomic additions is free. Raises
    CuirError: V201, or the fault found.
    """
    free = find_accumulated(checked)
    written = [t.name for t in checked.outputs]
    before = {name: cast(torch.Tensor, arguments[name]).clone() for name in written}
    tried = make_schedules(checked, "full")
    first: dict[str, torch.Tensor] = {}
    reports = []
    for schedule in tried:
        for name in written:
            cast(torch.Tensor, arguments[name]).copy_(before[name])
        reports.append(run(checked, arguments, schedule=schedule, grid=grid))
        for name in written:
            output = cast(torch.Tensor, arguments[name])
            if name not in free and name in first and not _is_same(first[name], output):
                raise CuirError.of(
                    "V201",
                    f"{name} depends on the schedule: in order and under {schedule} it differs",
                    checked.origin.span,
                    f"replay with --schedule {schedule}",
                )
            first.setdefault(name, output.clone())
    return reports


def _find_difference(a: torch.Tensor, b: torch.Tensor) -> list[int] | None:
    """Return where results of two grids differ by more than roundings.

    CTAs that run together are computed together, with other orders of additions.
    """
    x, y = a.double(), b.double()
    near = (x - y).abs() <= 2.0**-6 * (x.abs() + x.nan_to_num(0.0, 0.0, 0.0).abs().mean()) if a.dtype.is_floating_point else x == y
    differs = ~(near | (x == y) | (x.isnan() & y.isnan()))
    return torch.nonzero(differs)[0].tolist() if differs.any() else None


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether outputs are equal bit for bit, NaN of unwritten elements included."""
    return torch.equal(view_bits(a), view_bits(b))

"""Exploration of every schedule of small launches of a kernel.

problems.py chooses the launches; cuir/explore explores their schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..checking.checked import Checked
from ..explore import Exploration, explore
from ..spec.function_specification import AnySpecification
from ..syntax.nodes import Program
from ..text.phrases import ProgressMessage
from .spec_dispatch import AnyCase, make_small_launches, prepare_launch


@dataclass(frozen=True)
class Explored:
    """One launch and the result of its exploration."""

    case: AnyCase
    grid: int
    result: Exploration


def check_exhaustively(
    program: Program,
    checked: Checked,
    spec: AnySpecification,
    tiles: int = 2,
    blocks: int = 4,
    *,
    classes: int | None = None,
    seconds: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Explored]:
    """Explore every schedule of small launches, up to the first that is not clean.

    tiles: units of work of a CTA in the main launch; blocks: key blocks of each. classes, seconds: the budget of each
    launch. Raises CuirError as `explore` does.
    """
    launches = []
    small = list(make_small_launches(checked, spec, tiles, blocks))
    for number, (case, grid) in enumerate(small):
        share = number / len(small)
        progress(ProgressMessage(f"launch {number + 1} of {len(small)}, {case.name}", share))
        arguments = prepare_launch(program, checked, spec, case).arguments()

        def report(text: str, name: str = case.name, share: float = share) -> None:
            progress(ProgressMessage(f"{name}: {text}", share))

        result = explore(checked, arguments, grid=grid, classes=classes, seconds=seconds, progress=report)
        launches.append(Explored(case, grid, result))
        if not result.ok:
            break
    return launches

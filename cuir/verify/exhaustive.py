"""Every schedule of small launches of an attention kernel. Owns which launches are small and telling; how schedules are explored is cuir/explore's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..checked import Checked
from ..explore import Exploration, explore
from ..nodes import Program
from ..spec import Lengths, Specification
from .problems import Case, launch


@dataclass(frozen=True)
class Explored:
    """One launch, and what its exploration came to."""

    case: Case
    grid: int
    result: Exploration


def small_launches(BM: int, BN: int, tiles: int, blocks: int) -> list[tuple[Case, int]]:
    """Problems and grids for tiles of BM queries and blocks of BN keys: persistent CTAs with `tiles` tiles of up to `blocks` blocks each, as many queries as keys
    (masks that count from the first key leave some tiles few blocks), loops of one iteration, tiles without a key (under a causal mask), ragged ends on several CTAs."""
    return [
        (Case(f"{tiles} tiles of {blocks} blocks", Lengths(1, tiles, 1, BM, blocks * BN)), 1),
        (Case("square", Lengths(1, 1, 1, blocks * BN, blocks * BN)), max(1, -(-blocks * BN // (BM * tiles)))),
        (Case("one block", Lengths(1, 3, 1, BM, max(1, BN // 2))), 1),
        (Case("tiles without keys", Lengths(1, 1, 1, 3 * BM, BN)), 1),
        (
            Case("ragged, several CTAs", Lengths(1, 2, 1, BM + 9, BM + 9 + BN + max(1, 2 * BN // 5))),
            2,
        ),  # the diagonal parts blocks between warpgroups
    ]


def check_exhaustively(
    program: Program, checked: Checked, spec: Specification, tiles: int = 2, blocks: int = 4, *,
    classes: int | None = None, seconds: float | None = None, progress: Callable[[str], None] = lambda text: None,
) -> list[Explored]:  # fmt: skip
    """Explores every schedule of small launches, up to the first that is not clean.

    tiles: units of work of a CTA in the main launch; blocks: key blocks of each. classes, seconds: the budget of each launch. Raises CuirError as `explore` does.
    """
    found = []
    BM, BN = int(checked.consts.get("BM", 128)), int(checked.consts.get("BN", 128))  # type: ignore[arg-type]
    for case, grid in small_launches(BM, BN, tiles, blocks):
        progress(case.name)
        arguments = launch(program, checked, spec, case).arguments()

        def tell(text: str, name: str = case.name) -> None:
            progress(f"{name}: {text}")

        result = explore(checked, arguments, grid=grid, classes=classes, seconds=seconds, progress=tell)
        found.append(Explored(case, grid, result))
        if not result.ok:
            break
    return found

"""Problems that are too large for the time of a run; they do not count in the verdict."""

from __future__ import annotations

from ..checking.checked import Checked
from ..text.diagnostics import CuirError
from .spec_dispatch import AnyCase
from .synchronisation import collect_sizes
from .values.cases import count_elements

SMALL = 50_000  # elements of all tensors: a slow run of a smaller problem is a fault


def is_too_large(checked: Checked, case: AnyCase, error: CuirError) -> bool:
    """Return whether a run took too long on a problem that is not small."""
    if any(d.code != "D402" for d in error.diagnostics):
        return False
    sizes = collect_sizes(checked, case)
    return sum(count_elements(t, sizes) for t in checked.tensors) > SMALL


def describe_left(skipped: list[AnyCase]) -> str:
    """Describe the problems that were not run; "" if there are none."""
    return f"{len(skipped)} not asked, where the function fails or the run takes too long, the first {skipped[0]}" if skipped else ""

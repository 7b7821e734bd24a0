"""Trip counts that a kernel's counters need to exercise everything that its text does by their values.

A problem with fewer turns does not show a fault in the seventeenth.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..checking.checked import Checked
from ..checking.kernel_results import keep_with_kernel
from ..ops import OPERATORS
from ..syntax.nodes import Assign, Binary, Expr, For, Literal, Name
from ..syntax.walk import names_read, walk

FARTHEST = 256  # turns: later effects are not searched


@keep_with_kernel
def count_counter_turns(checked: Checked) -> int:
    """Return the turns within which every counter passes through its period once; at least 1.

    A counter of a role, of units of work or of a loop passes through what it is divided by or compared with in the
    text. Numbers beyond FARTHEST are ignored.
    """
    return max((n for n in _list_periods(checked) if n <= FARTHEST), default=1)


def count_ring_uses(checked: Checked) -> int:
    """Return the units of work, or turns, with which a CTA goes round every ring twice and begins again.

    Where its counters need more turns, these are counted before.
    """
    rounds, turns = 2 * checked.longest_ring, count_counter_turns(checked)
    return rounds + 1 if turns <= rounds else turns + rounds + 1


def _list_periods(checked: Checked) -> Iterator[int]:
    for role in checked.roles:
        nodes = [n for stmt in role.body for n in walk(stmt)]
        bound = [n for n in nodes if isinstance(n, Assign)]
        counters = {n.target for n in nodes if isinstance(n, For)}
        counters |= {name for a in bound for name in a.targets if name in names_read(a.value)}
        for node in nodes:
            if isinstance(node, Binary) and (turns := _compute_period(node, counters)) is not None:
                yield turns


def _compute_period(e: Expr, counters: set[str]) -> int | None:
    """Return the period of an expression in turns of a counter; None without a counter."""
    if isinstance(e, Name):
        return 1 if e.id in counters else None
    if not isinstance(e, Binary):
        return None
    left, right = _compute_period(e.left, counters), _compute_period(e.right, counters)
    operator = OPERATORS[e.op].traits
    number = e.right if isinstance(e.right, Literal) else e.left if operator.compares and isinstance(e.left, Literal) else None
    turns = max(left or 0, right or 0)
    if not turns:
        return None
    if number is None or number.kind != "int":
        return turns
    value = abs(int(number.value))
    if operator.remainder or operator.rounds is not None:
        return turns * max(1, value)
    return turns * (value + 1) if operator.compares else turns


__all__ = ["FARTHEST", "count_counter_turns", "count_ring_uses"]

"""Which blocked workers of a deadlock to report first. Owns no rule of barriers, and no wording."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..checked import Barrier
from .barriers import Mbarrier

if TYPE_CHECKING:
    from .machine import Worker


def by_cause(workers: Sequence[Worker], barriers: Mapping[str, Barrier]) -> list[Worker]:
    """The workers, likely causes first.

    First who misses bytes, then who waits for a barrier at which nobody can arrive any more, then roles that wait for each other in a circle (among them first
    whose barrier nobody ever arrived at), then those that wait for one of these.
    """
    waits: dict[str, set[str]] = {}  # role -> the roles whose arrivals it waits for
    for w in workers:
        role = _arriving(w, barriers)
        if role is not None:
            waits.setdefault(w.program.name, set()).add(role)
    alive = {w.program.name for w in workers if not w.finished}

    def rank(w: Worker) -> int:
        bar = w.block.barrier if w.block is not None else None
        if isinstance(bar, Mbarrier) and bar.bytes > 0:
            return 0
        if isinstance(bar, Mbarrier) and _arriving(w, barriers) not in alive:
            return 1
        if w.program.name not in _reached(w.program.name, waits):
            return 4
        return 2 if isinstance(bar, Mbarrier) and bar.last is None else 3

    return sorted(workers, key=rank)


def _arriving(w: Worker, barriers: Mapping[str, Barrier]) -> str | None:
    """The role that arrives on the mbarrier that a worker waits for; None if no text does, or it waits for something else."""
    bar = w.block.barrier if w.block is not None else None
    name = re.match(r"\w+", bar.text) if isinstance(bar, Mbarrier) else None
    return barriers[name[0]].arrivers if name and name[0] in barriers else None


def _reached(role: str, waits: Mapping[str, set[str]]) -> set[str]:
    """All roles that a role waits for, directly or through others."""
    found: set[str] = set()
    todo = [role]
    while todo:
        new = waits.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found

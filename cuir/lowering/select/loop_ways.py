"""Ways of a loop over a range: whether its turns are written out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.ir import Operation

from ...ops.base import Effects
from ..analyses.liveness import count_registers, count_unrolled
from ..ir import ops
from ..ir.ir_walk import operations
from .role_facts import RoleFacts
from .ways import Verdict, Ways, fits, misfits

FEW_REGISTERS = 32  # of a thread: a role with fewer keeps its loops as they are
MAX_UNROLLED_TURNS = 16  # turns of a loop that are written out, at most
WAYS = Ways()


@dataclass(frozen=True)
class Turns:
    """A loop in a role."""

    loop: ops.For
    role: RoleFacts

    @property
    def count(self) -> int | None:
        """Number of turns, None if it is not a constant."""
        start, stop = ops.constant_value(self.loop.start), ops.constant_value(self.loop.stop)
        if start is None or stop is None or start < 0 or stop < 0:
            return None
        return len(range(int(start), int(stop), self.loop.step.data))


@WAYS.way("loop", "nvcc's choice")
def leave(turns: Turns) -> Verdict | None:
    """Leave the choice to nvcc where a single lane runs the loop."""
    few = 0 < turns.role.registers < FEW_REGISTERS
    return fits("a single lane runs it") if turns.role.single and not few else None


@WAYS.way("loop", "unrolled")
def unroll(turns: Turns) -> Verdict:
    """Write out the turns of a short loop that only reads and computes, if a thread can hold what they load.

    Copies of a body with products cost more than the branch, or need too many registers. Without products, reads of
    different turns do not wait for one another.
    """
    loop, role, count = turns.loop, turns.role, turns.count
    if count is None:
        return misfits("the number of turns is no constant")
    if not count:
        return misfits("it has no turns")
    if count > MAX_UNROLLED_TURNS:
        return misfits(f"{count} turns, and at most {MAX_UNROLLED_TURNS} are written out")
    if 0 < role.registers < FEW_REGISTERS:
        return misfits(f"a thread of the role has {role.registers} registers, fewer than {FEW_REGISTERS}")
    effect = next((op for op in operations(loop.body.block) if not only_computes(op)), None)
    if effect is not None:
        return misfits(f"its body has `{effect.entry.written if isinstance(effect, ops.Perform) else effect.name.removeprefix('tile.')}`")
    needed, available = count_unrolled(loop, count, role.liveness, role.threads), role.available_registers
    if needed > available:
        return misfits(f"its turns would take {needed} registers, and a thread has {available}")
    return fits(f"{count} turns that only read and compute; tiles take {needed} of {available} registers")


@WAYS.way("loop", "rolled")
def roll(turns: Turns) -> Verdict:
    """Keep the loop, and keep nvcc from unrolling it."""
    live = turns.role.liveness.at_start[turns.loop.body.block] | set(turns.loop.inner)
    return fits(f"one turn's code; tiles that are live at its start take {count_registers(live, turns.role.threads)} registers")


def only_computes(op: Operation) -> bool:
    """Return whether an operation only reads memory and computes: no writes, waits, branches, engines."""
    if op.regions:
        return False
    return not isinstance(op, ops.Perform) or _only_reads(op)


def _only_reads(op: ops.Perform) -> bool:
    """Return whether an operation reads memory synchronously and has no other effect."""
    effects = op.entry.effects
    alone = replace(effects, accesses=()) == Effects() and not op.entry.traits.product
    return op.gathers or (alone and bool(effects.accesses) and all(a.mode == "read" for a in effects.accesses))

"""State of the machine of one batch: workers, shared memory, barriers and engines of L clusters.

The clusters take the same control flow. Imports data alone: operations are in the modules that import it (protocol.py,
races.py, engines.py, ...), and main_loop.py drives. Invariant: a worker is (pc, frame) over code made by code.py, so
that a batch can be copied and split at any statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..checking.checked import Checked
from ..checking.kernel_results import keep_with_kernel
from ..ops.expressions import get_declaration
from ..text.source import Span
from .access_records import Actor, Tracker
from .actions import Action, Groups
from .barrier_state import Handout, Mbarrier, NamedBarrier
from .clocks import WorkerClock
from .event_trace import Trace
from .memory import Shared
from .noise import Noise
from .ops_registry import RUNS
from .schedule import Picker, Schedule
from .state import State, select
from .step_budget import Budget
from .tensors import TensorArg
from .values import Diverge

GO, BLOCK, POINT = 0, 1, 2  # signals of an instruction: go on; blocked (run it again); done, others may act now
Instruction = Callable[["Worker"], int | None]
Evaluate = Callable[["Worker"], Any]  # gives a value, or the signal of an instruction


@dataclass
class Program:
    """The code of a role."""

    name: str
    workers: int
    threads: int
    index: str | None
    code: list[Instruction]
    loops: tuple[bool, ...] = ()  # for each loop over the work items: whether it stands at the top


@dataclass
class Launch:
    """The state that all batches of a run share."""

    checked: Checked
    tensors: dict[str, TensorArg]
    values: dict[str, Any]  # runtime dims and scalars
    programs: list[Program]
    device: torch.device
    schedule: Schedule
    grid: int
    work: Sequence[Sequence[int]]  # units of work of each cluster
    detect: bool = True
    trace: Trace | None = None
    noise: Noise | None = None  # noise of results that are not exact
    counts: dict[str, int] = field(default_factory=dict)  # events, each counted in every lane
    batches: int = 0
    splits: int = 0
    area: float = 0.0  # of products, in 128 x 128 x 128
    rounds: dict[str, int] = field(default_factory=dict)  # of each mbarrier ring, in the CTA that goes round it most
    budget: Budget = field(default_factory=Budget)
    data: bool = True  # whether data are moved and computed (without_data.py)


class Block(State):
    """The reason why a worker does not go on, for reports and for the trace."""

    def __init__(self, barrier: Mbarrier | NamedBarrier | Handout, phase: int, span: Span):
        self.barrier, self.phase, self.span = barrier, phase, span


class Worker(State):
    def __init__(self, m: Machine, number: int, cta: int, program: Program, index: int, clock: WorkerClock):
        self.m, self.number, self.cta, self.program, self.index, self.clock = m, number, cta, program, index, clock
        self.code = program.code
        self.label = f"{program.name}[{index}]" + (f" of CTA {cta}" if m.launch.checked.cluster > 1 else "")
        self.frame: dict[str, Any] = dict(m.launch.values)
        if program.index is not None:
            self.frame[program.index] = index
        self.pc = 0
        self.finished = False
        self.block: Block | None = None
        self.blocked_at = -1  # the machine's version when it last blocked
        self.ticket: int | None = None  # the generation of a named barrier that it waits in
        self.groups = Groups()
        self.copies = 0  # bulk copies issued
        self.unit = -1  # which of the cluster's units of work it does, counted from 0; -1 outside of the loop over them
        self.time = 0.0
        self.started = 0.0  # when it came to the named barrier it waits at

    def fence(self, tensors: bool) -> None:
        """Execute a proxy fence; tensors: for stores to tensors in device memory, too."""
        self.clock.fence(tensors)

    def actor(self, span: Span, access: str) -> Actor:
        return Actor(self.number, self.cta, self.label, self.label, self.clock, span, access)

    def engine(self, kind: str, span: Span, access: str) -> Actor:
        """Make an engine that acts for this worker, with the clock that it has now."""
        self.m.engines += 1
        clock = self.clock.copy()
        self.clock.start_epoch()  # a wait behind the issue is not over when the engine is done
        return Actor(self.number, self.cta, f"{kind} #{self.m.engines} by {self.label}", self.label, clock, span, access)


@keep_with_kernel
def _has_queues(checked: Checked) -> bool:
    """Return whether workers have queues: operations that finish in order, and arrive at barriers."""
    return any(bound.op.effects.completes and bound.op.effects.commits for bound in checked.calls())


class Machine(State):
    """A batch: `clusters` [L] are the lanes."""

    def __init__(self, launch: Launch, clusters: np.ndarray):
        self.launch, self.clusters = launch, clusters
        checked = launch.checked
        ctas = checked.cluster
        per_cta = sum(p.workers for p in launch.programs)
        workers = per_cta * ctas
        rings = [(b, cta) for cta in range(ctas) for b in checked.barriers.values()]
        queues = workers if _has_queues(checked) else 0
        entries = sum(b.stages or 1 for b, _ in rings if not b.hardware) + queues
        self.first_queue = workers + entries - queues  # the clocks' entry for the first worker's queue
        self.shared: list[Shared] = [
            RUNS[get_declaration("array").name](checked.shared, len(clusters) if launch.data else 1, launch.device) for _ in range(ctas)
        ]
        self.trackers = [Tracker() for _ in range(ctas)]
        self.barriers: dict[tuple[str, int], list[Mbarrier | NamedBarrier]] = {}
        entry = workers
        for b, cta in rings:
            ring: list[Mbarrier | NamedBarrier] = []
            for stage in range(b.stages or 1):
                text = b.name + (f"[{stage}]" if b.stages is not None else "") + (f" of CTA {cta}" if ctas > 1 else "")
                ring.append(RUNS[b.kind](b, text, entry, workers, entries))
                entry += not b.hardware
            self.barriers[b.name, cta] = ring
        self.joins = [
            NamedBarrier("sync()", per_cta, sum(p.workers * p.threads for p in launch.programs) // 32, None, workers, entries)
            for _ in range(ctas)
        ]
        self.engines = 0
        self.products = 0
        self.version = 0
        self.tick = 0  # events of barriers, for reports
        self.pending: list[Action] = []  # issued, not acted, free to act now
        self.picker = Picker(launch.schedule, workers, int(clusters[0]))
        self.engine_time: dict[str, float] = {}  # when each engine is free, by the cost model
        self.number = launch.batches
        launch.batches += 1
        self.workers: list[Worker] = []
        for cta in range(ctas):
            for program in launch.programs:
                self.workers += RUNS[get_declaration("workers").name](self, program, cta, len(self.workers), workers, entries)
        self.handout: Handout | None = None
        if checked.tiles is not None and self.picker.lockstep and all(p.loops in ((), (True,)) for p in launch.programs):
            self.handout = Handout([w.number for w in self.workers if w.program.loops], checked.tiles.span)

    @property
    def lanes(self) -> int:
        return len(self.clusters)

    def mark_change(self) -> None:
        """Mark a change that blocked workers may have waited for."""
        self.version += 1

    def count(self, kind: str) -> None:
        counts = self.launch.counts
        counts[kind] = counts.get(kind, 0) + len(self.clusters)

    def release(self) -> None:
        """Free tiles and arrays at once.

        A machine and its workers refer to each other, and would wait for the garbage collector.
        """
        for w in self.workers:
            w.__dict__.clear()
        self.__dict__.clear()

    def split(self, diverged: Diverge) -> list[Machine]:
        """Split this batch into smaller ones, each with its own control flow."""
        self.launch.splits += 1
        parts = [select(self, part, self.lanes) for part in diverged.parts]
        for part in parts[1:]:
            part.number = self.launch.batches
            self.launch.batches += 1
        return parts

"""Schedules: the order in which workers and engines act; a schedule and a grid replay a run exactly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..text.diagnostics import CuirError
from .state import State

Timing = Literal["early", "late", "any"]
POLICIES = ("engines_first", "workers_first", "reverse", "starve", "lockstep")


@dataclass(frozen=True)
class Schedule:
    """The choice of one of the allowed orders of a run.

    kind: "in_order" (each worker runs until it blocks, in the order of the text; engines act as late as they may),
    "random" (every step drawn from `seed`), "adversarial" (priorities: drawn from `seed` and changed now and then, or
    one of POLICIES by `policy`). For `starve`, `seed` is the number of the worker that runs only when no other can.
    Under `lockstep` a work item is handed out when all workers have taken the one before. "replay": only `cluster`
    runs, in these `steps`, each the label of a worker, which goes on to its next synchronisation, or the name of a
    copy that lands; then in order. `units` are the cluster's work items, if they are handed out dynamically. `origin`
    is the file that all this comes from, `policy` "lockstep" or None.
    """

    kind: Literal["in_order", "random", "adversarial", "replay"] = "in_order"
    seed: int = 0
    policy: str | None = None
    steps: tuple[str, ...] = field(default=(), repr=False)
    cluster: int | None = None
    units: tuple[int, ...] | None = None
    origin: str = ""

    @classmethod
    def in_order(cls) -> Schedule:
        return cls()

    @classmethod
    def random(cls, seed: int) -> Schedule:
        return cls("random", seed)

    @classmethod
    def adversarial(cls, how: int | str, worker: int = 0) -> Schedule:
        """Make an adversarial schedule from a seed or one of POLICIES; worker: whom `starve` starves."""
        return cls("adversarial", how) if isinstance(how, int) else cls("adversarial", worker, how)

    @classmethod
    def replay(
        cls, steps: Sequence[str], cluster: int = 0, lockstep: bool = False, units: Sequence[int] | None = None, origin: str = ""
    ) -> Schedule:
        """Make a schedule from the steps of one cluster, in their order."""
        return cls("replay", 0, "lockstep" if lockstep else None, tuple(steps), cluster, None if units is None else tuple(units), origin)

    @property
    def replay_option(self) -> str:
        """The option of the command line that gives this schedule."""
        return f"--replay {self.origin or 'FILE'}" if self.kind == "replay" else f"--schedule {self}"

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Parse the text of a schedule, the inverse of `str`.

        Forms: in_order, random:7, adversarial:7, adversarial:reverse, adversarial:starve:2. Raises CuirError (U111).
        """
        kind, *rest = text.split(":")
        if kind == "in_order" and not rest:
            return cls()
        if kind in ("random", "adversarial") and len(rest) == 1 and rest[0].isdecimal():
            return cls(kind, int(rest[0]))  # type: ignore[arg-type]
        if kind == "adversarial" and rest and rest[0] in POLICIES and len(rest) <= 2 and all(r.isdecimal() for r in rest[1:]):
            return cls("adversarial", int(rest[1]) if len(rest) == 2 else 0, rest[0])
        raise CuirError.of(
            "U111", f"no such schedule: {text!r}", None, f"in_order, random:SEED, adversarial:SEED, adversarial:{{{','.join(POLICIES)}}}"
        )

    def __str__(self) -> str:
        if self.kind == "in_order":
            return "in_order"
        if self.kind == "replay":
            return f"of {self.origin}" if self.origin else f"of {len(self.steps)} steps"
        if self.policy is None:
            return f"{self.kind}:{self.seed}"
        return f"adversarial:{self.policy}" + (f":{self.seed}" if self.policy == "starve" else "")


class Picker(State):
    """The decisions of one batch under a schedule."""

    def __init__(self, schedule: Schedule, workers: int, salt: int):
        self.schedule, self.workers = schedule, workers
        self.rng = random.Random(f"{schedule}/{salt}")
        self.position = 0  # steps of a replay
        order = list(range(workers))
        if schedule.policy == "reverse":
            order.reverse()
        elif schedule.policy == "starve":
            order.sort(key=lambda w: w == schedule.seed % workers)
        elif schedule.kind == "adversarial" and schedule.policy is None:
            self.rng.shuffle(order)
        self.rank = {w: i for i, w in enumerate(order)}  # lower runs first
        self.engine_rank = (
            {"engines_first": -1, None: self.rng.randint(-1, workers)}.get(schedule.policy, workers)
            if schedule.kind == "adversarial"
            else workers
        )

    @property
    def until_blocked(self) -> bool:
        """True if a worker runs on after a synchronisation that did not block it."""
        return self.schedule.kind == "in_order" or (self.schedule.kind == "replay" and self.position >= len(self.schedule.steps))

    @property
    def lockstep(self) -> bool:
        """True if a work item is handed out only when all workers have taken the one before."""
        return self.schedule.policy == "lockstep"

    @property
    def timing(self) -> Timing:
        """The time at which an engine performs an issued action.

        early: at once; late: when it must (or nobody else can act); any: whenever it is picked.
        """
        if self.schedule.kind in ("in_order", "replay") or self.schedule.policy in ("workers_first", "reverse", "starve", "lockstep"):
            return "late"
        return "early" if self.schedule.policy == "engines_first" else "any"

    def pick(self, workers: Sequence[int], actions: int) -> tuple[Literal["worker", "engine"], int]:
        """Choose among runnable workers (by number) and actions of engines (by position), at least one in all."""
        if self.schedule.kind == "random":
            n = self.rng.randrange(len(workers) + actions)
            return ("worker", workers[n]) if n < len(workers) else ("engine", n - len(workers))
        if self.schedule.kind == "adversarial" and self.schedule.policy is None and self.rng.random() < 0.05:
            demoted = self.rng.choice(list(self.rank))  # a change point, as in probabilistic concurrency testing
            self.rank[demoted] = max(self.rank.values()) + 1
        if workers:
            best = min(workers, key=self.rank.__getitem__)
            if not actions or self.rank[best] <= self.engine_rank:
                return "worker", best
        late = self.schedule.kind == "adversarial" and self.schedule.policy != "engines_first"
        return "engine", self.rng.randrange(actions) if late else 0

    def replay_step(self, workers: Sequence[str], actions: Sequence[str]) -> tuple[Literal["worker", "engine"], int] | None:
        """Return the next step of a replay, or None after the last.

        The step is a position among workers that can go on or copies in flight. Raises CuirError U124.
        """
        if self.schedule.kind != "replay" or self.position >= len(self.schedule.steps):
            return None
        step = self.schedule.steps[self.position]
        self.position += 1
        if step in workers:
            return "worker", workers.index(step)
        if step in actions:
            return "engine", actions.index(step)
        raise CuirError.of(
            "U124",
            f"step {self.position} of the schedule is `{step}`, which can do nothing there",
            None,
            f"replay it on the program, consts and dims that it was made from; at this point act: {', '.join((*workers, *actions)) or 'none'}",
        )


def partition_work(schedule: Schedule, count: int, groups: int, dynamic: bool) -> list[Any]:
    """Distribute the work items over the clusters, increasing in each.

    Cluster c gets c, c + G, ... or, for dynamic work under another schedule than in order, any partition.
    """
    if dynamic and schedule.units is not None and schedule.cluster is not None and schedule.cluster < groups:
        remaining = [t for t in range(count) if t not in schedule.units]
        other_shares = [remaining[i :: groups - 1] for i in range(groups - 1)]
        return [*other_shares[: schedule.cluster], [t for t in schedule.units if t < count], *other_shares[schedule.cluster :]]
    if not dynamic or schedule.kind in ("in_order", "replay"):
        return [range(c, count, groups) for c in range(groups)]
    rng = random.Random(f"{schedule}/tiles")
    shares: list[list[int]] = [[] for _ in range(groups)]
    if schedule.policy == "engines_first":  # the last cluster takes all, the rest come too late
        shares[-1] = list(range(count))
        return shares
    for t in range(count):
        rng.choice(shares).append(t)
    return shares

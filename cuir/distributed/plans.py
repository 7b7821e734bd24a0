"""Plans of attention over several GPUs: who sends what, and how long each method should take."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from torch.distributed.device_mesh import DeviceMesh

from ..attn.capture.call_inputs import wrong
from .agreement import Member
from .kept_pairs import KeptPairs
from .rounds import Need, NeededKeys, Rounds, ShiftedMods, is_held, list_rounds
from .shards import Shards, Span

Method = Literal["heads", "gather", "ring", "mixed"]
METHODS: tuple[Method, ...] = get_args(Method)
BACKWARD_WORK, BACKWARD_BYTES = 2.5, 2.0  # of the forward pass: products; keys again, and their gradients


class Machine(NamedTuple):
    """Rates and latencies that times are estimated from; the defaults are of one H200 among others of its host.

    Attributes:
        flops: of products, in a second of an attention kernel.
        bandwidth: bytes that a rank receives in a second while it sends as many.
        latency: seconds of an exchange, whatever its bytes.
        start: seconds in which the host begins a pass, with an exchange of keys.
        call: seconds in which the host launches the attention of neighbouring tokens.
        merge: times that the attention of queries takes longer whose keys come in several rounds.
        lookup: times that the attention of many spans takes longer, as its mask looks up each token's number.
    """

    flops: float = 6e14
    bandwidth: float = 2.9e11
    latency: float = 5e-5
    start: float = 8e-4
    call: float = 2e-4
    merge: float = 1.06
    lookup: float = 1.5


H200 = Machine()


@dataclass(frozen=True)
class ParallelProblem:
    """The sizes of a call over all ranks.

    Attributes:
        head_dims: of keys, and of values.
        itemsize: bytes of an element.
        mesh: sizes of the mesh dims: (ranks,), or (groups, ranks of a group).
        training: a backward pass follows.
    """

    batch: int
    heads: int
    key_heads: int
    head_dims: tuple[int, int]
    itemsize: int
    mesh: tuple[int, ...]
    queries: Shards
    keys: Shards
    training: bool

    @property
    def ranks(self) -> int:
        return self.queries.ranks

    def head_ranks(self, method: Method) -> int:
        """Return among how many ranks a method splits the heads."""
        return {"heads": self.ranks, "mixed": self.mesh[-1]}.get(method, 1)

    def find_obstacle(self, method: Method) -> str:
        """Return why a method cannot do the call, empty if it can."""
        if method == "mixed" and len(self.mesh) != 2:
            return "the mesh has one dim"
        parts = self.head_ranks(method)
        if self.heads % parts:
            return f"{parts} ranks do not divide {self.heads} query heads"
        if self.key_heads % parts and parts % self.key_heads:
            return f"{parts} ranks do not divide {self.key_heads} key heads, nor these them"
        return ""

    def sent_key_heads(self, method: Method) -> int:
        """Return the key heads that travel: a head that several ranks need is repeated."""
        return max(self.key_heads, self.head_ranks(method)) if self.head_ranks(method) > 1 else self.key_heads


class Estimate(NamedTuple):
    """Cost of a method: the most bytes that a rank receives, exchanges, the largest load by the mean, and seconds."""

    method: Method
    received: float
    exchanges: int
    imbalance: float
    seconds: float
    obstacle: str = ""


@dataclass(frozen=True)
class Plan:
    """Plan of a call over several ranks.

    Attributes:
        needed: of each group of ranks that holds a shard in the method, the keys that spans of its queries need.
        estimates: of all methods.
        shifted: mods of earlier calls with this plan.
        member: the place of this process in the mesh of the last call, by time-out.
    """

    method: Method
    problem: ParallelProblem
    needed: NeededKeys
    estimates: tuple[Estimate, ...]
    shifted: ShiftedMods = field(default_factory=ShiftedMods, repr=False, compare=False)
    member: dict[float, tuple[weakref.ref[DeviceMesh], Member]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def groups(self) -> tuple[Shards, Shards]:
        """Queries and keys of the ranks that exchange keys, once heads are exchanged."""
        size = self.problem.head_ranks(self.method)
        return self.problem.queries.group(size), self.problem.keys.group(size)

    @functools.cached_property
    def rounds(self) -> tuple[Rounds, ...]:
        """The rounds of each rank that exchanges keys."""
        single = self.method in ("heads", "gather")
        _, keys = self.groups
        return tuple(list_rounds(self.needed, keys, rank, single) for rank in range(keys.ranks))

    def explain(self) -> str:
        """Return a table of the methods, with the chosen one marked."""
        lines = ["  method    MB received  exchanges  load/mean        ms"]
        for e in self.estimates:
            mark = ">" if e.method == self.method else " "
            numbers = f"{e.received / 1e6:12.2f} {e.exchanges:10} {e.imbalance:10.2f} {e.seconds * 1e3:9.3f}"
            lines.append(f"{mark} {e.method:8} {'  ' + e.obstacle if e.obstacle else numbers}")
        return "\n".join(lines)


def make_plan(problem: ParallelProblem, kept: KeptPairs, method: Method | None = None, machine: Machine = H200) -> Plan:
    """Plan a call by the requested method, by default the one with the smallest estimate.

    Raises CuirError U413 for a method that cannot do the call.
    """
    if method is not None and method not in METHODS:
        wrong("U413", f"method must be {', '.join(METHODS)} or None, found {method!r}")
    estimates = tuple(estimate(problem, kept, m, machine) for m in METHODS)
    if method is None:
        method = min((e for e in estimates if not e.obstacle), key=lambda e: e.seconds).method
    elif obstacle := problem.find_obstacle(method):
        hint = (
            "a mesh of two dims: (groups, ranks of a group)"
            if len(problem.mesh) != 2 and method == "mixed"
            else 'method="gather" or "ring"'
        )
        wrong("U413", f"method={method!r} cannot do this call: {obstacle}", hint)
    queries, keys = (x.group(problem.head_ranks(method)) for x in (problem.queries, problem.keys))
    return Plan(method, problem, find_needed_keys(kept, queries, keys, method == "gather"), estimates)


def find_needed_keys(kept: KeptPairs, queries: Shards, keys: Shards, divided: bool = False) -> NeededKeys:
    """Return the keys that the spans of the queries of each rank need.

    Args:
        divided: a rank of whose queries few are in spans that need its own keys alone gets such spans, where they have
            most queries of a span. They are computed while the other keys travel.
    """
    needed = []
    for spans, own in zip(queries.spans, keys.spans, strict=True):
        needs = [Need(span, kept.needed_keys((span,))) for span in spans]
        held = _count([need.queries for need in needs if is_held(need, own)])
        if divided and 4 * held < _count(spans):
            needs = [Need(span, kept.needed_keys((span,))) for whole in spans for span in _divide(kept, whole, own)]
        needed.append(tuple(needs))
    return tuple(needed)


def _divide(kept: KeptPairs, queries: Span, own: tuple[Span, ...]) -> list[Span]:
    """Divide queries where those that need other keys than a rank's own end or begin, if most queries need none."""
    away = kept.find_rows_beyond(queries, own)
    if not away:
        return [queries]
    before, after = away[0] - queries.start, queries.stop - away[1]
    if 2 * max(before, after) <= queries.stop - queries.start:
        return [queries]
    cut = away[0] if before > after else away[1]
    return [Span(queries.start, cut), Span(cut, queries.stop)]


def estimate(problem: ParallelProblem, kept: KeptPairs, method: Method, machine: Machine) -> Estimate:
    """Estimate what a method costs on the rank for which it costs most."""
    if obstacle := problem.find_obstacle(method):
        return Estimate(method, 0.0, 0, 0.0, 0.0, obstacle)
    parts = problem.head_ranks(method)
    queries, keys = problem.queries.group(parts), problem.keys.group(parts)
    dims = sum(problem.head_dims)
    pair_seconds = 2.0 * problem.batch * problem.heads / parts * dims / machine.flops
    token_bytes = problem.batch * problem.itemsize * dims  # of a key head, or of Q and O of a query head
    loads = [kept.count(spans) for spans in queries.spans]
    by_heads = _count_head_bytes(problem, method, token_bytes)
    seconds, received = 0.0, 0.0
    ring = method in ("ring", "mixed")
    needed = find_needed_keys(kept, queries, keys, method == "gather")
    for group in range(queries.ranks):
        steps = list_rounds(needed, keys, group, not ring).steps
        launched = [part for step in steps for part in step.parts]
        looked_up = any(len(spans or ()) > 1 for part in launched for spans in (part.query_spans, part.key_spans))
        per_token = token_bytes * problem.sent_key_heads(method) / parts
        sizes = [per_token * sum(map(_count, step.receives.values())) for step in steps]
        share = loads[group] * pair_seconds * (machine.lookup if looked_up else 1.0) * (machine.merge if ring else 1.0)
        pairs = [sum(kept.count(part.query_spans or queries.spans[group], part.key_spans) for part in step.parts) for step in steps]
        works = [share * x / (sum(pairs) or 1.0) for x in pairs]
        forward = _add_rounds(sizes, works, machine)
        # a ring sends keys again; otherwise gradients return under the work on own keys
        later = [BACKWARD_BYTES * x if ring else x for x in sizes]
        backward = _add_rounds(later, [BACKWARD_WORK * x for x in works], machine)
        passes = [forward, backward] if problem.training else [forward]
        host = machine.start + len(launched) * machine.call
        seconds = max(seconds, sum(max(x, host) for x in passes))  # the host launches ahead
        received = max(received, sum(sizes))
    head_exchanges = 2 if parts > 1 else 0
    seconds += (2 if problem.training else 1) * (by_heads / machine.bandwidth + head_exchanges * machine.latency)
    rounds = keys.ranks - 1 if ring else min(keys.ranks - 1, 1)
    mean = sum(loads) / len(loads)
    imbalance = max(loads) / mean if mean else 1.0
    return Estimate(method, received + by_heads, rounds + head_exchanges, imbalance, seconds)


def _count_head_bytes(problem: ParallelProblem, method: Method, token_bytes: float) -> float:
    """Return the most bytes that a rank receives as heads are exchanged, there and back."""
    parts = problem.head_ranks(method)
    if parts == 1:
        return 0.0
    away = (parts - 1) / parts
    queries, keys = max(problem.queries.lengths), max(problem.keys.lengths)
    return away * token_bytes * (queries * problem.heads + keys * problem.sent_key_heads(method))


def _count(places: Sequence[Span]) -> int:
    return sum(stop - start for start, stop in places)


def _add_rounds(sizes: Sequence[float], works: Sequence[float], machine: Machine) -> float:
    """Return the seconds of exchanges and products; each exchange runs under the products of the round before it."""
    times = [size / machine.bandwidth + machine.latency if size else 0.0 for size in sizes]
    return times[0] + sum(max(work, following) for work, following in zip(works, [*times[1:], 0.0], strict=True))

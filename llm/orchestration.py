"""Orchestration of a kernel: workers, barriers, staged buffers, asynchronous work; and its comparison.

Expert CUDA and a program have the same facts. The comparison is part of accepting a lift: every difference is a
diagnostic that names both lines. Counts are in workers on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cuir.text.diagnostics import Diagnostic, Note
from cuir.text.source import Span

AGENTS = {
    "bulk load": "copies by the copy engine (copy_async with a barrier)",
    "cp.async": "copies by cp.async (copy_async, copy_commit, copy_wait)",
    "bulk store": "stores by the copy engine (store_async)",
    "wgmma": "asynchronous products (mma_async)",
    "mma": "products by mma",
}


@dataclass(frozen=True)
class Workers:
    """Role of `workers` workers of `threads` threads (32 or 128).

    Attributes:
        registers: Registers of a thread, None if not stated.
        does: Keys of AGENTS.
    """

    name: str
    workers: int
    threads: int
    registers: int | None
    does: frozenset[str]
    span: Span
    registers_at: Span | None = None

    def __str__(self) -> str:
        size = f"{'warpgroups' if self.threads == 128 else 'warps'}={self.workers}"
        return (
            f"role {self.name}: {size}"
            + (f", registers={self.registers}" if self.registers is not None else "")
            + (f"; {', '.join(sorted(self.does))}" if self.does else "")
        )


@dataclass(frozen=True)
class BarrierUse:
    """Barrier with the roles that use it.

    Attributes:
        kind: "mbarrier" or "named_barrier".
        count: Count in workers; None: it does not follow from the text.
        carries_bytes: Copies complete on it.
        arrives: Roles that arrive, by name.
        waits: Roles that wait, by name.
        counted: The count as written in CUDA.
    """

    name: str
    kind: str
    count: int | None
    stages: int
    carries_bytes: bool
    arrives: frozenset[str]
    waits: frozenset[str]
    span: Span
    counted: str = ""

    def __str__(self) -> str:
        bytes_ = ", with bytes of copies" if self.carries_bytes else ""
        return (
            f"{self.name}: {self.kind}({self.count if self.count is not None else '?'}{f', stages={self.stages}' if self.stages > 1 else ''}){bytes_}; "
            f"arrives: {_format_names(self.arrives)}; waits: {_format_names(self.waits)}"
        )


@dataclass(frozen=True)
class Memory:
    """Array in shared memory: bytes of all its stages, and their number.

    None: it does not follow from the source, as stages of an array that no copy fills.
    """

    name: str
    nbytes: int | None
    stages: int | None
    span: Span

    def __str__(self) -> str:
        return f"{self.name}: {'?' if self.nbytes is None else f'{self.nbytes:,}'} bytes" + (
            f" in {self.stages} stages" if (self.stages or 1) > 1 else ""
        )


@dataclass(frozen=True)
class Groups:
    """Waits for asynchronous groups of one agent.

    `remaining` has for each wait the number of later groups that it leaves in flight, with its place.
    """

    agent: str
    remaining: tuple[tuple[int, Span], ...]

    @property
    def most(self) -> tuple[int, Span | None]:
        """Largest number of groups left in flight, with its place."""
        return max(self.remaining, key=lambda pair: pair[0]) if self.remaining else (0, None)

    @property
    def plain(self) -> bool:
        """True if the waits are for all bulk stores, as a reader assumes."""
        return self.agent == "bulk store" and self.most[0] == 0

    def __str__(self) -> str:
        return f"{self.agent}: waits that leave {', '.join(map(str, sorted({n for n, _ in self.remaining})))} later groups in flight"


@dataclass(frozen=True)
class Orchestration:
    """Orchestration of a source or a program.

    Attributes:
        joins: Place of a `sync()` of all workers of the CTA after the start.
        by: Of a source, how it was read (text or compiler).
        more: Of a source, further findings; not compared.
        unknown: Of a source, facts that could not be established; not compared.
        uncertain: Kinds of calls of which some are unknown: barriers may have more such users.
    """

    roles: tuple[Workers, ...]
    barriers: tuple[BarrierUse, ...]
    memory: tuple[Memory, ...]
    groups: Mapping[str, Groups] = field(default_factory=dict)
    joins: Span | None = None
    by: str = "text"
    more: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    uncertain: frozenset[str] = frozenset()

    def lines(self) -> list[str]:
        """Return the facts, one a line, for people and models."""
        facts = [*(str(r) for r in self.roles), *(f"barrier {b}" for b in self.barriers), *(f"shared {m}" for m in self.memory)]
        facts += [f"groups {g}" for g in self.groups.values() if g.remaining and not g.plain]
        facts += ["sync() of the whole CTA in the main loop"] if self.joins else []
        return [*facts, *self.more, *(f"not known, and not compared: {text}" for text in self.unknown)]

    def as_json(self) -> dict[str, Any]:
        """Return the facts as JSON data."""
        return {"facts": self.lines()}


def compare(source: Orchestration, program: Orchestration, whole: Span) -> tuple[Diagnostic, ...]:
    """Report the differences of the program from the CUDA source, codes O101 to O110.

    `whole` is a place in the program for what it lacks. Names need not agree: parts are matched by what they do, names
    break ties.
    """
    differences: list[Diagnostic] = []

    def say(code: str, message: str, at: Span | None, source_span: Span | None, hint: str | None = None) -> None:
        """Record a difference."""
        notes = (Note("the CUDA source has this here", source_span),) if source_span else ()
        differences.append(Diagnostic(code, message, at or whole, notes, hint))

    names: dict[str, str] = {}  # role of the source -> role of the program
    uncertain = set[str]()  # roles of the source that may be warps or warpgroups
    for source_role, ours in match_parts(source.roles, program.roles, _like_roles):
        if source_role is not None and ours is not None:
            names[source_role.name] = ours.name
            if _may_be_warpgroups(source_role, ours):
                uncertain.add(source_role.name)
            _compare_roles(source_role, ours, say)
        elif source_role is not None:
            say(
                "O102",
                f"the source has the role `{source_role.name}`, which the program lacks: {source_role}",
                None,
                source_role.span,
                "lift each role of the source to a role of its own",
            )
        elif ours is not None:
            say(
                "O102",
                f"the program has the role `{ours.name}`, which the source lacks: {ours}",
                ours.span,
                None,
                "the source's roles: " + "; ".join(map(str, source.roles)),
            )
    for b, mine in match_parts(source.barriers, program.barriers, lambda x, y: _like_barriers(x, y, names)):
        if b is not None and mine is not None:
            of_warps = b.count is not None and bool(b.arrives) and b.arrives <= uncertain
            counted = replace(b, count=b.count // 4) if of_warps and b.count is not None and b.count % 4 == 0 else b
            _compare_barriers(counted, mine, names, source.uncertain, say)
        elif b is not None:
            say(
                "O103",
                f"the source has the barrier `{b.name}`, which the program lacks: {b}",
                None,
                b.span,
                "each mbarrier and each named barrier of the source is one of the program",
            )
        elif mine is not None:
            say(
                "O103",
                f"the program has the barrier `{mine.name}`, which the source lacks: {mine}",
                mine.span,
                None,
                "the source's barriers: " + "; ".join(x.name for x in source.barriers),
            )
    for a, array in match_parts(source.memory, program.memory, _like_memory):
        if a is not None and array is not None:
            _compare_memory(a, array, say)
        elif a is not None:
            say("O108", f"the source has the shared array `{a.name}`, which the program lacks: {a}", None, a.span)
    _compare_groups(source, program, say)
    if source.joins and not program.joins:
        say(
            "O109",
            "the source joins all threads of the CTA (`__syncthreads`) in its main loop, the program has no `sync()` there",
            None,
            source.joins,
        )
    return tuple(differences)


Say = Callable[..., None]


def _may_be_warpgroups(source: Workers, ours: Workers) -> bool:
    """Return whether warps of the source may be the program's warpgroups.

    Only asynchronous products distinguish them.
    """
    fourfold = source.threads == 32 and ours.threads == 128 and source.workers == 4 * ours.workers
    return fourfold and "wgmma" not in source.does | ours.does


def _compare_roles(source: Workers, ours: Workers, say: Say) -> None:
    """Compare two matched roles."""
    if (source.workers, source.threads) != (ours.workers, ours.threads) and not _may_be_warpgroups(source, ours):
        say("O101", f"role `{ours.name}` must have {_size(source)} as the source, found {_size(ours)}", ours.span, source.span)
    if source.registers != ours.registers:
        expected = "no registers=" if source.registers is None else f"registers={source.registers}"
        say(
            "O110",
            f"role `{ours.name}` must have {expected} as the source, found {'none' if ours.registers is None else ours.registers}",
            ours.span,
            source.registers_at or source.span,
        )
    for agent in sorted(source.does ^ ours.does):
        lacks = agent in source.does
        say(
            "O107",
            f"role `{ours.name}` {'lacks' if lacks else 'has'} {AGENTS[agent]}, which the source's role `{source.name}` {'has' if lacks else 'lacks'}",
            ours.span,
            source.span,
        )


def _compare_barriers(source: BarrierUse, ours: BarrierUse, names: Mapping[str, str], uncertain: frozenset[str], say: Say) -> None:
    """Compare two matched barriers."""
    subject = f"barrier `{ours.name}` (the source's `{source.name}`)"
    if source.count is not None and source.count != ours.count:
        counted = f", written {source.counted}" if source.counted else ""
        say(
            "O104",
            f"{subject} must count {source.count} workers as the source{counted}, found {ours.count}",
            ours.span,
            source.span,
            "an arrival of one thread of each warp, or of one thread of a warpgroup, is one arrival of that worker",
        )
    if source.stages != ours.stages:
        say("O105", f"{subject} must have {source.stages} stages as the source, found {ours.stages}", ours.span, source.span)
    if source.carries_bytes != ours.carries_bytes:
        say(
            "O106",
            f"{subject} must {'' if source.carries_bytes else 'not '}count the bytes of copies, as in the source",
            ours.span,
            source.span,
        )
    for word, kinds, expected, actual in (
        ("arrive at", {"arrive", "expect"}, source.arrives, ours.arrives),
        ("wait for", {"wait"}, source.waits, ours.waits),
    ):
        expected_roles = frozenset(names.get(n, n) for n in expected)
        if expected_roles != actual and not (kinds & uncertain and expected_roles < actual):
            say(
                "O106",
                f"at {subject} the roles that {word} it must be {_format_names(expected_roles)} as in the source, found {_format_names(actual)}",
                ours.span,
                source.span,
            )


def _compare_memory(source: Memory, ours: Memory, say: Say) -> None:
    """Compare two matched arrays."""
    subject = f"shared array `{ours.name}` (the source's `{source.name}`)"
    if source.stages not in (None, ours.stages):
        say("O108", f"{subject} must have {source.stages} stages as the source, found {ours.stages}", ours.span, source.span)
    elif source.nbytes is not None and source.nbytes != ours.nbytes:
        say(
            "O108",
            f"{subject} must have {source.nbytes:,} bytes as the source, found {ours.nbytes:,}",
            ours.span,
            source.span,
            "tiles of the program have the source's sizes",
        )


def _compare_groups(source: Orchestration, program: Orchestration, say: Say) -> None:
    """Compare the groups that waits leave in flight."""
    for agent, groups in source.groups.items():
        most, source_span = groups.most
        mine, span = program.groups.get(agent, Groups(agent, ())).most
        if groups.remaining and most != mine:
            wait = {"wgmma": "mma_wait", "bulk store": "store_wait"}.get(agent, "copy_wait")
            say(
                "O109",
                f"a wait of the source leaves {most} later groups of `{agent}` in flight, of the program at most {mine}",
                span,
                source_span,
                f"what runs under what must stay: {wait} stands where the source waits, and for as much",
            )


# ---- matching
T = TypeVar("T")


def match_parts(source: Sequence[T], ours: Sequence[T], likeness: Callable[[T, T], int]) -> list[tuple[T | None, T | None]]:
    """Return pairs of parts that are most alike, best first, then those without a partner.

    Parts of likeness 0 are never a pair.
    """
    scored = sorted(((likeness(a, b), -i, -j) for i, a in enumerate(source) for j, b in enumerate(ours)), reverse=True)
    free_theirs, free_ours, pairs = set(range(len(source))), set(range(len(ours))), list[tuple[T | None, T | None]]()
    for score, i, j in scored:
        if score > 0 and -i in free_theirs and -j in free_ours:
            free_theirs.discard(-i)
            free_ours.discard(-j)
            pairs.append((source[-i], ours[-j]))
    return [*pairs, *((source[i], None) for i in sorted(free_theirs)), *((None, ours[j]) for j in sorted(free_ours))]


NOISE = {"s", "sh", "smem", "shared", "bar", "mbar", "barrier", "barriers", "buffer"}


def words(name: str) -> frozenset[str]:
    """Return the words of a name, without those that say only that it is shared or a barrier.

    sK -> k, kFull and full_k -> full, k.
    """
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    all_words = frozenset(p.lower() for p in parts)
    return all_words - NOISE or all_words


def _rate_names(a: str, b: str) -> int:
    """Return the likeness of two names."""
    words_a, words_b = words(a), words(b)
    return 6 if words_a == words_b else 2 * len(words_a & words_b)


def _like_roles(a: Workers, b: Workers) -> int:
    """Return the likeness of two roles."""
    return (
        1
        + 4 * len(a.does & b.does)
        - 3 * len(a.does ^ b.does)
        + 2 * (a.threads == b.threads)
        + (a.workers == b.workers)
        + _rate_names(a.name, b.name) // 3
    )


def _like_barriers(a: BarrierUse, b: BarrierUse, names: Mapping[str, str]) -> int:
    """Return the likeness of two barriers, 0 for different kinds."""
    if a.kind != b.kind:
        return 0
    same_users = 3 * (frozenset(names.get(n, n) for n in a.arrives) == b.arrives) + 3 * (
        frozenset(names.get(n, n) for n in a.waits) == b.waits
    )
    return (
        1
        + _rate_names(a.name, b.name)
        + same_users
        + 2 * (a.carries_bytes == b.carries_bytes)
        + (a.stages == b.stages)
        + (a.count == b.count)
    )


def _like_memory(a: Memory, b: Memory) -> int:
    """Return the likeness of two arrays.

    Sizes weigh more than names, since a source's name may be that of a line that uses it; unknown sizes do not count.
    """
    return 2 * _rate_names(a.name, b.name) + 5 * (a.nbytes == b.nbytes) + 2 * (a.stages == b.stages) + (a.nbytes is None)


def _format_names(names: Iterable[str]) -> str:
    """Format names."""
    return ", ".join(sorted(names)) or "none"


def _size(role: Workers) -> str:
    """Format the workers of a role."""
    return f"{role.workers} {'warpgroup' if role.threads == 128 else 'warp'}{'s' * (role.workers > 1)}"

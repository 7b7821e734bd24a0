"""Faults of synchronisation in PTX: a wait, fence, arrival, count, byte, phase or commit of a kernel is changed.

A mutant changes one statement and keeps the lines, so that findings still show the sources.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

KINDS = ("wait", "phase", "count", "arrival", "bytes", "commit", "fence")
STATEMENT = re.compile(
    r"(?<![\w.$%])(?P<guard>@!?[\w%$]+\s+)?(?P<op>(?:mbarrier|bar|barrier|fence|membar|wgmma\.(?:fence|commit_group|wait_group)"
    r"|cp\.async\.(?:bulk\.)?(?:commit_group|wait_group|wait_all))[\w.:]*)(?P<rest>[^;{}]*);"
)
NEXT_BARRIER = re.compile(r"(?P<between>(?:\s|//[^\n]*\n|\.loc[^\n]*\n)*)(?P<barrier>bar\.sync[^;{}]*;)")
Change = tuple[str, str, str]  # kind, what is changed, the new statement


@dataclass(frozen=True)
class PtxMutant:
    """A changed statement.

    Attributes:
        kind: What it is about, of KINDS.
        change: In words.
        line: Of the PTX text.
        start, end: The statement's place in the text.
        old, new: The statement.
    """

    kind: str
    change: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return the text with the change."""
        return text[: self.start] + self.new + text[self.end :]

    def rank(self) -> str:
        """Return what orders the mutants of a kind, as good as at random and always the same."""
        return hashlib.sha256(f"{self.line} {self.change} {self.old}".encode()).hexdigest()


def list_ptx_mutants(text: str) -> Iterator[PtxMutant]:
    """Yield all mutants of a PTX text, by their place."""
    line, last = 1, 0
    for match in STATEMENT.finditer(text):
        line, last = line + text.count("\n", last, match.start()), match.start()
        if text.rfind("//", text.rfind("\n", 0, last) + 1, last) >= 0:
            continue
        for kind, change, new in change_statement(match["guard"] or "", match["op"], match["rest"].strip()):
            yield PtxMutant(kind, change, line, match.start(), match.end(), match[0], new)
        kind = MOVABLE.get(re.split(r"[\s.]wait", match["op"])[0], "")
        following = NEXT_BARRIER.match(text, match.end()) if kind else None
        if following is not None:
            new = f"{following['barrier']}{following['between']}{match[0]}"
            change = f"a {kind} comes behind the next barrier"
            yield PtxMutant(kind, change, line, match.start(), following.end(), match[0], new)


def change_statement(guard: str, op: str, operands: str) -> Iterator[Change]:
    """Yield the changes of one statement."""
    whole = f"{guard}{op} {operands};"
    for prefix, change in CHANGES.items():
        if op.startswith(prefix):
            yield from change(guard, op, operands, whole)
            return


def _change_test(guard: str, op: str, operands: str, whole: str) -> Iterator[Change]:
    """Change a wait for a phase: it succeeds at once, or waits for the other parity."""
    done, _, rest = operands.partition(",")
    yield "wait", "a wait for a phase succeeds at once", f"{guard}setp.eq.u32 {done}, 0, 0;"
    if ".parity" in op:
        address, _, rest = rest.partition("]")
        parts = [p.strip() for p in rest.lstrip(", ").split(",")]
        if not guard:
            after = ", ".join(["flipped_parity", *parts[1:]])
            yield (
                "phase",
                "a wait for the other parity",
                f"{{ .reg .b32 flipped_parity; xor.b32 flipped_parity, {parts[0]}, 1; {op} {done},{address}], {after}; }}",
            )


def _change_init(guard: str, op: str, operands: str, whole: str) -> Iterator[Change]:
    """Change the arrivals that an mbarrier counts."""
    if not guard:
        yield from _add_to_last("count", "an arrival more is counted", op, operands, 1)


def _change_arrival(guard: str, op: str, operands: str, whole: str) -> Iterator[Change]:
    """Change an arrival at an mbarrier, and the bytes that it announces."""
    yield "arrival", "an arrival is left out", " "
    if "expect_tx" in op:
        if not guard:
            yield from _add_to_last("bytes", "16 bytes more are expected", op, operands, 16)
            yield from _add_to_last("bytes", "16 bytes less are expected", op, operands, -16)
    else:
        yield "arrival", "an arrival comes twice", f"{whole} {whole}"


def _change_wait(guard: str, op: str, operands: str, whole: str) -> Iterator[Change]:
    """Change a wait for groups: none, or one group less is waited for."""
    yield "wait", "a wait for groups is left out", " "
    if operands.isdigit():
        yield "wait", "a wait leaves one group more in flight", f"{guard}{op} {int(operands) + 1};"


def _change_barrier(guard: str, op: str, operands: str, whole: str) -> Iterator[Change]:
    """Change a barrier of a CTA, or of a cluster."""
    arrives = ".arrive" in op
    yield ("arrival" if arrives else "wait"), f"{'an arrival at' if arrives else 'a wait at'} a barrier is left out", " "
    if op.startswith("bar.sync") and not guard:
        yield "count", "a barrier is one of a warp", "bar.warp.sync 0xffffffff;"
        if "," not in operands:
            less = f"{{ .reg .b32 changed_number; mov.u32 changed_number, %ntid.x; add.s32 changed_number, changed_number, -32; {op} {operands}, changed_number; }}"
            yield "count", "a barrier counts a warp less", less
            passed = f"{{ .reg .b32 all_threads; mov.u32 all_threads, %ntid.x; bar.arrive {operands}, all_threads; }}"
            yield "wait", "a barrier is passed at once", passed
    if operands.count(",") == 1 and not guard:
        yield from _add_to_last("count", "a barrier counts a warp more", op, operands, 32)
        yield from _add_to_last("count", "a barrier counts a warp less", op, operands, -32)


def _drop(kind: str, change: str) -> Callable[[str, str, str, str], Iterator[Change]]:
    """Return the change that leaves a statement out."""

    def drop(guard: str, op: str, operands: str, whole: str) -> Iterator[Change]:
        yield kind, change, " "

    return drop


def _keep(guard: str, op: str, operands: str, whole: str) -> Iterator[Change]:
    """Change nothing: the end of an mbarrier, a count that only reads."""
    yield from ()


def _add_to_last(kind: str, change: str, op: str, operands: str, amount: int) -> Iterator[Change]:
    """Add to the last operand of a statement, a number or a register."""
    first, _, last = operands.rpartition(",")
    yield kind, change, f"{{ .reg .b32 changed_number; add.s32 changed_number, {last.strip()}, {amount}; {op} {first}, changed_number; }}"


MOVABLE = {"cp.async": "wait", "cp.async.bulk": "wait", "fence.proxy.async.shared::cta": "fence", "fence.proxy.async": "fence"}
CHANGES: dict[str, Callable[[str, str, str, str], Iterator[Change]]] = {  # by what opcodes begin with, the first that fits
    "mbarrier.try_wait": _change_test,
    "mbarrier.test_wait": _change_test,
    "mbarrier.init": _change_init,
    "mbarrier.arrive": _change_arrival,
    "mbarrier.expect_tx": _drop("bytes", "bytes are not announced"),
    "mbarrier": _keep,
    "cp.async.bulk.commit_group": _drop("commit", "a commit is left out"),
    "cp.async.commit_group": _drop("commit", "a commit is left out"),
    "cp.async": _change_wait,
    "wgmma.commit_group": _drop("commit", "a commit is left out"),
    "wgmma.fence": _drop("fence", "a fence is left out"),
    "wgmma.wait_group": _change_wait,
    "fence": _drop("fence", "a fence is left out"),
    "membar": _drop("fence", "a fence is left out"),
    "bar.warp": _drop("wait", "a wait at a barrier is left out"),
    "bar": _change_barrier,
}


def choose_ptx_mutants(text: str, lines: Collection[int], count: int) -> list[PtxMutant]:
    """Return so many mutants of statements in some lines, of all kinds in turn; the same at each call."""
    by_change: dict[tuple[str, str], list[PtxMutant]] = {}
    for mutant in list_ptx_mutants(text):
        if mutant.line in lines:
            by_change.setdefault((mutant.kind, mutant.change), []).append(mutant)
    queues = [sorted(mutants, key=PtxMutant.rank) for _, mutants in sorted(by_change.items())]
    found: list[PtxMutant] = []
    while queues and len(found) < count:
        found += [q.pop(0) for q in queues][: count - len(found)]
        queues = [q for q in queues if q]
    return sorted(found, key=lambda m: (m.line, m.change))

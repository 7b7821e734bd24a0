"""Static single assignment: each write of a register gets a name, and joins choose between names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cuir.ptx.module import Address, Instruction, Operand

from .control_flow import Flow

NO_RESULT = frozenset(
    (
        "bra",
        "brx",
        "bar",
        "barrier",
        "setmaxnreg",
        "call",
        "cp",
        "st",
        "red",
        "nanosleep",
        "griddepcontrol",
        "ret",
        "exit",
        "fence",
        "membar",
        "trap",
        "prefetch",
        "discard",
        "stmatrix",
        "pmevent",
    )
)
WITHOUT_RESULT = (
    "wgmma.fence",
    "wgmma.commit_group",
    "wgmma.wait_group",
    "mbarrier.init",
    "mbarrier.inval",
    "mbarrier.expect_tx",
    "mbarrier.complete_tx",
)


def writes(x: Instruction) -> tuple[str, ...]:
    """Return the registers that an instruction writes."""
    if not x.operands or x.op.split(".")[0] in NO_RESULT or x.op.startswith(WITHOUT_RESULT) or isinstance(x.operands[0], Address):
        return ()
    first = x.operands[0]
    return tuple(r for r in (first if isinstance(first, tuple) else (first,)) if isinstance(r, str) and r != "_")


def names_in(operand: Operand) -> list[str]:
    """Return the registers and symbols in an operand."""
    if isinstance(operand, str):
        return [operand.lstrip("!")]
    if isinstance(operand, Address):
        return [*names_in(operand.base), *(name for r in operand.rest for name in names_in(r))]
    return [name for o in operand for name in names_in(o)] if isinstance(operand, tuple) else []


def reads(x: Instruction) -> list[str]:
    """Return the names that an instruction reads: registers, and symbols too.

    wgmma and mma read what they add to, which is data.
    """
    names = [name for operand in x.operands[1 if writes(x) else 0 :] for name in names_in(operand)]
    return [*names, *([x.guard[0]] if x.guard else [])]


@dataclass(frozen=True)
class Single:
    """Kernel in SSA form.

    Attributes:
        choices: For a name that joins others (a phi): its block, and the name from each predecessor.
        previous_names: For a name that is written under a guard: the name of its value where the guard does not hold.
    """

    instructions: tuple[Instruction, ...]
    choices: Mapping[str, tuple[int, Mapping[int, str]]]
    previous_names: Mapping[str, str] = field(default_factory=dict)


def single(instructions: Sequence[Instruction], flow: Flow) -> Single:
    """Convert a kernel to SSA form by the algorithm of Cytron et al."""
    written: dict[str, list[int]] = defaultdict(list)
    for i, x in enumerate(instructions):
        for r in writes(x):
            written[r].append(i)
    several = {r for r, places in written.items() if len(places) > 1 or instructions[places[0]].guard}
    live = _live(instructions, flow, several)
    frontiers = _frontiers(flow)
    meets: dict[int, list[str]] = defaultdict(list)
    for r in several:
        work = [flow.of[i] for i in written[r]]
        placed: set[int] = set()
        while work:
            for b in frontiers[work.pop()]:
                if b not in placed and r in live[b]:
                    placed.add(b)
                    meets[b].append(r)
                    work.append(b)
    result: list[Instruction] = list(instructions)
    choices: dict[str, tuple[int, dict[int, str]]] = {}
    previous: dict[str, str] = {}
    count: dict[str, int] = defaultdict(int)
    below: dict[int, list[int]] = defaultdict(list)
    for b, above in enumerate(flow.dominator):
        if above >= 0:
            below[above].append(b)
    meeting: dict[tuple[int, str], str] = {}
    for b, registers in meets.items():
        for r in registers:
            count[r] += 1
            meeting[b, r] = f"{r}#{count[r]}"
            choices[meeting[b, r]] = (b, {})
    stack: list[tuple[int, dict[str, str]]] = [(0, {})]
    while stack:
        b, names = stack.pop()
        names = {**names, **{r: meeting[b, r] for r in meets.get(b, ())}}
        for i in range(flow.blocks[b].first, flow.blocks[b].last):
            result[i] = _rename_operands(instructions[i], several, names, count, previous)
        for to, _ in flow.blocks[b].out:
            for r in meets.get(to, ()):
                if r in names:
                    choices[meeting[to, r]][1][b] = names[r]
        stack += [(c, names) for c in below[b]]
    return Single(tuple(result), choices, previous)


def _rename_operands(
    x: Instruction, several: set[str], names: dict[str, str], count: dict[str, int], previous: dict[str, str]
) -> Instruction:
    """Rename the operands of an instruction."""
    renamed_writes = [r for r in writes(x) if r in several]
    if not renamed_writes and not (set(reads(x)) & names.keys()):
        return x
    outputs = 1 if writes(x) else 0
    operands = [*x.operands[:outputs], *(rename(o, names) for o in x.operands[outputs:])]
    guard = (names.get(x.guard[0], x.guard[0]), x.guard[1]) if x.guard else None
    for r in renamed_writes:
        count[r] += 1
        name = f"{r}#{count[r]}"
        if guard is not None and r in names:
            previous[name] = names[r]
        names[r] = name
        operands[0] = rename(operands[0], {r: name})
    return replace(x, operands=tuple(operands), guard=guard)


def rename(operand: Operand, names: Mapping[str, str]) -> Operand:
    """Replace names in an operand."""
    if isinstance(operand, str):
        return "!" + names.get(operand[1:], operand[1:]) if operand[:1] == "!" else names.get(operand, operand)
    if isinstance(operand, Address):
        return Address(rename(operand.base, names), operand.offset, tuple(rename(r, names) for r in operand.rest))
    if isinstance(operand, tuple):
        return tuple(rename(o, names) for o in operand)
    return operand


def _live(instructions: Sequence[Instruction], flow: Flow, several: set[str]) -> list[set[str]]:
    """Return for each block the registers that may be read before they are written, there or later."""
    needs: list[set[str]] = []
    ends: list[set[str]] = []
    for b in flow.blocks:
        need, over = set[str](), set[str]()
        for x in instructions[b.first : b.last]:
            guarded = set(writes(x)) if x.guard else set()  # keep what they had
            need |= ((set(reads(x)) | guarded) & several) - over
            over |= set(writes(x)) - guarded
        needs.append(need)
        ends.append(over)
    live = [set(n) for n in needs]
    changed = True
    while changed:
        changed = False
        for n in reversed(flow.order):
            after = set[str]().union(*(live[to] for to, _ in flow.blocks[n].out))
            now = needs[n] | (after - ends[n])
            if now != live[n]:
                live[n] = now
                changed = True
    return live


def _frontiers(flow: Flow) -> list[set[int]]:
    """Return the dominance frontier of each block."""
    frontiers: list[set[int]] = [set() for _ in flow.blocks]
    reached = set(flow.order)
    for b in flow.order:
        into = [p for p in flow.blocks[b].into if p in reached]
        if len(into) < 2:
            continue
        for p in into:
            while p >= 0 and p != flow.dominator[b]:
                frontiers[p].add(b)
                p = flow.dominator[p]
    return frontiers

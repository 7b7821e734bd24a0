"""Control flow graph of a kernel: blocks, edges with predicates, dominators, loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cuir.ptx.module import Instruction

ENDS = ("ret", "exit", "trap")


@dataclass
class Block:
    """Basic block: instructions `first` to `last` (excluded).

    `out` are its successors, each with (predicate, whether it holds there), None if always; `into` its predecessors.
    """

    first: int
    last: int
    out: list[tuple[int, tuple[str, bool] | None]] = field(default_factory=list)
    into: list[int] = field(default_factory=list)


@dataclass
class Flow:
    """Control flow graph.

    Attributes:
        blocks: Blocks in the order of the text.
        of: Block of each instruction.
        order: Reverse postorder.
        dominator: Immediate dominator of each block, -1 for the first.
        loops: Blocks of each loop by its header.
    """

    blocks: list[Block]
    of: list[int]
    order: list[int]
    dominator: list[int]
    loops: dict[int, frozenset[int]]

    def dominates(self, a: int, b: int) -> bool:
        """Return whether block `a` dominates block `b`."""
        while b >= 0 and b != a:
            b = self.dominator[b]
        return b == a

    def inside(self, block: int) -> list[int]:
        """Return the headers of the loops around a block."""
        return [h for h, body in self.loops.items() if block in body]

    def conditions(self, block: int) -> list[tuple[str, bool]]:
        """Return predicates that hold, or do not, whenever a block is reached."""
        predicates = []
        while (above := self.dominator[block]) >= 0:
            ways = [guard for to, guard in self.blocks[above].out if to == block]
            if len(ways) == 1 and ways[0] is not None and self.blocks[block].into == [above]:
                predicates.append(ways[0])
            block = above
        return predicates


def flow_of(instructions: Sequence[Instruction]) -> Flow:
    """Compute the control flow graph of a body."""
    starts = {0}
    for i, x in enumerate(instructions):
        if x.labels:
            starts.add(i)
        if x.op.split(".")[0] in ("bra", "brx", *ENDS):
            starts.add(i + 1)
    edges = sorted(s for s in starts if s < len(instructions))
    blocks = [Block(a, b) for a, b in zip(edges, [*edges[1:], len(instructions)])]
    of = [n for n, b in enumerate(blocks) for _ in range(b.first, b.last)]
    at = {label: of[i] for i, x in enumerate(instructions) for label in x.labels}
    for n, b in enumerate(blocks):
        last = instructions[b.last - 1]
        name = last.op.split(".")[0]
        following = [(n + 1, None)] if n + 1 < len(blocks) else []
        if name == "bra" and last.operands[0] in at:
            to = at[last.operands[0]]
            b.out = (
                [(to, None)] if last.guard is None else [(to, last.guard), *((f, (last.guard[0], not last.guard[1])) for f, _ in following)]
            )
        elif name == "brx":
            b.out = [(at[t], None) for t in last.targets if t in at]
        elif name in ENDS:
            b.out = [] if last.guard is None else [(f, (last.guard[0], not last.guard[1])) for f, _ in following]
        else:
            b.out = following  # type: ignore[assignment]
        for to, _ in b.out:
            blocks[to].into.append(n)
    order = _order(blocks)
    dominator = _dominators(blocks, order)
    return Flow(blocks, of, order, dominator, _loops(blocks, order, dominator))


def _order(blocks: list[Block]) -> list[int]:
    """Return the blocks in reverse postorder."""
    visited, post = {0}, list[int]()
    stack = [(0, iter([to for to, _ in blocks[0].out]))]
    while stack:
        n, rest = stack[-1]
        for to in rest:
            if to not in visited:
                visited.add(to)
                stack.append((to, iter([t for t, _ in blocks[to].out])))
                break
        else:
            stack.pop()
            post.append(n)
    return post[::-1]


def _dominators(blocks: list[Block], order: list[int]) -> list[int]:
    """Compute immediate dominators by the algorithm of Cooper, Harvey and Kennedy."""
    place = {n: i for i, n in enumerate(order)}
    above: dict[int, int] = {0: 0}
    changed = True
    while changed:
        changed = False
        for n in order[1:]:
            ready = [p for p in blocks[n].into if p in above]
            new = ready[0]
            for p in ready[1:]:
                a, b = p, new
                while a != b:
                    while place[a] > place[b]:
                        a = above[a]
                    while place[b] > place[a]:
                        b = above[b]
                new = a
            if above.get(n) != new:
                above[n] = new
                changed = True
    return [-1 if n == 0 else above.get(n, -1) for n in range(len(blocks))]


def _loops(blocks: list[Block], order: list[int], dominator: list[int]) -> dict[int, frozenset[int]]:
    """Return the natural loops by header."""
    loops: dict[int, set[int]] = {}
    for n in order:
        for header, _ in blocks[n].out:
            a = n
            while a >= 0 and a != header:
                a = dominator[a]
            if a != header:
                continue
            body = loops.setdefault(header, {header})
            stack = [n]
            while stack:
                x = stack.pop()
                if x not in body:
                    body.add(x)
                    stack += blocks[x].into
    return {h: frozenset(b) for h, b in loops.items()}

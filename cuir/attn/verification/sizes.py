"""Problems for the contracts, small enough to check every pair: lengths, heads and tiles with edges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...spec.specification import Lengths, Specification
from ...syntax.nodes import Call, ConstType, Func, Kernel, Literal, Name, Node, Program
from ...syntax.walk import walk
from ...text.diagnostics import CuirError
from ..tracing.trace import list_captured_integers, trace

MAX_PAIRS = 6_000_000  # the largest number of pairs of a problem
GROUP = 64  # queries of a warpgroup, the rows of kv_rows


@dataclass(frozen=True)
class Problem:
    """Sizes for one enumeration; BM and BN are the program's tile, or smaller ones to try more edges."""

    lengths: Lengths
    BM: int
    BN: int

    def __str__(self) -> str:
        lengths = self.lengths
        return f"M={lengths.M}, N={lengths.N}, BM={self.BM}, BN={self.BN}, B={lengths.B}, H={lengths.H}, HK={lengths.HK}"


def collect_mask_integers(spec: Specification | None, program: Program | None) -> list[int]:
    """Return positive integers at which a mask may have an edge.

    They are captured by the specification, or literals of its mask and of the program's `keep`.
    """
    integers = set(list_captured_integers(spec)) if spec is not None else set()
    masks: list[Node] = []
    if spec is not None:
        with contextlib.suppress(CuirError):  # a mask that cannot be traced: its captured values are known nevertheless
            masks += [e for e in (trace(spec).keep,) if e is not None]
    if program is not None and "keep" in program.funcs():
        masks.append(program.funcs()["keep"])
    for mask in masks:
        integers |= {
            n.value
            for n in walk(mask)
            if isinstance(n, Literal) and isinstance(n.value, int) and not isinstance(n.value, bool) and n.value > 2
        }
    return sorted(v for v in integers if v > 0)


def make_problems(spec: Specification | None, BM: int, BN: int, level: str = "quick", program: Program | None = None) -> list[Problem]:
    """Return problems with every kind of edge.

    Ragged ends, M != N, one row, N smaller than a block, N = 0, and lengths around the mask's integers.
    """
    edges = collect_mask_integers(spec, program)
    marks, far = [v for v in edges if v < 300], [v for v in edges if v >= 300]
    lengths_tried = [1, 37, 2 * 16, 3 * 16 + 1]
    problems: list[Problem] = []

    def add(M: int, N: int, bm: int, bn: int, B: int = 1, H: int = 2, HK: int = 1) -> None:
        problems.append(Problem(Lengths(B, H, HK, M, N), bm, bn))

    for M, N in ((1, 1), (1, 40), (40, 1), (33, 64), (64, 33), (48, 48), (61, 47), (16, 0), (5, 100), (100, 5)):
        add(M, N, 16, 8)
        add(M, N, 8, 16, B=2, H=3)
    for d in range(-8, 9):  # every relative position of the ends of queries and keys
        add(27, 27 + d, 16, 8)
        add(30, 30 + d, 8, 16, H=1)
    for mark in marks:
        for d in (-1, 0, 1):
            add(mark + d + 16, mark + 24, 16, 16)
            add(max(1, mark + d), max(1, mark + d), 32, 16)
        add(2 * mark + 17, 2 * mark + 5, 32, 32)
    for mark in far:  # a few large problems; beyond a few thousand only thin ones
        add(mark + 37, mark + 61, 64, 64, H=1)
        add(40, mark + 61, 16, 64, H=1)
        add(mark + 37, 40, 64, 16, H=1)
    # tiles of several warpgroups; blocks that end inside of a warpgroup's 64 queries, too
    if program is not None and "kv_rows" in program.funcs():
        for M, N in ((200, 200), (130, 300), (300, 130)):
            add(M, N, 2 * GROUP, 16, H=1)
        for d in range(-9, 10, 3):
            add(2 * GROUP + 27, 2 * GROUP + 27 + d, 2 * GROUP, 24, H=1)
        for mark in marks:
            add(mark + 2 * GROUP, mark + 100, 2 * GROUP, 16, H=1)
            add(mark + 2 * GROUP + 1, mark + 3 * GROUP, 3 * GROUP, 40, H=1)
    for M, N in ((BM, BN), (BM + 1, 2 * BN + 3), (3 * BM - 1, 3 * BN + 1), (2 * BM, BN - 1)):
        add(M, N, BM, BN)
    if level == "full":
        for M in (*lengths_tried, *(m + 1 for m in marks)):
            for N in (*lengths_tried, *(m - 1 for m in marks), 129):
                for bm, bn in ((4, 4), (8, 4), (4, 8), (16, 16)):
                    add(M, N, bm, bn)
        add(2 * BM + 5, 4 * BN + 7, BM, BN, B=2, H=4, HK=2)
    return [p for p in problems if p.lengths.M * p.lengths.N <= MAX_PAIRS]


def make_order_problems(program: Program, kernel: Kernel, problems: Sequence[Problem]) -> list[Problem]:
    """Return problems for `tile` alone, with the tiles of these problems.

    They have as many heads as its text mentions, and more; keys so long that the L2 cache holds few heads or one. Empty
    for an order that reads the caller's values (a list of tiles, a number).
    """
    funcs = program.funcs()
    if "tile" not in funcs or not problems:
        return []
    text = list(walk_with_callees(funcs, "tile"))
    parameters = {p.name for p in kernel.params if not isinstance(p.type, ConstType)} - {"scale"}
    if any(isinstance(node, Name) and node.id in parameters for node in text):
        return []
    counted = {n.value for n in text if isinstance(n, Literal) and type(n.value) is int and 2 < n.value <= 500}
    heads = [(3, 20, 4), (5, 16, 16), *((1, x, 1) for v in sorted(counted) for x in (v - 1, v, v + 1, 2 * v + 1))]
    tiles = {(p.BM, p.BN) for p in (min(problems, key=lambda p: p.BM), max(problems, key=lambda p: p.BM))}
    return [
        Problem(Lengths(B, H, HK, M, N), BM, BN)
        for BM, BN in sorted(tiles)
        for B, H, HK in heads
        for M in (BM - 1, 3 * BM, 3 * BM + 1)
        for N in (BN, 3000, 40000)
        if M > 0
    ]


def walk_with_callees(funcs: Mapping[str, Func], name: str) -> Iterator[Node]:
    """Yield all nodes of a @func and of those that it calls."""
    reached, pending = {name}, [name]
    while pending:
        for node in walk(funcs[pending.pop()]):
            yield node
            if isinstance(node, Call) and isinstance(node.func, Name) and node.func.id in funcs and node.func.id not in reached:
                reached.add(node.func.id)
                pending.append(node.func.id)


def make_few_problems(program: Program) -> list[Problem]:
    """Return problems that suffice for another value of a captured number.

    Ragged ends, and a tile of several warpgroups if the program has kv_rows.
    """
    problems = [Problem(Lengths(1, 1, 1, M, N), 16, 8) for M, N in ((61, 61), (40, 70), (70, 40))]
    if "kv_rows" in program.funcs():
        problems += [Problem(Lengths(1, 1, 1, M, N), 2 * GROUP, 16) for M, N in ((150, 170), (170, 150))]
    return problems

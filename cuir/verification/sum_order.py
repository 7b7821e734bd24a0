"""The question whether the order of a kernel's sums is fixed: by the sequence alone, and under every schedule.

The tree of the sums of a query is read from runs in the interpreter. Of two keys i and j, one has a value so large that
it absorbs others, the other has its negative: of keys whose value is 1, those that are added before i and j meet are
lost, and the result counts the rest. The sizes of the subtrees in which pairs meet determine the tree (FPRev: Xie, Gao,
Wang, Xue, 2024, "FPRev: revealing the order of floating-point summation").
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..attn.verification.order_launches import QueryProbes, Surroundings, find_obstacle, is_forward, list_surroundings
from ..checking.checked import Checked
from ..checking.checker import check
from ..syntax.types import BF16, F16
from ..text.diagnostics import CuirError, Diagnostic
from ..text.phrases import count_noun
from .inputs import find_accumulated
from .report import Stage
from .request import Progress

LARGE = 2.0**100  # absorbs numbers up to 2^75 in f32
STEP = 16  # keys that a tensor core adds up at once, of which one is a leaf
LEAVES = 22  # of the tree that is read: its pairs are the columns of one launch at head dim 64
NAME = "order of sums"

Tree = int | tuple["Tree", ...]
Measure = Callable[[Sequence[tuple[int, int]]], Sequence[int]]


def reveal_tree(leaves: Sequence[int], measure: Measure) -> Tree:
    """Return the tree in which leaves are added up, in a form that does not depend on the order of operands.

    `measure` returns for pairs of leaves the number of leaves of the smallest subtree that holds both. A node has more
    than two children if these are added at once.
    """
    return _sorted(_reveal(list(leaves), measure)[0])


def _reveal(leaves: list[int], measure: Measure) -> tuple[Tree, int]:
    """Return the tree of some leaves, and the size of its smallest subtree of all leaves, which may hold others."""
    first, rest = leaves[0], leaves[1:]
    if not rest:
        return first, 1
    met: dict[int, list[int]] = {}
    for leaf, size in zip(rest, measure([(first, leaf) for leaf in rest]), strict=True):
        met.setdefault(size, []).append(leaf)
    tree: Tree = first
    for size in sorted(met):
        other, of_other = _reveal(met[size], measure)
        # children of one node: the others meet where they meet the first
        tree = (tree, *other) if isinstance(other, tuple) and of_other == size else (tree, other)
    return tree, max(met)


def _sorted(tree: Tree) -> Tree:
    return tree if isinstance(tree, int) else tuple(sorted(map(_sorted, tree), key=list_leaves))


def list_leaves(tree: Tree) -> list[int]:
    """Return the leaves of a tree from left to right."""
    return [tree] if isinstance(tree, int) else [leaf for child in tree for leaf in list_leaves(child)]


def describe_tree(tree: Tree) -> str:
    """Write a tree with the first key of each leaf: `a > b` for sums that b joins after a, else in parentheses."""
    if isinstance(tree, int):
        return str(tree)
    chain = list[str]()
    rest: Tree = tree
    while isinstance(rest, tuple) and len(rest) == 2 and any(isinstance(x, int) for x in rest):
        leaf, deeper = (rest[0], rest[1]) if isinstance(rest[0], int) else (rest[1], rest[0])
        chain.append(describe_tree(leaf))
        rest = deeper
    inner = [str(rest)] if isinstance(rest, int) else ["(" + " + ".join(map(describe_tree, rest)) + ")"]
    return " > ".join([*inner, *reversed(chain)])


@dataclass
class OrderReader:
    """Reader of the tree of a kernel's sums for one query; the leaves are keys whose values are not 0."""

    probes: QueryProbes
    leaves: Sequence[int]

    def read_tree(self, around: Surroundings) -> Tree | None:
        """Return the tree in a launch; None if the query has other keys there."""
        pairs = list(itertools.combinations(self.leaves, 2))
        sums = self._count(around, pairs)
        if sums is None:
            return None
        sizes = {pair: len(self.leaves) - outside for pair, outside in zip(pairs, sums, strict=True)}
        return reveal_tree(self.leaves, lambda some: [sizes[min(pair), max(pair)] for pair in some])

    def _count(self, around: Surroundings, pairs: Sequence[tuple[int, int]]) -> list[int] | None:
        """Return for each pair how many leaves are added behind the place where it meets."""
        counted = list[int]()
        for begin in range(0, len(pairs), self.probes.columns):
            some = pairs[begin : begin + self.probes.columns]
            values = torch.zeros(self.probes.keys, self.probes.columns)
            values[list(self.leaves)] = 1.0
            for column, (i, j) in enumerate(some):
                values[i, column], values[j, column] = LARGE, -LARGE
            sums = self.probes.read(values, around)
            if sums is None:
                return None
            counted += sums.round().int().tolist()[: len(some)]
        return counted


def ask_order(checked: Checked, progress: Progress = lambda text: None) -> Stage:
    """Ask whether the order of a kernel's sums is fixed; return the stage with its verdict.

    The tree of a query's sums must be the same wherever its sequence stands in a batch and whichever queries surround
    it, and no output may be added to in an open order. Raises nothing: what cannot be asked is skipped.
    """
    stage = Stage(NAME, "does the sequence alone decide the order in which a query's keys are added up?", "passed", "")
    begin = time.perf_counter()
    try:
        _ask(stage, checked, progress)
    except CuirError as error:
        stage.verdict, stage.reason, stage.diagnostics = "failed", error.diagnostics[0].message, tuple(error.diagnostics)
    stage.seconds = time.perf_counter() - begin
    return stage


def _ask(stage: Stage, checked: Checked, progress: Progress) -> None:
    free = sorted(find_accumulated(checked) & {t.name for t in checked.outputs})
    if free:
        raise CuirError(
            [
                Diagnostic(
                    "V201",
                    f"{', '.join(free)}: atomic additions of several CTAs have no fixed order",
                    checked.origin.span,
                    (),
                    "let one CTA add up all that an element gets, or store parts and add them up in a second kernel",
                )
            ]
        )
    if checked.consts.get("T") == F16:  # whose numbers do not absorb one another
        checked = check(checked.program, checked.name, {n: BF16 if value == F16 else value for n, value in checked.consts.items()})
    if reason := find_obstacle(checked):
        stage.verdict = "skipped" if is_forward(checked) else "passed"
        stage.reason = f"no output is added to in an open order; the tree is not read: {reason}"
        return
    reader = OrderReader(QueryProbes(checked, STEP * LEAVES + 5), range(0, STEP * LEAVES, STEP))
    progress(f"{NAME}: alone")
    alone, compared = reader.read_tree(Surroundings()), 0
    for around in list_surroundings():
        progress(f"{NAME}: {around}")
        tree = reader.read_tree(around)
        if tree is not None and tree != alone:
            assert alone is not None
            raise CuirError(
                [
                    Diagnostic(
                        "V201",
                        f"the order of a query's sums depends on the launch: alone {describe_tree(alone)}; {around} {describe_tree(tree)}",
                        checked.origin.span,
                        (),
                        "begin blocks and shares at fixed keys, and let neither B, M nor the grid decide how keys are divided",
                    )
                ]
            )
        compared += tree is not None
    if alone is None or compared == 0:
        stage.verdict, stage.reason = (
            "skipped",
            "no output is added to in an open order; the tree is not read: the query does not see all keys",
        )
        return
    stage.reason = f"the same tree in {count_noun(compared + 1, 'run')}, of every {STEP}th key: {describe_tree(alone)}"


__all__ = ["NAME", "OrderReader", "Tree", "ask_order", "describe_tree", "list_leaves", "reveal_tree"]

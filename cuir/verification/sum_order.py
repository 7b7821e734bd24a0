"""The question whether the order of a kernel's sums is fixed: by the sequence alone, and under every schedule.

The tree of the sums of a query is read from runs in the interpreter. Of two keys i and j, one adds a number so large
that it absorbs others, the other its negative: of keys that add 1, those that are added before i and j meet are lost,
and the result counts the rest. The sizes of the subtrees in which pairs meet determine the tree (FPRev: Xie, Gao,
Wang, Xue, 2024, "FPRev: revealing the order of floating-point summation").
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..attn.verification.order_launches import Join, QueryProbes, Surroundings, find_obstacle, is_forward, list_surroundings
from ..checking.checked import Checked
from ..checking.checker import check
from ..syntax.types import BF16, F16
from ..text.diagnostics import CuirError, Diagnostic
from ..text.phrases import count_noun
from .inputs import find_accumulated
from .report import Stage
from .request import Progress

STEP = 16  # keys that a tensor core adds up at once, of which one is a leaf
LEAVES = 22  # of the tree that is read: its pairs are the columns of one launch at head dim 64
EACH = 2  # such steps of a leaf where heads are probes: pairs of half the leaves fit a tile of 64 rows
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


def read_tree(probes: QueryProbes, around: Surroundings) -> Tree | None:
    """Return the tree of a kernel's sums for one query of a launch; None if the query has other keys there."""
    leaves = probes.leaves
    pairs = list(itertools.combinations(leaves, 2))
    counts = probes.count(pairs, around)
    if counts is None:
        return None
    sizes = {pair: len(leaves) - outside for pair, outside in zip(pairs, counts, strict=True)}
    return reveal_tree(leaves, lambda some: [sizes[min(pair), max(pair)] for pair in some])


def ask_order(checked: Checked, progress: Progress = lambda text: None, join: Join | None = None) -> Stage:
    """Ask whether the order of a kernel's sums is fixed; return the stage with its verdict.

    The tree of a query's sums must be the same wherever its sequence stands in a batch and whichever queries surround
    it, and no output may be added to in an open order. Raises nothing: what cannot be asked is skipped.

    Args:
        join: joins results of shares of the keys; without it, kernels with several shares are skipped.
    """
    stage = Stage(NAME, "does the sequence alone decide the order in which a query's keys are added up?", "passed", "")
    begin = time.perf_counter()
    try:
        _ask(stage, checked, progress, join)
    except CuirError as error:
        stage.verdict, stage.reason, stage.diagnostics = "failed", error.diagnostics[0].message, tuple(error.diagnostics)
    stage.seconds = time.perf_counter() - begin
    return stage


def _ask(stage: Stage, checked: Checked, progress: Progress, join: Join | None) -> None:
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
    if reason := find_obstacle(checked, join):
        stage.verdict = "skipped" if is_forward(checked) else "passed"
        stage.reason = f"no output is added to in an open order; the tree is not read: {reason}"
        return
    probes = QueryProbes(checked, range(0, STEP * LEAVES, STEP), STEP * LEAVES + 5, join)
    if probes.by_scores:  # tiles have few queries: the next one's key begins a block
        leaves = probes.leaves[::EACH][: min(probes.dims) // 2]
        probes = replace(probes, leaves=leaves, keys=STEP * (LEAVES + 2))
    step = probes.leaves[1]
    progress(f"{NAME}: alone")
    alone, compared = read_tree(probes, Surroundings()), 0
    for around in list_surroundings(probes.by_scores):
        progress(f"{NAME}: {around}")
        tree = read_tree(probes, around)
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
    stage.reason = f"the same tree in {count_noun(compared + 1, 'run')}, of every {step}th key: {describe_tree(alone)}"


__all__ = ["NAME", "Tree", "ask_order", "describe_tree", "list_leaves", "read_tree", "reveal_tree"]

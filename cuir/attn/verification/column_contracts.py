"""Contracts of the splice points of a backward kernel, by enumeration.

They are the blocks of queries that a block of keys visits, and those of them that it visits without the mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from ...checking.checked import Checked
from ...spec.specification import LENGTHS, Lengths
from ...syntax.nodes import Program
from ...text.diagnostics import CuirError, Diagnostic, Note
from ..tracing.splice_names import BACKWARD_POINTS
from .contracts import CODES, evaluate_keep, get_span, is_only_compared
from .sizes import Problem
from .splice_evaluator import Evaluator, Value, collect_kernel_values

NEAR = 8  # the largest distance between the ends of queries and keys of which each is tried: edges off by a few


def has_column_points(program: Program) -> bool:
    """Return whether a program has the splice points of a backward kernel."""
    funcs = program.funcs()
    return all(name in funcs and len(funcs[name].params) == count for name, count in BACKWARD_POINTS.items())


def make_column_problems(BM: int, BN: int) -> list[Problem]:
    """Return problems with ragged ends, M != N both ways, one row, one column, no row, and ends near each other.

    At the kernel's tile sizes: lists of blocks are made for it.
    """
    lengths = (
        (1, 1),
        (BM, BN),
        (BM + 9, 2 * BN + 3),
        (3 * BM - 1, BN),
        (2 * BM, 3 * BN + 5),
        (3 * BM, 3 * BM),
        (5, 2 * BN),
        (2 * BN, 5),
        (0, BN),
    )
    several = 2 * max(BM, BN) + 27
    near = [Problem(Lengths(1, 1, 1, several, several + d), BM, BN) for d in range(-NEAR, NEAR + 1) if d]
    return [Problem(Lengths(1, 2, 1, M, N), BM, BN) for M, N in lengths] + near


def check_columns(checked: Checked, extra_values: Mapping[Problem, Mapping[str, Value]]) -> int:
    """Enumerate q_count and q_block; return the number of pairs checked.

    extra_values: the additional values that the kernel reads, for each problem. Raises CuirError V101, V102, V103,
    V108.
    """
    pairs = 0
    for problem, extra in extra_values.items():
        lengths, run = problem.lengths, make_column_evaluator(checked, problem, extra)
        for b, h in itertools.product(range(lengths.B), range(lengths.H)):
            _check_column(checked.program, run, evaluate_keep(run, b, h, lengths), problem, b, h)
        pairs += lengths.M * lengths.N
    return pairs


def make_column_evaluator(checked: Checked, problem: Problem, extra: Mapping[str, Value]) -> Evaluator:
    """Return an evaluator of a kernel's functions in a problem; extra: the additional values that the kernel reads."""
    dims = {n: getattr(problem.lengths, n) for n in LENGTHS}
    return Evaluator(checked.program, collect_kernel_values(checked.origin, dims, dict(checked.consts), {"scale": 0.125, **extra}))


def _check_column(program: Program, run: Evaluator, keep: np.ndarray, problem: Problem, b: int, h: int) -> None:
    lengths, BM, BN = problem.lengths, problem.BM, problem.BN
    blocks = -(-lengths.M // BM)

    def wrong(kind: str, point: str, message: str, hint: str | None = None) -> CuirError:
        return CuirError([Diagnostic(CODES[kind], message, get_span(program, point), (Note(f"found for {problem}"),), hint)])

    for j in range(-(-lengths.N // BN)):
        partial, n = (int(np.asarray(x)) for x in run.call("q_count", b, h, j))
        if partial > n and is_only_compared(program, "q_count"):
            partial = n
        if not 0 <= partial <= n <= blocks:
            raise wrong(
                "count",
                "q_count",
                f"q_count of block of keys j={j} gives {partial} masked of {n} blocks; expected 0 <= masked <= all <= {blocks}",
            )
        visited = [int(np.asarray(run.call("q_block", b, h, j, i))) for i in range(n)]
        for i, m in enumerate(visited):
            if not 0 <= m < blocks:
                raise wrong(
                    "once", "q_block", f"step {i} of block of keys j={j} visits block {m}; the blocks of queries are 0 to {blocks - 1}"
                )
            if m in visited[:i]:
                raise wrong(
                    "once",
                    "q_block",
                    f"block {m} of queries is visited twice by block of keys j={j}",
                    "each pair counts once in a gradient",
                )
        for m in range(blocks):
            part = keep[m * BM : m * BM + BM, j * BN : j * BN + BN]
            if part.any() and m not in visited:
                q, k = (int(x) for x in np.argwhere(part)[0])
                raise wrong(
                    "cover",
                    "q_count",
                    f"query {m * BM + q} attends to key {j * BN + k}, but block {m} of queries is not visited by block of keys j={j}",
                    "q_count gives too few blocks, or q_block others",
                )
            if m in visited[partial:] and (m * BM + BM > lengths.M or not part.all()):
                raise wrong(
                    "full",
                    "q_count",
                    f"block {m} of queries is visited without the mask by block of keys j={j}, but not all of its pairs are kept",
                    "the blocks that need keep() come first; q_count says how many",
                )


__all__ = ["check_columns", "has_column_points", "make_column_evaluator", "make_column_problems"]

"""Contracts of the splice points, by enumeration.

They are cover, full, once, rows, tile, positive factor, finite scores, and the mask of the specification. The program's
functions are evaluated for problems small enough to check every pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ...checking.checked import Const
from ...checking.checker import resolve_consts
from ...checking.flatten import flatten
from ...ops.expressions import traits
from ...spec.specification import LENGTHS, Lengths, Specification
from ...syntax.nodes import Assign, Binary, Call, ConstType, Expr, Func, GlobalType, Kernel, Name, Program, Return, Subscript
from ...syntax.nodes import Literal as Number
from ...syntax.walk import IdentityKey, walk
from ...text.diagnostics import CuirError, Sink
from ...text.source import Span
from ..masks.selected_blocks import select_pairs
from ..splicing.captured_arguments import CapturedArguments
from ..tracing.mod_evaluator import evaluate
from ..tracing.splice_names import SELECTED, SPLICE_POINTS
from .problems import get_units
from .sizes import GROUP, Problem, make_order_problems
from .splice_evaluator import Evaluator, Value, collect_kernel_values

CODES = {
    "cover": "V101",
    "full": "V102",
    "once": "V103",
    "tile": "V104",
    "factor": "V105",
    "finite": "V106",
    "keep": "V107",
    "count": "V108",
    "rows": "V109",
}


def check_contracts(
    program: Program,
    kernel: Kernel,
    spec: Specification | None,
    problems: Iterable[Problem],
    consts: Mapping[str, Value] | None = None,
    changed: Mapping[str, int] | None = None,
    extra_values: Callable[[Problem], Mapping[str, Value]] | None = None,
) -> int:
    """Enumerate the contracts; return the number of pairs checked.

    spec: adds the comparison of `keep` with the mask of the specification. changed: other values for captured numbers;
    `keep` is then not compared, and the blocks must fit it; nothing is checked where the specification would divide by
    0. extra_values: additional values that the kernel reads, where no specification captures them. Raises CuirError
    with the first violation of each kind, codes V101-V109.
    """
    sink, pairs = Sink(), 0
    reported: set[str] = set()
    context = _Context.of(program, kernel, spec)
    if changed and not context.admits(changed):
        return 0

    def report(violations: Iterable[Violation], problem: Problem) -> None:
        for code, message, span, hint in violations:
            if code not in reported:
                reported.add(code)
                other_values = "".join(f", {n} = {v}" for n, v in (changed or {}).items())
                sink.error(code, message, span, hint, [(f"found for {problem}{other_values}", None)])

    problems = list(problems)
    for problem in problems:
        report(
            _find_violations(context, problem, dict(consts or {}), changed or {}, extra_values(problem) if extra_values else {}), problem
        )
        pairs += problem.lengths.M * problem.lengths.N
    for problem in make_order_problems(program, kernel, problems) if extra_values is None else ():
        report(_check_tile(context, Evaluator(program, _make_names(context, problem, dict(consts or {}), {})), problem), problem)
    sink.stop_if_any()
    return pairs


def reads_blocks_from_memory(program: Program, kernel: Kernel) -> bool:
    """Return whether the blocks that a tile visits are read from a tensor.

    Such lists are made for one tile size.
    """
    names = list_names_read(program, ("kv_count", "kv_block"))
    return any(isinstance(p.type, GlobalType) and p.name in names for p in kernel.params)


def list_names_read(program: Program, functions: Iterable[str]) -> set[str]:
    """Return the names that @funcs and those which they call read."""
    funcs, names, todo = program.funcs(), set[str](), list(functions)
    while todo:
        new_names = {n.id for n in walk(funcs[todo.pop()]) if isinstance(n, Name)} - names
        names |= new_names
        todo += new_names & funcs.keys()
    return names


def has_splice_points(program: Program) -> bool:
    """Return whether a program has the splice points of a forward kernel."""
    funcs = program.funcs()
    return all(name in funcs and len(funcs[name].params) == count for name, count in SPLICE_POINTS.items())


Violation = tuple[str, str, Span, str | None]


@dataclass(frozen=True)
class _Context:
    """Facts that hold for all problems of a program."""

    program: Program
    kernel: Kernel
    spec: Specification | None
    captured: CapturedArguments | None
    units: Expr | None  # the argument of tiles(...), the number of units of work
    by_head: bool  # a splice point reads its b or h: pairs and blocks may differ between heads

    @staticmethod
    def of(program: Program, kernel: Kernel, spec: Specification | None) -> _Context:
        units = get_units(kernel)
        funcs = program.funcs()
        points = [(name, int(name == "score")) for name in ("keep", "kv_count", "kv_block", "kv_rows", "score") if name in funcs]
        by_head = any(reads_parameter(funcs, name, p) for name, first in points for p in funcs[name].params[first : first + 2])
        captured = CapturedArguments(program, kernel, spec) if spec is not None else None
        return _Context(program, kernel, spec, captured, units, by_head)

    def admits(self, changed: Mapping[str, int]) -> bool:
        """Return whether the specification is defined for these numbers, without a division by 0.

        Args:
            changed: numbers by name; others keep their values.
        """
        if self.captured is None or self.captured.traced is None or self.spec is None:
            return True
        traced, lengths = self.captured.traced, Lengths(1, 1, 1, 1, 1)
        names: dict[str, Any] = {p.name: p.argument(self.spec, lengths) for p in traced.parameters}
        names |= {n: getattr(lengths, n) for n in LENGTHS} | {n: torch.zeros(1, dtype=torch.int32) for n in "bhqk"}
        names |= {"S": torch.zeros(1), "scale": 1.0, **changed}
        try:
            for e in (traced.mask, traced.keep, traced.score, traced.factor):
                if e is not None:
                    evaluate(e, names)
        except CuirError as error:
            if any(d.code == "T154" for d in error.diagnostics):
                return False
            raise
        return True

    def calls(self, name: str, consts: Mapping[str, Value]) -> bool:
        """Return whether the kernel calls a @func when it is compiled with these consts.

        Branches that the consts decide against do not count.
        """
        errors = Sink()  # a tile size that is tried need not compile
        params = {p.name for p in self.kernel.params if isinstance(p.type, ConstType)}
        const_arguments: dict[str, Const] = {n: v for n, v in consts.items() if n in params}
        return name in flatten(self.program, self.kernel, resolve_consts(self.kernel, const_arguments, errors), errors).inlined


def reads_parameter(funcs: Mapping[str, Func], name: str, parameter: str, visited: frozenset[str] = frozenset()) -> bool:
    """Return whether a @func reads a parameter, directly or through a @func that it passes it to."""
    nodes = [n for s in funcs[name].body for n in walk(s)]
    passed_on: set[IdentityKey] = set()
    for call in nodes:
        callee = call.func.id if isinstance(call, Call) and isinstance(call.func, Name) else ""
        if isinstance(call, Call) and callee in funcs and callee not in visited and not call.keywords:
            for argument, callee_parameter in zip(call.args, funcs[callee].params):
                if argument == Name(parameter) and not reads_parameter(funcs, callee, callee_parameter, visited | {name}):
                    passed_on.add(IdentityKey(argument))
    return any(isinstance(n, Name) and n.id == parameter and IdentityKey(n) not in passed_on for n in nodes)


def _find_violations(
    context: _Context, problem: Problem, consts: dict[str, Value], changed: Mapping[str, int], extra_values: Mapping[str, Value]
) -> Iterator[Violation]:
    program, spec, lengths = context.program, context.spec, problem.lengths
    consts = {"D": 64, **consts, "BM": problem.BM, "BN": problem.BN}
    if (size := consts.get("BLOCK")) is not None and set(SELECTED) <= extra_values.keys():
        problem = replace(problem, BN=int(size))  # the keys of a selected block, of which a step has several
    captured = context.captured.values(lengths, consts=consts, changed=changed) if context.captured is not None else extra_values
    run = Evaluator(program, _make_names(context, problem, consts, {**captured, **changed}))
    yield from _check_tile(context, run, problem)
    expected = spec.compute_kept(lengths).numpy() if spec is not None and not changed else None
    selected = _find_selected(extra_values, lengths, consts)
    keep: np.ndarray | None = None
    for b, h in itertools.product(range(lengths.B), range(lengths.H)):
        is_repeated = keep is not None and not context.by_head  # the same arrays as for the previous head
        keep = keep if keep is not None and is_repeated else evaluate_keep(run, b, h, lengths)
        if selected is not None:
            keep = keep & selected[b, h]
        if spec is not None and expected is not None:
            yield from _compare_masks(program, keep, spec, expected[b, h])
        if is_repeated:
            continue
        yield from _check_blocks(program, run, keep, problem, b, h)
        if "kv_rows" in program.funcs():
            yield from _check_called_rows(context, run, keep, problem, b, h, consts)
        yield from _check_score(program, run, keep, problem, b, h, spec if not changed else None)


def _find_selected(extra_values: Mapping[str, Value], lengths: Lengths, consts: Mapping[str, Value]) -> np.ndarray | None:
    """Return the pairs in blocks that lists name, bool [B, H, M, N]; None for kernels without such lists."""
    blocks, counts = (extra_values.get(n) for n in SELECTED)
    if not isinstance(blocks, torch.Tensor) or not isinstance(counts, torch.Tensor):
        return None
    return select_pairs(blocks, counts, lengths, consts["BLOCK"], consts["SPAN"]).numpy()


def evaluate_keep(run: Evaluator, b: int, h: int, lengths: Lengths) -> np.ndarray:
    """Evaluate `keep` for all pairs of a head: bool [M, N]."""
    q, k = np.arange(lengths.M)[:, None], np.arange(lengths.N)[None, :]
    return np.broadcast_to(np.asarray(run.call("keep", b, h, q, k), bool), (lengths.M, lengths.N))


def _compare_masks(program: Program, keep: np.ndarray, spec: Specification, expected: np.ndarray) -> Iterator[Violation]:
    if not (keep != expected).any():
        return
    q, k = map(int, np.argwhere(keep != expected)[0])
    also = bool(keep[q, k])
    total = int((keep != expected).sum())
    yield (
        CODES["keep"],
        f"query {q} {'also attends' if also else 'does not attend'} to key {k}, which the specification `{spec.name}` {'drops' if also else 'keeps'}; "
        f"{total} pairs differ",
        get_span(program, "keep"),
        describe_difference(keep, expected),
    )


def describe_difference(mask: np.ndarray, expected: np.ndarray) -> str | None:
    """Describe a mask that is off by one key; None for other differences. Both are bool [M, N]."""
    extra, lacking = mask & ~expected, expected & ~mask
    for wrong, base, word in ((extra, expected, "too many"), (lacking, mask, "too few")):
        if not wrong.any() or (extra.any() and lacking.any()):
            continue
        rows = np.flatnonzero(wrong.any(1))
        last = [_find_last(base[q]) for q in rows]
        first = [_find_first(base[q]) for q in rows]
        places = [np.flatnonzero(wrong[q]) for q in rows]
        n = len(rows)
        if all(len(p) == 1 for p in places):
            if all(e is not None and p[0] == e + 1 for p, e in zip(places, last)):
                return f"off by one: {n} queries have one key {word} at the upper end; compare `<` with `<=`"
            if all(s is not None and p[0] == s - 1 for p, s in zip(places, first)):
                return f"off by one: {n} queries have one key {word} at the lower end; compare `<` with `<=`"
            if len({int(p[0]) for p in places}) == 1:
                return f"off by one: {n} queries have key {int(places[0][0])} {word}; compare `<` with `<=`"
    return None


def _find_last(row: np.ndarray) -> int | None:
    keys = np.flatnonzero(row)
    return int(keys[-1]) if keys.size else None


def _find_first(row: np.ndarray) -> int | None:
    keys = np.flatnonzero(row)
    return int(keys[0]) if keys.size else None


def _check_blocks(program: Program, run: Evaluator, keep: np.ndarray, problem: Problem, b: int, h: int) -> Iterator[Violation]:
    lengths, BM, BN = problem.lengths, problem.BM, problem.BN
    tiles, blocks = -(-lengths.M // BM), -(-lengths.N // BN)
    if not tiles:
        return
    m = np.arange(tiles)
    partial, n = (np.broadcast_to(np.asarray(x), m.shape) for x in run.call("kv_count", b, h, m))
    count, block = get_span(program, "kv_count"), get_span(program, "kv_block")
    if (partial > n).any() and is_only_compared(program, "kv_count"):
        partial = np.minimum(partial, n)
    for i in np.flatnonzero((n < 0) | (n > blocks) | (partial > n) | (partial < 0))[:1]:
        yield (
            CODES["count"],
            f"kv_count of tile m={i} gives {int(partial[i])} masked of {int(n[i])} blocks; expected 0 <= masked <= all <= {blocks}",
            count,
            None,
        )
        return
    steps = np.arange(int(n.max()))
    j = np.broadcast_to(np.asarray(run.call("kv_block", b, h, m[:, None], steps[None, :])), (tiles, len(steps)))
    visited = steps[None, :] < n[:, None]
    outside = visited & ((j < 0) | (j >= blocks))
    for t, i in np.argwhere(outside)[:1]:
        yield (CODES["once"], f"step {i} of tile m={t} visits block {int(j[t, i])}; the blocks are 0 to {blocks - 1}", block, None)
        return
    times = np.zeros((tiles, max(blocks, 1)), int)
    rows, _ = np.nonzero(visited)
    np.add.at(times, (rows, j[visited]), 1)
    for t, x in np.argwhere(times > 1)[:1]:
        yield (
            CODES["once"],
            f"block {x} of tile m={t} is visited {times[t, x]} times",
            block,
            "each key block counts once in the softmax",
        )
    padded = np.zeros((tiles * BM, blocks * BN), bool)
    padded[: lengths.M, : lengths.N] = keep
    some = padded.reshape(tiles, BM, blocks, BN).any((1, 3))
    padded[lengths.M :] = True  # rows after the last query are never stored
    every: np.ndarray = np.array(padded.reshape(tiles, BM, blocks, BN).all((1, 3)))
    every[:, lengths.N // BN :] = False
    missed = some & (times[:, :blocks] == 0)
    for t, x in np.argwhere(missed)[:1]:
        q, k = _find_pair(keep, t, x, problem, True)
        yield (
            CODES["cover"],
            f"query {q} attends to key {k}, but block {x} (keys {x * BN} to {min(lengths.N, x * BN + BN) - 1}) of tile m={t} is not visited",
            count,
            "kv_count gives too few blocks, or kv_block others",
        )
    unmasked = np.zeros((tiles, max(blocks, 1)), bool)
    full = visited & (steps[None, :] >= partial[:, None])
    rows, _ = np.nonzero(full)
    unmasked[rows, j[full]] = True
    for t, x in np.argwhere(unmasked[:, :blocks] & ~every)[:1]:
        q, k = _find_pair(keep, t, x, problem, False)
        detail = f"query {q} must not attend to key {k}" if k < lengths.N else f"key {k} does not exist (N = {lengths.N})"
        yield (
            CODES["full"],
            f"block {x} of tile m={t} is visited without the mask, but {detail}",
            count,
            "the blocks that need keep() come first; kv_count says how many",
        )


def is_only_compared(program: Program, count: str) -> bool:
    """Return whether the number of masked blocks is only an operand of comparisons.

    It may then exceed that of all blocks.

    count: the name of the function that returns both numbers.
    """
    for item in program.items:
        names, compared_keys = set[str](), set[IdentityKey]()
        for node in walk(item):
            call = node.value if isinstance(node, (Assign, Subscript)) else None
            if not isinstance(call, Call) or call.func != Name(count):
                continue
            if isinstance(node, Assign) and len(node.targets) == 2:
                names.add(node.targets[0])
            elif not isinstance(node, Subscript) or node.indices != (Number(1),):
                continue
            compared_keys.add(IdentityKey(call))
        if any(isinstance(n, Call) and n.func == Name(count) and IdentityKey(n) not in compared_keys for n in walk(item)):
            return False
        compared = {IdentityKey(x) for n in walk(item) if isinstance(n, Binary) and traits(n).compares for x in (n.left, n.right)}
        if any(isinstance(n, Name) and n.id in names and IdentityKey(n) not in compared for n in walk(item)):
            return False
    return True


def _check_called_rows(
    context: _Context, run: Evaluator, keep: np.ndarray, problem: Problem, b: int, h: int, consts: Mapping[str, Value]
) -> list[Violation]:
    """Return violations of kv_rows, if the kernel calls it.

    Whether it is called is determined last, since it takes longer.
    """
    try:
        wrong = list(_check_rows(context.program, run, keep, problem, b, h))
    except CuirError:
        if context.calls("kv_rows", consts):
            raise
        return []
    return wrong if wrong and context.calls("kv_rows", consts) else []


def _check_rows(program: Program, run: Evaluator, keep: np.ndarray, problem: Problem, b: int, h: int) -> Iterator[Violation]:
    """Yield violations of kv_rows.

    The blocks that a warpgroup skips must keep none of its pairs, those that it visits without the mask must keep all.
    """
    lengths, BM, BN = problem.lengths, problem.BM, problem.BN
    if not lengths.M:
        return
    span = get_span(program, "kv_rows")
    r = np.concatenate([np.arange(q, min(q + BM, lengths.M), GROUP) for q in range(0, lengths.M, BM)])
    m = r // BM
    _, n = run.call("kv_count", b, h, m)
    skip, partial, n = (np.broadcast_to(np.asarray(x), r.shape) for x in (*run.call("kv_rows", b, h, m, r), n))
    for broken, hint in (
        (
            skip < 0,
            "what the rows need is at most what their tile visits: min(n, ...), as the last rows may lie behind the last query or key",
        ),
        (
            skip >= np.maximum(n, 1),
            "a warpgroup takes at least one block of a tile that has any, and may take one that it could skip: min(..., max(0, n - 1))",
        ),
        (partial < skip, "skipped blocks count among the first `partial`: max(skip, ...)"),
        (partial > n, "there are no more blocks to mask than are visited: min(n, ...)"),
    ):
        for i in np.flatnonzero(broken)[:1]:
            yield (
                CODES["rows"],
                f"kv_rows of tile m={m[i]}, r={r[i]} skips {int(skip[i])} and masks {int(partial[i])} of {int(n[i])} blocks; expected 0 <= skipped <= masked <= all, "
                "skipped < all",
                span,
                hint,
            )
            return
    blocks = -(-lengths.N // BN)
    if not 0 < n.max() <= blocks:  # no block to skip, or an error that is reported for kv_count
        return
    steps = np.arange(int(n.max()))
    j = np.broadcast_to(np.asarray(run.call("kv_block", b, h, m[:, None], steps[None, :])), (len(r), len(steps)))
    sums = np.zeros((len(r), blocks * BN), int)
    sums[:, : lengths.N] = np.add.reduceat(keep, r, axis=0, dtype=int)
    # pairs of each step
    kept_pairs = np.take_along_axis(sums.reshape(len(r), blocks, BN).sum(2), j.clip(0, blocks - 1), 1)
    rows = np.diff(r, append=lengths.M)[:, None]
    skipped, masked = steps < skip[:, None], steps < partial[:, None]
    wrong = (steps < n[:, None]) & np.where(skipped, kept_pairs > 0, ~masked & (kept_pairs < rows * BN))
    for g, i in np.argwhere(wrong)[:1]:
        k = int(j[g, i]) * BN
        pairs = keep[r[g] : r[g] + int(rows[g, 0]), k : k + BN]
        places = np.argwhere(pairs == skipped[g, i])
        q, key = (r[g] + int(places[0][0]), k + int(places[0][1])) if len(places) else (r[g], lengths.N)
        detail = (
            f"query {q} {'attends' if skipped[g, i] else 'must not attend'} to key {key}"
            if key < lengths.N
            else f"key {key} does not exist (N = {lengths.N})"
        )
        yield (
            CODES["rows"],
            f"{detail}, but kv_rows of tile m={m[g]}, r={r[g]} {'skips' if skipped[g, i] else 'does not mask'} step {i}, block {int(j[g, i])}",
            span,
            None,
        )


def _find_pair(keep: np.ndarray, t: int, x: int, problem: Problem, value: bool) -> tuple[int, int]:
    """Return the first pair of a block that is kept (or dropped, or after the last key)."""
    q0, k0 = t * problem.BM, x * problem.BN
    part = keep[q0 : q0 + problem.BM, k0 : k0 + problem.BN]
    places = np.argwhere(part == value)
    if len(places):
        return q0 + int(places[0][0]), k0 + int(places[0][1])
    return q0, problem.lengths.N


def _make_names(context: _Context, problem: Problem, consts: dict[str, Value], extra_values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values that the splice points read, for a problem."""
    lengths = problem.lengths
    dims = {"B": lengths.B, "H": lengths.H, "HK": lengths.HK, "M": lengths.M, "N": lengths.N}
    return collect_kernel_values(
        context.kernel, dims, {"D": 64, **consts, "BM": problem.BM, "BN": problem.BN}, {"scale": 0.125, **extra_values}
    )


def _check_tile(context: _Context, run: Evaluator, problem: Problem) -> Iterator[Violation]:
    """Yield violations of tile(t).

    It must give each (b, h, m) once, the same to every CTA of a cluster: they share its blocks of keys.
    """
    program, kernel = context.program, context.kernel
    tile, lengths = program.funcs().get("tile"), problem.lengths
    sizes = (lengths.B, lengths.H, -(-lengths.M // problem.BM))
    if tile is None or len(tile.params) != 1 or not all(sizes):
        return
    span = get_span(program, "tile")
    units = np.arange(int(run.evaluate_expr(context.units, {})) if context.units is not None else int(np.prod(sizes)))
    cluster = int(run.evaluate_expr(kernel.cluster, {})) if kernel.cluster else 1
    by_rank: list[np.ndarray] = []
    for run.rank in reversed(range(cluster)):
        by_rank.append(np.stack([np.broadcast_to(np.asarray(x), units.shape) for x in run.call("tile", units)]))
    places = by_rank[-1]
    for name, place, size in zip(("b", "h", "m"), places, sizes):
        for t in np.flatnonzero((place < 0) | (place >= size))[:1]:
            yield (CODES["tile"], f"tile({t}) gives {name} = {int(place[t])}; expected 0 to {size - 1}", span, None)
            return
    for t in np.flatnonzero(np.any([places_of_rank != places for places_of_rank in by_rank], axis=(0, 1)))[:1]:
        yield (
            CODES["tile"],
            f"tile({t}) depends on cta_rank(); the CTAs of a cluster share their unit of work",
            span,
            "give a cluster one (b, h, m), and each CTA its BM // cluster of the queries where they are loaded and stored",
        )
        return
    times = np.zeros(sizes, int)
    np.add.at(times, tuple(places), 1)
    for b, h, m in np.argwhere(times != 1)[:1]:
        yield (
            CODES["tile"],
            f"tile(t) gives (b={b}, h={h}, m={m}) {times[b, h, m]} times for t in 0..{len(units) - 1}; expected once each",
            span,
            None,
        )


def _check_score(
    program: Program, run: Evaluator, keep: np.ndarray, problem: Problem, b: int, h: int, spec: Specification | None
) -> Iterator[Violation]:
    lengths = problem.lengths
    if not lengths.M or not lengths.N:
        return
    rng = np.random.default_rng(0)
    S = (rng.standard_normal((lengths.M, lengths.N)) * 8).astype(np.float32)
    try:
        score, factor = run.call("score", S, b, h, np.arange(lengths.M)[:, None], np.arange(lengths.N)[None, :])
    except CuirError as error:
        if error.diagnostics[0].code == "X140":
            return  # a score of whole tiles is judged by the numbers
        raise
    span = get_span(program, "score")
    if not np.all(np.asarray(factor) > 0):
        yield (
            CODES["factor"],
            f"the factor of `score` must be positive, found {float(np.min(factor)):g}",
            span,
            "the maximum of a row is taken before the factor",
        )
    bad = keep & ~np.isfinite(np.broadcast_to(score, S.shape))
    if spec is not None and bad.any():  # a score_mod may drop pairs by their score, and return NaN
        products = torch.from_numpy(S.astype(np.float64) * float(run.names["scale"])).expand(lengths.B, lengths.H, lengths.M, lengths.N)
        expected, computed = spec.scores(products, lengths)[b, h].numpy(), np.broadcast_to(score, S.shape)
        bad &= (computed != expected) & ~(np.isnan(computed) & np.isnan(expected))
    for q, k in np.argwhere(bad)[:1]:
        value = float(np.broadcast_to(score, S.shape)[q, k])
        yield (
            CODES["finite"],
            f"the score of query {q} and key {k} is {value:g}, and the pair is kept",
            span,
            "drop pairs in keep(), not by their score",
        )


def get_span(program: Program, name: str) -> Span:
    """Return the span of the final result of a @func."""
    return get_result_span(program.funcs()[name])


def get_result_span(func: Func) -> Span:
    """Return the place in the text of the expression that a @func returns."""
    last = func.body[-1]
    return last.value.span if isinstance(last, Return) else func.span

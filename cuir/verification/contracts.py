"""Contracts of the splice points, by enumeration: cover, full, once, rows, tile, positive factor, finite scores, and the mask that the specification asks for.

Evaluates the program's own functions for problems small enough to look at every pair. Owns no numerics of the whole kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..checking.checked import Const
from ..checking.checker import const_values
from ..checking.flatten import flatten
from ..spec.specification import LENGTHS, Lengths, Specification
from ..syntax.nodes import Call, ConstType, Expr, Func, GlobalType, Kernel, Name, Program, Return
from ..syntax.walk import Itself, walk
from ..text.diagnostics import CuirError, Sink
from ..text.source import Span
from ..variants import SPLICE_POINTS
from ..variants.arguments import CapturedArguments
from ..variants.evaluate import evaluate
from .evaluate import Evaluator, Value, kernel_names
from .problems import units_of
from .sizes import GROUP, Problem, problems_of_order

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
    given: Callable[[Problem], Mapping[str, Value]] | None = None,
) -> int:
    """Enumerates the contracts; returns how many pairs were looked at. Raises CuirError with the first violation of each kind, codes V101-V109.

    spec: adds the comparison of `keep` with the mask that the specification gives. changed: other values for captured numbers; `keep` is then taken
    as it is, and the blocks must fit it; nothing is asked where the specification would divide by 0. given: values of what the kernel reads besides the usual, where no specification captures them.
    """
    sink, pairs = Sink(), 0
    seen: set[str] = set()
    asked = _Asked.of(program, kernel, spec)
    if changed and not asked.admits(changed):
        return 0

    def tell(violations: Iterable[Violation], problem: Problem) -> None:
        for code, message, span, hint in violations:
            if code not in seen:
                seen.add(code)
                others = "".join(f", {n} = {v}" for n, v in (changed or {}).items())
                sink.error(code, message, span, hint, [(f"found for {problem}{others}", None)])

    problems = list(problems)
    for problem in problems:
        tell(_violations(asked, problem, dict(consts or {}), changed or {}, given(problem) if given else {}), problem)
        pairs += problem.lengths.M * problem.lengths.N
    for problem in problems_of_order(program, kernel, problems) if given is None else ():
        tell(_tile(asked, Evaluator(program, _names(asked, problem, dict(consts or {}), {})), problem), problem)
    sink.stop_if_any()
    return pairs


def blocks_from_memory(program: Program, kernel: Kernel) -> bool:
    """Whether the blocks that a tile visits are read from a tensor, such as lists that are made for one size of tiles."""
    funcs, names, todo = program.funcs(), set[str](), ["kv_count", "kv_block"]
    while todo:
        found = {n.id for n in walk(funcs[todo.pop()]) if isinstance(n, Name)} - names
        names |= found
        todo += found & funcs.keys()
    return any(isinstance(p.type, GlobalType) and p.name in names for p in kernel.params)


def has_splice_points(program: Program) -> bool:
    funcs = program.funcs()
    return all(name in funcs and len(funcs[name].params) == count for name, count in SPLICE_POINTS.items())


Violation = tuple[str, str, Span, str | None]


@dataclass(frozen=True)
class _Asked:
    """What holds for all problems of a program."""

    program: Program
    kernel: Kernel
    spec: Specification | None
    captured: CapturedArguments | None
    units: Expr | None  # of work that the kernel asks tiles(...) for
    by_head: bool  # a splice point reads its b or h: it may give each head pairs and blocks of its own

    @staticmethod
    def of(program: Program, kernel: Kernel, spec: Specification | None) -> _Asked:
        units = units_of(kernel)
        funcs = program.funcs()
        points = [(name, int(name == "score")) for name in ("keep", "kv_count", "kv_block", "kv_rows", "score") if name in funcs]
        by_head = any(parameter_matters(funcs, name, p) for name, at in points for p in funcs[name].params[at : at + 2])
        captured = CapturedArguments(program, kernel, spec) if spec is not None else None
        return _Asked(program, kernel, spec, captured, units, by_head)

    def admits(self, changed: Mapping[str, int]) -> bool:
        """Whether the specification has values with these numbers, which divide by 0 nowhere."""
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
        """Whether the kernel calls a @func when it is compiled with these consts: by its own text, of which branches that the consts decide against are no part."""
        errors = Sink()  # a size of tiles that is tried need not make a kernel that can be compiled
        params = {p.name for p in self.kernel.params if isinstance(p.type, ConstType)}
        given: dict[str, Const] = {n: v for n, v in consts.items() if n in params}
        return name in flatten(self.program, self.kernel, const_values(self.kernel, given, errors), errors).inlined


def parameter_matters(funcs: Mapping[str, Func], name: str, parameter: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a @func reads a parameter: itself, or through a @func that it hands it on to."""
    nodes = [n for s in funcs[name].body for n in walk(s)]
    handed: set[Itself] = set()
    for call in nodes:
        callee = call.func.id if isinstance(call, Call) and isinstance(call.func, Name) else ""
        if isinstance(call, Call) and callee in funcs and callee not in seen and not call.keywords:
            for given, its in zip(call.args, funcs[callee].params):
                if given == Name(parameter) and not parameter_matters(funcs, callee, its, seen | {name}):
                    handed.add(Itself(given))
    return any(isinstance(n, Name) and n.id == parameter and Itself(n) not in handed for n in nodes)


def _violations(
    asked: _Asked, problem: Problem, consts: dict[str, Value], changed: Mapping[str, int], given: Mapping[str, Value]
) -> Iterator[Violation]:
    program, spec, at = asked.program, asked.spec, problem.lengths
    consts = {"D": 64, **consts, "BM": problem.BM, "BN": problem.BN}
    captured = asked.captured.values(at, consts=consts, changed=changed) if asked.captured is not None else given
    run = Evaluator(program, _names(asked, problem, consts, {**captured, **changed}))
    yield from _tile(asked, run, problem)
    wanted = spec.kept(at).numpy() if spec is not None and not changed else None
    keep: np.ndarray | None = None
    for b, h in itertools.product(range(at.B), range(at.H)):
        again = keep is not None and not asked.by_head  # the same arrays once more
        keep = keep if keep is not None and again else kept(run, b, h, at)
        if spec is not None and wanted is not None:
            yield from _agrees(program, keep, spec, wanted[b, h])
        if again:
            continue
        yield from _blocks(program, run, keep, problem, b, h)
        if "kv_rows" in program.funcs():
            yield from _asked_rows(asked, run, keep, problem, b, h, consts)
        yield from _score(program, run, keep, problem, b, h, spec if not changed else None)


def kept(run: Evaluator, b: int, h: int, at: Lengths) -> np.ndarray:
    q, k = np.arange(at.M)[:, None], np.arange(at.N)[None, :]
    return np.broadcast_to(np.asarray(run.call("keep", b, h, q, k), bool), (at.M, at.N))


def _agrees(program: Program, keep: np.ndarray, spec: Specification, wanted: np.ndarray) -> Iterator[Violation]:
    if not (keep != wanted).any():
        return
    q, k = map(int, np.argwhere(keep != wanted)[0])
    also = bool(keep[q, k])
    total = int((keep != wanted).sum())
    yield (CODES["keep"], f"query {q} {'also attends' if also else 'does not attend'} to key {k}, which the specification `{spec.name}` {'drops' if also else 'keeps'}; "
           f"{total} pairs differ", span_of(program, "keep"), describe_difference(keep, wanted))  # fmt: skip


def describe_difference(mask: np.ndarray, wanted: np.ndarray) -> str | None:
    """A mask that is off by one key, in words; None if the difference is something else. Both bool [M, N]."""
    extra, lacking = mask & ~wanted, wanted & ~mask
    for wrong, base, word in ((extra, wanted, "too many"), (lacking, mask, "too few")):
        if not wrong.any() or (extra.any() and lacking.any()):
            continue
        rows = np.flatnonzero(wrong.any(1))
        last = [_last(base[q]) for q in rows]
        first = [_first(base[q]) for q in rows]
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


def _last(row: np.ndarray) -> int | None:
    keys = np.flatnonzero(row)
    return int(keys[-1]) if keys.size else None


def _first(row: np.ndarray) -> int | None:
    keys = np.flatnonzero(row)
    return int(keys[0]) if keys.size else None


def _blocks(program: Program, run: Evaluator, keep: np.ndarray, problem: Problem, b: int, h: int) -> Iterator[Violation]:
    at, BM, BN = problem.lengths, problem.BM, problem.BN
    tiles, blocks = -(-at.M // BM), -(-at.N // BN)
    if not tiles:
        return
    m = np.arange(tiles)
    partial, n = (np.broadcast_to(np.asarray(x), m.shape) for x in run.call("kv_count", b, h, m))
    count, block = span_of(program, "kv_count"), span_of(program, "kv_block")
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
    padded[: at.M, : at.N] = keep
    some = padded.reshape(tiles, BM, blocks, BN).any((1, 3))
    padded[at.M :] = True  # rows behind the last query are never stored
    every: np.ndarray = np.array(padded.reshape(tiles, BM, blocks, BN).all((1, 3)))
    every[:, at.N // BN :] = False
    missed = some & (times[:, :blocks] == 0)
    for t, x in np.argwhere(missed)[:1]:
        q, k = _pair(keep, t, x, problem, True)
        yield (CODES["cover"], f"query {q} attends to key {k}, but block {x} (keys {x * BN} to {min(at.N, x * BN + BN) - 1}) of tile m={t} is not visited", count,
               "kv_count gives too few blocks, or kv_block others")  # fmt: skip
    unmasked = np.zeros((tiles, max(blocks, 1)), bool)
    full = visited & (steps[None, :] >= partial[:, None])
    rows, _ = np.nonzero(full)
    unmasked[rows, j[full]] = True
    for t, x in np.argwhere(unmasked[:, :blocks] & ~every)[:1]:
        q, k = _pair(keep, t, x, problem, False)
        what = f"query {q} must not attend to key {k}" if k < at.N else f"key {k} does not exist (N = {at.N})"
        yield (
            CODES["full"],
            f"block {x} of tile m={t} is visited without the mask, but {what}",
            count,
            "the blocks that need keep() come first; kv_count says how many",
        )


def _asked_rows(
    asked: _Asked, run: Evaluator, keep: np.ndarray, problem: Problem, b: int, h: int, consts: Mapping[str, Value]
) -> list[Violation]:
    """What is wrong with kv_rows where the kernel calls it. Asked in this order, as what a kernel calls takes longer to know."""
    try:
        wrong = list(_rows(asked.program, run, keep, problem, b, h))
    except CuirError:
        if asked.calls("kv_rows", consts):
            raise
        return []
    return wrong if wrong and asked.calls("kv_rows", consts) else []


def _rows(program: Program, run: Evaluator, keep: np.ndarray, problem: Problem, b: int, h: int) -> Iterator[Violation]:
    """kv_rows: the blocks that a warpgroup skips keep none of its pairs, those that it takes without the mask keep all."""
    at, BM, BN = problem.lengths, problem.BM, problem.BN
    if not at.M:
        return
    span = span_of(program, "kv_rows")
    r = np.concatenate([np.arange(q, min(q + BM, at.M), GROUP) for q in range(0, at.M, BM)])
    m = r // BM
    _, n = run.call("kv_count", b, h, m)
    skip, partial, n = (np.broadcast_to(np.asarray(x), r.shape) for x in (*run.call("kv_rows", b, h, m, r), n))
    for broken, hint in (
        (skip < 0, "what the rows need is at most what their tile visits: min(n, ...), as the last rows may lie behind the last query or key"),
        (skip >= np.maximum(n, 1), "a warpgroup takes at least one block of a tile that has any, and may take one that it could skip: min(..., max(0, n - 1))"),
        (partial < skip, "skipped blocks count among the first `partial`: max(skip, ...)"),
        (partial > n, "there are no more blocks to mask than are visited: min(n, ...)"),
    ):  # fmt: skip
        for i in np.flatnonzero(broken)[:1]:
            yield (CODES["rows"], f"kv_rows of tile m={m[i]}, r={r[i]} skips {int(skip[i])} and masks {int(partial[i])} of {int(n[i])} blocks; expected 0 <= skipped <= masked <= all, "
                   "skipped < all", span, hint)  # fmt: skip
            return
    blocks = -(-at.N // BN)
    if not 0 < n.max() <= blocks:  # no block to skip, or more than there are, of which kv_count is told
        return
    steps = np.arange(int(n.max()))
    j = np.broadcast_to(np.asarray(run.call("kv_block", b, h, m[:, None], steps[None, :])), (len(r), len(steps)))
    sums = np.zeros((len(r), blocks * BN), int)
    sums[:, : at.N] = np.add.reduceat(keep, r, axis=0, dtype=int)
    kept = np.take_along_axis(sums.reshape(len(r), blocks, BN).sum(2), j.clip(0, blocks - 1), 1)  # pairs of each step
    rows = np.diff(r, append=at.M)[:, None]
    skipped, masked = steps < skip[:, None], steps < partial[:, None]
    wrong = (steps < n[:, None]) & np.where(skipped, kept > 0, ~masked & (kept < rows * BN))
    for g, i in np.argwhere(wrong)[:1]:
        k = int(j[g, i]) * BN
        pairs = keep[r[g] : r[g] + int(rows[g, 0]), k : k + BN]
        places = np.argwhere(pairs == skipped[g, i])
        q, key = (r[g] + int(places[0][0]), k + int(places[0][1])) if len(places) else (r[g], at.N)
        what = (
            f"query {q} {'attends' if skipped[g, i] else 'must not attend'} to key {key}"
            if key < at.N
            else f"key {key} does not exist (N = {at.N})"
        )
        yield (CODES["rows"], f"{what}, but kv_rows of tile m={m[g]}, r={r[g]} {'skips' if skipped[g, i] else 'does not mask'} step {i}, block {int(j[g, i])}", span, None)  # fmt: skip


def _pair(keep: np.ndarray, t: int, x: int, problem: Problem, value: bool) -> tuple[int, int]:
    """The first pair of a block that is kept (or dropped, or behind the last key)."""
    q0, k0 = t * problem.BM, x * problem.BN
    part = keep[q0 : q0 + problem.BM, k0 : k0 + problem.BN]
    places = np.argwhere(part == value)
    if len(places):
        return q0 + int(places[0][0]), k0 + int(places[0][1])
    return q0, problem.lengths.N


def _names(asked: _Asked, problem: Problem, consts: dict[str, Value], given: Mapping[str, Value]) -> dict[str, Value]:
    """What the splice points read, for a problem."""
    at = problem.lengths
    dims = {"B": at.B, "H": at.H, "HK": at.HK, "M": at.M, "N": at.N}
    return kernel_names(asked.kernel, dims, {"D": 64, **consts, "BM": problem.BM, "BN": problem.BN}, {"scale": 0.125, **given})


def _tile(asked: _Asked, run: Evaluator, problem: Problem) -> Iterator[Violation]:
    """tile(t) gives each (b, h, m) once, the same to every CTA of a cluster: they share its blocks of keys."""
    program, kernel = asked.program, asked.kernel
    tile, at = program.funcs().get("tile"), problem.lengths
    sizes = (at.B, at.H, -(-at.M // problem.BM))
    if tile is None or len(tile.params) != 1 or not all(sizes):
        return
    span = span_of(program, "tile")
    units = np.arange(int(run.expr(asked.units, {})) if asked.units is not None else int(np.prod(sizes)))
    cluster = int(run.expr(kernel.cluster, {})) if kernel.cluster else 1
    given: list[np.ndarray] = []
    for run.rank in reversed(range(cluster)):
        given.append(np.stack([np.broadcast_to(np.asarray(x), units.shape) for x in run.call("tile", units)]))
    places = given[-1]
    for name, place, size in zip(("b", "h", "m"), places, sizes):
        for t in np.flatnonzero((place < 0) | (place >= size))[:1]:
            yield (CODES["tile"], f"tile({t}) gives {name} = {int(place[t])}; expected 0 to {size - 1}", span, None)
            return
    for t in np.flatnonzero(np.any([other != places for other in given], axis=(0, 1)))[:1]:
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


def _score(
    program: Program, run: Evaluator, keep: np.ndarray, problem: Problem, b: int, h: int, spec: Specification | None
) -> Iterator[Violation]:
    at = problem.lengths
    if not at.M or not at.N:
        return
    rng = np.random.default_rng(0)
    S = (rng.standard_normal((at.M, at.N)) * 8).astype(np.float32)
    try:
        score, factor = run.call("score", S, b, h, np.arange(at.M)[:, None], np.arange(at.N)[None, :])
    except CuirError as error:
        if error.diagnostics[0].code == "X140":
            return  # a score that works on whole tiles is for the numbers to judge
        raise
    span = span_of(program, "score")
    if not np.all(np.asarray(factor) > 0):
        yield (
            CODES["factor"],
            f"the factor of `score` must be positive, found {float(np.min(factor)):g}",
            span,
            "the maximum of a row is taken before the factor",
        )
    bad = keep & ~np.isfinite(np.broadcast_to(score, S.shape))
    if spec is not None and bad.any():  # a score_mod may drop pairs by their score, and give what is no number
        products = torch.from_numpy(S.astype(np.float64) * float(run.names["scale"])).expand(at.B, at.H, at.M, at.N)
        own, ours = spec.scores(products, at)[b, h].numpy(), np.broadcast_to(score, S.shape)
        bad &= (ours != own) & ~(np.isnan(ours) & np.isnan(own))
    for q, k in np.argwhere(bad)[:1]:
        value = float(np.broadcast_to(score, S.shape)[q, k])
        yield (
            CODES["finite"],
            f"the score of query {q} and key {k} is {value:g}, and the pair is kept",
            span,
            "drop pairs in keep(), not by their score",
        )


def span_of(program: Program, name: str) -> Span:
    return result_span(program.funcs()[name])


def result_span(func: Func) -> Span:
    """What a @func returns in the end."""
    last = func.body[-1]
    return last.value.span if isinstance(last, Return) else func.span

"""Masks and blocks at all distances up to 131,072, evaluated without running the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from ...checking.checked import Checked
from ...spec.specification import Lengths, Specification
from ...syntax.nodes import Name, Program
from ...text.diagnostics import CuirError, Diagnostic, Note
from ..splicing.captured_arguments import CapturedArguments
from .contracts import CODES, get_span, is_only_compared, reads_parameter
from .sizes import walk_with_callees
from .splice_evaluator import Evaluator, collect_kernel_values

LONGEST = 131_072
# edges of numbers in a text or of 16 bits, besides those of the problem
_EDGES = (3000, 4096, 8192, 16_384, 32_768, 65_536)
# growth of a captured tensor, when both lengths double, from which it is per pair, and not made for long problems
_DENSE = 3.0
_SCORES = (-1000.0, 0.0, 1000.0)  # at least one passes a threshold
_RANDOM = {"quick": 20_000, "full": 1_000_000}
_TILES = {"quick": 3, "full": 40}  # tiles of queries, besides the first and the last


@dataclass(frozen=True)
class Distances:
    """Counts of comparisons, or the reason why nothing was compared."""

    pairs: int = 0
    blocks: int = 0
    reason: str = ""


@dataclass(frozen=True)
class _Problem:
    """Splice points of a program for a long problem, and the specification."""

    program: Program
    spec: Specification | None
    at: Lengths
    run: Evaluator

    def evaluate_keep(self, b: int, h: int, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        shape = np.broadcast_shapes(q.shape, k.shape)
        return np.broadcast_to(np.asarray(self.run.call("keep", b, h, q, k), bool), shape)


def check_distances(program: Program, checked: Checked, spec: Specification | None, level: str) -> Distances:
    """Compare `keep` with the specification's mask, and blocks with `keep`, at distances up to LONGEST.

    spec: None where no mods tell what is kept; then only blocks are checked. Raises CuirError V101 to V103, V107, V108
    with the first pair, block or tile that is wrong.
    """
    pairs = blocks = 0
    try:
        for at in _list_lengths(level):
            problem = _make_problem(program, checked, spec, at)
            if isinstance(problem, str):
                return Distances(pairs, blocks, problem)
            for b, h in _choose_heads(program, at):
                if spec is not None:
                    pairs += _check_pairs(problem, b, h, level)
                for side in _list_sides(program, checked, at):
                    blocks += _check_blocks(problem, side, b, h, level)
    except CuirError as error:
        if error.diagnostics[0].code == "X140":
            return Distances(pairs, blocks, f"`keep` or the blocks are no pure arithmetic: {error.diagnostics[0].message}")
        raise
    return Distances(pairs, blocks)


def _list_lengths(level: str) -> Iterator[Lengths]:
    yield Lengths(2, 8, 2, LONGEST, LONGEST)
    if level == "full":
        yield Lengths(2, 8, 2, LONGEST - 7, 70_003)
        yield Lengths(1, 4, 4, 4099, LONGEST)
        yield Lengths(1, 4, 4, LONGEST, 301)
    else:
        yield Lengths(1, 4, 4, 131, LONGEST - 5)


def _choose_heads(program: Program, at: Lengths) -> list[tuple[int, int]]:
    """Choose one head, or two where pairs and blocks of a splice point may differ between heads."""
    funcs = program.funcs()
    points = [n for n in ("keep", "kv_count", "kv_block") if n in funcs]
    varies = any(reads_parameter(funcs, n, p) for n in points for p in funcs[n].params[:2])
    return [(0, 0), (at.B - 1, at.H - 1)] if varies else [(0, 0)]


def _make_problem(program: Program, checked: Checked, spec: Specification | None, at: Lengths) -> _Problem | str:
    """Return the evaluator of a problem, or the reason why there is none."""
    kernel, consts = checked.origin, dict(checked.consts)
    captured: Mapping[str, Any] = {}
    if spec is not None:
        if _is_dense(spec):
            return "what the mods capture grows with the number of pairs"
        arguments = CapturedArguments(program, kernel, spec)
        if arguments.extra:
            if _grows(lambda n: arguments.values(replace(at, M=n, N=n), consts=consts)):
                return "what the kernel is given grows with the number of pairs"
            captured = arguments.values(at, consts=consts)
        if spec.mask_mod is not None and _evaluate_mask(spec, Lengths(1, 1, 1, 8, 8), 0, 0, np.arange(8), np.arange(8)) is None:
            return "the mask is of single pairs"
    elif _reads_more(program, checked):
        return "what is kept hangs on more than lengths"
    names = collect_kernel_values(kernel, asdict(at), {"D": 64, **consts}, {"scale": 0.125, **captured})
    return _Problem(program, spec, at, Evaluator(program, names))


def _reads_more(program: Program, checked: Checked) -> bool:
    """Return whether splice points read scalars or tensors of the kernel whose values are not known."""
    names, funcs = {*(t.name for t in checked.tensors), *(s.name for s in checked.scalars)} - {"scale"}, program.funcs()
    points = [n for n in ("keep", "kv_count", "kv_block", "q_count", "q_block") if n in funcs]
    return any(isinstance(n, Name) and n.id in names for point in points for n in walk_with_callees(funcs, point))


def _is_dense(spec: Specification) -> bool:
    return _grows(lambda n: spec.values(Lengths(1, 2, 2, n, n)))


def _grows(values: Any) -> bool:
    """Return whether tensors grow with the square of the lengths, judged by two short problems."""
    sizes = [{n: x.numel() for n, x in values(n).items() if isinstance(x, torch.Tensor)} for n in (512, 1024)]
    return any(sizes[1].get(n, 0) > _DENSE * max(1, size) for n, size in sizes[0].items())


def _evaluate_mask(spec: Specification, at: Lengths, b: int, h: int, q: np.ndarray, k: np.ndarray) -> np.ndarray | None:
    """Evaluate the mask at pairs (q[i], k[i]), without pairs that the score drops at any score.

    None for mods that cannot be evaluated for many pairs at once.
    """
    mask = _evaluate_mask_mod(spec, at, b, h, q, k)
    visible = None if mask is None else _find_visible(spec, at, b, h, q, k)
    return None if mask is None or visible is None else mask & visible


def _find_visible(spec: Specification, at: Lengths, b: int, h: int, q: np.ndarray, k: np.ndarray) -> np.ndarray | None:
    """Return pairs to which the score_mod gives more than -inf for some score.

    None where it cannot be evaluated for many pairs at once.
    """
    if spec.score_mod is None:
        return np.ones(q.shape, bool)
    index = [torch.full(q.shape, b), torch.full(q.shape, h), torch.from_numpy(q), torch.from_numpy(k)]
    visible = torch.zeros(q.shape, dtype=torch.bool)
    for as_tensors in (False, True):
        mod = spec.mods(at, as_tensors=as_tensors)[1]
        assert mod is not None
        try:
            for s in _SCORES:
                score = torch.as_tensor(mod(torch.full(q.shape, s), *index))
                if score.dim() > 1:
                    return None
                visible |= (score > -torch.inf).expand(q.shape)
        except (TypeError, ValueError, RuntimeError, IndexError):
            continue
        return visible.numpy()
    return None


def _evaluate_mask_mod(spec: Specification, at: Lengths, b: int, h: int, q: np.ndarray, k: np.ndarray) -> np.ndarray | None:
    if spec.mask_mod is None:
        return np.ones(q.shape, bool)
    if spec.evaluated is not None and spec.evaluated(0, Lengths(1, 1, 1, 4, 4), "cpu") is not None:
        return None
    index = [torch.full(q.shape, b), torch.full(q.shape, h), torch.from_numpy(q), torch.from_numpy(k)]
    for as_tensors in (False, True):
        mod = spec.mods(at, as_tensors=as_tensors)[0]
        assert mod is not None
        try:
            mask = torch.as_tensor(mod(*index))
        except (TypeError, ValueError, RuntimeError, IndexError):
            continue
        return mask.to(torch.bool).expand(q.shape).numpy() if mask.dim() <= 1 else None
    return None


# ---- pairs
def _check_pairs(problem: _Problem, b: int, h: int, level: str) -> int:
    assert problem.spec is not None
    count = 0
    for q, k in _list_pairs(problem.at, level):
        expected = _evaluate_mask(problem.spec, problem.at, b, h, q, k)
        if expected is None:
            return count
        count += len(q)
        differs = problem.evaluate_keep(b, h, q, k) != expected
        if differs.any():
            raise _find_wrong_pairs(problem, b, h, q[differs], k[differs], bool(expected[differs][0]))
    return count


def _list_pairs(at: Lengths, level: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pairs to compare: every distance twice, edges, and random pairs.

    Each distance is tried with the last query and the first key, and with the first query and the last key.
    """
    queries, keys = np.arange(at.M), np.arange(at.N)
    for q in (at.M - 1, 0):
        yield np.full(at.N, q), keys
    for k in (0, at.N - 1):
        yield queries, np.full(at.M, k)
    diagonal = np.arange(min(at.M, at.N))
    yield diagonal, diagonal
    yield at.M - 1 - diagonal, at.N - 1 - diagonal
    near = np.arange(-2, 3)
    rows, cols = (np.unique(np.clip(_list_places(n)[:, None] + near, 0, n - 1)) for n in (at.M, at.N))
    yield np.repeat(rows, len(cols)), np.tile(cols, len(rows))
    rng = np.random.default_rng(0)
    yield rng.integers(0, at.M, _RANDOM[level]), rng.integers(0, at.N, _RANDOM[level])


def _list_places(length: int) -> np.ndarray:
    return np.array([0, length // 2, length - 1, *(e for e in _EDGES if e < length), *(length - e for e in _EDGES if e < length)])


def _find_wrong_pairs(problem: _Problem, b: int, h: int, q: np.ndarray, k: np.ndarray, expected: bool) -> CuirError:
    """Return the error at the wrong pair with the shortest distance."""
    assert problem.spec is not None
    distance = q + problem.at.N - problem.at.M - k
    i = int(np.argmin(np.abs(distance)))
    message = (
        f"query {q[i]} {'does not attend' if expected else 'also attends'} to key {k[i]}, which the specification `{problem.spec.name}` "
        f"{'keeps' if expected else 'drops'}; they are {int(distance[i]):,} apart, the ends aligned, and {len(q):,} of the pairs in line with it differ"
    )
    return _make_error("keep", problem, message, "keep", b, h, "compare `<` with `<=`, and numbers of the text with those of the mask")


# ---- blocks
@dataclass(frozen=True)
class _Side:
    """Tiles of queries with the blocks of keys that each visits, or tiles of keys with blocks of queries."""

    count: str  # the splice point of the number of blocks
    block: str
    tile: int
    size: int
    length: int  # of the side with tiles
    other_length: int
    by_keys: bool = False  # tiles are of keys, blocks of queries

    def words(self, row: int, col: int, verb: str) -> str:
        q, k = (col, row) if self.by_keys else (row, col)
        return f"query {q} {verb} to key {k}"


def _list_sides(program: Program, checked: Checked, at: Lengths) -> Iterator[_Side]:
    funcs = program.funcs()
    BM, BN = (int(checked.consts.get(n, 0)) for n in ("BM", "BN"))  # type: ignore[arg-type]
    if BM and BN and {"kv_count", "kv_block"} <= funcs.keys():
        yield _Side("kv_count", "kv_block", BM, BN, at.M, at.N)
    if BM and BN and {"q_count", "q_block"} <= funcs.keys():
        yield _Side("q_count", "q_block", BN, BM, at.N, at.M, by_keys=True)


def _check_blocks(problem: _Problem, side: _Side, b: int, h: int, level: str) -> int:
    """Check the blocks of some tiles against their first and last rows; return the number of blocks."""
    run = problem.run
    tiles, blocks = -(-side.length // side.tile), -(-side.other_length // side.size)
    places = _spread(_list_places(side.length) // side.tile, _TILES[level])
    chosen = np.unique(np.clip([0, *places, tiles - 1], 0, tiles - 1)).tolist()
    for m in chosen:
        partial, count = (int(np.asarray(x)) for x in run.call(side.count, b, h, m))
        if partial > count and is_only_compared(problem.program, side.count):
            partial = count
        if not 0 <= partial <= count <= blocks:
            message = f"{side.count} of tile {m} gives {partial} masked of {count} blocks; expected 0 <= masked <= all <= {blocks}"
            raise _make_error("count", problem, message, side.count, b, h)
        steps = np.arange(count)
        j = np.broadcast_to(np.asarray(run.call(side.block, b, h, m, steps)), steps.shape)
        if count and (j.min() < 0 or j.max() >= blocks or len(np.unique(j)) < count):
            raise _make_error(
                "once", problem, f"the {count:,} blocks that tile {m} visits are not different ones of 0 to {blocks - 1}", side.block, b, h
            )
        _check_tile(problem, side, m, j, partial, b, h)
    return len(chosen) * blocks


def _spread(values: np.ndarray, count: int) -> list[int]:
    """Choose at most `count` of the values, evenly."""
    unique = np.unique(values)
    return unique[np.unique(np.linspace(0, len(unique) - 1, min(count, len(unique))).astype(int))].tolist()


def _check_tile(problem: _Problem, side: _Side, m: int, visited: np.ndarray, partial: int, b: int, h: int) -> None:
    size, blocks = side.size, -(-side.other_length // side.size)
    rows, cols = np.unique([m * side.tile, min(side.length, (m + 1) * side.tile) - 1])[:, None], np.arange(side.other_length)[None, :]
    keep = np.zeros((len(rows), blocks * size), bool)
    keep[:, : side.other_length] = problem.evaluate_keep(b, h, *((cols, rows) if side.by_keys else (rows, cols)))
    by_block = keep.reshape(len(rows), blocks, size)
    some, every = np.asarray(by_block.any((0, 2))), np.asarray(by_block.all((0, 2)))
    is_visited = np.zeros(blocks, bool)
    is_visited[visited] = True
    for x in np.flatnonzero(some & ~is_visited)[:1].tolist():
        r, c = (int(i[0]) for i in np.nonzero(by_block[:, x]))
        message = f"{side.words(int(rows[r, 0]), x * size + c, 'attends')}, but block {x} of tile {m} is not visited"
        raise _make_error("cover", problem, message, side.count, b, h, f"{side.count} gives too few blocks, or {side.block} others")
    unmasked = visited[partial:]
    for x in unmasked[~every[unmasked]][:1].tolist():
        r, c = (int(i[0]) for i in np.nonzero(~by_block[:, x]))
        column = x * size + c
        detail = side.words(int(rows[r, 0]), column, "must not attend")
        if column >= side.other_length:
            detail = f"{'query' if side.by_keys else 'key'} {column} does not exist"
        raise _make_error(
            "full",
            problem,
            f"block {x} of tile {m} is visited without the mask, but {detail}",
            side.count,
            b,
            h,
            f"the blocks that need keep() come first; {side.count} says how many",
        )


def _make_error(rule: str, problem: _Problem, message: str, func: str, b: int, h: int, hint: str | None = None) -> CuirError:
    at = problem.at
    note = Note(f"evaluated for M={at.M}, N={at.N}, B={at.B}, H={at.H}, HK={at.HK}, batch {b}, head {h}")
    return CuirError([Diagnostic(CODES[rule], message, get_span(problem.program, func), (note,), hint)])

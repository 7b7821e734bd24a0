"""kv_count, kv_block and kv_rows of a mask in closed form.

They say which key blocks a tile of queries visits, partly masked ones first, and which of these a warpgroup needs. The
kept and the dropped pairs are unions of key intervals (predicate.py); over the rows of a tile each gives a prefix, a
middle and a suffix of the keys. A block is needed if it meets the kept ones; it is full if it meets no dropped one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ...ops import build_calls as build
from ...ops.expressions import traits
from ...syntax.nodes import Binary, Call, Expr, Func, IfExp, Literal, Name, Subscript, Unary
from ...syntax.printer import show
from ...syntax.templates import Holes
from ...syntax.walk import names_read, substitute, walk
from .predicate import Bound, Linear, Term, Uniform, normal
from .tile_splice import Work

_Q0 = Binary("*", Name("m"), Name("BM"))  # the first query of the tile; its last is m * BM + BM - 1
_BM = Name("BM")
_NEVER_NEGATIVE = {_Q0, _BM, Name("r"), Name("M"), Name("N"), Name("B"), Name("H"), Name("HK"), Name("b"), Name("h")}


@dataclass(frozen=True)
class Rows:
    """A run of queries.

    It has the first and the last one, as bounds and as expressions, and the one behind the last as an expression.
    """

    first: Linear
    last: Linear
    first_expr: Expr
    last_expr: Expr
    behind: Expr


_TILE = Rows(
    Linear(frozenset([(_Q0, 1)])),
    Linear(frozenset([(_Q0, 1), (_BM, 1)]), const=-1),
    _Q0,
    Binary("-", Binary("*", Binary("+", Name("m"), Literal(1)), _BM), Literal(1)),
    Binary("*", Binary("+", Name("m"), Literal(1)), _BM),
)
_R = Linear(frozenset([(Name("r"), 1)]))
# of a warpgroup: kv_rows
_GROUP = Rows(_R, _R.shift(63), Name("r"), Binary("+", Name("r"), Literal(63)), Binary("+", Name("r"), Literal(64)))


# ---- bounds of a run of queries: numbers made of linear expressions, min, max and conditions
@dataclass(frozen=True)
class Extremum:
    """The least or the greatest of several values."""

    least: bool
    parts: tuple[Value, ...]


@dataclass(frozen=True)
class Guarded:
    """`value` if the condition holds for some of the rows, else `otherwise`."""

    cond: Expr
    value: Value
    otherwise: Value


Value = Linear | Extremum | Guarded


def _extreme(at: Linear, rows: Rows, least: bool) -> Linear:
    """Return the least or greatest value of a bound over the rows (of each of its parts)."""
    extreme = Linear(const=at.const).plus((rows.first if (at.q > 0) == least else rows.last).times(at.q))
    for term, n in at.terms:
        if "q" in names_read(term):
            term = substitute(term, {"q": rows.first_expr if (n > 0) == least else rows.last_expr})
        extreme = extreme.plus(Linear(frozenset([(term, n)])))
    return extreme


def _at_least(a: Linear, b: Linear) -> bool:
    """Return True if a >= b for every tile and problem (BM, BN >= 1)."""
    d = a.plus(b, -1)
    at_least_one = sum(c for t, c in d.terms if t in (_BM, Name("BN")))
    return all(c > 0 and (t in _NEVER_NEGATIVE or t == Name("BN")) for t, c in d.terms) and d.const + at_least_one >= 0


def least(values: Iterable[Value]) -> Value:
    return _extremum(True, values)


def greatest(values: Iterable[Value]) -> Value:
    return _extremum(False, values)


def _extremum(least: bool, values: Iterable[Value]) -> Value:
    """Build a simplified extremum.

    Nested extrema, dominated parts and max(a, min(a, b)) are simplified.
    """
    parts: list[Value] = []
    for v in values:
        parts.extend(v.parts if isinstance(v, Extremum) and v.least == least else [v])
    parts = list(dict.fromkeys(parts))
    wins: Callable[[Linear, Linear], bool] = (lambda a, b: _at_least(b, a)) if least else _at_least
    undominated: list[Value] = []
    for i, v in enumerate(parts):
        rest = [o for j, o in enumerate(parts) if j != i]
        if isinstance(v, Linear) and any(isinstance(o, Linear) and wins(o, v) and not (wins(v, o) and i < parts.index(o)) for o in rest):
            continue
        if isinstance(v, Extremum) and any(o in v.parts for o in rest):
            continue
        undominated.append(v)
    return undominated[0] if len(undominated) == 1 else Extremum(least, tuple(sorted(undominated, key=_order)))


def _order(v: Value) -> tuple[bool, bool, str]:
    return (not isinstance(v, Linear), isinstance(v, Linear) and any(t == _Q0 for t, _ in v.terms), show(build_value(v)))


def _nonnegative(v: Value) -> bool:
    if isinstance(v, Linear):
        return _at_least(v, Linear())
    if isinstance(v, Guarded):
        return _nonnegative(v.value) and _nonnegative(v.otherwise)
    return (all if v.least else any)(_nonnegative(p) for p in v.parts)


def build_value(v: Value) -> Expr:
    if isinstance(v, Extremum):
        return (build.least if v.least else build.greatest)(*map(build_value, v.parts))
    if isinstance(v, Guarded):
        return IfExp(v.cond, build_value(v.value), build_value(v.otherwise))
    terms = dict(v.terms)
    parts: list[tuple[int, Expr]] = []
    rows, ends = terms.pop(_Q0, 0), terms.get(_BM, 0)
    if rows and rows == ends:
        parts.append((rows, _TILE.behind))
        del terms[_BM]
    elif rows:
        parts.append((rows, _Q0))
    parts += sorted(((c, t) for t, c in terms.items()), key=_order_term)
    whole: Expr | None = None
    for c, t in parts:
        times = abs(c) != 1
        if whole is not None:
            whole = Binary("-" if c < 0 else "+", whole, Binary("*", Literal(abs(c)), t) if times else t)
        elif times:
            whole = Binary("*", build_integer(c), t)
        else:
            whole = Unary("-", t) if c < 0 else t
    if whole is None:
        return build_integer(v.const)
    return Binary("-" if v.const < 0 else "+", whole, Literal(abs(v.const))) if v.const else whole


def build_integer(value: int) -> Expr:
    return Unary("-", Literal(-value)) if value < 0 else Literal(value)


def _order_term(part: tuple[int, Expr]) -> tuple[bool, bool, str]:
    c, t = part
    text = show(t) if _product(t) or isinstance(t, _TIGHT) else f"({show(t)})"
    return c < 0, text != "r", text


_TIGHT = (Name, Literal, Call, Subscript)
_BEHIND = Linear(frozenset([(Name("N"), 1), (Name("BN"), 1)]), const=-1)  # in the block behind the last


def _product(e: Expr) -> bool:
    t = traits(e)
    return isinstance(e, Binary) and ("y" in t.factors or t.rounds is not None or t.remainder)


# ---- which keys a run of queries touches
@dataclass
class Touched:
    """The keys of a union of terms, over some rows.

    [0, prefix), [middle[0], middle[1]) and [suffix, N) together hold every pair of it; None stands for an empty part.
    """

    prefix: Value | None = None
    middle: tuple[Value, Value] | None = None
    suffix: Value | None = None
    all_keys: bool = False


_ZERO, _N = Linear(), Linear(frozenset([(Name("N"), 1)]))


def bound_touched_blocks(terms: Iterable[Term], rows: Rows = _TILE) -> Touched:
    prefixes: list[Value] = []
    starts: list[Value] = []
    ends: list[Value] = []
    suffixes: list[Value] = []
    result = Touched()
    for term in terms:
        uppers = [_extreme(a.at, rows, False).shift(1) for a in term if isinstance(a, Bound) and a.upper and not a.rows]
        lowers = [_extreme(a.at, rows, True) for a in term if isinstance(a, Bound) and not a.upper and not a.rows]
        cond = _condition(term, rows)
        end = least(uppers) if uppers else _N
        start = greatest(lowers) if lowers else _ZERO
        if uppers and lowers:
            starts.append(Guarded(cond, start, _N) if cond else start)
            ends.append(Guarded(cond, end, _ZERO) if cond else end)
        elif lowers:
            # no block, not the last one if that is ragged
            suffixes.append(Guarded(cond, start, _BEHIND) if cond else start)
        elif uppers or cond:
            prefixes.append(Guarded(cond, end, _ZERO) if cond else end)
        else:
            result.all_keys = True
    result.prefix = greatest(prefixes) if prefixes else None
    result.middle = (least(starts), greatest(ends)) if starts else None
    result.suffix = least(suffixes) if suffixes else None
    return result


def _condition(term: Term, rows: Rows) -> Expr | None:
    """Return the condition that must hold for some of the rows, None if there is none."""
    conds: list[Expr] = []
    for a in term:
        if isinstance(a, Bound) and a.rows:
            at = build_value(a.at)
            conds.append(Binary("<=", rows.first_expr, at) if a.upper else Binary(">", rows.behind, at))
        elif isinstance(a, Uniform):
            conds.append(a.cond if a.holds else Unary("not", a.cond))
    conds.sort(key=lambda cond: f"({show(cond)})")
    return functools.reduce(functools.partial(Binary, "and"), conds) if conds else None


# ---- the functions
@dataclass(frozen=True)
class Blocks:
    """The functions kv_count, kv_block, kv_rows and their helpers, by name.

    `work` is that of the tiles, from the first on; `helpers` are names of further functions.
    """

    functions: Mapping[str, Func]
    helpers: tuple[str, ...]
    work: Work
    notes: tuple[str, ...]


def blocks(keep: Expr | None, fresh: Callable[[str], str] = lambda name: name, by_key: bool = False, gaps: bool = True) -> Blocks | None:
    """Return the functions for a predicate of b, h, q, k (None: every pair is kept).

    Returns None if the predicate is not made of bounds that are linear in q and k: its blocks then have no closed form
    (block_lists.py).

    Args:
        fresh: returns free names for helpers.
        by_key: the order is that of keys in each tile; blocks of a mask with two edges then all need keep().
        gaps: the blocks of a tile may have gaps; otherwise None is returned for a mask with gaps.
    """
    mask = Literal(True) if keep is None else keep
    kept_pairs, dropped = normal(mask, True), normal(mask, False)
    if not kept_pairs.terms:
        return Blocks(Holes().fill(_NONE), (), "growing", ())
    if not kept_pairs.exact or not dropped.exact:
        return None
    need, drop = bound_touched_blocks(kept_pairs.terms), bound_touched_blocks(dropped.terms)
    group_need, group_drop = bound_touched_blocks(kept_pairs.terms, _GROUP), bound_touched_blocks(dropped.terms, _GROUP)
    notes = []
    divisors = {
        show(n.right)
        for n in walk(mask)
        if isinstance(n, Binary) and traits(n).rounds and not isinstance(n.right, Literal) and names_read(n.left) & {"q", "k"}
    }
    if divisors:
        notes.append(f"the blocks hold for positive {', '.join(sorted(divisors))}")
    if need.all_keys:
        need = group_need = Touched(all_keys=True)
    work = _work(kept_pairs.terms, need)
    one_end = need.all_keys or (need.prefix is not None and need.middle is None and need.suffix is None)
    if one_end and (drop.all_keys or (drop.prefix is None and drop.middle is None)):
        return Blocks(_build_from_first(need, drop, group_need, group_drop), (), work, tuple(notes))
    if drop.middle is None and sum(x is not None for x in (need.prefix, need.middle, need.suffix)) <= 1:
        helper = fresh("spans")
        return Blocks(_build_one_run(need, drop, group_need, helper, by_key), (helper,), work, tuple(notes))
    if not gaps:
        return None
    helpers = fresh("rank"), fresh("spans")
    return Blocks(_build_general(need, Touched(all_keys=True) if by_key else drop, helpers[1], helpers[0]), helpers, work, tuple(notes))


def _work(terms: Iterable[Term], need: Touched) -> Work:
    """Classify how the number of blocks changes from the first tile to the last.

    `need` has the keys that the terms touch.
    """
    if _even(need):
        return "even"
    if need.suffix is not None and need.prefix is None and need.middle is None:
        return "falling"
    if need.middle is not None and need.prefix is None and need.suffix is None and _glides(need.middle[0]) and not _glides(need.middle[1]):
        return "falling"  # from a query to where its document ends
    alone = [t for t in terms if all(isinstance(a, Uniform) or a.rows for a in t)]  # some queries attend to every key
    first = [t for t in alone if any(isinstance(a, Bound) and a.upper for a in t)]
    rest = [t for t in terms if t not in alone]
    return "falling" if alone and first == alone and rest and _even(bound_touched_blocks(rest)) else "growing"


def _even(need: Touched) -> bool:
    """Return True if every tile visits as many blocks as any other, but for the ends of the keys.

    Nothing bounds the blocks, or both ends of a run move alike with the queries.
    """
    still = [(v, _ZERO) for v in (need.prefix, need.suffix) if v is not None]
    for start, end in [*still, *([need.middle] if need.middle else [])]:
        if not isinstance(start, Linear) or not isinstance(end, Linear) or _moving(start) != _moving(end):
            return False
    return need.all_keys or bool(still or need.middle)


def _glides(v: Value) -> bool:
    """Return True if a part of a bound moves with each query, not by steps alone."""
    if isinstance(v, Linear):
        return any(t == _Q0 for t, _ in v.terms)
    return any(map(_glides, v.parts if isinstance(v, Extremum) else (v.value, v.otherwise)))


def _moving(v: Linear) -> dict[Expr, int]:
    """Return the terms that change from tile to tile."""
    return {t: c for t, c in v.terms if "m" in names_read(t)}


class _BlockHoles(Holes):
    """Holes for blocks of key positions."""

    def put_block(self, v: Value, up: bool, clip: bool = True) -> str:
        """Return a hole for the block of a key position, rounded up or down and, if `clip`, at least 0."""
        if clip and not _nonnegative(v):
            v = greatest([Linear(), v])
        position = build_value(v)
        return self.put(build.cdiv(position, Name("BN")) if up else Binary("//", position, Name("BN")))


_ROWS = """\
@func
def kv_rows(b, h, m, r):                 # of the tile's blocks, for queries r .. r + 63: how many of the first keep no pair; how many of the first need keep()
"""
ALL_ROWS_ALIKE = _ROWS + "    return 0, kv_count(b, h, m)[0]\n"
_NONE = f"""\
@func
def kv_count(b, h, m):                   # no pair is kept
    return 0, 0

@func
def kv_block(b, h, m, i):
    return i

{ALL_ROWS_ALIKE}"""
_ALL = f"""\
@func
def kv_count(b, h, m):                   # (blocks that need keep(), all blocks); the former come first
    n = cdiv(N, BN)
    return n, n

@func
def kv_block(b, h, m, i):                # which key block is the i-th
    return {{block}}

{ALL_ROWS_ALIKE}"""


def mask_all_blocks(by_key: bool = False) -> Blocks:
    """Return functions that visit all blocks, where `keep` decides of each pair.

    `by_key`: from the last key to the first, as other masks over a cache are visited by key.
    """
    return Blocks(
        Holes().fill(_ALL.format(block="kv_count(b, h, m)[1] - 1 - i" if by_key else "i")),
        (),
        "even",
        ("keep() decides of every pair, and no block is left out",),
    )


def _build_from_first(need: Touched, drop: Touched, group_need: Touched, group_drop: Touched) -> dict[str, Func]:
    """Return the functions for blocks from the first on.

    The last ones hold the edge of the mask, so they are visited from last to first.
    """
    holes = _BlockHoles()
    lines = ["@func", "def kv_count(b, h, m):                   # (blocks that need keep(), all blocks); the former come first"]
    if need.prefix is None:
        lines.append("    n = cdiv(N, BN)")
    else:
        limited = f"min(cdiv(N, BN), {holes.put_block(need.prefix, True, clip=False)})"
        lines.append(f"    n = {limited if _nonnegative(need.prefix) else f'max(0, {limited})'}")
    if drop.all_keys:
        lines.append("    return n, n")
    elif drop.suffix is None:
        lines.append("    return n - N // BN, n" if need.prefix is None else "    return n - min(n, N // BN), n")
    else:
        lines.append(f"    full = min(N // BN, {holes.put_block(drop.suffix, False)})")
        lines.append("    return n - full, n" if need.prefix is None else "    return n - min(n, full), n")
    lines += [
        "",
        "@func",
        "def kv_block(b, h, m, i):                # which key block is the i-th",
        "    return kv_count(b, h, m)[1] - 1 - i",
    ]
    return holes.fill("\n".join(lines) + "\n\n" + _write_rows_from_first(group_need, group_drop, holes))


def _write_rows_from_first(need: Touched, drop: Touched, holes: _BlockHoles) -> str:
    if need.prefix is None and drop.suffix is None:
        return ALL_ROWS_ALIKE
    lines = ["    partial, n = kv_count(b, h, m)"]
    skip, masked = "0", "partial"
    if need.prefix is not None:
        lines.append(f"    needed = max(0, min(n, {holes.put_block(need.prefix, True, clip=False)}))")
        skip = "min(n - needed, max(0, n - 1))"
    if drop.suffix is not None and not drop.all_keys:
        lines.append(f"    full = min(N // BN, {holes.put_block(drop.suffix, False)})")
        masked = "n - min(n, full)"
    return _ROWS + "\n".join([*lines, f"    return {skip}, {masked}"]) + "\n"


def _build_one_run(need: Touched, drop: Touched, group_need: Touched, spans: str, by_key: bool) -> dict[str, Func]:
    """Return the functions for one run of blocks with an edge of the mask at either end.

    The right edge comes first, from the last block on, then the left edge and the middle; `by_key` all are masked, from
    the last to the first.
    """
    holes = _BlockHoles()
    start = need.middle[0] if need.middle else need.suffix
    end = need.middle[1] if need.middle else need.prefix
    lines = ["@func", f"def {spans}(b, h, m):                   # key blocks [lo, hi) are visited, [flo, fhi) of them need no mask"]
    lines.append(f"    lo = {holes.put_block(start, False) if start is not None else '0'}")
    lines.append(f"    hi = max(lo, {f'min(cdiv(N, BN), {holes.put_block(end, True, clip=False)})' if end is not None else 'cdiv(N, BN)'})")
    if by_key:
        lines.append("    flo, fhi = lo, lo")
    elif drop.all_keys:
        lines.append("    flo, fhi = hi, hi")
    else:
        lines.append(
            f"    flo = {f'min(hi, max(lo, {holes.put_block(drop.prefix, True, clip=False)}))' if drop.prefix is not None else 'lo'}"
        )
        tail = f", {holes.put_block(drop.suffix, False, clip=False)}" if drop.suffix is not None else ""
        lines.append(f"    fhi = max(flo, min(hi, N // BN{tail}))")
    lines.append("    return lo, flo, fhi, hi")
    lines += [
        "",
        "@func",
        "def kv_count(b, h, m):                   # (blocks that need keep(), all blocks); the former come first",
        f"    lo, flo, fhi, hi = {spans}(b, h, m)",
        "    return hi - lo - (fhi - flo), hi - lo",
        "",
        "@func",
        "def kv_block(b, h, m, i):                # which key block is the i-th: [fhi, hi) backwards, [lo, flo), then [flo, fhi)",
        f"    lo, flo, fhi, hi = {spans}(b, h, m)",
        "    return hi - 1 - i if i < hi - fhi else lo + i - (hi - fhi)",
        "",
        "",
    ]
    group_end = group_need.middle[1] if group_need.middle else group_need.prefix
    if group_end is None:
        return holes.fill("\n".join(lines) + ALL_ROWS_ALIKE)
    rows = f"""\
    lo, flo, fhi, hi = {spans}(b, h, m)
    needed = max(fhi, lo + 1, min(hi, {holes.put_block(group_end, True, clip=False)}))
    return max(0, hi - needed), kv_count(b, h, m)[0]
"""
    return holes.fill("\n".join(lines) + _ROWS + rows)


def _build_general(need: Touched, drop: Touched, spans: str, rank: str) -> dict[str, Func]:
    """Return the functions for up to three runs of blocks, with up to two runs of full ones among them.

    Full runs are counted by their rank among the visited blocks.
    """
    holes, count = _BlockHoles(), "cdiv(N, BN)"
    lines = [
        "@func",
        f"def {rank}(j, v1, l2, v2, l3, v3):       # how many visited blocks lie before block j",
        "    return min(j, v1) + max(0, min(j, v2) - l2) + max(0, min(j, v3) - l3)",
    ]
    lines += [
        "",
        "@func",
        f"def {spans}(b, h, m):                   # key blocks [0, v1), [l2, v2), [l3, v3) are visited; ranks [a1, b1), [a2, b2) need no mask",
    ]
    first = count if need.all_keys else f"min({count}, {holes.put_block(need.prefix, True)})" if need.prefix is not None else "0"
    lines.append(f"    v1 = {first}")
    if need.middle is not None:
        # a suffix may begin before the middle
        start = need.middle[0] if need.suffix is None else least([need.middle[0], need.suffix])
        lines.append(f"    l2 = max(v1, {holes.put_block(start, False)})")
        lines.append(f"    v2 = max(l2, min({count}, {holes.put_block(need.middle[1], True, clip=False)}))")
    else:
        lines.append("    l2, v2 = v1, v1")
    if need.suffix is not None:
        lines.append(f"    l3 = max(v2, {holes.put_block(need.suffix, False)})")
        lines.append(f"    v3 = max(l3, {count})")
    else:
        lines.append("    l3, v3 = v2, v2")
    lines += [*_write_full_runs(drop, rank, holes), "    return v1, l2, v2, l3, v3, a1, b1, a2, b2"]
    lines += [
        "",
        "@func",
        "def kv_count(b, h, m):                   # (blocks that need keep(), all blocks); the former come first",
        f"    v1, l2, v2, l3, v3, a1, b1, a2, b2 = {spans}(b, h, m)",
        "    n = v1 + (v2 - l2) + (v3 - l3)",
        "    return n - (b1 - a1) - (b2 - a2), n",
    ]
    lines += [
        "",
        "@func",
        "def kv_block(b, h, m, i):                # which key block is the i-th: r is its rank among the visited ones",
        f"    v1, l2, v2, l3, v3, a1, b1, a2, b2 = {spans}(b, h, m)",
        "    one, two = b1 - a1, b2 - a2",
        "    partial = v1 + (v2 - l2) + (v3 - l3) - one - two",
        "    masked = i if i < a1 else i + one if i + one < a2 else i + one + two",
        "    r = masked if i < partial else a1 + i - partial if i - partial < one else a2 + i - partial - one",
        "    return r if r < v1 else r - v1 + l2 if r - v1 < v2 - l2 else r - v1 - (v2 - l2) + l3",
    ]
    return holes.fill("\n".join(lines) + "\n\n" + ALL_ROWS_ALIKE)


def _write_full_runs(drop: Touched, rank: str, holes: _BlockHoles) -> list[str]:
    """Return the text of the gaps between the dropped keys, in ranks."""
    if drop.all_keys:
        return ["    a1, b1, a2, b2 = 0, 0, 0, 0"]

    def at(block: str) -> str:
        return f"{rank}({block}, v1, l2, v2, l3, v3)"

    lines = [f"    end = min(N // BN, {holes.put_block(drop.suffix, False)})" if drop.suffix is not None else "    end = N // BN"]
    lines.append(f"    a1 = {at(holes.put_block(drop.prefix, True)) if drop.prefix is not None else '0'}")
    if drop.middle is None:
        return [*lines, f"    b1 = max(a1, {at('end')})", "    a2, b2 = b1, b1"]
    lines.append(f"    b1 = max(a1, {at(f'min(end, {holes.put_block(drop.middle[0], False)})')})")
    lines.append(f"    a2 = max(b1, {at(holes.put_block(drop.middle[1], True))})")
    return [*lines, f"    b2 = max(a2, {at('end')})"]

"""kv_count, kv_block and kv_rows of a mask in closed form.

They say which key blocks a tile of queries visits, partly masked ones first, and which of these a warpgroup needs. The
kept and the dropped pairs are unions of key intervals (predicate.py); over the rows of a tile each gives a prefix, a
middle and a suffix of the keys. A block is needed if it meets the kept ones; it is full if it meets no dropped one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...ops.expressions import traits
from ...syntax.nodes import Binary, Call, Expr, Literal, Name, Subscript
from ...syntax.printer import show
from ...syntax.walk import names_read, substitute, walk
from .predicate import Bound, Linear, Term, Uniform, normal
from .tile_splice import Work

_Q0 = Binary("*", Name("m"), Name("BM"))  # the first query of the tile; its last is m * BM + BM - 1
_BM = Name("BM")
_NEVER_NEGATIVE = {_Q0, _BM, Name("r"), Name("M"), Name("N"), Name("B"), Name("H"), Name("HK"), Name("b"), Name("h")}


@dataclass(frozen=True)
class Rows:
    """A run of queries.

    It has the first and the last one, as bounds and as expressions, and the texts of the first one (`before`) and of
    the one behind the last (`behind`).
    """

    first: Linear
    last: Linear
    first_expr: Expr
    last_expr: Expr
    before: str
    behind: str


_TILE = Rows(
    Linear(frozenset([(_Q0, 1)])),
    Linear(frozenset([(_Q0, 1), (_BM, 1)]), const=-1),
    _Q0,
    Binary("-", Binary("*", Binary("+", Name("m"), Literal(1)), _BM), Literal(1)),
    "m * BM",
    "(m + 1) * BM",
)
_R = Linear(frozenset([(Name("r"), 1)]))
# of a warpgroup: kv_rows
_GROUP = Rows(_R, _R.shift(63), Name("r"), Binary("+", Name("r"), Literal(63)), "r", "r + 64")


# ---- bounds of a run of queries: numbers made of linear expressions, min, max and conditions
@dataclass(frozen=True)
class Extremum:
    """The least or the greatest of several values."""

    least: bool
    parts: tuple[Value, ...]


@dataclass(frozen=True)
class Guarded:
    """`value` if the condition (text) holds for some of the rows, else `otherwise`."""

    cond: str
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
    return (not isinstance(v, Linear), isinstance(v, Linear) and any(t == _Q0 for t, _ in v.terms), text(v))


def _nonnegative(v: Value) -> bool:
    if isinstance(v, Linear):
        return _at_least(v, Linear())
    if isinstance(v, Guarded):
        return _nonnegative(v.value) and _nonnegative(v.otherwise)
    return (all if v.least else any)(_nonnegative(p) for p in v.parts)


def text(v: Value) -> str:
    if isinstance(v, Extremum):
        return f"{'min' if v.least else 'max'}({', '.join(text(p) for p in v.parts)})"
    if isinstance(v, Guarded):
        return f"({text(v.value)} if {v.cond} else {text(v.otherwise)})"
    terms = dict(v.terms)
    parts: list[tuple[int, str, bool]] = []  # coefficient, text, whether it stands under any factor without parentheses
    rows, ends = terms.pop(_Q0, 0), terms.get(_BM, 0)
    if rows and rows == ends:
        parts.append((rows, "(m + 1) * BM", False))
        del terms[_BM]
    elif rows:
        parts.append((rows, "m * BM", False))
    parts += sorted(
        ((c, show(t) if _product(t) or isinstance(t, _TIGHT) else f"({show(t)})", not _product(t)) for t, c in terms.items()),
        key=lambda p: (p[0] < 0, p[1] != "r", p[1]),
    )
    if v.const or not parts:
        parts.append((v.const, "", True))
    out = ""
    for c, t, tight in parts:
        factor = t if tight or (abs(c) == 1 and (out or c > 0)) else f"({t})"
        amount = str(abs(c)) if not t else factor if abs(c) == 1 else f"{abs(c)} * {factor}"
        out += (f" {'-' if c < 0 else '+'} " if out else "-" if c < 0 else "") + amount
    return out


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


def _condition(term: Term, rows: Rows) -> str:
    """Return the text of the condition that must hold for some of the rows, or ''."""
    conds = []
    for a in term:
        if isinstance(a, Bound) and a.rows:
            conds.append(f"{rows.before} <= {text(a.at)}" if a.upper else f"{rows.behind} > {text(a.at)}")
        elif isinstance(a, Uniform):
            conds.append(show(a.cond) if a.holds else f"not ({show(a.cond)})")
    return " and ".join(sorted(f"({c})" if len(conds) > 1 else c for c in conds))


# ---- the functions
@dataclass(frozen=True)
class Blocks:
    """CuIR text of kv_count, kv_block, kv_rows and their helpers.

    `work` is that of the tiles, from the first on; `helpers` are names of further functions.
    """

    text: str
    helpers: tuple[str, ...]
    work: Work
    notes: tuple[str, ...]


def blocks(keep: Expr | None, fresh: Callable[[str], str] = lambda name: name) -> Blocks | None:
    """Return the functions for a predicate of b, h, q, k (None: every pair is kept).

    `fresh` returns free names for helpers. Returns None if the predicate is not made of bounds that are linear in q and
    k: its blocks then have no closed form (block_lists.py).
    """
    mask = Literal(True) if keep is None else keep
    kept_pairs, dropped = normal(mask, True), normal(mask, False)
    if not kept_pairs.terms:
        return Blocks(
            "@func\ndef kv_count(b, h, m):                   # no pair is kept\n    return 0, 0\n\n@func\ndef kv_block(b, h, m, i):\n    return i\n\n"
            + ALL_ROWS_ALIKE,
            (),
            "growing",
            (),
        )
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
        return Blocks(_from_first(need, drop, group_need, group_drop), (), work, tuple(notes))
    if drop.middle is None and sum(x is not None for x in (need.prefix, need.middle, need.suffix)) <= 1:
        helper = fresh("spans")
        return Blocks(_one_run(need, drop, group_need, helper), (helper,), work, tuple(notes))
    helpers = fresh("rank"), fresh("spans")
    return Blocks(_general(need, drop, helpers[1], helpers[0]), helpers, work, tuple(notes))


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


def _over(v: Value, up: bool, clip: bool = True) -> str:
    """Return the text of the block of a key position, rounded up or down and, if `clip`, at least 0."""
    if clip and not _nonnegative(v):
        v = greatest([Linear(), v])
    return f"cdiv({text(v)}, BN)" if up else f"({text(v)}) // BN"  # the printer drops parentheses that are not needed


_ROWS = """\
@func
def kv_rows(b, h, m, r):                 # of the tile's blocks, for queries r .. r + 63: how many of the first keep no pair; how many of the first need keep()
"""
ALL_ROWS_ALIKE = _ROWS + "    return 0, kv_count(b, h, m)[0]\n"


ALL_MASKED = Blocks(
    """\
@func
def kv_count(b, h, m):                   # (blocks that need keep(), all blocks); the former come first
    n = cdiv(N, BN)
    return n, n

@func
def kv_block(b, h, m, i):                # which key block is the i-th
    return i

"""
    + ALL_ROWS_ALIKE,
    (),
    "even",
    ("keep() decides of every pair, and no block is left out",),
)


def _from_first(need: Touched, drop: Touched, group_need: Touched, group_drop: Touched) -> str:
    """Return the text for blocks from the first on.

    The last ones hold the edge of the mask, so they are visited from last to first.
    """
    lines = ["@func", "def kv_count(b, h, m):                   # (blocks that need keep(), all blocks); the former come first"]
    if need.prefix is None:
        lines.append("    n = cdiv(N, BN)")
    else:
        limited = f"min(cdiv(N, BN), {_over(need.prefix, True, clip=False)})"
        lines.append(f"    n = {limited if _nonnegative(need.prefix) else f'max(0, {limited})'}")
    if drop.all_keys:
        lines.append("    return n, n")
    elif drop.suffix is None:
        lines.append("    return n - N // BN, n" if need.prefix is None else "    return n - min(n, N // BN), n")
    else:
        lines.append(f"    full = min(N // BN, {_over(drop.suffix, False)})")
        lines.append("    return n - full, n" if need.prefix is None else "    return n - min(n, full), n")
    lines += [
        "",
        "@func",
        "def kv_block(b, h, m, i):                # which key block is the i-th",
        "    return kv_count(b, h, m)[1] - 1 - i",
    ]
    return "\n".join(lines) + "\n\n" + _rows_from_first(group_need, group_drop)


def _rows_from_first(need: Touched, drop: Touched) -> str:
    if need.prefix is None and drop.suffix is None:
        return ALL_ROWS_ALIKE
    lines = ["    partial, n = kv_count(b, h, m)"]
    skip, masked = "0", "partial"
    if need.prefix is not None:
        lines.append(f"    needed = max(0, min(n, {_over(need.prefix, True, clip=False)}))")
        skip = "min(n - needed, max(0, n - 1))"
    if drop.suffix is not None and not drop.all_keys:
        lines.append(f"    full = min(N // BN, {_over(drop.suffix, False)})")
        masked = "n - min(n, full)"
    return _ROWS + "\n".join([*lines, f"    return {skip}, {masked}"]) + "\n"


def _one_run(need: Touched, drop: Touched, group_need: Touched, spans: str) -> str:
    """Return the text for one run of blocks with an edge of the mask at either end.

    The right edge comes first, from the last block on, then the left edge and the middle.
    """
    start = need.middle[0] if need.middle else need.suffix
    end = need.middle[1] if need.middle else need.prefix
    lines = ["@func", f"def {spans}(b, h, m):                   # key blocks [lo, hi) are visited, [flo, fhi) of them need no mask"]
    lines.append(f"    lo = {_over(start, False) if start is not None else '0'}")
    lines.append(f"    hi = max(lo, {f'min(cdiv(N, BN), {_over(end, True, clip=False)})' if end is not None else 'cdiv(N, BN)'})")
    if drop.all_keys:
        lines.append("    flo, fhi = hi, hi")
    else:
        lines.append(f"    flo = {f'min(hi, max(lo, {_over(drop.prefix, True, clip=False)}))' if drop.prefix is not None else 'lo'}")
        tail = f", {_over(drop.suffix, False, clip=False)}" if drop.suffix is not None else ""
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
        return "\n".join(lines) + ALL_ROWS_ALIKE
    return (
        "\n".join(lines)
        + _ROWS
        + f"""\
    lo, flo, fhi, hi = {spans}(b, h, m)
    needed = max(fhi, lo + 1, min(hi, {_over(group_end, True, clip=False)}))
    return max(0, hi - needed), kv_count(b, h, m)[0]
"""
    )


def _general(need: Touched, drop: Touched, spans: str, rank: str) -> str:
    """Return the text for up to three runs of blocks, with up to two runs of full ones among them.

    Full runs are counted by their rank among the visited blocks.
    """
    count = "cdiv(N, BN)"
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
    first = count if need.all_keys else f"min({count}, {_over(need.prefix, True)})" if need.prefix is not None else "0"
    lines.append(f"    v1 = {first}")
    if need.middle is not None:
        # a suffix may begin before the middle
        start = need.middle[0] if need.suffix is None else least([need.middle[0], need.suffix])
        lines.append(f"    l2 = max(v1, {_over(start, False)})")
        lines.append(f"    v2 = max(l2, min({count}, {_over(need.middle[1], True, clip=False)}))")
    else:
        lines.append("    l2, v2 = v1, v1")
    if need.suffix is not None:
        lines.append(f"    l3 = max(v2, {_over(need.suffix, False)})")
        lines.append(f"    v3 = max(l3, {count})")
    else:
        lines.append("    l3, v3 = v2, v2")
    lines += [*_full_runs(drop, rank), "    return v1, l2, v2, l3, v3, a1, b1, a2, b2"]
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
    return "\n".join(lines) + "\n\n" + ALL_ROWS_ALIKE


def _full_runs(drop: Touched, rank: str) -> list[str]:
    """Return the text of the gaps between the dropped keys, in ranks."""
    if drop.all_keys:
        return ["    a1, b1, a2, b2 = 0, 0, 0, 0"]

    def at(block: str) -> str:
        return f"{rank}({block}, v1, l2, v2, l3, v3)"

    lines = [f"    end = min(N // BN, {_over(drop.suffix, False)})" if drop.suffix is not None else "    end = N // BN"]
    lines.append(f"    a1 = {at(_over(drop.prefix, True)) if drop.prefix is not None else '0'}")
    if drop.middle is None:
        return [*lines, f"    b1 = max(a1, {at('end')})", "    a2, b2 = b1, b1"]
    lines.append(f"    b1 = max(a1, {at(f'min(end, {_over(drop.middle[0], False)})')})")
    lines.append(f"    a2 = max(b1, {at(_over(drop.middle[1], True))})")
    return [*lines, f"    b2 = max(a2, {at('end')})"]

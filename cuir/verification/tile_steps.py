"""Steps in which a kernel goes through each of its dims.

They are guessed from the subscripts, and checked against the units of work and loop turns of small runs.

Trip counts that a kernel's counters need to exercise everything that its text does by their values.

A problem with fewer turns does not show a fault in the seventeenth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..attn.verification.problems import is_attention
from ..checking.checked import Checked
from ..checking.kernel_results import ResultKey, keep_with_kernel
from ..checking.views import Range, make_view, root_name
from ..interp import run
from ..interp.interpreted_launch import list_loop_turns
from ..ops import OPERATORS
from ..spec.function_specification import FunctionSpecification
from ..syntax.nodes import Assign, Binary, Expr, For, Literal, Name, Stmt, Subscript
from ..syntax.types import TileType
from ..syntax.walk import names_read, walk
from ..text.diagnostics import CuirError
from .inputs import make_function_launch
from .values.cases import Draw, select_fitting

_WORDS = 16  # a guess for index tiles of unknown length
_LONGEST = 1024  # a dim that adds neither units nor turns up to this length has no steps

Work = tuple[int, ...]
Sizes = tuple[tuple[str, int], ...]


_STEPS = ResultKey[dict[str, int]]("steps")


def find_steps(checked: Checked, spec: FunctionSpecification) -> dict[str, int]:
    """Return for each run-time dim the length of a step. Cached with the kernel.

    A step is a tile or block of it that is one unit of work, or one turn of a loop; 0 if that is one element, as of
    batches and heads. A wrong guess is replaced by the first length at which a unit or a turn is added.
    """
    steps = checked.results.find(_STEPS, spec)
    if steps is None:
        steps = checked.results.store(_STEPS, find_tiles(checked), spec)  # for the problems that are measured
        if not is_attention(checked.origin):
            steps = checked.results.store(_STEPS, _measure(checked, spec, steps), spec)
    return dict(steps)


@keep_with_kernel
def adds_work(checked: Checked, spec: FunctionSpecification, dim: str) -> bool:
    """Return whether a long dim makes more units of work or loop turns than a dim of one element."""
    many = 2 * max(1, find_steps(checked, spec)[dim]) + 1
    single, several = (_count_work(checked, spec, align_heads({d: n if d == dim else 1 for d in checked.dims})) for n in (1, many))
    return single is None or single != several


def find_named_dims(checked: Checked) -> set[str]:
    """Return run-time dims that statements name or that boxes extend along.

    Others only bound tensors that are read at computed places.
    """
    bodies = [*checked.declarations, *(s for role in checked.roles for s in role.body)]
    named = set().union(*(names_read(s) for s in bodies)) | (names_read(checked.tiles.count) if checked.tiles is not None else set())
    return {d for d, n in find_tiles(checked).items() if n or d in named}


def find_tiles(checked: Checked) -> dict[str, int]:
    """Return for each run-time dim its longest box or tile that the kernel moves; 0 for single elements."""
    tiles = dict.fromkeys(checked.dims, 0)
    dims = {t.name: t.dims for t in checked.tensors}
    shared_heads = ("B", "H", "HK") if is_attention(checked.origin) else ()

    def record(name: str, position: int, length: int | None) -> None:
        d = dims[name][position]
        if isinstance(d, str) and d not in shared_heads:
            tiles[d] = max(tiles[d], length or _WORDS)

    for role in checked.roles:
        values = _list_single_bindings(role.body)
        for node in (n for stmt in role.body for n in walk(stmt)):
            name = root_name(node) if isinstance(node, Subscript) else None
            if name not in dims or not isinstance(node, Subscript):
                continue
            view = make_view(node, len(dims[name]))
            for i, part in enumerate(view.parts if view is not None else ()):
                if isinstance(part, Range):
                    record(name, i, part.size)
                elif isinstance(checked.find_type(part.index), TileType):
                    record(name, i, _bound_extent(checked, values, part.index))
    return tiles


def _list_single_bindings(body: Sequence[Stmt]) -> dict[str, Expr]:
    """Return the values of names that are bound in one place alone."""
    bound = [s for stmt in body for s in walk(stmt) if isinstance(s, Assign)]
    counts = Counter(s.targets[0] for s in bound)
    return {s.targets[0]: s.value for s in bound if counts[s.targets[0]] == 1}


def _bound_extent(checked: Checked, values: Mapping[str, Expr], e: Expr, depth: int = 16) -> int:
    """Return an upper bound on the neighbouring elements that an index tile reaches.

    For `t * 64 + rows(64) % 8` it is 8; for unknown expressions the number of elements.
    """
    kind = checked.find_type(e)
    if not isinstance(kind, TileType):
        return 1
    most = kind.rows * kind.cols
    if isinstance(e, Name) and e.id in values and depth:
        return min(most, _bound_extent(checked, values, values[e.id], depth - 1))
    if not isinstance(e, Binary):
        return most
    op = OPERATORS[e.op]
    by = int(e.right.value) if isinstance(e.right, Literal) and e.right.kind == "int" else 0
    if op.evaluate is None or not (op.traits.linear or (op.evaluate.divides and by > 0)):
        return most
    left, right = (0, _bound_extent(checked, values, e.left, depth) - 1), (0, _bound_extent(checked, values, e.right, depth) - 1)
    bounds = op.evaluate.interval(left, right if op.traits.linear else (by, by))
    return most if bounds is None else min(most, bounds[1] - bounds[0] + 1)


def _measure(checked: Checked, spec: FunctionSpecification, guess: Mapping[str, int]) -> dict[str, int]:
    """Return the guess, corrected where a step more than it adds no work.

    The other dims are one element, or, where that shows no step, some tiles: a causal mask keeps no more of many queries
    than there are keys. The guess also stays where no step was found.
    """
    steps, several, counted = dict(guess), 2 * max(guess.values(), default=0) + 1, dict[Sizes, Work | None]()

    def count(sizes: Mapping[str, int]) -> Work | None:
        """Count the work of a problem once: `sizes` of a specification makes many lengths the same."""
        draw = _choose_draw(checked, spec, sizes)
        key = tuple(draw.sizes.items()) if draw is not None else ()
        if key not in counted:
            counted[key] = _count_work_of(checked, spec, draw)
        return counted[key]

    for d in checked.dims:
        step = _measure_dim(count, d, guess, 1) or (_measure_dim(count, d, guess, several) if guess[d] else None)
        steps[d] = step or guess[d]
    return steps


def _measure_dim(count_work: Callable[[Mapping[str, int]], Work | None], d: str, guess_of: Mapping[str, int], others: int) -> int | None:
    """Return the length beyond which a dim adds work, if the other dims have this one; None if no length does."""

    def count(n: int) -> Work | None:
        return count_work(align_heads({x: n if x == d else others if guess_of[x] else 1 for x in guess_of}))

    least, cache = count(1), dict[int, bool]()

    def adds_more(n: int) -> bool:
        """Return whether a length of n makes more work than a length of 1."""
        if n not in cache:
            work = count(n)
            cache[n] = work is not None and least is not None and any(more > less for more, less in zip(work, least, strict=True))
        return cache[n]

    low = max(1, guess_of[d])
    if least is None or adds_more(low + 1):
        return guess_of[d] or None
    high = next((n for n in _doublings(low + 1) if adds_more(n)), None)
    while high is not None and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if adds_more(middle) else (middle, high)
    return low if high is not None else None


def align_heads(sizes: Mapping[str, int]) -> dict[str, int]:
    """Make H a multiple of HK, where a kernel has both."""
    return dict(sizes) if "H" not in sizes or "HK" not in sizes else {**sizes, "H": sizes["HK"] * max(1, sizes["H"])}


def _doublings(n: int) -> Iterator[int]:
    while n <= _LONGEST:
        n *= 2
        yield n


def _count_work(checked: Checked, spec: FunctionSpecification, sizes: Mapping[str, int]) -> Work | None:
    """Return the units of work, and the total turns of each loop; None where such a problem cannot be run."""
    return _count_work_of(checked, spec, _choose_draw(checked, spec, sizes))


def _choose_draw(checked: Checked, spec: FunctionSpecification, sizes: Mapping[str, int]) -> Draw | None:
    try:
        return next(iter(select_fitting(checked, spec, [Draw("a step", sizes)])[0]), None)
    except CuirError:
        return None


def _count_work_of(checked: Checked, spec: FunctionSpecification, draw: Draw | None) -> Work | None:
    if draw is None:
        return None
    try:
        arguments = make_function_launch(checked, spec, draw).arguments()
        before = {id(t): t.total for t in list_loop_turns(checked)}
        report = run(checked, arguments, grid=lambda units: 1)
    except CuirError:
        return None
    return report.units, *(t.total - before.get(id(t), 0) for t in list_loop_turns(checked))


def find_unit_dims(checked: Checked) -> set[str]:
    """Return run-time dims from which the number of units of work is computed."""
    if checked.tiles is None:
        return set()
    names = names_read(checked.tiles.count)
    definitions = {s.targets[0]: s.value for s in checked.declarations if isinstance(s, Assign)}
    todo = list(names)
    while todo:
        more = names_read(definitions[name]) - names if (name := todo.pop()) in definitions else set()
        names |= more
        todo += more
    return names & set(checked.dims)


FARTHEST = 256  # turns: later effects are not searched


@keep_with_kernel
def count_counter_turns(checked: Checked) -> int:
    """Return the turns within which every counter passes through its period once; at least 1.

    A counter of a role, of units of work or of a loop passes through what it is divided by or compared with in the
    text. Numbers beyond FARTHEST are ignored.
    """
    return max((n for n in _list_periods(checked) if n <= FARTHEST), default=1)


def count_ring_uses(checked: Checked) -> int:
    """Return the units of work, or turns, with which a CTA goes round every ring twice and begins again.

    Where its counters need more turns, these are counted before.
    """
    rounds, turns = 2 * checked.longest_ring, count_counter_turns(checked)
    return rounds + 1 if turns <= rounds else turns + rounds + 1


def _list_periods(checked: Checked) -> Iterator[int]:
    for role in checked.roles:
        nodes = [n for stmt in role.body for n in walk(stmt)]
        bound = [n for n in nodes if isinstance(n, Assign)]
        counters = {n.target for n in nodes if isinstance(n, For)}
        counters |= {name for a in bound for name in a.targets if name in names_read(a.value)}
        for node in nodes:
            if isinstance(node, Binary) and (turns := _compute_period(node, counters)) is not None:
                yield turns


def _compute_period(e: Expr, counters: set[str]) -> int | None:
    """Return the period of an expression in turns of a counter; None without a counter."""
    if isinstance(e, Name):
        return 1 if e.id in counters else None
    if not isinstance(e, Binary):
        return None
    left, right = _compute_period(e.left, counters), _compute_period(e.right, counters)
    operator = OPERATORS[e.op].traits
    number = e.right if isinstance(e.right, Literal) else e.left if operator.compares and isinstance(e.left, Literal) else None
    turns = max(left or 0, right or 0)
    if not turns:
        return None
    if number is None or number.kind != "int":
        return turns
    value = abs(int(number.value))
    if operator.remainder or operator.rounds is not None:
        return turns * max(1, value)
    return turns * (value + 1) if operator.compares else turns


__all__ = [
    "FARTHEST",
    "Work",
    "adds_work",
    "align_heads",
    "count_counter_turns",
    "count_ring_uses",
    "find_named_dims",
    "find_steps",
    "find_tiles",
    "find_unit_dims",
]

"""The steps in which a kernel goes through each of its dims: guessed from the subscripts, held against what its units of work and loops do in small runs. Owns no problem that is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ..checking.checked import Checked
from ..checking.views import Range, make_view, root_name
from ..interp import run
from ..interp.launch import list_loop_turns
from ..ops import OPERATORS
from ..spec.functions import FunctionSpecification
from ..syntax.nodes import Assign, Binary, Expr, Literal, Name, Stmt, Subscript
from ..syntax.types import TileType
from ..syntax.walk import names_read, walk
from ..text.diagnostics import CuirError
from .draws import Draw, fitting
from .inputs import function_launch
from .problems import is_attention

_WORDS = 16  # a guess for index tiles of no known length
_LONGEST = 1024  # beyond it a dim in which no unit and no turn is added counts as one that the kernel does not go through

Work = tuple[int, ...]


def steps_of_dims(checked: Checked, spec: FunctionSpecification) -> dict[str, int]:
    """For each run-time dim the length of a step: of a tile or block of it that is one unit of work, or one turn of a loop; 0 if that is one element, as of batches and heads.

    A guess that does not hold is replaced by the first length at which a unit or a turn is added. Kept with the kernel.
    """
    key = (steps_of_dims, spec)
    if key not in checked.made:
        checked.made[key] = guess = tile_of_dims(checked)
        if not is_attention(checked.origin):
            checked.made[key] = _measured(checked, spec, guess)
    return dict(checked.made[key])


def adds_work(checked: Checked, spec: FunctionSpecification, dim: str) -> bool:
    """Return whether some steps of a dim make more units of work, or loop turns, than one element does."""
    key = (adds_work, spec, dim)
    if key not in checked.made:
        many = 2 * max(1, steps_of_dims(checked, spec)[dim]) + 1
        one, more = (_work(checked, spec, with_heads({d: n if d == dim else 1 for d in checked.dims})) for n in (1, many))
        checked.made[key] = one is None or one != more
    return bool(checked.made[key])


def find_named_dims(checked: Checked) -> set[str]:
    """Run-time dims that statements name or boxes go along; others only bound tensors that are read at computed places."""
    bodies = [*checked.declarations, *(s for role in checked.roles for s in role.body)]
    named = set().union(*(names_read(s) for s in bodies)) | (names_read(checked.tiles.count) if checked.tiles is not None else set())
    return {d for d, n in tile_of_dims(checked).items() if n or d in named}


def tile_of_dims(checked: Checked) -> dict[str, int]:
    """For each run-time dim the longest box or tile of it that the kernel moves, 0 if it only picks single elements of it."""
    tiles = dict.fromkeys(checked.dims, 0)
    dims = {t.name: t.dims for t in checked.tensors}
    shared_heads = ("B", "H", "HK") if is_attention(checked.origin) else ()

    def seen(name: str, position: int, length: int | None) -> None:
        d = dims[name][position]
        if isinstance(d, str) and d not in shared_heads:
            tiles[d] = max(tiles[d], length or _WORDS)

    for role in checked.roles:
        made = _made(role.body)
        for node in (n for stmt in role.body for n in walk(stmt)):
            name = root_name(node) if isinstance(node, Subscript) else None
            if name not in dims or not isinstance(node, Subscript):
                continue
            view = make_view(node, len(dims[name]))
            for i, part in enumerate(view.parts if view is not None else ()):
                if isinstance(part, Range):
                    seen(name, i, part.size)
                elif isinstance(checked.find_type(part.index), TileType):
                    seen(name, i, _extent(checked, made, part.index))
    return tiles


def _made(body: Sequence[Stmt]) -> dict[str, Expr]:
    """What names hold that are bound in one place alone."""
    bound = [s for stmt in body for s in walk(stmt) if isinstance(s, Assign)]
    counts = Counter(s.targets[0] for s in bound)
    return {s.targets[0]: s.value for s in bound if counts[s.targets[0]] == 1}


def _extent(checked: Checked, made: Mapping[str, Expr], e: Expr, depth: int = 16) -> int:
    """How many neighbouring elements an index tile reaches at most: of `t * 64 + rows(64) % 8` 8. Of what is not known as many as it has elements."""
    kind = checked.find_type(e)
    if not isinstance(kind, TileType):
        return 1
    most = kind.rows * kind.cols
    if isinstance(e, Name) and e.id in made and depth:
        return min(most, _extent(checked, made, made[e.id], depth - 1))
    if not isinstance(e, Binary):
        return most
    op = OPERATORS[e.op]
    by = int(e.right.value) if isinstance(e.right, Literal) and e.right.kind == "int" else 0
    if op.evaluate is None or not (op.traits.linear or (op.evaluate.divides and by > 0)):
        return most
    left, right = (0, _extent(checked, made, e.left, depth) - 1), (0, _extent(checked, made, e.right, depth) - 1)
    bounds = op.evaluate.interval(left, right if op.traits.linear else (by, by))
    return most if bounds is None else min(most, bounds[1] - bounds[0] + 1)


def _measured(checked: Checked, spec: FunctionSpecification, guess: Mapping[str, int]) -> dict[str, int]:
    """The guess, where a step more than it adds work; else the step that was found, or the guess again where none was."""
    steps = dict(guess)
    least = _work(checked, spec, dict.fromkeys(checked.dims, 1))
    for d in checked.dims if least is not None else ():
        known: dict[int, bool] = {}

        def more(n: int, d: str = d, known: dict[int, bool] = known) -> bool:
            """Whether a length of n asks for more work than a length of 1."""
            if n not in known:
                known[n] = (
                    work := _work(checked, spec, with_heads({x: n if x == d else 1 for x in checked.dims}))
                ) is not None and work != least
            return known[n]

        low = max(1, guess[d])
        if more(low + 1):
            continue
        high = next((n for n in _doubled(low + 1) if more(n)), None)
        if high is None:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if more(middle) else (middle, high)
        steps[d] = low
    return steps


def with_heads(sizes: Mapping[str, int]) -> dict[str, int]:
    """H a multiple of HK, where a kernel has both."""
    return dict(sizes) if "H" not in sizes or "HK" not in sizes else {**sizes, "H": sizes["HK"] * max(1, sizes["H"])}


def _doubled(n: int) -> Iterator[int]:
    while n <= _LONGEST:
        n *= 2
        yield n


def _work(checked: Checked, spec: FunctionSpecification, sizes: Mapping[str, int]) -> Work | None:
    """Units of work, and turns of each loop in all; None where such a problem cannot be run."""
    try:
        draws = fitting(checked, spec, [Draw("a step", sizes)])[0]
        if not draws:
            return None
        arguments = function_launch(checked, spec, draws[0]).arguments()
        before = {id(t): t.total for t in list_loop_turns(checked)}
        report = run(checked, arguments, grid=lambda units: 1)
    except CuirError:
        return None
    return report.units, *(t.total - before.get(id(t), 0) for t in list_loop_turns(checked))

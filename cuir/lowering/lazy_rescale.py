"""References of rows that hardly ever move, rescaled only where a warp needs it: `new = max(top, row_max(S) * c)`, then `new = where(new - top > LIMIT, new, top)`, as in online softmax.

No row of a warp moves as long as none of its threads holds an element that exceeds the reference by more than LIMIT. So each thread looks at its own
elements, and what the threads of a row do together (the maximum, and the factor of what was accumulated so far) stands in a branch of the warp.
Owns which statements are such a pair, and their texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..syntax.nodes import Assign, Binary, Expr, Literal, Name, Stmt
from ..syntax.types import F32, Scalar, TileType
from ..syntax.walk import assigned
from .flat import called, names, operation, own_expressions, statements
from .layouts import shape_of
from .writer import identifier

if TYPE_CHECKING:
    from .tiles import At, TileEmitter


@dataclass(frozen=True)
class Kept:
    """The statements of such a pair, and behind them `f = exp2(top - new)` if the block has it; top, S, c (None is 1) and LIMIT."""

    statements: tuple[Assign, ...]
    top: Name
    tile: Expr
    factor: Expr | None
    limit: Expr


class LazyRescale:
    """Emits the references of one role that are kept so."""

    def __init__(self, tiles: TileEmitter):
        self.tiles, self.role, self.checked, self.out = tiles, tiles.role, tiles.role.kernel.checked, tiles.role.out
        self.done: set[int] = set()  # statements that were emitted with an earlier one, by id

    # ---- which
    def find(self, stmt: Assign, following: tuple[Stmt, ...]) -> Kept | None:
        """The pair that begins with a statement of a block, which `following` continues; None if there is none."""
        new, (op, args) = stmt.targets[0], operation(self.checked, stmt.value)
        second = following[0] if following else None
        if op != "max" or len(args) != 2 or not isinstance(second, Assign):
            return None
        for top, scaled in (args, args[::-1]):
            found = self._scaled(scaled)
            if (
                found is None
                or not isinstance(top, Name)
                or new in names(stmt.value)
                or not self._of_rows(top, found[0])
                or self._constant(top)
            ):
                continue
            if limit := self._limit(second, new, top.id):
                behind = self._behind(following, {new, top.id} | names(stmt.value), new, top.id)
                return Kept((stmt, second, *behind), top, *found, limit)
        return None

    def _of_rows(self, top: Name, tile: Expr) -> bool:
        """Whether a name holds a number for each row of a tile, the same in all threads of a row."""
        t, rows = self.checked.type_of(top), self.role.tile_type(tile).rows
        return (
            isinstance(t, TileType)
            and (shape_of(t), t.rows, t.dtype) == ("rows", rows, F32)
            and top.id not in self.role.facts.deferred_row_sums
        )

    def _scaled(self, expr: Expr) -> tuple[Expr, Expr | None] | None:
        """S and c of `row_max(S) * c`, `c * row_max(S)` and `row_max(S)`, with a name S, and c a scalar or alike along a row."""
        op, args = operation(self.checked, expr)
        for call, factor in [(args[0], args[1]), (args[1], args[0])] if op == "*" else [(expr, None)]:
            t = None if factor is None else self.checked.type_of(factor)
            alike = factor is None or isinstance(t, Scalar) or (isinstance(t, TileType) and shape_of(t) in ("rows", "one"))
            if alike and called(self.checked, call) == "row_max":
                (tile,) = operation(self.checked, call)[1]
                full = isinstance(tile, Name) and shape_of(self.role.tile_type(tile)) == "full"
                return (tile, factor) if full and self.role.dtype(tile) == F32 else None
        return None

    def _limit(self, stmt: Assign, new: str, top: str) -> Expr | None:
        """LIMIT of `new = where(new - top > LIMIT, new, top)`, if it is a number that is not negative."""
        op, args = operation(self.checked, stmt.value)
        if stmt.targets[0] != new or op != "where" or args[1:] != [Name(new), Name(top)]:
            return None
        test = args[0]
        if not isinstance(test, Binary) or test.op != ">" or test.left != Binary("-", Name(new), Name(top)):
            return None
        return test.right if isinstance(test.right, Literal) and float(test.right.value) >= 0 else None

    def _constant(self, expr: Expr) -> bool:
        """Whether a reference is one that the program gives to all rows: the first maximum moves it."""
        while isinstance(expr, Name):
            bound = self.role.facts.definitions.get(expr.id, [])
            if len(bound) != 1 or not isinstance(bound[0], Assign):
                return False
            expr = bound[0].value
        return operation(self.checked, expr)[0] in ("full", "zeros")

    def _behind(self, following: tuple[Stmt, ...], read: set[str], new: str, top: str) -> tuple[Assign, ...]:
        """The statement `f = exp2(top - new)`, if it may as well stand right behind the pair, which reads these names."""
        for i, stmt in enumerate(following[1:], 1):
            between = following[1:i]
            bound = assigned(between).keys()
            if bound & {new, top}:
                break
            if isinstance(stmt, Assign) and operation(self.checked, stmt.value) == ("exp2", [Binary("-", Name(top), Name(new))]):
                inside = list(statements(between))
                used = bound | {n for s in inside for e in own_expressions(s) for n in names(e)}
                declared = {n for s in inside for n in self.role.facts.declare_at.get(id(s), [])}
                return () if stmt.targets[0] in used | declared | read else (stmt,)
        return ()

    # ---- texts
    def assign(self, stmt: Assign, following: tuple[Stmt, ...]) -> bool:
        """Emits a pair that begins with this statement, and what belongs to it; False if there is none."""
        kept = self.find(stmt, following)
        if kept is None:
            return False
        tiles, out, role = self.tiles, self.out, self.role
        frag, new, top = role.fragment(role.tile_type(kept.tile)), identifier(stmt.targets[0]), identifier(kept.top.id)
        bound, moves = out.temp("bound"), out.temp("moves")
        out.line(f"float {bound}[{frag.row_values}];  // no element of this thread in the row is greater")
        out.line(f"cuir::row_bound({tiles.array(kept.tile)}, {bound});")
        tiles.affine_bias.row_max(kept.tile, bound)
        out.line(f"bool {moves} = false;")

        def test(at: At) -> str:
            limit = tiles.element(kept.limit, at, "rows")
            if kept.factor is None:
                return f"{moves} |= {bound}[{at.r}] - {top}[{at.r}] > {limit};"
            factor = tiles.element(kept.factor, at, "rows")
            least = isinstance(kept.factor, Literal) and float(kept.factor.value) >= 0
            sign = "" if least else f" | ({factor} < 0.f)"  # then the bound is none
            return f"{moves} |= ({bound}[{at.r}] * {factor} - {top}[{at.r}] > {limit}){sign};"

        tiles.loop("rows", frag, test)
        out.line(f"{moves} = __any_sync(~0u, {moves});")
        tiles.loop("rows", frag, lambda at: f"{new}[{at.r}] = {top}[{at.r}];")
        for behind in kept.statements[2:]:
            role.prepare(behind)
            factor = identifier(behind.targets[0])  # exp2(top - top): 1, but for infinities and NaN
            tiles.loop("rows", frag, lambda at, factor=factor: f"{factor}[{at.r}] = fmaf({top}[{at.r}], 0.f, 1.f);")  # type: ignore[misc]
        with out.block(f"if ({moves})"):
            for part in kept.statements:
                out.mark(part.span)
                role.hoisted = {}
                tiles.into(identifier(part.targets[0]), part.value, role.tile_type(part.value))
        self.done |= {id(s) for s in kept.statements[1:]}
        choice = "the maximum of a row is taken where a warp finds an element that exceeds the row's reference by the limit; else all rows keep theirs"
        role.kernel.choice(choice, stmt.span)
        return True


__all__ = ["Kept", "LazyRescale"]

"""Full f32 tiles kept without the part of a sum that is alike along a row. Owns which names may be, and the texts of such a tile.

`S = X + A` with A affine (see affine.py) is kept as X + slope * column, and a shift per row beside it: two instructions an element less than the sum, if all
that reads it is a maximum of its rows (the shift is added to that: rounding is monotone, so it is the maximum of the sums) or an exponential of it (the shift
goes into what is subtracted there anyway). The products slope * column are the same for all rows; where a role has the registers they are computed once, as soon
as the slope is known, and kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..checking.checked import Checked, Role
from ..syntax.nodes import Assign, Expr, For, Name, Stmt
from ..syntax.printer import show
from ..syntax.types import F32, I32, Scalar, TileType
from .affine import Affine, affine
from .analysis import Facts
from .flat import bodies, called, names, operation, own_expressions, statements
from .index_tiles import slope_of
from .layouts import Fragment, shape_of
from .values import strip
from .writer import identifier

if TYPE_CHECKING:
    from .role import RoleEmitter
    from .tiles import At, TileEmitter
    from .writer import Writer

ROOM = 40  # registers for all but the arrays of a step; with fewer the compiler spills

SLOPED = {"+": ((0, 1), (1, 0)), "-": ((0, 1),)}  # operation -> (operand that is kept, operand that may be affine)


# ---- which assignments may be kept so
def candidates(checked: Checked, role: Role, facts: Facts) -> dict[int, frozenset[int]]:
    """Assignments of sums and differences to a full f32 tile whose value is read in no other way -> the statements that may read it. Keys are id()s."""
    full = {n for n, t in role.locals.items() if isinstance(t, TileType) and t.dtype == F32 and shape_of(t) == "full"}
    found: dict[int, frozenset[int]] = {}
    for body in [role.body, *(b for s in statements(role.body) for b in bodies(s))]:
        for i, stmt in enumerate(body):
            if (
                isinstance(stmt, Assign)
                and stmt.targets[0] in full
                and operation(checked, stmt.value)[0] in SLOPED
                and not stmt.value.decides
            ):
                name = stmt.targets[0]
                readers = _readers(checked, body[i + 1 :], name, name in facts.live_after[id(body[-1])])
                if readers is not None:
                    found[id(stmt)] = readers
    return found


def _readers(checked: Checked, following: tuple[Stmt, ...], name: str, live: bool) -> frozenset[int] | None:
    """The statements that a value reaches, which the rest of its block follows; None if one reads it otherwise, or one behind the block (`live`) does."""
    found: set[int] = set()
    for stmt in following:
        if isinstance(stmt, Assign) and stmt.targets[0] == name and not masks(checked, stmt):
            return None if name in names(stmt.value) else frozenset(found)
        if not _keeps(checked, stmt, name):
            return None
        found |= {id(s) for s in statements((stmt,))}
    return None if live else frozenset(found)


def masks(checked: Checked, stmt: Assign) -> bool:
    """Whether a statement is `x = where(condition, x, -inf)`: the shift of x stays."""
    name, (op, args) = stmt.targets[0], operation(checked, stmt.value)
    if op != "where" or not (isinstance(args[1], Name) and args[1].id == name) or name in names(args[0]):
        return False
    op, args = operation(checked, args[2])
    return op == "neg" and isinstance(args[0], Name) and args[0].id == "inf"


def _keeps(checked: Checked, stmt: Stmt, name: str) -> bool:
    """Whether a statement and those inside it bind the name to nothing else, and read it as a tile without its shift can be read."""
    if isinstance(stmt, Assign):
        if stmt.targets[0] == name:
            return masks(checked, stmt)
        return name not in names(stmt.value) or (called(checked, stmt.value) != "mma_async" and _reads(checked, stmt.value, name))
    return not any(name in names(e) for e in own_expressions(stmt)) and all(_keeps(checked, s, name) for body in bodies(stmt) for s in body)


def _reads(checked: Checked, expr: Expr, name: str) -> bool:
    if name not in names(expr):
        return True
    op, args = operation(checked, expr)
    if op == "row_max" and isinstance(args[0], Name):
        return True
    if op == "exp2" and (found := exponent(checked, args[0])) and found.tile == name:
        return all(_reads(checked, e, name) for e in (found.factor, found.offset) if e is not None)
    return op not in ("", "gather", "element", "view") and all(_reads(checked, a, name) for a in args)


@dataclass(frozen=True)
class Exponent:
    """tile * factor - offset; no factor is 1."""

    tile: str
    factor: Expr | None
    offset: Expr


def exponent(checked: Checked, expr: Expr) -> Exponent | None:
    """`x * f - v`, `f * x - v` or `x - v` of the name x of a full tile, and f and v that are alike along a row; None for others."""
    op, args = operation(checked, expr)
    if op != "-":
        return None
    product, offset = args
    op, args = operation(checked, product)
    for x, factor in [(args[0], args[1]), (args[1], args[0])] if op == "*" else [(product, None)]:
        if isinstance(x, Name) and not _of_row(checked, x) and all(_of_row(checked, e) for e in (factor, offset) if e is not None):
            return Exponent(x.id, factor, offset)
    return None


def _of_row(checked: Checked, expr: Expr) -> bool:
    t = checked.type_of(expr)
    return not isinstance(t, TileType) or shape_of(t) in ("rows", "one")


# ---- slopes that stay the same for a loop
@dataclass(frozen=True)
class Slope:
    """The slope of an affine tile: a number times scalars; the number is 0 for a tile alike along its rows."""

    number: int
    factors: tuple[Expr, ...] = ()

    @property
    def names(self) -> set[str]:
        return {n for f in self.factors for n in names(f)}


def constant_slope(checked: Checked, expr: Expr, slopes: Mapping[str, int]) -> Slope | None:
    """The slope of an f32 tile of index tiles and scalars, if it is such a product; `slopes`: of names of i32 tiles."""
    if isinstance(checked.type_of(expr), Scalar):
        return Slope(0)
    op, args = operation(checked, expr)
    if op == "cast" and isinstance(t := checked.type_of(args[0]), TileType) and t.dtype == I32:
        number = slope_of(checked, args[0], slopes)
        return None if number is None else Slope(number)
    if op not in ("+", "-", "*", "neg"):
        return None
    parts = [p for a in args if (p := constant_slope(checked, a, slopes)) is not None]
    sloped = [i for i, p in enumerate(parts) if p.number]
    if len(parts) < len(args) or len(sloped) > 1:
        return None
    if not sloped:
        return Slope(0)
    i, found = sloped[0], parts[sloped[0]]
    if op == "*":
        return replace(found, factors=(*found.factors, args[1 - i])) if isinstance(checked.type_of(args[1 - i]), Scalar) else None
    return replace(found, number=-found.number) if op == "neg" or (op == "-" and i == 1) else found


def before(body: tuple[Stmt, ...], chain: tuple[tuple[Stmt, bool], ...] = ()) -> Iterator[tuple[Stmt, tuple[tuple[Stmt, bool], ...]]]:
    """Each statement with those that come before it in its block and in the blocks around it, and whether it lies inside them."""
    for stmt in body:
        yield stmt, chain
        for inner in bodies(stmt):
            yield from before(inner, (*chain, (stmt, True)))
        chain = (*chain, (stmt, False))


@dataclass
class SlopeProducts:
    """slope * column for each column of a thread, in an array that many statements read."""

    slope: Slope
    place: Stmt | None  # computed after this statement; None: at the start of the role
    groups: int  # of 8 columns
    readers: list[tuple[Assign, int]] = field(default_factory=list)  # and which operand the affine one is
    in_loop: bool = False  # a loop computes nothing anew
    array: str = ""


# ---- texts
class AffineBias:
    """Emits the tiles of one role that are kept so."""

    def __init__(self, tiles: TileEmitter):
        role: RoleEmitter = tiles.role
        self.tiles, self.role, self.checked = tiles, role, role.kernel.checked
        self.out: Writer = role.out
        self.candidates = candidates(self.checked, role.role, role.facts)
        self.arrays: dict[tuple[int, str], str] = {}  # id of a statement, name of a tile kept so that it reads -> its rows' shifts
        self.products = self._products()

    # ---- products that stay in registers
    def _products(self) -> list[SlopeProducts]:
        found: dict[object, SlopeProducts] = {}
        for stmt, chain in before(self.role.role.body):
            if id(stmt) not in self.candidates:
                continue
            assert isinstance(stmt, Assign)
            op, args = operation(self.checked, stmt.value)
            slopes = [(constant_slope(self.checked, args[added], self.tiles.slopes), added) for _, added in SLOPED[op]]
            slope, added = next(((s, i) for s, i in slopes if s is not None and s.number), (None, 0))
            start = self._known(slope, chain) if slope else None
            if slope is None or start is None:
                continue
            place = chain[start - 1][0] if start else None
            frag = self.role.fragment(self.role.tile_type(stmt.value))
            number = -slope.number if op == "-" else slope.number
            key = number, tuple(show(f) for f in slope.factors), id(place), frag.groups
            entry = found.setdefault(key, SlopeProducts(replace(slope, number=number), place, frag.groups))
            entry.readers.append((stmt, added))
            entry.in_loop |= any(isinstance(s, For) and inside for s, inside in chain[start:])
        kept, taken = [], 0
        for entry in found.values():
            taken += 2 * entry.groups
            if entry.in_loop and all(self._room(stmt) - taken >= ROOM for stmt, _ in entry.readers):
                entry.array = self.out.temp("products")
                kept.append(entry)
            else:
                taken -= 2 * entry.groups
        return kept

    def _known(self, slope: Slope, chain: tuple[tuple[Stmt, bool], ...]) -> int | None:
        """The place in a chain of statements from where on a slope stays the same; None if there is none."""
        start, role = 0, self.role.role
        for name in (slope.names & role.locals.keys()) - {role.index}:
            bound = self.role.facts.definitions[name]
            places = [i for i, (s, _) in enumerate(chain) if s is bound[0]]
            if len(bound) != 1 or not isinstance(bound[0], Assign) or not places:
                return None
            start = max(start, places[0] + 1)
        return start

    def _room(self, stmt: Assign) -> int:
        """Registers of the role left beside the tile that a statement makes, its exponentials as halves, and the other full tiles alive."""
        role = self.role.role
        alive = {n: t for n in self.role.facts.live_after[id(stmt)] | {stmt.targets[0]} if isinstance(t := role.locals.get(n), TileType)}
        arrays = sum(self.tiles.storage(n).count for n, t in alive.items() if shape_of(t) == "full")
        return (role.registers or 0) - arrays - self.tiles.storage(stmt.targets[0]).count // 2

    def bound(self, place: Stmt | None) -> list[str]:
        """The lines that compute the products of slopes known after a statement; None: at the start of the role."""
        lines: list[str] = []
        for p in self.products:
            if p.place is place:
                factors = [self.role.scalars.scalar(f) for f in p.slope.factors]
                slope = " * ".join(factors if factors and p.slope.number == 1 else [*factors, f"{p.slope.number}.f"])
                lines += [
                    f"float {p.array}[{2 * p.groups}];  // slope times column",
                    "#pragma unroll",
                    f"for (int c_ = 0; c_ < {2 * p.groups}; ++c_) {p.array}[c_] = {slope} * float(col + 8 * (c_ / 2) + c_ % 2);",
                    f"cuir::pin({p.array});",
                ]
        return lines

    # ---- statements and expressions
    def shift(self, name: str) -> str | None:
        """The array with the shift of each row of a name that the current statement reads; None if its tile is kept whole."""
        return self.arrays.get((id(self.role.current), name))

    def assign(self, stmt: Assign, frag: Fragment) -> bool:
        """Emits an assignment if its tile can be kept so; False if it is to be emitted as usual."""
        parts = self._parts(stmt.value) if id(stmt) in self.candidates else None
        if parts is None:
            return False
        name, (kept, added, line) = stmt.targets[0], parts
        slope, target, shift = line.slope, identifier(name), self.out.temp("shift")
        products = next((p for p in self.products for s, i in p.readers if s is stmt and i == added), None)
        if self.tiles.anchor is not None:
            slope = f"cuir::after({strip(slope)}, {self.tiles.anchor}[0])"
        rows = ", ".join(strip(line.rows[r if len(line.rows) > 1 else 0]) for r in range(frag.row_values))
        self.out.line(f"float {shift}[{frag.row_values}] = {{{rows}}};  // of each row: the tile is kept without it")
        self.out.line(f"cuir::pin({shift});")  # elsewhere they cost registers at the wrong place, and a spill

        def body(at: At) -> str:
            if products:
                product = f"{products.array}[{at.c}]"
            else:  # one for all rows
                f = self.tiles.hoist("float", (slope,), at)
                product = f"fmaf({f}, float({at.col}), {self.tiles.hoist('float', (f'{f} * float(col)',), at)})"
            return f"{target}[{at.i}] = {self.tiles.element(kept, at, 'full')} + {product};"

        self.tiles.loop("full", frag, body)
        self.arrays |= {(reader, name): shift for reader in self.candidates[id(stmt)]}
        where = "; slope times column stays in registers" if products else ""
        self.role.kernel.choice(f"what a bias adds alike along a row is kept apart, as one number a row{where}", self.out.span)
        return True

    def _parts(self, expr: Expr) -> tuple[Expr, int, Affine] | None:
        """What is kept of a sum, which operand is added to it, and that as an affine tile."""
        if affine(self.tiles, expr) is not None:
            return None
        op, args = operation(self.checked, expr)
        for kept, added in SLOPED[op]:
            line = affine(self.tiles, args[added], of_tile=True)  # the shift of all threads of a row, which share the maximum
            if line is not None and line.slope:
                return args[kept], added, line if op == "+" else line.negative
        return None

    def exponential(self, expr: Expr, at: At) -> str | None:
        """An element of exp2 of such a tile, its argument one multiply-add; None for other expressions."""
        op, args = operation(self.checked, expr)
        found = exponent(self.checked, args[0]) if op == "exp2" else None
        shift = self.shift(found.tile) if found else None
        if found is None or shift is None:
            return None
        t = self.role.role.locals[found.tile]
        assert isinstance(t, TileType)

        def offset(r: int) -> str:
            here = replace(at, r=str(r))
            v = self.tiles.element(found.offset, here, "rows")
            if found.factor is None:
                return f"{shift}[{r}] - ({strip(v)})"
            return f"fmaf({shift}[{r}], {strip(self.tiles.element(found.factor, here, 'rows'))}, -({strip(v)}))"

        rows = self.tiles.hoist("float", tuple(offset(r) for r in range(self.role.fragment(t).row_values)), at)
        x = self.tiles.read(found.tile, at)
        if found.factor is None:
            return f"cuir::ex2({x} + {rows})"
        return f"cuir::ex2(fmaf({x}, {strip(self.tiles.element(found.factor, at, 'full'))}, {rows}))"

    def row_max(self, x: Expr, target: str) -> None:
        """Adds the shift to the maximum of each row of x without it."""
        if isinstance(x, Name) and (shift := self.shift(x.id)):
            self.tiles.loop("rows", self.role.fragment(self.role.tile_type(x)), lambda at: f"{target}[{at.r}] += {shift}[{at.r}];")

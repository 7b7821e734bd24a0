"""Register tiles: their storage, and the loops that evaluate elementwise expressions of them. Owns no control flow and no product."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..syntax.nodes import Assign, Call, Expr, Literal, Name, Stmt, Subscript
from ..syntax.types import BOOL, F32, I32, Scalar, TileType
from .affine import Affine, affine
from .affine_bias import AffineBias
from .analysis import linear
from .columns import column_values
from .far import Reach, near
from .flat import called, names, operation, subexpressions
from .index_tiles import Below, Both, Condition, Linear, OfRow, Other, combined, compared, conjunction, negated, slope_of, slopes, zipped
from .layouts import Fragment, Shape, Storage, shape_of
from .lazy_rescale import LazyRescale
from .reciprocals import Reciprocals
from .registry import emitter
from .row_functions import by_rows
from .values import CTYPE, HALVES, strip, unsupported, wrapping
from .writer import identifier

if TYPE_CHECKING:
    from .role import RoleEmitter

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class At:
    """A place in a loop over a tile, as texts: element i of a full tile, row value r, column value c, column `col` less the thread's first."""

    i: str
    r: str
    c: str
    col: str


class TileEmitter:
    """Emits tile expressions of one role."""

    def __init__(self, role: RoleEmitter):
        self.role, self.out, self.checked = role, role.out, role.kernel.checked
        self.slopes = slopes(self.checked, role.role, role.facts.definitions)
        self.affine_bias, self.reciprocals, self.lazy_rescale = AffineBias(self), Reciprocals(self), LazyRescale(self)
        self.reach = Reach(self.checked, role.role.body)
        self.conditions: dict[str, Condition] = {}
        self._flags: dict[str, str | None] = {}
        self.sums: dict[str, str] = {}  # name of a full tile -> array with this thread's part of its row sums
        self.anchor: str | None = None  # an array that the current statement reads
        self._making: set[int] = set()  # expressions whose arrays are being filled
        self.whole: dict[str, str] = {}  # late sums that are summed over the quad -> array; until bound again, in one block

    # ---- storage
    def storage(self, name: str) -> Storage:
        t = self.role.role.locals[name]
        assert isinstance(t, TileType)
        return self.storage_of(t, self.slopes.get(name), name)

    def storage_of(self, t: TileType, slope: int | None = None, name: str | None = None) -> Storage:
        frag, shape = self.role.fragment(t), shape_of(t)
        count = {"one": 1, "rows": frag.row_values, "cols": 2 * frag.groups, "full": frag.count}[shape]
        if t.dtype == I32 and slope is not None:
            return Storage("linear", "int", frag.row_values if shape in ("rows", "full") else 1, slope)
        if t.dtype == BOOL and name is not None and self.limits_only(name):
            return Storage("condition", "bool", 0)
        if t.dtype in HALVES and shape == "full":
            return Storage("packed", "uint32_t", count // 2)
        return Storage("array", CTYPE[t.dtype], count)

    def limits_only(self, name: str) -> bool:
        """Whether a bool tile is bound once, to comparisons that are limits on rows and columns: then the limits are all there is to keep."""
        found = self.role.facts.definitions.get(name, [])
        return len(found) == 1 and isinstance(found[0], Assign) and self._limits(found[0].value)

    def _limits(self, expr: Expr) -> bool:
        if isinstance(expr, Name):
            return self.limits_only(expr.id)
        op, args = operation(self.checked, expr)
        if op in ("&", "|", "~"):
            return all(self._limits(a) for a in args)
        if op not in COMPARISONS or self.role.dtype(args[0]) != I32:
            return False
        a, b = (slope_of(self.checked, x, self.slopes) for x in args)
        return a is not None and b is not None and (a == b or (abs(a - b) == 1 and op not in ("==", "!=")))

    def declaration(self, name: str) -> str | None:
        s = self.storage(name)
        return None if s.kind == "condition" else f"{s.ctype} {identifier(name)}[{s.count}];"

    def decides(self, expr: Expr) -> bool:
        """Whether a tile or a part of it decides a comparison: it is computed as written."""
        return expr.decides

    # ---- loops
    def loop(self, shape: Shape, frag: Fragment, body: Callable[[At], str]) -> None:
        """An unrolled loop over a thread's values of a shape. `body` gives the text, and may write what must stand before the loop."""
        if shape == "one":
            self.out.line(body(At("0", "0", "0", "0")))
            return
        text = body(At("i_", "r_", "c_", "k_"))
        lines = []
        if shape == "full":
            lines = self.positions(frag)
            head = f"for (int i_ = 0; i_ < {frag.count}; ++i_)"
        elif shape == "cols":
            head = f"for (int c_ = 0; c_ < {2 * frag.groups}; ++c_)"
            lines = [("k_", "const int k_ = 8 * (c_ / 2) + c_ % 2;")]
        else:
            head = f"for (int r_ = 0; r_ < {frag.row_values}; ++r_)"
        needed = [line for name, line in lines if re.search(rf"\b{name}\b", text)]
        if not needed and "\n" not in text and len(text) < 130:
            self.out.line(f"#pragma unroll\n{head} {text}")
            return
        with self.out.block(f"#pragma unroll\n{head}"):
            for line in needed:
                self.out.line(line)
            self.out.line(text)

    def positions(self, frag: Fragment) -> list[tuple[str, str]]:
        """Declarations of row value, column value and column of element i_ of a full tile."""
        group = f"i_ / 4 % {frag.groups}" if frag.slabs > 1 else "i_ / 4"
        row = f"2 * (i_ / {4 * frag.groups}) + i_ / 2 % 2" if frag.slabs > 1 else "i_ / 2 % 2"
        return [
            ("r_", f"const int r_ = {row};"),
            ("c_", f"const int c_ = 2 * ({group}) + i_ % 2;"),
            ("k_", f"const int k_ = 8 * ({group}) + i_ % 2;"),
        ]

    def row_text(self, frag: Fragment, r: str) -> str:
        """The row, within the worker's tile, of a thread's r-th row value."""
        if frag.slabs == 1:
            return f"(row + 8 * {r})"
        return f"(row + {frag.slab} * ({r} / 2) + 8 * ({r} % 2))"

    # ---- elementwise expressions
    def element(self, expr: Expr, at: At, shape: Shape) -> str:
        """Text of one element; parts that are alike for all elements, or all of a row, are computed before the loop."""
        t = self.checked.type_of(expr)
        if isinstance(t, Scalar):
            return self.uniform(expr)
        assert isinstance(t, TileType)
        own = shape_of(t)
        if isinstance(expr, Name):
            return self.read(expr.id, at)
        if t.dtype == I32 and (value := self.linear(expr)) is not None:
            return self.linear_text(value, at)
        if own in ("rows", "one") and shape in ("full", "cols"):
            return f"{self.array(expr)}[{at.r if own == 'rows' else '0'}]"
        if t.dtype == BOOL:
            return self.condition_text(self.condition(expr, shape), at)
        op, args = operation(self.checked, expr)
        if op == "cast" and t.dtype.is_float and self.role.dtype(args[0]) == I32:
            return self.float_of(args[0], at, shape)
        if op == "gather":
            assert isinstance(expr, Subscript)
            if own == "cols" and (columns := column_values(self, expr)) is not None:
                return f"{columns}[{at.c}]"
            return self.role.views.gather(expr, lambda e: self.element(e, at, shape))
        if op in ("+", "-", "*", "neg") and t.dtype == F32 and (line := affine(self, expr)) is not None and line.slope:
            return self.affine_text(line, at)
        if text := self.reciprocals.text(expr, at) or self.reciprocals.alone(expr, at, shape) or self.affine_bias.exponential(expr, at):
            return text
        if op in ("zeros", "full"):
            bound = self.checked.call(expr).args  # type: ignore[arg-type]
            return self.uniform(bound["value"]) if "value" in bound else "0" if t.dtype == I32 else "0.f"
        if emitter(op, "tile"):
            if self.storage_of(t).kind == "packed":
                return f"cuir::unpack_{t.dtype}({self.array(expr)}, {at.i})"
            return f"{self.array(expr)}[{at.i if own == 'full' else at.r if own == 'rows' else at.c if own == 'cols' else '0'}]"
        if own == "rows" and (rows := by_rows(self, expr)) is not None:
            return f"{rows}[{at.r}]"
        return self.role.scalars.apply(op, args, expr, lambda e: self.element(e, at, shape))

    def uniform(self, expr: Expr) -> str:
        """A scalar, computed before the loop unless it is a name or a literal."""
        text = self.role.scalars.scalar(expr)
        if isinstance(expr, (Name, Literal)) or text in ("(-INFINITY)",):
            return strip(text) if text.startswith("(-I") else text
        known = self.role.hoisted.get(text)
        if known is None:
            known = self.out.temp("s")
            self.out.line(f"const {CTYPE[self.role.dtype(expr)]} {known} = {strip(text)};")
            self.role.hoisted[text] = known
        return known

    def read(self, name: str, at: At) -> str:
        t = self.role.role.locals[name]
        assert isinstance(t, TileType)
        s, ident, shape = self.storage(name), identifier(name), shape_of(t)
        if s.kind == "condition":
            return self.condition_text(self.conditions[name], at)
        if s.kind == "linear":
            return self.linear_text(self.named_linear(name), at)
        if s.kind == "packed":
            return f"cuir::unpack_{t.dtype}({ident}, {at.i})"
        if name in self.role.facts.deferred_row_sums:
            return f"{self.summed(name)}[{at.r}]"
        return f"{ident}[{ {'full': at.i, 'rows': at.r, 'cols': at.c, 'one': '0'}[shape] }]"

    def summed(self, name: str) -> str:
        """A late sum, summed over the quad once for the statements that follow each other in a block."""
        if name not in self.whole:
            t = self.role.role.locals[name]
            assert isinstance(t, TileType)
            frag, array = self.role.fragment(t), self.out.temp("sum")
            self.out.line(f"float {array}[{frag.row_values}];")
            self.loop("rows", frag, lambda at: f"{array}[{at.r}] = cuir::quad_sum({identifier(name)}[{at.r}]);")
            self.whole[name] = array
        return self.whole[name]

    def float_of(self, expr: Expr, at: At, shape: Shape) -> str:
        """cast(i32 tile, f32): one conversion a row if it is alike along the columns."""
        value = self.linear(expr)
        if value is None:
            return f"float({strip(self.element(expr, at, shape))})"
        if value.slope:
            return f"float({strip(self.linear_text(value, at))})"
        return self.hoist("float", tuple(f"float({strip(t)})" for t in value.rows), at)

    def affine_text(self, line: Affine, at: At) -> str:
        slope = line.slope if self.anchor is None else f"cuir::after({strip(line.slope)}, {self.anchor}[0])"
        # a call: the compiler would take the products, which never change, out of loops and run out of registers
        return f"fmaf({self.hoist('float', (slope,), at)}, float({at.col}), {self.hoist('float', line.rows, at)})"

    def hoist(self, ctype: str, texts: tuple[str, ...], at: At) -> str:
        """Texts that depend on the row alone, computed before the loop; the text to read them by."""
        key = f"{ctype}:{'|'.join(texts)}"
        name = self.role.hoisted.get(key)
        if name is None:
            if len(texts) == 1 and re.fullmatch(r"-?\w+", texts[0]):
                return texts[0]
            name = self.out.temp({"int": "limit", "bool": "ok", "float": "f"}[ctype])
            values = ", ".join(strip(t) for t in texts)
            self.out.line(f"const {ctype} {name} = {values};" if len(texts) == 1 else f"const {ctype} {name}[{len(texts)}] = {{{values}}};")
            self.role.hoisted[key] = name
        return name if len(texts) == 1 else f"{name}[{at.r}]"

    # ---- index tiles
    def named_linear(self, name: str) -> Linear:
        s = self.storage(name)
        return Linear(tuple(f"{identifier(name)}[{r}]" for r in range(s.count)), s.slope)

    def linear(self, expr: Expr) -> Linear | None:
        """An i32 scalar or tile as a number a row and a slope along the columns, if it is one."""
        t = self.checked.type_of(expr)
        if isinstance(t, Scalar):
            return Linear((self.role.scalars.scalar(expr),), 0)
        assert isinstance(t, TileType)
        frag, shape = self.role.fragment(t), shape_of(t)
        if isinstance(expr, Name):
            s = self.storage(expr.id)
            return self.named_linear(expr.id) if s.kind == "linear" else None
        op, args = operation(self.checked, expr)
        if shape == "one" and op in ("rows", "cols"):
            return Linear(("0",), 0)
        if op == "rows":
            return Linear(tuple(f"(row + {frag.row_offset(r)})" if frag.row_offset(r) else "row" for r in range(frag.row_values)), 0)
        if op == "cols":
            return Linear(("col",), 1)
        if op in ("zeros", "full"):
            bound = self.checked.call(expr).args  # type: ignore[arg-type]
            return Linear((self.role.scalars.scalar(bound["value"]) if "value" in bound else "0",), 0)
        if op in ("+", "-", "*", "neg"):
            parts = [self.linear(a) for a in args]
            if all(p is not None for p in parts):
                known = [p for p in parts if p is not None]
                slope = combined(op, [p.slope for p in known], args)
                if slope is not None:
                    plain = id(expr) in near(self.checked)
                    if op == "neg":
                        return Linear(tuple(wrapping("-", "0", x, plain) for x in known[0].rows), slope)
                    return Linear(zipped(lambda x, y: wrapping(op, x, y, plain), known[0].rows, known[1].rows), slope)
        if shape in ("rows", "one") and id(expr) not in self._making:
            array = self.array(expr)
            return Linear(tuple(f"{array}[{r}]" for r in range(frag.row_values if shape == "rows" else 1)), 0)
        return None

    def linear_text(self, value: Linear, at: At) -> str:
        base = value.rows[int(at.r)] if at.r.isdigit() and len(value.rows) > 1 else self.hoist("int", value.rows, at)
        return base if value.slope == 0 else f"({base} + {at.col})" if value.slope == 1 else f"({base} + {value.slope} * {at.col})"

    def condition(self, expr: Expr, shape: Shape) -> Condition:
        op, args = operation(self.checked, expr)
        if isinstance(expr, Name) and self.storage(expr.id).kind == "condition":
            return self.conditions[expr.id]
        if op in COMPARISONS and self.role.dtype(args[0]) == I32:
            a, b = self.linear(args[0]), self.linear(args[1])
            if a is not None and b is not None:
                steep = abs(a.slope - b.slope) == 1 and self.reach.far(args[0 if a.slope > b.slope else 1])
                if (found := compared(op, a, b, steep)) is not None:
                    return found
        if op in ("&", "|"):
            return conjunction([self.condition(a, shape) for a in args], op == "&")
        if op == "~":
            return negated(self.condition(args[0], shape))
        if isinstance(self.checked.type_of(expr), Scalar):
            return OfRow((self.uniform(expr),))
        if isinstance(expr, (Name, Subscript)):
            return Other(lambda at: self.element(expr, at, shape))  # type: ignore[arg-type]
        return Other(lambda at: self.role.scalars.apply(op, args, expr, lambda e: self.element(e, at, shape)))  # type: ignore[arg-type]

    def condition_text(self, c: Condition, at: At) -> str:
        if isinstance(c, Below):
            return f"({at.col} {'>=' if c.at_least else '<'} {self.hoist('int', c.limits, at)})"
        if isinstance(c, OfRow):
            return self.hoist("bool", c.texts, at)
        if isinstance(c, Other):
            return c.text(at)
        sign = " && " if isinstance(c, Both) else " || "
        return "(" + sign.join(self.condition_text(p, at) for p in c.parts) + ")"

    def settled(self, c: Condition, shape: Shape) -> Condition:
        """A condition that a name stands for: what its texts read is computed now."""
        at = At("i_", "r_", "c_", "k_")
        if isinstance(c, (Below, OfRow)):
            texts = c.limits if isinstance(c, Below) else c.texts
            ctype = "int" if isinstance(c, Below) else "bool"
            text = self.hoist(ctype, texts, at)
            stem = text.split("[")[0]
            if text in texts:  # a name that may be bound again before the condition is read
                stem = self.out.temp("limit")
                self.out.line(f"const {ctype} {stem} = {text};")
            fixed = (stem,) if len(texts) == 1 else tuple(f"{stem}[{r}]" for r in range(len(texts)))
            return Below(fixed, c.at_least) if isinstance(c, Below) else OfRow(fixed)
        if isinstance(c, Other):
            return c
        return type(c)(tuple(self.settled(p, shape) for p in c.parts))

    # ---- tiles made whole
    def array(self, expr: Expr) -> str:
        """The name of an array that holds a tile, evaluated now if the expression is no name."""
        t = self.checked.type_of(expr)
        assert isinstance(t, TileType)
        if isinstance(expr, Name):
            if expr.id in self.role.facts.deferred_row_sums:
                return self.summed(expr.id)
            if self.storage(expr.id).kind == "array":
                return identifier(expr.id)
        s = self.storage_of(t)
        key = f"array:{id(expr)}"
        if key not in self.role.hoisted:
            name = self.out.temp("t")
            self.out.line(f"{s.ctype} {name}[{s.count}];")
            self._making.add(id(expr))
            self.into(name, expr, t)
            self._making.discard(id(expr))
            self.role.hoisted[key] = name
        return self.role.hoisted[key]

    def packed(self, expr: Expr) -> str:
        """The name of an array with a full tile of halves in pairs: the order of an A operand."""
        if isinstance(expr, Name):
            return identifier(expr.id)
        return self.array(expr)

    def reduced(self, call: Call) -> Expr:
        """The tile whose rows row_max or row_sum reduces. Raises CuirError L002 for one of a single row or column."""
        x, what = self.checked.call(call).args["x"], f"`{self.checked.call(call).op.name}` of a tile with one row or one column"
        if shape_of(self.role.tile_type(x)) != "full":
            raise unsupported(what, call.span, "a column is its own maximum and sum; add a row to zeros(f32, [64, COLUMNS]), reduce that")
        return x

    def row_part(self, call: Call) -> str:
        """The array with this thread's part of row_sum(x)."""
        x = self.reduced(call)
        if isinstance(x, Name) and x.id in self.sums:
            return self.sums[x.id]
        frag, part = self.role.fragment(self.role.tile_type(call)), self.out.temp("part")
        array = self.array(x)
        self.out.line(f"float {part}[{frag.row_values}];\ncuir::row_part({array}, {part});")
        return part

    def into(self, target: str, expr: Expr, t: TileType, sums: str | None = None) -> None:
        """target[...] = expr, elementwise; `sums`: an array that takes this thread's part of the row sums, even and odd columns apart."""
        shape, frag = shape_of(t), self.role.fragment(t)
        op, _ = operation(self.checked, expr)
        if isinstance(expr, Call) and (emit := emitter(op, "tile")):
            assert sums is None, op
            emit(self.role, expr, target)
            return
        if self.storage_of(t).kind == "packed":
            self._into_packed(target, expr, t, frag)
            return
        if sums is None and self.reciprocals.into(target, expr, t):
            return
        index = {"full": "i_", "rows": "r_", "cols": "c_", "one": "0"}[shape]

        def body(at: At) -> str:
            text = f"{target}[{index}] = {strip(self.element(expr, at, shape))};"
            if sums is None:
                return text
            part, x = f"{sums}[2 * {at.r} + {at.i} % 2]", f"{target}[{at.i}]"  # no sum with zero: that would be an addition
            return f"{text}\n{part} = {at.i} % {4 * frag.groups} < 4 ? {x} : {part} + {x};"

        self.loop(shape, frag, body)

    def _into_packed(self, target: str, expr: Expr, t: TileType, frag: Fragment) -> None:
        op, args = operation(self.checked, expr)
        head = f"#pragma unroll\nfor (int p_ = 0; p_ < {frag.count // 2}; ++p_)"
        if isinstance(expr, Name):
            self.out.line(f"{head} {target}[p_] = {identifier(expr.id)}[p_];")
            return
        if (
            op == "cast"
            and isinstance(args[0], Name)
            and self.storage(args[0].id).kind == "array"
            and shape_of(self.role.tile_type(args[0])) == "full"
        ):
            x = identifier(args[0].id)
            self.out.line(f"{head} {target}[p_] = cuir::pack_{t.dtype}({x}[2 * p_], {x}[2 * p_ + 1]);")
            return
        pair = self.out.temp("v")
        source = args[0] if op == "cast" and self.role.dtype(args[0]).is_float else expr  # packing rounds
        text = self.element(source, At("i_", "r_", "c_", "k_"), "full")
        with self.out.block(head):
            self.out.line(f"float {pair}[2];")
            with self.out.block("#pragma unroll\nfor (int e_ = 0; e_ < 2; ++e_)"):
                self.out.line("const int i_ = 2 * p_ + e_;")
                for name, line in self.positions(frag):
                    if re.search(rf"\b{name}\b", text):
                        self.out.line(line)
                self.out.line(f"{pair}[e_] = {strip(text)};")
            self.out.line(f"{target}[p_] = cuir::pack_{t.dtype}({pair}[0], {pair}[1]);")

    # ---- assignments
    def assign(self, stmt: Assign, following: tuple[Stmt, ...]) -> None:
        name, value = stmt.targets[0], stmt.value
        t = self.role.role.locals[name]
        assert isinstance(t, TileType)
        target, s, frag = identifier(name), self.storage(name), self.role.fragment(t)
        if id(stmt) in self.role.facts.lazy:
            self.out.line(f"cuir::forget({target});\n{self.lazy_flag(name)} = 0;  // zeros: the next product starts anew")
            return
        self.anchor = next((identifier(n) for n in sorted(names(value)) if self._is_array(n)), None)
        self.sums.pop(name, None)
        if self.lazy_rescale.assign(stmt, following) or self.affine_bias.assign(stmt, frag):
            pass
        elif s.kind == "condition":
            self.conditions[name] = self.settled(self.condition(value, shape_of(t)), shape_of(t))
        elif s.kind == "linear":
            found = self.linear(value)
            assert found is not None
            for r in range(s.count):
                self.out.line(f"{target}[{r}] = {strip(found.rows[r if len(found.rows) > 1 else 0])};")
        elif name in self.role.facts.deferred_row_sums:
            self._late_sum(target, value, frag)
        elif factor := self._factor(name, value):
            self.rescale(target, factor, frag)
        elif s.kind == "array" and shape_of(t) == "full" and s.ctype == "float" and self._summed_later(name, value, following):
            parts, total = self.out.temp("parts"), self.out.temp("rows")
            self.out.line(f"float {parts}[{2 * frag.row_values}];  // row sums, even and odd columns apart")
            self.into(target, value, t, parts)
            self.out.line(f"float {total}[{frag.row_values}];")
            self.loop("rows", frag, lambda at: f"{total}[{at.r}] = {parts}[2 * {at.r}] + {parts}[2 * {at.r} + 1];")
            self.sums[name] = total
        else:
            self.into(target, value, t)
        self.whole.pop(name, None)
        if name not in names(value):
            self.holds(name)

    def lazy_flag(self, name: str) -> str | None:
        """The variable that says whether an accumulator holds a value (1) or is zero without being written (0); None if it is always written."""
        if name not in self._flags:
            lazy = any(id(d) in self.role.facts.lazy for d in self.role.facts.definitions[name])
            self._flags[name] = self.role.variable("int", f"{identifier(name)}_holds", "0") if lazy else None
        return self._flags[name]

    def holds(self, name: str) -> None:
        """An accumulator has been written."""
        if flag := self.lazy_flag(name):
            self.out.line(f"{flag} = 1;")

    def _is_array(self, name: str) -> bool:
        t = self.role.role.locals.get(name)
        return isinstance(t, TileType) and shape_of(t) == "full" and self.storage(name).ctype == "float"

    def _summed_later(self, name: str, value: Expr, following: tuple[Stmt, ...]) -> bool:
        """Whether row_sum(name) stands in a later statement of this block, before name is bound again or a loop or branch begins, and the value is made in a loop that can take sums."""
        if isinstance(value, Call) and emitter(operation(self.checked, value)[0], "tile"):
            return False
        for stmt in following:
            if not isinstance(stmt, Assign):
                if called(self.checked, getattr(stmt, "value", stmt)):  # type: ignore[arg-type]
                    continue
                return False
            for sub in subexpressions(stmt.value):
                if isinstance(sub, Call) and called(self.checked, sub) == "row_sum":
                    x = self.checked.call(sub).args["x"]
                    if isinstance(x, Name) and x.id == name:
                        return True
            if stmt.targets[0] == name:
                return False
        return False

    def _late_sum(self, target: str, value: Expr, frag: Fragment) -> None:
        def text(expr: Expr, at: At) -> str:
            if isinstance(expr, Name) and expr.id in self.role.facts.additive:
                return f"{identifier(expr.id)}[{at.r}]"
            op, args = operation(self.checked, expr)
            if op == "row_sum":
                assert isinstance(expr, Call)
                return f"{self.row_part(expr)}[{at.r}]"
            if op == "zeros":
                return "0.f"
            if not linear(self.checked, expr, self.role.facts.additive):
                return self.element(expr, at, "rows")
            return self.role.scalars.apply(op, args, expr, lambda e: text(e, at))

        self.loop("rows", frag, lambda at: f"{target}[{at.r}] = {strip(text(value, at))};")

    def _factor(self, name: str, value: Expr) -> Expr | None:
        """f of `x = x * f` with a full tile x and f a name of a value per row, or the literal 1.0."""
        op, args = operation(self.checked, value)
        if op != "*" or shape_of(self.role.tile_type(value)) != "full":
            return None
        for x, f in (args, args[::-1]):
            if isinstance(x, Name) and x.id == name and (isinstance(f, Name) or (isinstance(f, Literal) and f.value == 1.0)):
                t = self.checked.type_of(f)
                if isinstance(f, Literal) or (isinstance(t, TileType) and shape_of(t) == "rows"):
                    return f
        return None

    def accumulate(self, target: str, expr: Expr, t: TileType) -> None:
        """target = expr as the accumulator of a product; a factor per row of target itself may be skipped."""
        factor = next((f for n in self.role.role.locals if identifier(n) == target and (f := self._factor(n, expr))), None)
        if factor is not None:
            self.rescale(target, factor, self.role.fragment(t))
        else:
            self.into(target, expr, t)

    def rescale(self, target: str, factor: Expr, frag: Fragment) -> None:
        """target *= factor, skipped by a warp whose factors are all 1."""
        if isinstance(factor, Literal):
            return
        f = self.array(factor)
        self.role.kernel.choice("a product with a factor per row is skipped by a warp that finds all factors 1", self.out.span)
        test = " || ".join(f"{f}[{r}] != 1.f" for r in range(frag.row_values))
        with self.out.block(f"if (__any_sync(~0u, {test}))"):
            self.loop("full", frag, lambda at: f"{target}[{at.i}] *= {f}[{at.r}];")

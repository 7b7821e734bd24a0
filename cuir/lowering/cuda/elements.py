"""Texts of scalars and of elements of tiles, and the loops over a thread's elements that make a tile."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.ir import Operation, SSAValue

from ...ops.expressions import comparison
from ...ops.traits import BELOW, turned
from ...syntax.types import F32, I32
from ...text.diagnostics import CuirError
from ..ir import ops
from ..ir.indices import LimitOf
from ..ir.types import ScalarT, TileT, dtype_of, is_scalar
from ..passes.fusion import inlined
from . import operators, quads
from .layouts import Fragment
from .operators import strip
from .storage import CTYPE, HALVES, Storage

if TYPE_CHECKING:
    from .role import RolePrinter


@dataclass(frozen=True)
class At:
    """A place in a loop over a tile, as texts: element i of a full tile, row value r, column value c, column k less the thread's first."""

    i: str
    r: str
    c: str
    k: str


LOOP = At("i_", "r_", "c_", "k_")


class Elements:
    """Texts of one role's values."""

    def __init__(self, role: RolePrinter):
        self.role, self.out = role, role.out
        self.reciprocals: dict[
            Operation, str
        ] = {}  # while a loop over four neighbours is printed: divisions -> texts of the reciprocals that they share
        self.hoisted: dict[str, str] = {}  # texts computed before the loops of the current statement -> their names

    def fragment(self, t: TileT) -> Fragment:
        return Fragment(*t.shape, self.role.threads)

    # ---- scalars
    def scalar(self, value: SSAValue) -> str:
        owner = value.owner
        if isinstance(owner, ops.Constant):
            return operators.literal(owner.value, dtype_of(value))
        if not inlined(value) or isinstance(owner, ops.Parameter):
            return self.role.name(value)
        assert isinstance(owner, ops.Apply), owner
        return self.apply(owner, self.scalar)

    def apply(self, op: ops.Apply, text: Callable[[SSAValue], str]) -> str:
        """An operation on numbers, of operands whose texts `text` gives."""
        emit = self.role.kernel.target.text(op.op)
        if emit is None:
            raise CuirError.of("L001", f"the lowering has no meaning for `{op.entry.written}` here", self.role.span(op))
        t, facts = op.result.type, self.role.kernel.facts
        few = isinstance(t, ScalarT) or (isinstance(t, TileT) and t.layout.data in ("rows", "one", "partial"))
        cx = operators.Operation(
            dtype_of(op.arguments[1 if op.kind.chooses else 0]) if op.arguments else dtype_of(op.result),
            dtype_of(op.result),
            tuple(ops.known(a) for a in op.arguments),
            tuple(facts.nonnegative(a) for a in op.arguments),
            op.exact is not None,
            facts.near(op),
            few,
        )
        return emit(cx, *map(text, op.arguments))

    # ---- elements
    def element(self, value: SSAValue, at: At) -> str:
        """One element of a tile, or a scalar."""
        t = value.type
        if is_scalar(value):
            return self.scalar(value)
        assert isinstance(t, TileT), t
        if not inlined(value):
            return self.read(self.role.storage(value), t, at)
        op = value.owner
        assert isinstance(op, Operation)
        if isinstance(op, ops.Perform):
            return self.role.places.gather(op, lambda v: self.element(v, at))
        return self.computed(op, at)

    def read(self, s: Storage, t: TileT, at: At) -> str:
        """An element of an array."""
        if s.packed:
            return f"cuir::unpack_{t.dtype.data}({s.name}, {at.i})"
        return f"{s.name}[{index_of(t, at)}]"

    def row(self, frag: Fragment, r: str) -> str:
        """The row, within the worker's tile, of a thread's r-th row value."""
        if r.isdigit():
            offset = frag.row_offset(int(r))
            return f"(row + {offset})" if offset else "row"
        if frag.slabs == 1:
            return f"(row + 8 * {r})"
        return f"(row + {frag.slab} * ({r} / 2) + 8 * ({r} % 2))"

    def _limit(self, op: ops.Apply, at: At) -> str | None:
        """A column compared with a number a row: the column of the thread is taken off the limit before the loop, what is left is known when it is unrolled."""
        a, b = op.arguments
        columns, bound = (a, b) if _is_column(a) else (b, a)
        if not _is_column(columns) or (isinstance(bound.type, TileT) and bound.type.layout.data not in ("rows", "one")):
            return None
        t, places = bound.type, [LOOP]
        if isinstance(t, TileT) and t.layout.data == "rows":
            places = [At("", str(r), "", "") for r in range(self.fragment(t).row_values)]
        texts = [self._less_column(bound, p) for p in places]
        limit = self.hoist("int", texts, at)
        holds = op.kind.compares
        sign = comparison(holds if columns is a else turned(holds))
        return f"({at.k} {sign} {limit})"

    def _less_column(self, bound: SSAValue, at: At) -> str:
        """A limit less the thread's first column, without leaving the range."""
        op, facts = bound.owner, self.role.kernel.facts
        if isinstance(op, LimitOf) and not facts.far(op.x):  # else its sum with the column may wrap
            return f"cuir::limit<{op.plus.data}>({strip(self.element(op.y, at))}, cuir::add({strip(self.element(op.x, at))}, col))"
        if isinstance(op, ops.Apply) and op.kind.extremum and facts.far(bound):
            return f"{op.op}({', '.join(strip(self._less_column(a, at)) for a in op.arguments)})"
        text = self.element(bound, at)
        return f"cuir::limit<0>({strip(text)}, col)" if facts.far(bound) else f"({text} - col)"

    def hoist(self, ctype: str, texts: Sequence[str], at: At) -> str:
        """Texts that depend on the row alone, computed before the loop; the text to read them by."""
        key = f"{ctype}:{'|'.join(texts)}"
        name = self.hoisted.get(key)
        if name is None:
            name = self.hoisted[key] = self.out.temp({"int": "limit", "float": "f"}[ctype])
            values = ", ".join(strip(t) for t in texts)
            self.out.line(f"const {ctype} {name} = {values};" if len(texts) == 1 else f"const {ctype} {name}[{len(texts)}] = {{{values}}};")
        return name if len(texts) == 1 else f"{name}[{at.r}]"

    # ---- loops
    def loop(self, t: TileT, body: Callable[[At], str]) -> None:
        """An unrolled loop over a thread's values of a tile. `body` gives the text, and may write what must stand before the loop."""
        layout, frag = t.layout.data, self.fragment(t)
        if layout == "one":
            self.out.line(body(At("0", "0", "0", "0")))
            return
        text = body(LOOP)
        lines = []
        if layout == "full":
            lines = positions(frag)
            head = f"for (int i_ = 0; i_ < {frag.count}; ++i_)"
        elif layout == "columns":
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

    def into(self, target: Storage, value: SSAValue, expression: Operation | None = None) -> None:
        """target = value, element by element; `expression`: the operation to be computed, if the value is stored in target."""
        t = value.type
        if isinstance(t, ScalarT):
            assert expression is None or isinstance(expression, ops.Apply)
            text = self.scalar(value) if expression is None else self.apply(expression, self.scalar)
            self.out.line(f"{target.name} = {strip(text)};")
            return
        assert isinstance(t, TileT)

        def text_at(at: At) -> str:
            return self.element(value, at) if expression is None else self.computed(expression, at)

        if quads.into(self, target, t, value if expression is None else expression):
            return
        if target.packed:
            self._into_packed(target, t, value, expression, text_at)
            return
        self.loop(t, lambda at: f"{target.name}[{index_of(t, at)}] = {strip(text_at(at))};")

    def computed(self, op: Operation, at: At) -> str:
        """An element of an operation's result, whether or not that has a place of its own."""
        if (emit := self.role.kernel.target.element(op.name)) is not None:
            return emit(self, op, at)
        assert isinstance(op, ops.Apply), op
        if op.kind.index_of == "row":
            assert isinstance(op.result.type, TileT)
            return self.row(self.fragment(op.result.type), at.r) if op.result.type.shape[0] > 1 else "0"
        if op.kind.index_of == "column":
            assert isinstance(op.result.type, TileT)
            return f"(col + {at.k})" if op.result.type.shape[1] > 1 else "0"
        if op.kind.compares in BELOW and (text := self._limit(op, at)):
            return text
        return self.apply(op, lambda v: self.element(v, at))

    def _into_packed(self, target: Storage, t: TileT, value: SSAValue, expression: Operation | None, text_at: Callable[[At], str]) -> None:
        head = f"#pragma unroll\nfor (int p_ = 0; p_ < {target.count}; ++p_)"
        source = value if expression is None else None
        if source is not None and not inlined(source):
            self.out.line(f"{head} {target.name}[p_] = {self.role.storage(source).name}[p_];")
            return
        pack = f"cuir::pack_{t.dtype.data}"
        op = expression if expression is not None else value.owner
        if isinstance(op, ops.Apply) and op.kind.converts and dtype_of(op.arguments[0]).is_float:  # packing rounds
            x = op.arguments[0]
            if not inlined(x) and dtype_of(x) == F32:
                name = self.role.storage(x).name
                self.out.line(f"{head} {target.name}[p_] = {pack}({name}[2 * p_], {name}[2 * p_ + 1]);")
                return
            text = self.element(x, LOOP)
        else:
            text = text_at(LOOP)
        pair = self.out.temp("v")
        with self.out.block(head):
            self.out.line(f"float {pair}[2];")
            with self.out.block("#pragma unroll\nfor (int e_ = 0; e_ < 2; ++e_)"):
                self.out.line("const int i_ = 2 * p_ + e_;")
                for name, line in positions(self.fragment(t)):
                    if re.search(rf"\b{name}\b", text):
                        self.out.line(line)
                self.out.line(f"{pair}[e_] = {strip(text)};")
            self.out.line(f"{target.name}[p_] = {pack}({pair}[0], {pair}[1]);")

    def array(self, value: SSAValue) -> str:
        """The name of an array with a tile, made now if the tile has no place of its own."""
        if not inlined(value):
            return self.role.storage(value).name
        t = value.type
        assert isinstance(t, TileT)
        key = f"array:{id(value)}"
        if key not in self.hoisted:
            made = self.role.fresh(value)
            self.out.line(f"{made.ctype} {made.name}[{made.count}];")
            self.into(made, value)
            self.hoisted[key] = made.name
        return self.hoisted[key]


def index_of(t: TileT, at: At) -> str:
    return {"full": at.i, "rows": at.r, "partial": at.r, "columns": at.c, "one": "0"}[t.layout.data]


def positions(frag: Fragment) -> list[tuple[str, str]]:
    """Declarations of row value, column value and column of element i_ of a full tile."""
    group = f"i_ / 4 % {frag.groups}" if frag.slabs > 1 else "i_ / 4"
    row = f"2 * (i_ / {4 * frag.groups}) + i_ / 2 % 2" if frag.slabs > 1 else "i_ / 2 % 2"
    return [
        ("r_", f"const int r_ = {row};"),
        ("c_", f"const int c_ = 2 * ({group}) + i_ % 2;"),
        ("k_", f"const int k_ = 8 * ({group}) + i_ % 2;"),
    ]


def _is_column(value: SSAValue) -> bool:
    return ops.kind_of(value).index_of == "column"


__all__ = ["CTYPE", "HALVES", "I32", "LOOP", "At", "Elements", "index_of", "positions"]

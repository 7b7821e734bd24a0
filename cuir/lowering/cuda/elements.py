"""C++ expressions of scalars and of elements of tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Operation, SSAValue

from ...ops.expressions import comparison
from ...ops.traits import BELOW, exchange_operands
from ..ir import ops
from ..ir.ir_types import ScalarT, TileT, dtype_of, is_scalar
from ..ir.ir_walk import is_inlined
from ..ir.row_parts import LimitOf
from ..layouts.tile_layouts import Fragment
from ..select.number_ways import FAR, NEAR, UNSIGNED, WHOLE
from ..select.tile_ways import BOTH_SIDES
from ..select.ways import CHOICE, NUMBER, is_selected
from . import operator_text as operators
from .address_sums import Places
from .operator_text import strip
from .print_scope import LOOP, Position, Scope, index_of
from .variable_storage import Storage


class Elements:
    """C++ expressions of the elements of values, within one scope of the printed text."""

    def __init__(self, scope: Scope):
        self.scope, self.out = scope, scope.out
        self.places = Places(scope, self.scalar)
        # while a loop over four neighbours is printed: divisions -> texts of their shared reciprocals,
        # functions of angles -> texts of their results
        self.reciprocals: dict[Operation, str] = {}
        self.start_statement()

    def start_statement(self) -> None:
        """Forget the values computed for the previous statement."""
        self._hoisted: dict[str, str] = {}  # texts computed before the loops of the statement -> their names
        self.arrays: dict[SSAValue, str] = {}  # rematerialised tiles that the statement stored in arrays -> their names

    # ---- scalars
    def scalar(self, value: SSAValue) -> str:
        """Return the expression of a scalar."""
        owner = value.owner
        if isinstance(owner, ops.Constant):
            return operators.literal(owner.value, dtype_of(value))
        if not is_inlined(value) or isinstance(owner, ops.Parameter):
            return self.scope.name(value)
        assert isinstance(owner, ops.Apply), owner
        return self.apply(owner, self.scalar)

    def apply(self, op: ops.Apply, text: Callable[[SSAValue], str]) -> str:
        """Return the expression of an operation on numbers whose operands have the texts that `text` gives."""
        emit = self.scope.kernel.target.text(op.op)
        assert emit is not None, op.op
        t = op.result.type
        few = isinstance(t, ScalarT) or (isinstance(t, TileT) and not t.layout.varies_by_column)
        cx = operators.Operation(
            dtype_of(op.arguments[1 if op.kind.chooses else 0]) if op.arguments else dtype_of(op.result),
            dtype_of(op.result),
            tuple(ops.constant_value(a) for a in op.arguments),
            is_selected(op, UNSIGNED, NUMBER),
            op.exact is not None,
            NEAR in op.attributes,
            is_selected(op, WHOLE, NUMBER),
            few,
            is_selected(op, BOTH_SIDES, CHOICE),
        )
        return emit(cx, *map(text, op.arguments))

    # ---- elements
    def element(self, value: SSAValue, at: Position) -> str:
        """Return one element of a tile, or a scalar."""
        t = value.type
        if is_scalar(value):
            return self.scalar(value)
        assert isinstance(t, TileT), t
        if not is_inlined(value):
            return self.read(self.scope.storage(value), t, at)
        op = value.owner
        assert isinstance(op, Operation)
        if isinstance(op, ops.Perform):
            return self.places.gather(op, lambda v: self.element(v, at))
        return self.compute(op, at)

    def read(self, s: Storage, t: TileT, at: Position) -> str:
        """Return an element of an array."""
        if s.packed:
            return f"cuir::unpack_{t.dtype.data}({s.name}, {at.i})"
        return f"{s.name}[{index_of(t, at)}]"

    def row(self, frag: Fragment, r: str) -> str:
        """Return the row, within the worker's tile, of a thread's r-th row value."""
        if r.isdigit():
            offset = frag.row_offset(int(r))
            return f"(row + {offset})" if offset else "row"
        if frag.slabs == 1:
            return f"(row + 8 * {r})"
        return f"(row + {frag.slab} * ({r} / 2) + 8 * ({r} % 2))"

    def _compare_with_limit(self, op: ops.Apply, at: Position) -> str | None:
        """Return the comparison of a column with a number for each row, or None if `op` is no such comparison.

        The thread's first column is subtracted from the limit before the loop; the remaining column is constant once the
        loop is unrolled.
        """
        a, b = op.arguments
        columns, bound = (a, b) if _is_column(a) else (b, a)
        if not _is_column(columns) or (isinstance(bound.type, TileT) and not bound.type.layout.is_constant_along_rows):
            return None
        t, places, is_far = bound.type, [LOOP], FAR[columns is a] in op.attributes
        if isinstance(t, TileT) and t.layout.is_per_row:
            places = [Position("", str(r), "", "") for r in range(self.scope.fragment(t).row_values)]
        texts = [f"cuir::fixed({strip(self._subtract_column(bound, is_far, p))})" for p in places]
        limit = self.hoist("int", texts, at)
        holds = op.kind.compares
        sign = comparison(holds if columns is a else exchange_operands(holds))
        return f"({at.k} {sign} {limit})"

    def _subtract_column(self, bound: SSAValue, is_far: bool, at: Position) -> str:
        """Return a limit less the thread's first column, saturated to the i32 range.

        `is_far` says that the limit is far from the ends of 32 bits.
        """
        op = bound.owner
        if isinstance(op, LimitOf) and (op.sums is not None or FAR[0] in op.attributes):  # x + column may wrap else
            return f"cuir::limit<{op.plus.data}>({strip(self.element(op.y, at))}, cuir::add({strip(self.element(op.x, at))}, col))"
        if isinstance(op, ops.Apply) and op.kind.extremum and not is_far:
            parts = (strip(self._subtract_column(a, far in op.attributes, at)) for far, a in zip(FAR, op.arguments, strict=True))
            return f"{op.op}({', '.join(parts)})"
        text = self.element(bound, at)
        return f"({text} - col)" if is_far else f"cuir::limit<0>({strip(text)}, col)"

    def hoist(self, ctype: str, texts: Sequence[str], at: Position, index: str | None = None) -> str:
        """Compute texts before the loop and return the text that reads them.

        The texts depend only on the row, or on `index`.
        """
        key = f"{ctype}:{'|'.join(texts)}"
        name = self._hoisted.get(key)
        if name is None:
            name = self._hoisted[key] = self.out.temp({"int": "limit", "float": "f", "unsigned": "word"}[ctype])
            values = ", ".join(strip(t) for t in texts)
            self.out.line(f"const {ctype} {name} = {values};" if len(texts) == 1 else f"const {ctype} {name}[{len(texts)}] = {{{values}}};")
        return name if len(texts) == 1 else f"{name}[{index or at.r}]"

    def compute(self, op: Operation, at: Position) -> str:
        """Return an element of an operation's result, stored or not."""
        if (emit := self.scope.kernel.target.element(op.name)) is not None:
            return emit(self, op, at)
        assert isinstance(op, ops.Apply), op
        if op.kind.index_of == "row":
            assert isinstance(op.result.type, TileT)
            return self.row(self.scope.fragment(op.result.type), at.r) if op.result.type.shape[0] > 1 else "0"
        if op.kind.index_of == "column":
            assert isinstance(op.result.type, TileT)
            return f"(col + {at.k})" if op.result.type.shape[1] > 1 else "0"
        if op.kind.compares in BELOW and (text := self._compare_with_limit(op, at)):
            return text
        if op in self.reciprocals:
            return self.reciprocals[op]
        return self.apply(op, lambda v: self.element(v, at))


def _is_column(value: SSAValue) -> bool:
    return ops.kind_of(value).index_of == "column"

"""Statements that define tiles: loops over a thread's elements, packed halves, temporary arrays."""

from __future__ import annotations

import re
from collections.abc import Callable

from xdsl.ir import Operation, SSAValue

from ...syntax.types import F32
from ..ir import ops
from ..ir.inlining import is_inlined
from ..ir.ir_types import ScalarT, TileT, dtype_of
from . import quad_loops
from .elements import Elements
from .loops import LOOP, Position, index_of, positions
from .operator_text import strip
from .variable_storage import Storage, make_storage


class TileEmitter(Elements):
    """Emitter of the tiles of a role."""

    def emit_loop(self, t: TileT, body: Callable[[Position], str]) -> None:
        """Emit an unrolled loop over a thread's values of a tile.

        `body` returns the text, and may emit what must precede the loop.
        """
        frag, by_row, by_column = self.scope.fragment(t), t.layout.varies_by_row, t.layout.varies_by_column
        if not by_row and not by_column:
            self.out.line(body(Position("0", "0", "0", "0")))
            return
        text = body(LOOP)
        lines = []
        if by_row and by_column:
            lines = positions(frag)
            head = f"for (int i_ = 0; i_ < {frag.count}; ++i_)"
        elif by_column:
            head = f"for (int c_ = 0; c_ < {t.layout.count(t.shape, self.scope.threads)}; ++c_)"
            if t.layout.has_accumulator_columns:
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

    def assign(self, target: Storage, value: SSAValue, expression: Operation | None = None) -> None:
        """Emit `target = value`, element by element.

        `expression` is the operation to compute if the value is stored in target.
        """
        t = value.type
        if isinstance(t, ScalarT):
            assert expression is None or isinstance(expression, ops.Apply)
            text = self.scalar(value) if expression is None else self.apply(expression, self.scalar)
            self.out.line(f"{target.name} = {strip(text)};")
            return
        assert isinstance(t, TileT)

        def text_at(at: Position) -> str:
            return self.element(value, at) if expression is None else self.compute(expression, at)

        if quad_loops.assign_shared(self, target, t, value if expression is None else expression):
            return
        if target.packed:
            self._assign_packed(target, t, value, expression, text_at)
            return
        self.emit_loop(t, lambda at: f"{target.name}[{index_of(t, at)}] = {strip(text_at(at))};")

    def _assign_packed(
        self, target: Storage, t: TileT, value: SSAValue, expression: Operation | None, text_at: Callable[[Position], str]
    ) -> None:
        head = f"#pragma unroll\nfor (int p_ = 0; p_ < {target.count}; ++p_)"
        source = value if expression is None else None
        if source is not None and not is_inlined(source):
            self.out.line(f"{head} {target.name}[p_] = {self.scope.storage(source).name}[p_];")
            return
        pack = f"cuir::pack_{t.dtype.data}"
        op = expression if expression is not None else value.owner
        if isinstance(op, ops.Apply) and op.kind.converts and dtype_of(op.arguments[0]).is_float:  # packing rounds
            x = op.arguments[0]
            if not is_inlined(x) and dtype_of(x) == F32:
                name = self.scope.storage(x).name
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
                for name, line in positions(self.scope.fragment(t)):
                    if re.search(rf"\b{name}\b", text):
                        self.out.line(line)
                self.out.line(f"{pair}[e_] = {strip(text)};")
            self.out.line(f"{target.name}[p_] = {pack}({pair}[0], {pair}[1]);")

    def array(self, value: SSAValue) -> str:
        """Return the name of an array with a tile, emitting one if the tile is not stored."""
        if not is_inlined(value):
            return self.scope.storage(value).name
        t = value.type
        assert isinstance(t, TileT)
        if value not in self.arrays:
            temporary = make_storage(t, self.scope.threads, self.out.temp("t"))
            self.out.line(f"{temporary.ctype} {temporary.name}[{temporary.count}];")
            self.assign(temporary, value)
            self.arrays[value] = temporary.name
        return self.arrays[value]

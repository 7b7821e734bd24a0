"""Statements that define tiles: loops over a thread's elements, packed halves, temporary arrays.

Loops over four neighbours in a row that share work, and the texts of the shared operations.

Neighbours share a reciprocal (`tile.by_reciprocal shared`, `tile.shared_tanh`) or the branch for large angles.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext

from xdsl.ir import Operation, SSAValue

from ...syntax.types import F32
from ..ir import ops
from ..ir.ir_types import ScalarT, TileT, dtype_of
from ..ir.ir_walk import is_inlined
from ..ir.machine_tiles import LARGEST, ByReciprocal, SharedTanh
from ..layouts.tile_layouts import Fragment
from ..select.tile_ways import Site, find_sites
from ..select.ways import find_selection
from .elements import Elements
from .operator_text import strip
from .print_scope import LOOP, Position, index_of, positions
from .variable_storage import Storage, make_storage

SMALL = 0.5999  # below it tanh is a polynomial: 0.6, less the rounding error of the product
_TWICE_LOG2E = "2.885390081777927f"
_SMALL = "small"  # in place of the text of a reciprocal: the argument is small


def assign_shared(elements: Elements, target: Storage, t: TileT, value: SSAValue | Operation) -> bool:
    """Emit `target = value` if its loop shares reciprocals, and return whether it did.

    `value` may be an operation, whose result is stored in target.
    """
    root = value.owner if isinstance(value, SSAValue) and is_inlined(value) else value
    if not isinstance(root, Operation) or not t.layout.is_accumulator or (selection := find_selection(root)) is None:
        return False
    sites = find_sites(root)
    packed: str | None = None
    if target.packed:  # packing rounds
        packed = f"cuir::pack_{t.dtype.data}"
        if isinstance(root, ops.Apply) and root.kind.converts and dtype_of(root.arguments[0]) == F32:
            source = root.arguments[0].owner
            assert isinstance(source, Operation)
            root = source
    loops = _Loops(elements, elements.scope.fragment(t), lambda: strip(elements.compute(root, LOOP)))
    small = selection.way == "polynomials or fours"
    if small:
        (site,) = sites
        assert isinstance(site, SharedTanh)
        loops.emit_small_arguments(site, target)
    with elements.out.block("else") if small else nullcontext():
        loops.emit_shared(sites, target, packed)
    return True


class _Loops:
    """The loops of one tile.

    `text` returns an element of it.
    """

    def __init__(self, elements: Elements, frag: Fragment, text: Callable[[], str]):
        self.elements, self.out, self.frag, self.text = elements, elements.out, frag, text

    def emit_line(self, line: str, positions: list[tuple[str, str]]) -> None:
        """Emit a line of a loop over i_, after the positions that it reads."""
        for name, declaration in positions:
            if re.search(rf"\b{name}\b", line):
                self.out.line(declaration)
        self.out.line(line)

    def emit_shared(self, sites: list[Site], target: Storage, packed: str | None) -> None:
        """Emit the loop over groups of four with their shared values."""
        divisors: list[tuple[str, str, str]] = []
        self.elements.reciprocals = {}
        for site in sites:
            array = self.out.temp("d")
            divisors.append((array, strip(_get_argument(self.elements, site, LOOP)), _get_function_of_four(site)))
            self.elements.reciprocals[site] = f"{array}[e_]"
        text = self.text()
        self.elements.reciprocals = {}
        places = positions(self.frag)
        index = "const int i_ = 8 * (g_ / 2) + 2 * (g_ % 2) + 4 * (e_ / 2) + e_ % 2;"
        with self.out.block(f"#pragma unroll\nfor (int g_ = 0; g_ < {self.frag.count // 4}; ++g_)"):
            for array, divisor, function in divisors:
                self.out.line(f"float {array}[4];  // elements of one row")
                with self.out.block("#pragma unroll\nfor (int e_ = 0; e_ < 4; ++e_)"):
                    self.out.line(index)
                    self.emit_line(f"{array}[e_] = {divisor};", places)
                self.out.line(f"{function}({array});")
            array_name = target.name
            if packed:
                array_name = self.out.temp("v")
                self.out.line(f"float {array_name}[4];")
            with self.out.block("#pragma unroll\nfor (int e_ = 0; e_ < 4; ++e_)"):
                self.out.line(index)
                self.emit_line(f"{array_name}[{'e_' if packed else 'i_'}] = {text};", places)
            if packed:
                first = "4 * (g_ / 2) + g_ % 2 + 2 * h_"
                self.out.line(
                    f"#pragma unroll\nfor (int h_ = 0; h_ < 2; ++h_) {target.name}[{first}] = {packed}({array_name}[2 * h_], {array_name}[2 * h_ + 1]);"
                )

    def emit_small_arguments(self, site: SharedTanh, target: Storage) -> None:
        """Emit polynomials where no thread of the warp has a greater argument."""
        self.elements.reciprocals = {site: _SMALL}
        text = self.text()
        self.elements.reciprocals = {}
        places, most = positions(self.frag), self.out.temp("most")
        loop = f"#pragma unroll\nfor (int i_ = 0; i_ < {self.frag.count}; ++i_)"
        self.out.line(f"float {most} = 0.f;  // the greatest magnitude")
        with self.out.block(loop):
            self.emit_line(f"{most} = fmaxf({most}, fabsf({self.elements.element(site.x, LOOP)}));", places)
        factor = "" if site.factor is None else f" * fabsf({strip(self.elements.scalar(site.factor))})"
        with self.out.block(f"if (!__any_sync(~0u, !({most}{factor} < {SMALL}f)))"):
            self.out.line("// polynomials, where no thread of the warp has a greater argument")
            with self.out.block(loop):
                self.emit_line(f"{target.name}[i_] = {text};", places)


def _get_function_of_four(site: Site) -> str:
    """Return the function that replaces four arguments by their shared results."""
    if isinstance(site, ops.Apply):
        return f"cuir::sines<{site.kind.quarters}>"
    nans = (
        isinstance(site, ByReciprocal) and site.spreads is None
    )  # a NaN among four divisors must leave the other three alone: there is none in a tanh
    return f"cuir::reciprocals<{'true' if nans else 'false'}>"


def _get_argument(elements: Elements, site: Site, at: Position) -> str:
    """Return the argument of a site for an element: a divisor, or an angle."""
    if isinstance(site, ops.Apply):
        return elements.element(site.arguments[0], at)
    if isinstance(site, ByReciprocal):
        return elements.element(site.y, at)
    factor = _TWICE_LOG2E
    if site.factor is not None:  # one product for both factors
        factor = elements.hoist("float", (f"{_TWICE_LOG2E} * {elements.scalar(site.factor)}",), at)
    return f"1.f + cuir::ex2(fminf(fabsf({factor} * {elements.element(site.x, at)}), {LARGEST}f))"  # tanh is 1 from 2^25 on


def quotient(elements: Elements, op: ByReciprocal, at: Position) -> str:
    """Return an element of x times the reciprocal of y."""
    reciprocal = elements.reciprocals.get(op) or f"cuir::reciprocal({strip(elements.element(op.y, at))})"
    return reciprocal if op.x is None else f"({elements.element(op.x, at)} * {reciprocal})"


def tanh(elements: Elements, op: SharedTanh, at: Position) -> str:
    """Return an element of a hyperbolic tangent of `x * factor`."""
    x = elements.element(op.x, at)
    x = strip(x) if op.factor is None else f"{x} * {elements.scalar(op.factor)}"
    reciprocal = elements.reciprocals.get(op)
    if reciprocal is None:
        return f"cuir::tanh({x})"
    return f"cuir::tanh_small({x})" if reciprocal == _SMALL else f"cuir::tanh_large({x}, {reciprocal})"


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

        if assign_shared(self, target, t, value if expression is None else expression):
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

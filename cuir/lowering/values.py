"""Texts of scalar expressions, and what both scalars and elements of tiles need: literals, C++ types, tensor elements. Owns no statement."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..checking.views import Drop, view_of
from ..syntax.nodes import Expr, Literal, Name, Subscript
from ..syntax.types import BF16, BOOL, F16, F32, I32, DType, Scalar, SharedView, TileType
from ..text.diagnostics import CuirError
from ..text.source import Span
from .analysis import nonnegative
from .far import near
from .flat import integer, operation
from .registry import emitter
from .writer import identifier

if TYPE_CHECKING:
    from .emission import KernelEmitter

CTYPE = {F32: "float", I32: "int", BOOL: "bool", F16: "float", BF16: "float"}  # of a value in registers: halves are computed on as floats
MEMORY = {F32: "float", I32: "int", BOOL: "bool", F16: "__half", BF16: "__nv_bfloat16"}  # of an element in memory
HALVES = (F16, BF16)


def unsupported(what: str, span: Span, hint: str | None = None) -> CuirError:
    return CuirError.of("L002", f"the lowering cannot do this yet: {what}", span, hint)


@dataclass(frozen=True)
class Operation:
    """What the emitter of an elementwise operation sees beside its operands' texts."""

    args: tuple[Expr, ...]
    dtype: DType  # of the operands (of the second for `where` and `ifexp`)
    result: DType
    nonnegative: Callable[[Expr], bool]  # certainly not negative
    inverse: Callable[[Expr], str | None]  # of a divisor that never changes
    decides: bool = False  # floats are computed as written: nothing fused, quotients correctly rounded
    near: bool = False  # i32 arithmetic that stays within 32 bits
    few: bool = False  # a scalar or a number a row: a branch for what is rare costs little

    def rounded(self, text: str) -> str:
        """A result rounded to the dtype. Halves are computed in f32: one rounding more changes no result of one operation."""
        return text if self.result not in HALVES else f"cuir::round_{self.result}({text})"

    def constant(self, i: int) -> int | None:
        return integer(self.args[i])


def literal(value: int | float | bool, dtype: DType) -> str:
    if dtype == BOOL:
        return "true" if value else "false"
    if dtype == I32:
        return str(int(value)) if int(value) >= -(2**31) + 1 else "(-2147483647 - 1)"
    return f"{float(value)!r}f"


_WRAPPING = {"+": "add", "-": "sub", "*": "mul"}


def wrapping(sign: str, x: str, y: str, near: bool = False) -> str:
    """Arithmetic on ints that wraps at 32 bits: of plain ints the compiler assumes that it does not. near: it does not (far.py)."""
    if near or (re.fullmatch(r"\d{1,9}", x) and re.fullmatch(r"\d{1,4}", y)):
        return f"({x} {sign} {y})"
    return f"cuir::{_WRAPPING[sign]}({strip(x)}, {strip(y)})"


def strip(text: str) -> str:
    """Without the parentheses around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]


def summand(text: str) -> str:
    """The text as a summand: in parentheses unless it is a sum of products itself."""
    text = strip(text)
    return text if re.fullmatch(r"[\w\s+*\[\]]*", text) else f"({text})"


@dataclass
class Scalars:
    """Emits scalar expressions of a role or of the kernel's frame."""

    kernel: KernelEmitter
    nonnegative_names: set[str] = field(default_factory=set)
    inverse: Callable[[Expr], str | None] = lambda _: None
    carried: Callable[[Expr], str | None] = lambda _: None  # the name of a variable that holds the expression's value
    shared: bool = True  # for several roles, in one of which an equal value may decide

    def nonnegative(self, expr: Expr) -> bool:
        return nonnegative(self.kernel.checked, expr, self.nonnegative_names)

    def dtype(self, expr: Expr) -> DType:
        found = self.kernel.checked.type_of(expr)
        assert isinstance(found, (Scalar, TileType, SharedView)), found
        return found.dtype

    def scalar(self, expr: Expr) -> str:
        checked = self.kernel.checked
        if isinstance(expr, Literal):
            return literal(expr.value, self.dtype(expr))
        if isinstance(expr, Name):
            return "INFINITY" if expr.id == "inf" else identifier(expr.id)
        if name := self.carried(expr):
            return name
        op, args = operation(checked, expr)
        if op == "element":
            assert isinstance(expr, Subscript)
            return self.element(expr, self.scalar)
        if op == "nbytes":
            view = checked.type_of(args[0])
            assert isinstance(view, SharedView)
            return str(self.kernel.nbytes(args[0], view))
        if op == "cta_rank":
            return "int(cute::block_rank_in_cluster())"
        return self.apply(op, args, expr, self.scalar)

    def apply(self, op: str, args: list[Expr], expr: Expr, text: Callable[[Expr], str]) -> str:
        """An elementwise operation on operands whose texts `text` gives."""
        emit = emitter(op, "value")
        if emit is None:
            raise CuirError.of("L001", f"the lowering has no meaning for `{op}` here", expr.span)
        values = [a for a in args if isinstance(self.kernel.checked.find_type(a), (Scalar, TileType))]
        first = values[1] if op in ("where", "ifexp") else values[0]
        checked = self.kernel.checked
        t, plain, decides = checked.type_of(expr), id(expr) in near(checked), self.shared or expr.decides
        few = not isinstance(t, TileType) or t.cols == 1
        known = Operation(tuple(values), self.dtype(first), self.dtype(expr), self.nonnegative, self.inverse, decides, plain, few)
        return str(emit(known, *map(text, values)))

    # ---- elements of tensors
    def element(self, expr: Subscript, text: Callable[[Expr], str]) -> str:
        """The element of a tensor or shared array at scalar indices; an f16 or bf16 one as a float."""
        assert isinstance(expr.value, Name)
        name = expr.value.id
        if name in self.kernel.checked.shared:
            return self.shared_element(expr, text)
        indices = [text(i) for i in expr.indices]  # type: ignore[arg-type]
        return self.kernel.tensor_read(name, self.kernel.index(name, indices))

    def shared_element(self, expr: Subscript, text: Callable[[Expr], str]) -> str:
        assert isinstance(expr.value, Name)
        alloc = self.kernel.checked.shared[expr.value.id]
        view = view_of(expr, len(alloc.dims))
        assert view is not None
        drops = [p for p in view.parts if isinstance(p, Drop)]
        row = "0"
        for part, dim in zip(drops[:-1], alloc.dims[:-1], strict=True):
            row = text(part.index) if row == "0" else f"({row} * {dim} + {text(part.index)})"
        col = f"{text(drops[-1].index)} * {alloc.dtype.itemsize}"
        if alloc.panelled:
            stage = f"({row}) / {alloc.rows} * {alloc.rows * alloc.row_bytes}"
            where = f"cuir::at<{alloc.rows}>(smem_address + {alloc.offset} + {stage}, ({row}) % {alloc.rows}, {col})"
        else:
            where = f"smem_address + {alloc.offset} + ({row}) * {alloc.row_bytes} + {col}"
        return f"cuir::get<{MEMORY[alloc.dtype]}>({where})"

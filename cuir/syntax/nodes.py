"""The AST of CuIR text: frozen, compared without spans, comments and the checker's marks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ..text.notebook import ShownInNotebooks
from ..text.source import Source, Span
from .types import Type

NOWHERE = Span(Source("<built>", ""), 1, 1, 1, 1)


@dataclass(frozen=True)
class Comments:
    """Comment lines above a node and the one behind its first line, without the `#` stripped."""

    lead: tuple[str, ...] = ()
    trail: str | None = None


@dataclass(frozen=True, kw_only=True)
class Node:
    span: Span = field(default=NOWHERE, compare=False, repr=False)


# ---- expressions
@dataclass(frozen=True, kw_only=True)
class Typed(Node):
    """An expression, with marks that the checker writes on flat trees; a source tree has none of them."""

    type: Type | None = field(default=None, init=False, compare=False, repr=False)
    place: bool = field(default=False, init=False, compare=False, repr=False)  # a call accesses it; its effects say how


@dataclass(frozen=True)
class Name(Typed):
    id: str


@dataclass(frozen=True)
class Literal(Typed):
    """An int, a float or a bool.

    `1 == 1.0 == True` in Python, so equality includes the kind.
    """

    value: int | float | bool
    kind: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", type(self.value).__name__)


@dataclass(frozen=True)
class Str(Typed):
    """A role's name, or another word that a primitive takes; no value of the language."""

    value: str


@dataclass(frozen=True)
class Unary(Typed):
    op: str  # - ~ not
    operand: Expr


BINDS = {
    "or": 1, "and": 2, "==": 4, "!=": 4, "<": 4, "<=": 4, ">": 4, ">=": 4,
    "|": 5, "^": 6, "&": 7, "+": 8, "-": 8, "*": 9, "/": 9, "//": 9, "%": 9,
}  # Python's precedences: a higher number binds tighter; `not` has 3  # fmt: skip


@dataclass(frozen=True)
class Binary(Typed):
    """A binary operation.

    Arithmetic `+ - * / // % & | ^`, comparisons `== != < <= > >=`, and `and or`; comparisons never chain.
    """

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class IfExp(Typed):
    """A lazy choice `then if cond else other` on scalars."""

    cond: Expr
    then: Expr
    other: Expr


@dataclass(frozen=True)
class Keyword(Node):
    name: str
    value: Expr


class Bound(Protocol):
    """The checker's binding of a call: checking/checked.py implements it."""

    def onto(self, old: Call, new: Call) -> Bound | None: ...


@dataclass(frozen=True)
class Call(Typed):
    func: Expr  # Name, or Attribute for a barrier's methods
    args: tuple[Expr, ...] = ()
    keywords: tuple[Keyword, ...] = ()
    bound: Bound | None = field(default=None, init=False, compare=False, repr=False)


@dataclass(frozen=True)
class Attribute(Typed):
    value: Expr
    attr: str


@dataclass(frozen=True)
class Slice(Node):
    """A slice `:` (both None) or `start : stop`."""

    start: Expr | None = None
    stop: Expr | None = None


@dataclass(frozen=True)
class Subscript(Typed):
    value: Expr
    indices: tuple[Expr | Slice, ...]


@dataclass(frozen=True)
class Tuple(Typed):
    items: tuple[Expr, ...]


@dataclass(frozen=True)
class List(Typed):
    """The dims of a shape, `[R, C]`."""

    items: tuple[Expr, ...]


Expr = Name | Literal | Str | Unary | Binary | IfExp | Call | Attribute | Subscript | Tuple | List


# ---- statements
@dataclass(frozen=True, kw_only=True)
class Commented(Node):
    comments: Comments = field(default=Comments(), compare=False, repr=False)


@dataclass(frozen=True)
class Assign(Commented):
    """An assignment `a, b = value`; one target stands without a comma."""

    targets: tuple[str, ...]
    value: Expr


@dataclass(frozen=True)
class AugAssign(Commented):
    target: str
    op: str  # + - * / // %
    value: Expr


@dataclass(frozen=True)
class ExprStmt(Commented):
    value: Expr


@dataclass(frozen=True)
class For(Commented):
    target: str
    iter: Expr  # a call of range, or the name that `tiles` was bound to
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class If(Commented):
    """A branch; `elif` is an `If` alone in `orelse`."""

    cond: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@dataclass(frozen=True)
class With(Commented):
    """A role: `with role(...) as name:`."""

    call: Call
    name: str | None
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Return(Commented):
    value: Expr


Stmt = Assign | AugAssign | ExprStmt | For | If | With | Return


# ---- definitions
@dataclass(frozen=True)
class Constant(Commented):
    """A constant `NAME = literal` (an int, float or bool, possibly negated)."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Func(Commented):
    name: str
    params: tuple[str, ...]
    body: tuple[Stmt, ...]  # the last is the only Return

    def __repr__(self) -> str:
        return f"Func({self.name}({', '.join(self.params)}))"


@dataclass(frozen=True)
class GlobalType(Node):
    dtype: str  # a dtype, or the name of a const parameter
    dims: tuple[str | int, ...]
    scratch: bool = False  # memory of the launch: nobody else reads or fills it


@dataclass(frozen=True)
class ScalarType(Node):
    dtype: str  # i32 f32 bool


@dataclass(frozen=True)
class ConstType(Node):
    pass


@dataclass(frozen=True)
class Param(Node):
    """A kernel's parameter; `const` ones stand after `*`."""

    name: str
    type: GlobalType | ScalarType | ConstType
    default: Expr | None = None

    @property
    def scratch(self) -> bool:
        return isinstance(self.type, GlobalType) and self.type.scratch


@dataclass(frozen=True)
class Kernel(Commented):
    name: str
    params: tuple[Param, ...]
    body: tuple[Stmt, ...]
    arch: str
    # CTAs of a cluster: an integer, a const parameter or an expression of these, or a tuple of two, (along x, along y);
    # None: 1
    cluster: Expr | None = None

    def __repr__(self) -> str:
        return f"Kernel({self.name}({', '.join(p.name for p in self.params)}), {self.arch})"


Definition = Constant | Func | Kernel


@dataclass(frozen=True)
class Program(Node, ShownInNotebooks):
    html_renderer = "pages.program_html:render_program"
    items: tuple[Definition, ...]
    tail: tuple[str, ...] = field(default=(), compare=False, repr=False)  # comment lines after the last definition

    def __repr__(self) -> str:
        kernels, n = ", ".join(self.kernels()) or "no kernel", len(self.funcs())
        return f"Program({self.span.source.name}: {kernels}; {n} function{'s' * (n != 1)})"

    def kernels(self) -> dict[str, Kernel]:
        return {i.name: i for i in self.items if isinstance(i, Kernel)}

    def funcs(self) -> dict[str, Func]:
        return {i.name: i for i in self.items if isinstance(i, Func)}

    def constants(self) -> dict[str, Constant]:
        return {i.name: i for i in self.items if isinstance(i, Constant)}

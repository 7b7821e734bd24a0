"""Hypothesis strategies for random ASTs: any tree that the grammar can say, with comments."""

from __future__ import annotations

import keyword
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from cuir.syntax.nodes import (
    Assign,
    Attribute,
    AugAssign,
    Binary,
    Call,
    Comments,
    Constant,
    ConstType,
    Expr,
    ExprStmt,
    For,
    Func,
    GlobalType,
    If,
    IfExp,
    Kernel,
    Keyword,
    List,
    Literal,
    Name,
    Param,
    Program,
    Return,
    ScalarType,
    Slice,
    Stmt,
    Str,
    Subscript,
    Tuple,
    Unary,
    With,
)

BINARY = ("+", "-", "*", "/", "//", "%", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=", "and", "or")
WORDS = ("a", "b", "S", "k_full", "_", "x1", "kernel", "func", "const", "T", "Global", "definite", "in_", "inf", "cuir")
PRINTABLE = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"])

names = st.sampled_from(WORDS) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,4}", fullmatch=True).filter(lambda n: not keyword.iskeyword(n))
numbers = st.integers(0, 10**12) | st.floats(0, allow_nan=False, allow_infinity=False) | st.booleans()
strings = st.sampled_from(["load", "", "evict_first"]) | st.text(PRINTABLE, max_size=4).filter(lambda s: not set(s) & set("\\'"))
comment_lines = (st.sampled_from(["why", "# why", ""]) | st.text(PRINTABLE, max_size=6)).map(lambda t: f"# {t}".rstrip())


def _many(draw: st.DrawFn, make: Callable[[], Any], least: int, most: int) -> tuple[Any, ...]:
    return tuple(make() for _ in range(draw(st.integers(least, most))))


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Expr:
    def inner() -> Expr:
        return draw(expressions(depth - 1))

    kinds = ["name", "literal", "unary", "binary", "ifexp", "call", "attribute", "subscript", "tuple", "list", "string"]
    match draw(st.sampled_from(kinds if depth else kinds[:2])):
        case "name":
            return Name(draw(names))
        case "literal":
            return Literal(draw(numbers))
        case "unary":
            return Unary(draw(st.sampled_from(["-", "~", "not"])), inner())
        case "binary":
            return Binary(draw(st.sampled_from(BINARY)), inner(), inner())
        case "ifexp":
            return IfExp(inner(), inner(), inner())
        case "call":
            keywords = draw(st.lists(names, max_size=2, unique=True))
            return Call(inner(), _many(draw, inner, 0, 2), tuple(Keyword(k, inner()) for k in keywords))
        case "attribute":
            return Attribute(inner(), draw(names))
        case "subscript":

            def index() -> Expr | Slice:
                kind = draw(st.sampled_from(["expr", "all", "range"]))
                return inner() if kind == "expr" else Slice() if kind == "all" else Slice(inner(), inner())

            return Subscript(inner(), _many(draw, index, 1, 3))
        case "tuple":
            return Tuple(_many(draw, inner, 0, 3))
        case "list":
            return List(_many(draw, inner, 0, 3))
    return Str(draw(strings))


@st.composite
def comments(draw: st.DrawFn) -> Comments:
    if draw(st.integers(0, 3)):
        return Comments()
    return Comments(_many(draw, lambda: draw(comment_lines), 0, 2), draw(st.none() | comment_lines))


@st.composite
def statements(draw: st.DrawFn, depth: int = 2) -> Stmt:
    def value(depth: int = 2) -> Expr:
        return draw(expressions(depth))

    def body() -> tuple[Stmt, ...]:
        return _many(draw, lambda: draw(statements(depth - 1)), 1, 2)

    about = draw(comments())
    match draw(st.sampled_from(["assign", "aug", "expr", "for", "if", "with"][: 6 if depth else 3])):
        case "assign":
            return Assign(_many(draw, lambda: draw(names), 1, 3), value(), comments=about)
        case "aug":
            return AugAssign(draw(names), draw(st.sampled_from(["+", "-", "*", "/", "//", "%"])), value(), comments=about)
        case "for":
            return For(draw(names), value(), body(), comments=about)
        case "if":
            return If(value(), body(), body() if draw(st.booleans()) else (), comments=about)
        case "with":
            role = Call(Name(draw(names)), _many(draw, lambda: value(1), 0, 2))
            return With(role, draw(st.none() | names), body(), comments=about)
    return ExprStmt(Call(value(1), _many(draw, value, 0, 3)), comments=about)


@st.composite
def constants(draw: st.DrawFn) -> Constant:
    literal = Literal(draw(numbers))
    negative = literal.kind != "bool" and draw(st.booleans())
    return Constant(draw(names), Unary("-", literal) if negative else literal, comments=draw(comments()))


@st.composite
def funcs(draw: st.DrawFn) -> Func:
    params = tuple(draw(st.lists(names, max_size=4, unique=True)))
    end = Return(draw(expressions()), comments=draw(comments()))
    return Func(draw(names), params, (*_many(draw, lambda: draw(statements()), 0, 3), end), comments=draw(comments()))


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    def plain() -> GlobalType | ScalarType:
        if draw(st.booleans()):
            return ScalarType(draw(st.sampled_from(["f32", "i32", "bool"])))
        return GlobalType(draw(names), _many(draw, lambda: draw(names | st.integers(1, 512)), 1, 4))

    def default() -> Expr | None:
        return draw(st.none() | st.builds(Name, names) | st.builds(Literal, numbers))

    params = draw(st.lists(names, max_size=6, unique=True))
    cut = draw(st.integers(0, len(params)))
    signature = (*(Param(n, plain()) for n in params[:cut]), *(Param(n, ConstType(), default()) for n in params[cut:]))
    body = _many(draw, lambda: draw(statements()), 1, 3)
    cluster = draw(st.none() | expressions(2).filter(lambda e: not isinstance(e, Str | Tuple | List)))
    return Kernel(draw(names), signature, body, draw(st.sampled_from(["sm_80", "sm_90a"])), cluster, comments=draw(comments()))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    items = draw(st.lists(st.one_of(constants(), funcs(), kernels()), max_size=4, unique_by=lambda d: d.name))
    return Program(tuple(items), _many(draw, lambda: draw(comment_lines), 0, 2))

"""Printer: AST -> canonical CuIR text, so that `parse(show(p)) == p`.

Showing the text again changes nothing, comments included. `place_in_text` gives a made tree its places in the text.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from ..caching import memoize
from ..text.diagnostics import Sink
from ..text.source import Source, Span
from .caller_values import program_of
from .nodes import (
    BINDS,
    Assign,
    Attribute,
    AugAssign,
    Binary,
    Call,
    Comments,
    Constant,
    ConstType,
    Definition,
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
    Node,
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
from .walk import CHILD_FIELDS, IdentityKey, limit_depth, rewrite

WIDTH = 120  # signatures and calls that are longer are wrapped inside their brackets
# trailing comments start at columns 41, 61, ... (0-based), at least two blanks behind the code
COMMENT_COLUMN, COMMENT_STEP = 41, 20
INDENT = "    "

# Levels of constructs that are not in BINDS, on the same scale.
_IFEXP, _OR, _NOT, _COMPARE, _UNARY, _POSTFIX = 0, BINDS["or"], 3, BINDS["=="], 10, 11


def show(node: Node | str | os.PathLike[str]) -> str:
    """Return the canonical text of a program (or that in a file, by its path) or of a part of one.

    A part is a definition, statement, type or expression. The text ends in a newline unless it is a type or
    expression.
    """
    if isinstance(node, Program):
        return _show_program(node)
    if not isinstance(node, Node):
        return _show_program(program_of(node, "show"))
    if isinstance(node, Constant | Func | Kernel):
        return "\n".join(_show_definition(node)) + "\n"
    if isinstance(node, Assign | AugAssign | ExprStmt | For | If | With | Return):
        return "\n".join(_show_statement(node, "")) + "\n"
    if isinstance(node, Param):
        return _show_param(node)
    if isinstance(node, GlobalType | ScalarType | ConstType):
        return _show_type(node)
    return _show_expr(node)  # type: ignore[arg-type]


# ---- expressions
Part = Expr | Keyword | Slice
Piece = str | tuple[Part, int]  # of a node's text: a child stands with the least level that needs no parentheses


def _show_expr(e: Part, least: int = _IFEXP) -> str:
    """Return the text of an expression, in parentheses if it binds weaker than `least`."""
    pieces, level = _split_into_pieces(e)
    text = _join_pieces(pieces)
    return f"({text})" if level < least else text


def _split_into_pieces(e: Part) -> tuple[Sequence[Piece], int]:
    """Return the pieces of a node's text, without parentheses around it, and the level at which it binds."""
    match e:
        case Name(id=name):
            return (name,), _POSTFIX
        case Literal():
            read = _read_literal(e)
            return ((repr(e.value),), _POSTFIX) if read is e else _split_into_pieces(read)
        case Str(value=value):
            return (f"'{value}'" if '"' in value else f'"{value}"',), _POSTFIX
        case Unary(op="not"):
            return ("not ", (e.operand, _NOT)), _NOT
        case Unary():
            return (e.op, (e.operand, _UNARY)), _UNARY
        case Binary():
            level = BINDS[e.op]
            first_level = level + 1 if level == _COMPARE else level
            return ((e.left, first_level), f" {e.op} ", (e.right, level + 1)), level
        case IfExp():
            return ((e.then, _OR), " if ", (e.cond, _OR), " else ", (e.other, _IFEXP)), _IFEXP
        case Call():
            return ((e.func, _POSTFIX), "(", *_join([*e.args, *e.keywords]), ")"), _POSTFIX
        case Keyword():
            return (f"{e.name}=", (e.value, _IFEXP)), _POSTFIX
        case Attribute():
            # `1.T` would read as a float
            return ((e.value, _POSTFIX + isinstance(e.value, Literal)), f".{e.attr}"), _POSTFIX
        case Subscript():
            return ((e.value, _POSTFIX), "[", *_join(e.indices), "]"), _POSTFIX
        case Slice(start=start, stop=stop):
            return ((start, _IFEXP), " : ", (stop, _IFEXP)) if start is not None and stop is not None else (":",), _POSTFIX
        case Tuple():
            return ("(", *_split_items(e), ")"), _POSTFIX
        case List():
            return ("[", *_join(e.items), "]"), _POSTFIX
    raise TypeError(f"not an expression: {type(e).__name__}")


def _read_literal(e: Literal) -> Expr:
    """Return what the parser reads in the place of a literal: there are no negative numbers, and `inf` is a name."""
    if isinstance(e.value, float) and not math.isfinite(e.value):
        inf = Name("inf")
        return Binary("-", inf, inf) if math.isnan(e.value) else inf if e.value > 0 else Unary("-", inf)
    return Unary("-", Literal(-e.value)) if repr(e.value).startswith("-") else e


def read_literals(e: Expr) -> Expr:
    """Return an expression as the parser reads its text."""
    return rewrite(e, lambda node: _read_literal(node) if isinstance(node, Literal) else node)


def _join(items: Iterable[Part]) -> list[Piece]:
    pieces: list[Piece] = []
    for item in items:
        if pieces:
            pieces.append(", ")
        pieces.append((item, _IFEXP))
    return pieces


def _split_items(e: Tuple) -> list[Piece]:
    """Return the items of a tuple without its parentheses."""
    return [*_join(e.items), ","] if len(e.items) == 1 else _join(e.items)


def _split_value(s: Stmt, value: Expr) -> Sequence[Piece]:
    """Return the pieces of the value of a statement: tuples stand without parentheses, but for conditions and ranges."""
    return _split_items(value) if isinstance(value, Tuple) and value.items and not isinstance(s, For | If) else ((value, _IFEXP),)


def _join_pieces(pieces: Iterable[Piece]) -> str:
    return "".join([p if isinstance(p, str) else _show_expr(*p) for p in pieces])


# ---- statements
def _show_statement(s: Stmt, indent: str, keyword: str = "if") -> tuple[str, ...]:
    return _show_statement_cached(IdentityKey(s), indent, keyword)


@memoize(4096)  # edits of a tree share all unchanged parts
def _show_statement_cached(key: IdentityKey, indent: str, keyword: str) -> tuple[str, ...]:
    s = key.tree
    assert isinstance(s, Assign | AugAssign | ExprStmt | For | If | With | Return)
    lines = _show_lead(s.comments, indent)
    lines += _append_trail(_lay_out_head(s, indent, keyword).lines, s.comments)
    if isinstance(s, For | If | With):
        lines += _show_block(s.body, indent + INDENT)
    if isinstance(s, If) and s.orelse:
        if len(s.orelse) == 1 and isinstance(s.orelse[0], If):
            lines += _show_statement(s.orelse[0], indent, "elif")
        else:
            lines += [f"{indent}else:", *_show_block(s.orelse, indent + INDENT)]
    return tuple(lines)


def _show_block(body: Sequence[Stmt], indent: str) -> list[str]:
    lines: list[str] = []
    for s in body:
        if isinstance(s, With) and lines:
            lines.append("")
        lines += _show_statement(s, indent)
    return lines


class _Layout(NamedTuple):
    """Lines, and in them places of parts: indices of a line and a column."""

    lines: list[str]
    places: list[tuple[int, int]]


def _lay_out_head(s: Stmt, indent: str, keyword: str) -> _Layout:
    """Lay out a statement up to its blocks.

    The place is that of its value. The arguments of a call that is too long fill lines below the first one, and have a
    place each.
    """
    prefix, value, suffix = _split_head(s, keyword)
    opening = f"{indent}{prefix}"
    whole = f"{opening}{_join_pieces(_split_value(s, value))}{suffix}"
    parts = [*value.args, *value.keywords] if isinstance(value, Call) and not isinstance(s, For | If) else []
    if len(whole) <= WIDTH or not parts or not isinstance(value, Call):
        return _Layout([whole], [(0, len(opening))])
    filled = _fill(f"{opening}{_show_expr(value.func, _POSTFIX)}(", list(map(_show_expr, parts)), f"){suffix}")
    return _Layout(filled.lines, [(0, len(opening)), *filled.places])


def _split_head(s: Stmt, keyword: str = "if") -> tuple[str, Expr, str]:
    """Return what stands before the value of a statement, the value, and what follows."""
    match s:
        case Assign():
            return f"{', '.join(s.targets)} = ", s.value, ""
        case AugAssign():
            return f"{s.target} {s.op}= ", s.value, ""
        case ExprStmt():
            return "", s.value, ""
        case Return():
            return "return ", s.value, ""
        case For():
            return f"for {s.target} in ", s.iter, ":"
        case If():
            return f"{keyword} ", s.cond, ":"
        case With():
            return "with ", s.call, f" as {s.name}:" if s.name else ":"


def _fill(opening: str, parts: Sequence[str], closing: str) -> _Layout:
    lines, pad = [opening + parts[0]], " " * len(opening)
    places = [(0, len(opening))]
    for i, part in enumerate(parts[1:], 1):
        room = len(closing) if i == len(parts) - 1 else 1
        if len(lines[-1]) + 2 + len(part) + room > WIDTH:
            lines[-1] += ","
            lines.append(pad + part)
        else:
            lines[-1] += f", {part}"
        places.append((len(lines) - 1, len(lines[-1]) - len(part)))
    lines[-1] += closing
    return _Layout(lines, places)


# ---- comments
def _show_lead(comments: Comments, indent: str) -> list[str]:
    return [f"{indent}{line}" if line else "" for line in _show_comment_lines(comments.lead)]


def _show_comment_lines(texts: Sequence[str]) -> list[str]:
    """Return comment lines, each with its `#`.

    An empty one is a blank line and stands only behind a comment.
    """
    lines: list[str] = []
    for text in texts:
        for raw in text.split("\n"):
            line = raw.strip()
            if line:
                lines.append(line if line.startswith("#") else f"# {line}")
            elif lines and lines[-1]:
                lines.append("")
    return lines


def _append_trail(head: list[str], comments: Comments) -> list[str]:
    """Put the trailing comment behind the first line of a statement."""
    text = " ".join(_show_comment_lines([comments.trail])) if comments.trail else ""
    if not text:
        return head
    first = head[0]
    short = len(first) + 2 - COMMENT_COLUMN
    column = COMMENT_COLUMN + max(0, -(-short // COMMENT_STEP)) * COMMENT_STEP
    return [f"{first.ljust(column)}{text}", *head[1:]]


# ---- definitions
def _show_program(p: Program) -> str:
    lines: list[str] = []
    before: Node | None = None
    for item in p.items:
        grouped = isinstance(item, Constant) and isinstance(before, Constant) and not item.comments.lead
        if before is not None and not grouped:
            lines.append("")
        lines += _show_definition(item)
        before = item
    tail = _show_comment_lines(p.tail)
    if tail:
        lines += ([""] if lines else []) + (tail if tail[-1] else tail[:-1])
    return "\n".join(lines) + "\n" if lines else ""


def _show_definition(d: Constant | Func | Kernel) -> list[str]:
    lines = _show_lead(d.comments, "")
    if isinstance(d, Constant):
        return lines + _append_trail([f"{d.name} = {_show_expr(d.value)}"], d.comments)
    lines.append(_show_decorator(d))
    return lines + _append_trail(_lay_out_signature(d).lines, d.comments) + _show_block(d.body, INDENT)


def _show_decorator(d: Func | Kernel) -> str:
    if isinstance(d, Func):
        return "@func"
    return f"{_open_decorator(d)}{_show_expr(d.cluster)})" if d.cluster else f"@kernel(arch={_show_expr(Str(d.arch))})"


def _open_decorator(k: Kernel) -> str:
    """Return the decorator of a kernel with a cluster, up to the number of CTAs."""
    return f"@kernel(arch={_show_expr(Str(k.arch))}, cluster="


def _lay_out_signature(d: Func | Kernel) -> _Layout:
    """Lay out the `def` of a definition; a kernel's parameters have a place each, a function's are only names."""
    opening = f"def {d.name}("
    if isinstance(d, Func):
        return _Layout(_fill(opening, d.params, "):").lines if d.params else [f"{opening}):"], [])
    plain = [_show_param(p) for p in d.params if not isinstance(p.type, ConstType)]
    const = [_show_param(p) for p in d.params if isinstance(p.type, ConstType)]
    parts = plain + (["*", *const] if const else [])
    if not parts:
        return _Layout([f"{opening}):"], [])
    if len(opening) + len(", ".join(parts)) + 2 <= WIDTH or not (plain and const):
        whole = _fill(opening, parts, "):")
        return whole._replace(places=whole.places[: len(plain)] + whole.places[len(plain) + 1 :])
    # const parameters start their own line
    first = _fill(opening, [*plain, "*"], ",")
    rest = _fill(" " * len(opening), const, "):")
    return _Layout(first.lines + rest.lines, first.places[:-1] + [(len(first.lines) + line, column) for line, column in rest.places])


def _show_param(p: Param) -> str:
    return f"{p.name}: {_show_type(p.type)}" + (f" = {_show_expr(p.default)}" if p.default else "")


def _show_type(t: GlobalType | ScalarType | ConstType) -> str:
    match t:
        case GlobalType():
            return f"{'Scratch' if t.scratch else 'Global'}[{', '.join([t.dtype, *map(str, t.dims)])}]"
        case ScalarType():
            return t.dtype
    return "const"


# ---- places
def place_in_text(program: Program, name: str) -> Program:
    """Return a program whose spans are places in its canonical text: the tree that parsing this text gives.

    Comments stay as they are. Raises CuirError P018 for an expression that is nested too deep.
    """
    return _place_cached(_Printed(name, show(program), program))


class _Printed:
    """A program with its text, by which it is a key."""

    def __init__(self, name: str, text: str, program: Program):
        self.name, self.text, self.program = name, text, program

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Printed) and (self.name, self.text) == (other.name, other.text)

    def __hash__(self) -> int:
        return hash((self.name, self.text))


@memoize(128)  # one tree for equal programs, of which the checker's results are known by identity
def _place_cached(printed: _Printed) -> Program:
    program, placer = printed.program, _Placer(Source(printed.name, printed.text))
    items: list[Definition] = []
    for item in program.items:
        if items:
            placer.line += not (isinstance(item, Constant) and isinstance(items[-1], Constant) and not item.comments.lead)
        items.append(placer.place_definition(item))
    placer.sink.stop_if_any()
    lines = placer.source.text.split("\n")
    whole = Span(placer.source, 1, 1, len(lines), len(lines[-1]) + 1)
    return Program(tuple(items), program.tail, span=_span_from(items[0].span, items[-1].span) if items else whole)


class _Placer:
    """State of a walk through a program in the order of its text.

    Attributes:
        line: number of the next line.
    """

    def __init__(self, source: Source):
        self.source, self.line, self.sink = source, 1, Sink()

    # ---- definitions
    def place_definition(self, d: Definition) -> Definition:
        self.line += len(_show_lead(d.comments, ""))
        first = self.line
        if isinstance(d, Constant):
            self.line += 1
            value, end = self.place_expr(d.value, first, len(f"{d.name} = ") + 1)
            return replace(d, value=value, span=Span(self.source, first, 1, first, end))
        layout = _lay_out_signature(d)
        self.line += 1 + len(layout.lines)
        if isinstance(d, Kernel):
            places = iter(layout.places)
            cluster = None if d.cluster is None else self.place_expr(d.cluster, first, len(_open_decorator(d)) + 1)[0]
            d = replace(d, cluster=cluster, params=tuple(self.place_param(p, first + 1, next(places)) for p in d.params))
        body = self.place_block(d.body, INDENT)
        return replace(d, body=body, span=_span_from(Span(self.source, first, 1, first, 1), body[-1].span))

    def place_param(self, p: Param, first: int, place: tuple[int, int]) -> Param:
        line, start = first + place[0], place[1] + 1
        behind = start + len(f"{p.name}: ")
        end = behind + len(_show_type(p.type))
        kind, default = replace(p.type, span=Span(self.source, line, behind, line, end)), None
        if p.default is not None:
            default, end = self.place_expr(p.default, line, end + len(" = "))
        return replace(p, type=kind, default=default, span=Span(self.source, line, start, line, end))

    # ---- statements
    def place_block(self, body: Sequence[Stmt], indent: str) -> tuple[Stmt, ...]:
        placed: list[Stmt] = []
        for s in body:
            self.line += isinstance(s, With) and bool(placed)
            placed.append(self.place_statement(s, indent))
        return tuple(placed)

    def place_statement(self, s: Stmt, indent: str, keyword: str = "if") -> Stmt:
        self.line += len(_show_lead(s.comments, indent))
        layout = _lay_out_head(s, indent, keyword)
        first = self.line
        self.line += len(layout.lines)
        _, value, suffix = _split_head(s, keyword)
        placed = self.place_value(s, value, layout, first, len(layout.lines[-1]) - len(suffix) + 1)
        start = Span(self.source, first, len(indent) + 1, first, len(indent) + 1)
        if isinstance(s, For | If | With):
            limit_depth(placed, self.sink)
        match s:
            case For():
                body = self.place_block(s.body, indent + INDENT)
                return replace(s, iter=placed, body=body, span=_span_from(start, body[-1].span))
            case With():
                assert isinstance(placed, Call)
                body = self.place_block(s.body, indent + INDENT)
                return replace(s, call=placed, body=body, span=_span_from(start, body[-1].span))
            case If():
                body, orelse = self.place_block(s.body, indent + INDENT), s.orelse
                if len(orelse) == 1 and isinstance(orelse[0], If):
                    orelse = (self.place_statement(orelse[0], indent, "elif"),)
                elif orelse:
                    self.line += 1
                    orelse = self.place_block(orelse, indent + INDENT)
                return replace(s, cond=placed, body=body, orelse=orelse, span=_span_from(start, (orelse or body)[-1].span))
        simple = replace(s, value=placed, span=_span_from(start, placed.span))
        limit_depth(simple, self.sink)
        return simple

    def place_value(self, s: Stmt, value: Expr, layout: _Layout, first: int, end: int) -> Expr:
        """Place the value of a statement; `end` is the column behind it."""
        (_, column), *others = layout.places
        if not others:
            pieces = _split_value(s, value)
            if isinstance(value, Tuple) and pieces[0] != "(" and len(pieces) != 1:
                items, behind = self.place_pieces(pieces, first, column + 1)
                return replace(value, items=cast(tuple[Expr, ...], tuple(items)), span=Span(self.source, first, column + 1, first, behind))
            return self.place_expr(value, first, column + 1)[0]
        assert isinstance(value, Call)
        func, _ = self.place_expr(value.func, first, column + 1, _POSTFIX)
        parts = [self.place_expr(p, first + line, at + 1)[0] for p, (line, at) in zip([*value.args, *value.keywords], others, strict=True)]
        span = Span(self.source, first, column + 1, first + len(layout.lines) - 1, end)
        return cast(Expr, _with_children(value, [func, *parts], span))

    # ---- expressions, each on one line
    def place_expr(self, e: Part, line: int, column: int, least: int = _IFEXP) -> tuple[Any, int]:
        """Place an expression, keyword or slice that starts at a column; return it with the column behind it."""
        e = _read_literal(e) if isinstance(e, Literal) else e
        pieces, level = _split_into_pieces(e)
        parentheses = level < least
        placed, end = self.place_pieces(pieces, line, column + parentheses)
        end += parentheses
        return _with_children(e, placed, Span(self.source, line, column, line, end)), end

    def place_pieces(self, pieces: Iterable[Piece], line: int, column: int) -> tuple[list[Part], int]:
        placed: list[Part] = []
        for piece in pieces:
            if isinstance(piece, str):
                column += len(piece)
            else:
                node, column = self.place_expr(piece[0], line, column, piece[1])
                placed.append(node)
        return placed, column


def _with_children(e: Part, placed: Sequence[Part], span: Span) -> Part:
    """Return a node with other children, which are in the order of the text, and another span."""
    remaining, changed = iter(placed), dict[str, Any]()
    for name in ("then", "cond", "other") if isinstance(e, IfExp) else CHILD_FIELDS[type(e)]:
        value = getattr(e, name)
        if value is not None:
            changed[name] = tuple(next(remaining) for _ in value) if isinstance(value, tuple) else next(remaining)
    return replace(e, **changed, span=span)


def _span_from(first: Span, last: Span) -> Span:
    return Span(first.source, first.line, first.column, last.end_line, last.end_column)

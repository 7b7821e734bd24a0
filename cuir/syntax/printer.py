"""Printer: AST -> canonical CuIR text, so that `parse(show(p)) == p`.

Showing the text again changes nothing, comments included.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from ..caching import memoize
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
from .walk import IdentityKey

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
    if isinstance(node, Keyword):
        return f"{node.name}={_show_expr(node.value)}"
    if isinstance(node, Slice):
        return _show_index(node)
    return _show_expr(node)  # type: ignore[arg-type]


# ---- expressions
def _show_expr(e: Expr, least: int = _IFEXP) -> str:
    """Return the text of an expression, in parentheses if it binds weaker than `least`."""
    text, level = _show_with_level(e)
    return f"({text})" if level < least else text


def _show_with_level(e: Expr) -> tuple[str, int]:
    match e:
        case Name(id=name):
            return name, _POSTFIX
        case Literal():
            return _show_literal(e)
        case Str(value=value):
            return (f"'{value}'" if '"' in value else f'"{value}"'), _POSTFIX
        case Unary(op="not"):
            return f"not {_show_expr(e.operand, _NOT)}", _NOT
        case Unary():
            return f"{e.op}{_show_expr(e.operand, _UNARY)}", _UNARY
        case Binary():
            level = BINDS[e.op]
            first_level = level + 1 if level == _COMPARE else level
            return f"{_show_expr(e.left, first_level)} {e.op} {_show_expr(e.right, level + 1)}", level
        case IfExp():
            return f"{_show_expr(e.then, _OR)} if {_show_expr(e.cond, _OR)} else {_show_expr(e.other)}", _IFEXP
        case Call():
            return f"{_show_expr(e.func, _POSTFIX)}({', '.join(_show_arguments(e))})", _POSTFIX
        case Attribute():
            # `1.T` would read as a float
            base = f"({_show_expr(e.value)})" if isinstance(e.value, Literal) else _show_expr(e.value, _POSTFIX)
            return f"{base}.{e.attr}", _POSTFIX
        case Subscript():
            return f"{_show_expr(e.value, _POSTFIX)}[{', '.join(map(_show_index, e.indices))}]", _POSTFIX
        case Tuple():
            return f"({_show_items(e)})", _POSTFIX
        case List():
            return f"[{', '.join(map(_show_expr, e.items))}]", _POSTFIX
    raise TypeError(f"not an expression: {type(e).__name__}")


def _show_literal(e: Literal) -> tuple[str, int]:
    if isinstance(e.value, float) and not math.isfinite(e.value):
        text = "inf - inf" if math.isnan(e.value) else "inf" if e.value > 0 else "-inf"
        return text, BINDS["-"] if math.isnan(e.value) else _POSTFIX if e.value > 0 else _UNARY
    text = repr(e.value)
    return text, _UNARY if text.startswith("-") else _POSTFIX


def _show_items(e: Tuple) -> str:
    """Return the items of a tuple without its parentheses."""
    return ", ".join(map(_show_expr, e.items)) + ("," if len(e.items) == 1 else "")


def _show_bare(e: Expr) -> str:
    """Return an expression as the value of a statement: tuples stand without parentheses."""
    return _show_items(e) if isinstance(e, Tuple) and e.items else _show_expr(e)


def _show_arguments(e: Call) -> list[str]:
    return [*map(_show_expr, e.args), *(f"{k.name}={_show_expr(k.value)}" for k in e.keywords)]


def _show_index(e: Expr | Slice) -> str:
    if not isinstance(e, Slice):
        return _show_expr(e)
    return f"{_show_expr(e.start) if e.start else ''} : {_show_expr(e.stop) if e.stop else ''}".strip()


# ---- statements
def _show_statement(s: Stmt, indent: str, keyword: str = "if") -> tuple[str, ...]:
    return _show_statement_cached(IdentityKey(s), indent, keyword)


@memoize(4096)  # edits of a tree share all unchanged parts
def _show_statement_cached(key: IdentityKey, indent: str, keyword: str) -> tuple[str, ...]:
    s = key.tree
    assert isinstance(s, Assign | AugAssign | ExprStmt | For | If | With | Return)
    lines = _show_lead(s.comments, indent)
    match s:
        case Assign():
            head = _wrap(indent, f"{', '.join(s.targets)} = ", s.value)
        case AugAssign():
            head = _wrap(indent, f"{s.target} {s.op}= ", s.value)
        case ExprStmt():
            head = _wrap(indent, "", s.value)
        case Return():
            head = _wrap(indent, "return ", s.value)
        case For():
            head = [f"{indent}for {s.target} in {_show_expr(s.iter)}:"]
        case If():
            head = [f"{indent}{keyword} {_show_expr(s.cond)}:"]
        case With():
            head = _wrap(indent, "with ", s.call, f" as {s.name}:" if s.name else ":")
    lines += _append_trail(head, s.comments)
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


def _wrap(indent: str, prefix: str, value: Expr, suffix: str = "") -> list[str]:
    """Lay out a simple statement; the arguments of a call that is too long fill lines below the first one."""
    whole = f"{indent}{prefix}{_show_bare(value)}{suffix}"
    if len(whole) <= WIDTH or not isinstance(value, Call) or not (value.args or value.keywords):
        return [whole]
    return _fill(f"{indent}{prefix}{_show_expr(value.func, _POSTFIX)}(", _show_arguments(value), f"){suffix}")


def _fill(opening: str, parts: Sequence[str], closing: str) -> list[str]:
    lines, pad = [opening + parts[0]], " " * len(opening)
    for i, part in enumerate(parts[1:], 1):
        room = len(closing) if i == len(parts) - 1 else 1
        if len(lines[-1]) + 2 + len(part) + room > WIDTH:
            lines[-1] += ","
            lines.append(pad + part)
        else:
            lines[-1] += f", {part}"
    lines[-1] += closing
    return lines


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
    if isinstance(d, Func):
        lines.append("@func")
        head = _fill(f"def {d.name}(", d.params, "):") if d.params else [f"def {d.name}():"]
    else:
        cluster = f", cluster={_show_expr(d.cluster)}" if d.cluster else ""
        lines.append(f"@kernel(arch={_show_expr(Str(d.arch))}{cluster})")
        head = _show_signature(d)
    return lines + _append_trail(head, d.comments) + _show_block(d.body, INDENT)


def _show_signature(k: Kernel) -> list[str]:
    plain = [_show_param(p) for p in k.params if not isinstance(p.type, ConstType)]
    const = [_show_param(p) for p in k.params if isinstance(p.type, ConstType)]
    parts = plain + (["*", *const] if const else [])
    opening = f"def {k.name}("
    if not parts:
        return [f"{opening}):"]
    if len(opening) + len(", ".join(parts)) + 2 <= WIDTH or not (plain and const):
        return _fill(opening, parts, "):")
    # const parameters start their own line
    first = _fill(opening, [*plain, "*"], ",")
    rest = _fill(" " * len(opening), const, "):")
    return first + rest


def _show_param(p: Param) -> str:
    return f"{p.name}: {_show_type(p.type)}" + (f" = {_show_expr(p.default)}" if p.default else "")


def _show_type(t: GlobalType | ScalarType | ConstType) -> str:
    match t:
        case GlobalType():
            return f"{'Scratch' if t.scratch else 'Global'}[{', '.join([t.dtype, *map(str, t.dims)])}]"
        case ScalarType():
            return t.dtype
    return "const"

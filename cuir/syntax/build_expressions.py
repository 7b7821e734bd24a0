"""Builder of expressions at each reduction of the grammar; spans, errors and limits of nodes.

One method per rule or alias of `grammar.lark`, called with every child, tokens included. The span of an expression in
parentheses includes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lark import Token

from ..text.diagnostics import Sink
from ..text.source import Source, Span
from .comments import CommentMap
from .nodes import BINDS, Attribute, Binary, Call, Expr, IfExp, Keyword, List, Literal, Name, Slice, Str, Subscript, Tuple, Unary

Child = Any  # a Token or a node; helpers of the grammar hand over lists of them
MAX_BLOCKS = 30  # nesting of blocks: passes walk trees by recursion


class ExpressionBuilder:
    """State of one parse (see `begin`) and a method per rule."""

    def begin(self, source: Source, text: str, indent: int, sink: Sink) -> None:
        self.source, self.sink, self.indent = source, sink, indent
        self.shift = source.first_line - 1
        self.comments = CommentMap(text)
        self.lines = text.split("\n")
        self.documents: list[Str] = []  # strings that are errors unless they prove to be documentation

    # ---- spans
    def _span(self, first: Child, last: Child) -> Span:
        if isinstance(first, Token):
            line, column = _or_one(first.line) + self.shift, _or_one(first.column) + self.indent
        else:
            line, column = first.span.line, first.span.column
        if isinstance(last, Token):
            return Span(self.source, line, column, _or_one(last.end_line) + self.shift, _or_one(last.end_column) + self.indent)
        return Span(self.source, line, column, last.span.end_line, last.span.end_column)

    def _error(
        self, code: str, message: str, at: Child | Span, hint: str | None = None, notes: Iterable[tuple[str, Span | None]] = ()
    ) -> None:
        self.sink.error(code, message, at if isinstance(at, Span) else self._span(at, at), hint, notes)

    # ---- expressions
    def exprs(self, children: list[Child]) -> Expr:
        if len(children) == 1:
            return children[0]
        return Tuple(tuple(children[::2]), span=self._span(children[0], children[-1]))

    def ifexp(self, children: list[Child]) -> IfExp:
        then, _, cond, _, orelse = children
        return IfExp(cond, then, orelse, span=self._span(then, orelse))

    def operation(self, children: list[Child]) -> Expr:
        """Build operands with an operator between each two."""
        if len(children) == 3 and children[1].type != "COMPARE":
            return self.binary(children)
        expression, rest = self._climb_precedence(children, 0, 0)
        assert rest == len(children)
        return expression

    def _climb_precedence(self, items: list[Child], at: int, least: int) -> tuple[Expr, int]:
        """Build the items from `at` on joined by operators that bind at least as tightly as `least`.

        Returns the expression and the position behind it.
        """
        left, at = items[at], at + 1
        while at < len(items) and (level := BINDS[items[at]]) >= least:
            right, after = self._climb_precedence(items, at + 1, level + 1)
            children = [left, items[at], right]
            if level == BINDS["=="]:
                while after < len(items) and BINDS[items[after]] == level:
                    right, end = self._climb_precedence(items, after + 1, level + 1)
                    children += [items[after], right]
                    after = end
                left = self.compare(children)
            else:
                left = self.binary(children)
            at = after
        return left, at

    def binary(self, children: list[Child]) -> Binary:
        left, op, right = children
        return Binary(str(op), left, right, span=self._span(left, right))

    def compare(self, children: list[Child]) -> Binary:
        if len(children) > 3:
            a, b, c = children[0].span.text(), children[2].span.text(), children[4].span.text()
            pair = f"{a} {children[1]} {b}", f"{b} {children[3]} {c}"
            self._error(
                "P007",
                f"comparisons do not chain, found a second one, `{children[3]}`",
                children[3],
                f"write `{pair[0]} and {pair[1]}` on scalars, `({pair[0]}) & ({pair[1]})` on tiles",
            )
        return self.binary(children[:3])

    def unary(self, children: list[Child]) -> Unary:
        op, operand = children
        if op == "+":
            self._error("P006", "there is no unary `+`", op, "leave it out")
        return Unary(str(op), operand, span=self._span(op, operand))

    def attribute(self, children: list[Child]) -> Attribute:
        return Attribute(children[0], str(children[2]), span=self._span(children[0], children[2]))

    def call(self, children: list[Child]) -> Call:
        args: list[Expr] = []
        keywords: list[Keyword] = []
        for item in children[2] if isinstance(children[2], list) else ():
            if isinstance(item, Keyword):
                if any(k.name == item.name for k in keywords):
                    self._error("P014", f"`{item.name}=` is given twice", item)
                keywords.append(item)
                continue
            if keywords:
                self._error("P014", "an argument by position stands before those by name", item, f"move it before `{keywords[0].name}=`")
            args.append(item)
        return Call(children[0], tuple(args), tuple(keywords), span=self._span(children[0], children[-1]))

    def arguments(self, children: list[Child]) -> list[Expr | Keyword]:
        return children[::2]

    def keyword(self, children: list[Child]) -> Keyword:
        return Keyword(str(children[0]), children[2], span=self._span(children[0], children[2]))

    def subscript(self, children: list[Child]) -> Subscript:
        return Subscript(children[0], children[2], span=self._span(children[0], children[3]))

    def subscripts(self, children: list[Child]) -> tuple[Expr | Slice, ...]:
        return tuple(children[::2])

    def elements(self, children: list[Child]) -> tuple[Expr, ...]:
        return tuple(children[::2])

    def range_slice(self, children: list[Child]) -> Slice:
        span = self._span(children[0], children[-1])
        colons = [i for i, c in enumerate(children) if isinstance(c, Token)]
        start = children[0] if colons[0] == 1 else None
        stop = children[colons[0] + 1] if len(children) > colons[0] + 1 and len(colons) == 1 else None
        if len(colons) > 1:
            self._error("P015", "a slice has no step", children[colons[1]], "write `start : stop`")
        elif (start is None) != (stop is None):
            self._error("P015", f"a slice is `:` or `start : stop`, found `{span.text()}`", span, "write both ends, `0 : n` or `k : k + n`")
        return Slice(start, stop, span=span)

    def name(self, children: list[Child]) -> Name:
        return Name(str(children[0]), span=self._span(children[0], children[0]))

    def integer(self, children: list[Child]) -> Literal:
        text = str(children[0])
        if len(text) > 1 and text[0] == "0" and text.strip("0_"):
            self._error("P017", f"an integer has no leading zero, found `{text}`", children[0])
        if text.endswith("_") or "__" in text or len(text) > 40:
            self._error("P017", f"`{text[:40]}` is not an integer that CuIR can hold", children[0])
            text = "0"
        elif int(text) >= 2**64:
            self._error("P017", f"`{text}` does not fit 64 bits", children[0], "integers of a kernel have 32 bits; write a float: 1e20")
            text = "0"
        return Literal(int(text), span=self._span(children[0], children[0]))

    def floating(self, children: list[Child]) -> Literal:
        try:
            value = float(str(children[0]))
        except ValueError:
            value = float("inf")
        if value == float("inf"):
            self._error("P017", f"`{children[0]}` is not a floating-point number", children[0], "write `inf` for infinity")
            value = 0.0
        return Literal(value, span=self._span(children[0], children[0]))

    def boolean(self, children: list[Child]) -> Literal:
        return Literal(children[0] == "True", span=self._span(children[0], children[0]))

    def string(self, children: list[Child]) -> Str:
        long = children[0].type == "LONG_STRING"
        node = Str(str(children[0])[3:-3] if long else str(children[0])[1:-1], span=self._span(children[0], children[0]))
        if long:
            self.documents.append(node)
        return node

    def paren(self, children: list[Child]) -> Expr:
        span = self._span(children[0], children[-1])
        return replace(children[1], span=span) if len(children) == 3 else Tuple((), span=span)

    def listing(self, children: list[Child]) -> List:
        return List(children[1] if len(children) == 3 else (), span=self._span(children[0], children[-1]))


def _or_one(position: int | None) -> int:
    return position or 1


def take_first_line(node: Child) -> Span | Child:
    """Return the first line of a span only, for errors about something long."""
    if isinstance(node, Token):
        return node
    return node.span.first_line()

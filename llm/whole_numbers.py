"""Evaluator of whole-number expressions as C and CUDA write them (`64 * (WGS + 1)`)."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping

TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+)(?:[uUlL]*)(?![\w.])|([A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)|(<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~!?:(),<>]))"
)
NESTING = 30  # of parentheses: a hostile text must not exhaust the stack
BITS = 128  # results stay within this many

Value = int | None


def _quotient(a: int, b: int) -> int:
    """Divide as C does, towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {"<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b), "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b)},
    {"<<": lambda a, b: a << b if 0 <= b < BITS else 0, ">>": lambda a, b: a >> b if 0 <= b < BITS else 0},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": lambda a, b: a - b * _quotient(a, b)},
)
LEVELS = {word: (level, function) for level, row in enumerate(BINARY) for word, function in row.items()}
CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max, "cdiv": lambda a, b: -(-a // b), "abs": abs}
CASTS = {"int", "unsigned", "long", "bool", "size_t", "int32_t", "uint32_t", "int64_t", "uint64_t"}


def evaluate(text: str, values: Mapping[str, int]) -> Value:
    """Return the value of an expression, None where it is no whole-number expression of known names.

    Operators and precedence are C's, division is towards zero; calls of min, max, abs and cdiv, and casts such as
    `int(x)`, are known.
    """
    tokens = _tokens(text)
    if tokens is None:
        return None
    try:
        parser = _Parser(tokens, values)
        value = parser.choice(0)
        return value if parser.at == len(tokens) else None
    except (_Unknown, ZeroDivisionError, TypeError):
        return None


@functools.lru_cache(4096)
def _tokens(text: str) -> tuple[str, ...] | None:
    """Split a text into tokens; None for a character that starts none."""
    tokens: list[str] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            return None
        tokens.append(next(g for g in match.groups() if g))
        at = match.end()
    return tuple(tokens)


class _Unknown(Exception):
    """Exception for an expression that has no known value."""

    pass


class _Parser:
    """Recursive-descent parser that evaluates as it reads."""

    def __init__(self, tokens: tuple[str, ...], values: Mapping[str, int]):
        self.tokens, self.values, self.at = tokens, values, 0

    def peek(self) -> str:
        """Return the next token, "" at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str) -> None:
        """Consume an expected token."""
        if self.peek() != expected:
            raise _Unknown
        self.at += 1

    def choice(self, depth: int) -> int:
        """Evaluate `a ? b : c` or a binary expression."""
        if depth > NESTING:
            raise _Unknown
        value = self.binary(0, depth)
        if self.peek() != "?":
            return value
        self.take("?")
        positive = self.choice(depth + 1)
        self.take(":")
        negative = self.choice(depth + 1)
        return positive if value else negative

    def binary(self, level: int, depth: int) -> int:
        """Evaluate binary operators that bind at least as strongly as a level."""
        value = self.unary(depth)
        while True:
            binds, function = LEVELS.get(self.peek(), (-1, None))
            if function is None or binds < level:
                return value
            self.at += 1
            value = function(value, self.binary(binds + 1, depth))
            if abs(value).bit_length() > BITS:
                raise _Unknown

    def unary(self, depth: int) -> int:
        """Evaluate a unary operator, a parenthesis, a literal, a name, or a call."""
        token = self.peek()
        if depth > NESTING or not token:
            raise _Unknown
        self.at += 1
        if token in {"-", "+", "~", "!"}:
            value = self.unary(depth + 1)
            return {"-": -value, "+": value, "~": ~value, "!": int(not value)}[token]
        if token == "(":
            value = self.choice(depth + 1)
            self.take(")")
            return value
        if token[0].isdigit():
            return int(token, 16 if token[:2].lower() == "0x" else 10)
        if self.peek() == "(" and (token in CALLS or token in CASTS):
            return self.call(token, depth)
        if token not in self.values:
            raise _Unknown
        return self.values[token]

    def call(self, name: str, depth: int) -> int:
        """Evaluate a call or a cast."""
        self.take("(")
        arguments = [self.choice(depth + 1)]
        while self.peek() == ",":
            self.take(",")
            arguments.append(self.choice(depth + 1))
        self.take(")")
        return arguments[0] if name in CASTS and len(arguments) == 1 else CALLS[name](*arguments) if name in CALLS else self.raise_unknown()

    def raise_unknown(self) -> int:
        """Raise _Unknown."""
        raise _Unknown

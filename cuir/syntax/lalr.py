"""Lark's LALR parser with fewer steps for each token; its tables, its trees and its errors stay.

Lark finds the callback of a reduction by the value of the rule, and takes a step for each rule of one child that makes
no node. Here each rule has its callback beside it, and a chain of such rules is one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from lark import Token
from lark.common import ParserConf
from lark.lexer import BasicLexer, ContextualLexer, LexerState, LexerThread
from lark.parse_tree_builder import ExpandSingleChild
from lark.parsers.lalr_analysis import Shift
from lark.parsers.lalr_parser import LALR_Parser, _Parser
from lark.parsers.lalr_parser_state import ParseConf, ParserState

_SHIFT, _REDUCE, _CHAIN = range(3)
Callback = Callable[..., object]
# _SHIFT: state, callback of the token; _REDUCE: children, callback, name; _CHAIN: state below -> state, name
Step = tuple[int, Any, Callback | None, str]
Steps = dict[int, dict[str, Step]]  # of each state, for each symbol


def _make_step(action: object, to: Any, symbol: str, callbacks: Mapping[Any, Callback]) -> Step:
    """Return the step of an entry of the table; `to` is a state or a rule."""
    if action is Shift:
        return _SHIFT, to, callbacks.get(symbol), ""
    callback, name = callbacks[to], to.origin.name
    if len(to.expansion) == 1 and isinstance(callback, ExpandSingleChild):
        return _CHAIN, {}, None, name
    return _REDUCE, len(to.expansion), callback, name


class _Conf(ParseConf[int]):
    """Tables of one grammar, with its compiled steps."""

    __slots__ = ("steps",)

    def __init__(self, driver: _Driver, start: str):
        super().__init__(driver.parse_table, driver.callbacks, start)
        self.steps = driver.steps


class _State(ParserState[int]):
    """State of one parse."""

    __slots__ = ()

    def feed_token(self, token: Token, is_end: bool = False) -> object:
        """Take a token: reduce what it ends, then shift it. Raises as Lark does, which takes the last token."""
        conf = cast(_Conf, self.parse_conf)
        states, values, steps, symbol = self.state_stack, self.value_stack, conf.steps, token.type
        while conf.callbacks and not is_end:  # without callbacks, Lark tries which tokens it would accept
            step = steps[states[-1]].get(symbol)
            if step is None:
                break
            kind, first, callback, name = step
            if kind == _CHAIN:
                below = states[-2]
                if below not in first:
                    first[below] = _follow(steps, below, states[-1], symbol)
                states[-1] = first[below]
            elif kind == _REDUCE:
                if first:
                    children = values[-first:]
                    del states[-first:], values[-first:]
                else:
                    children = []
                values.append(callback(children))  # type: ignore[misc]
                states.append(steps[states[-1]][name][1])
            else:
                states.append(first)
                values.append(token if callback is None else callback(token))
                return None
        return super().feed_token(token, is_end)


def _follow(steps: Steps, below: int, top: int, symbol: str) -> int:
    """Return the state at the end of a chain."""
    while (step := steps[top].get(symbol)) is not None and step[0] == _CHAIN:
        top = steps[below][step[3]][1]
    return top


class _Lexer(BasicLexer):
    """Lexer of the terminals that some states accept."""

    def next_token(self, lex_state: LexerState, parser_state: object = None) -> Token:
        """Return the next token. Raises as Lark does, which reads the last one."""
        at, text, end = lex_state.line_ctr, lex_state.text.text, lex_state.text.end
        position = at.char_pos
        matchers = self.scanner._mres
        while position < end:
            for matcher in matchers:
                if match := matcher.match(text, position, end):
                    break
            else:
                break
            symbol = match.lastgroup
            is_read = symbol not in self.ignore_types
            start, line, column = position, at.line, at.column
            position = match.end()
            if symbol in self.newline_types and (count := text.count("\n", start, position)):
                at.line += count
                at.line_start_pos = text.rindex("\n", start, position) + 1
            at.char_pos = position
            at.column = position - at.line_start_pos + 1
            if is_read or symbol in self.callback:
                token = _new_token(Token, match[0])
                token.type, token.value, token.start_pos, token.line, token.column = symbol, match[0], start, line, column
                token.end_line, token.end_column, token.end_pos = at.line, at.column, position
                if symbol in self.callback:
                    token = self.callback[symbol](token)
                if is_read:
                    lex_state.last_token = token
                    return token
        return super().next_token(lex_state, parser_state)


_new_token = str.__new__  # without a look at deprecated arguments


class _ShortLexer(ContextualLexer):
    """Lexer that makes tokens of what the state of the parser accepts."""

    BasicLexer = _Lexer


class _Driver(_Parser):
    """Parser of one grammar."""

    def __init__(self, parser: _Parser):
        super().__init__(parser.parse_table, parser.callbacks, parser.debug)
        states = self.parse_table.states
        self.steps = {
            n: {symbol: _make_step(action, to, symbol, self.callbacks) for symbol, (action, to) in of.items()} for n, of in states.items()
        }

    def parse(self, lexer: LexerThread, start: str, *stacks: Any, **options: Any) -> object:
        """Parse tokens; interactively, or from other stacks, as Lark does."""
        if stacks or options:
            return super().parse(lexer, start, *stacks, **options)
        return self.parse_from_state(_State(_Conf(self, start), lexer))


class _ShortParser(LALR_Parser):
    """Parser whose reductions are compiled."""

    def __init__(self, parser_conf: ParserConf, debug: bool = False, strict: bool = False):
        super().__init__(parser_conf, debug, strict)
        self.parser = _Driver(self.parser)


PLUGINS = {"LALR_Parser": _ShortParser, "ContextualLexer": _ShortLexer}  # for Lark's option `_plugins`

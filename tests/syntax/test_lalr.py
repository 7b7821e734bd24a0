"""The shortened parser: trees, tokens and errors are Lark's own."""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.syntax import parser
from cuir.syntax.lalr import PLUGINS
from cuir.text.diagnostics import CuirError
from cuir.text.source import Source
from tests.strategies.selection import examples

TEXTS = {name: path.read_text(encoding="utf-8") for name, path in {**corpus.programs(), **corpus.kernels()}.items()}
SHORT = min(TEXTS.values(), key=len)


@functools.cache
def make_machine(shortened: bool) -> parser._Machine:
    with mock.patch.object(parser, "PLUGINS", PLUGINS if shortened else {}):
        return parser._Machine()


def parse_by(shortened: bool, text: str) -> Any:
    """The tree with its places, or the errors."""
    with mock.patch.object(parser, "_get_machine", lambda: make_machine(shortened)):
        try:
            return repr(parser.parse_source(Source("text", text, 1)))
        except CuirError as error:
            return str(error)


@pytest.mark.sweep
@pytest.mark.parametrize("name", TEXTS)
def test_programs_have_the_trees_of_lark(name: str) -> None:
    assert parse_by(True, TEXTS[name]) == parse_by(False, TEXTS[name])


@examples(2)
@given(
    start=st.integers(0, len(SHORT)),
    length=st.integers(0, 40),
    text=st.sampled_from(["", " ", "\n", ")", "(", "x", "if", ":", "?", "\n  ", '"', "1.5.", "= =", "not", "# a\n"]),
)
def test_changed_programs_have_the_trees_or_the_errors_of_lark(start: int, length: int, text: str) -> None:
    changed = SHORT[:start] + text + SHORT[start + length :]
    assert parse_by(True, changed) == parse_by(False, changed)


def test_both_parsers_are_what_they_are_called() -> None:
    kinds = [type(make_machine(shortened).lark.parser.parser).__module__ for shortened in (True, False)]
    assert kinds == ["cuir.syntax.lalr", "lark.parsers.lalr_parser"]

"""Verdicts of the checker that are kept on disk: those of `find_violation`, asked once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cuir.checking.checked import Const
from cuir.performance.search import verdicts
from cuir.performance.search.space import find_violation
from cuir.performance.search.verdicts import fits
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError, Diagnostic
from tests.lowering.conftest import HEAD

TEXT = HEAD + "        for t in work:\n            x = zeros(f32, [64, 1]) + scale\n            store(Y[rows(64)], x)\n"
SETTINGS: list[dict[str, Const]] = [{}, {"C": 4}, {"C": True}, {"C": -1}, {"D": 4}, {"C": 2.5}]


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    calls: list[object] = []

    def find(program: Program, kernel: str | None, consts: Mapping[str, Const]) -> Diagnostic | None:
        calls.append((program, kernel, consts))
        return find_violation(program, kernel, consts)

    monkeypatch.setattr(verdicts, "find_violation", find)
    return calls


def test_the_verdict_is_the_checkers(questions: list[object]) -> None:
    program = parse(TEXT)
    expected = [find_violation(program, None, s) is None for s in SETTINGS]
    assert True in expected and False in expected
    assert [fits(program, None, s) for s in SETTINGS] == expected == [fits(parse(TEXT), None, s) for s in SETTINGS]
    assert len(questions) == len(SETTINGS)


@pytest.mark.parametrize(
    ("text", "kernel", "consts"),
    [
        (TEXT.replace("+ scale", "- scale"), None, {"C": 4}),
        (TEXT, "k", {"C": 4}),
        (TEXT, "other", {"C": 4}),
        (TEXT, None, {"C": 5}),
        (TEXT, None, {}),
        (TEXT, None, {"C": 4.0}),
    ],
)
def test_another_question_is_asked(questions: list[object], text: str, kernel: str | None, consts: dict[str, Any]) -> None:
    fits(parse(TEXT), None, {"C": 4})
    assert fits(parse(text), kernel, consts) == (find_violation(parse(text), kernel, consts) is None)
    assert len(questions) == 2


def test_what_depends_on_the_stack_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(TEXT)
    with monkeypatch.context() as m:
        m.setattr(verdicts, "find_violation", lambda *_: CuirError.of("P018", "nested too deeply").diagnostics[0])
        assert not fits(program, None, {})
    assert fits(program, None, {})

"""Every program of `corpus.faulty()` gives the errors that its first line says, by code and place; the clean ones give none.

`# run: M=320` in the head: the program checks, and the errors are found by the interpreter on tensors of these dims.
"""

from __future__ import annotations

import re

import pytest

import corpus
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import Schedule, run
from cuir.syntax.parser import parse
from cuir.text.codes import CODES
from cuir.text.diagnostics import CuirError
from tests.strategies.typed import arguments

TEXTS = corpus.faulty()
RUN = re.compile(r"^# run: (.*)$", re.MULTILINE)
DYNAMIC = [name for name, text in TEXTS.items() if RUN.search(text)]
SCHEDULES = [
    "in_order",
    "random:1",
    "random:2",
    "adversarial:3",
    "adversarial:engines_first",
    "adversarial:reverse",
    "adversarial:starve:1",
]


def attempt(name: str, schedule: str = "in_order") -> None:
    """Parse, check and, if the text says so, run."""
    text = TEXTS[name]
    checked = check(parse(text, f"{name}.cuir"))
    dims = RUN.search(text)
    if dims:
        _run(checked, dims[1], schedule)


def _run(checked: Checked, dims: str, schedule: str) -> None:
    lengths = {name: int(value) for name, value in (item.split("=") for item in dims.split())}
    run(checked, arguments(checked, lengths), schedule=Schedule.parse(schedule))


@pytest.mark.parametrize("name", TEXTS)
def test_errors_by_code_and_place(name):
    first = TEXTS[name].split("\n")[0]
    expected = first.removeprefix("# expect: ")
    if expected == "clean":
        attempt(name)
        return
    with pytest.raises(CuirError) as caught:
        attempt(name)
    diagnostics = caught.value.diagnostics
    assert ", ".join(f"{d.code} {d.span.line}:{d.span.column}" for d in diagnostics if d.span) == expected
    assert name.startswith(diagnostics[0].code) and diagnostics[0].code in CODES
    for d in diagnostics:
        assert d.span and d.span.source.name == f"{name}.cuir" and d.span.source.line(d.span.line)
        assert d.message in str(caught.value) and d.as_json()["code"] == d.code


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", DYNAMIC)
def test_no_schedule_hides_a_fault(name, schedule):
    if name.startswith("clean"):
        attempt(name, schedule)
    else:
        with pytest.raises(CuirError):
            attempt(name, schedule)

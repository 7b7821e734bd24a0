"""Every program of corpus/faulty gives the errors that its first line says, by code and place; the clean ones give none.

`# run: M=320` in the head: the program checks, and the errors are found by the interpreter on tensors of these dims.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import Schedule, run
from cuir.syntax.parser import parse
from cuir.text.codes import CODES
from cuir.text.diagnostics import CuirError
from tests.strategies.arguments import arguments

FILES = sorted((Path(__file__).parent.parent / "corpus" / "faulty").glob("*.cuir"))
RUN = re.compile(r"^# run: (.*)$", re.MULTILINE)
DYNAMIC = [f for f in FILES if RUN.search(f.read_text())]
SCHEDULES = [
    "in_order",
    "random:1",
    "random:2",
    "adversarial:3",
    "adversarial:engines_first",
    "adversarial:reverse",
    "adversarial:starve:1",
]


def attempt(path: Path, schedule: str = "in_order") -> None:
    """Parse, check and, if the file says so, run."""
    text = path.read_text()
    checked = check(parse(text, path.name))
    dims = RUN.search(text)
    if dims:
        _run(checked, dims[1], schedule)


def _run(checked: Checked, dims: str, schedule: str) -> None:
    lengths = {name: int(value) for name, value in (item.split("=") for item in dims.split())}
    run(checked, arguments(checked, lengths), schedule=Schedule.parse(schedule))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_errors_by_code_and_place(path):
    first = path.read_text().split("\n")[0]
    expected = first.removeprefix("# expect: ")
    if expected == "clean":
        attempt(path)
        return
    with pytest.raises(CuirError) as caught:
        attempt(path)
    found = caught.value.diagnostics
    assert ", ".join(f"{d.code} {d.span.line}:{d.span.column}" for d in found if d.span) == expected
    assert path.stem.startswith(found[0].code) and found[0].code in CODES
    for d in found:
        assert d.span and d.span.source.name == path.name and d.span.source.line(d.span.line)
        assert d.message in str(caught.value) and d.as_json()["code"] == d.code


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("path", DYNAMIC, ids=lambda p: p.stem)
def test_no_schedule_hides_a_fault(path, schedule):
    if path.stem.startswith("clean"):
        attempt(path, schedule)
    else:
        with pytest.raises(CuirError):
            attempt(path, schedule)

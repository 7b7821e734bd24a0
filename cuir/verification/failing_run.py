"""The run in which a diagnostic was found, read from its notes.

The notes tell the problem, inputs, schedule, grid and consts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..attn.verification.problems import Case, is_attention
from ..checking.checked import Checked, Const
from ..interp import Schedule
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.specification import LENGTHS, Lengths
from ..syntax.types import DTYPES
from ..text.diagnostics import CuirError, Diagnostic
from .spec_dispatch import AnyCase
from .values.cases import Draw

CASE = re.compile(r"in the case (.*?): ((?:\w+=[^,\s]+, )+)(\w+) inputs(?:, seed (\d+))?")
CONSTS = re.compile(r"found with ((?:-c \w+=\S+ ?)+)$", re.MULTILINE)
_SCHEDULE = re.compile(r"found under the schedule (\S+?), in the case|--schedule (\S+)")
_GRID = re.compile(r"on a grid of (\d+)|--grid (\d+)")


@dataclass(frozen=True)
class FailingRun:
    """A run that a diagnostic names.

    Attributes:
        numbers: Lengths and scalars of the problem, as text.
        grid: Number of CTAs, None for that of `run`.
        consts: Consts other than those of the verification.
    """

    name: str
    numbers: Mapping[str, str]
    kind: str
    seed: int
    schedule: Schedule
    grid: int | None
    consts: Mapping[str, Const] = field(default_factory=dict)

    def make_case(self, checked: Checked, spec: AnySpecification) -> AnyCase | None:
        """Return the problem; None if the text does not name all its lengths."""
        is_function = isinstance(spec, FunctionSpecification) and not is_attention(checked.origin)
        names = list(checked.dims) if is_function else list(LENGTHS)
        if not all(self.numbers.get(n, "").isdecimal() for n in names):
            return None
        sizes = {n: int(self.numbers[n]) for n in names}
        if not is_function:
            return Case(self.name, Lengths(**sizes), self.kind, self.seed)  # type: ignore[arg-type]  # a kind that a report names
        types = {s.name: s.dtype for s in checked.scalars}
        scalars = tuple((n, _read_number(text)) for n, text in self.numbers.items() if n in types and n not in sizes)
        return Draw(self.name, sizes, self.kind, self.seed, scalars=scalars)


def find_failing_run(diagnostic: Diagnostic) -> FailingRun | None:
    """Return the run that the notes of a diagnostic name; None if they name none."""
    notes = [n.message for n in diagnostic.notes]
    case = next((m for text in notes if (m := CASE.search(text))), None)
    if case is None:
        return None
    name, numbers, kind, seed = case.groups()
    text = "\n".join(notes)
    schedule, grid, consts = _SCHEDULE.search(text), _GRID.search(text), CONSTS.search(text)
    try:
        chosen = Schedule.parse(schedule[1] or schedule[2]) if schedule else Schedule()
    except CuirError:
        return None
    pairs = dict(part.split("=", 1) for part in numbers.rstrip(", ").split(", "))
    other_consts = {n: _read_const(v) for n, v in (word.split("=", 1) for word in (consts[1].split() if consts else ()) if "=" in word)}
    return FailingRun(name, pairs, kind, int(seed or 0), chosen, int(grid[1] or grid[2]) if grid else None, other_consts)


def _read_const(text: str) -> Const:
    return DTYPES[text] if text in DTYPES else _read_number(text)


def _read_number(text: str) -> int | float | bool:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)

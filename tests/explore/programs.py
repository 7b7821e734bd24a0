"""Helpers of tests of the exploration: explore a text, run it under schedules, replay a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import cuir
from cuir.arguments.binding import TORCH
from cuir.checking.checked import Checked
from cuir.explore import Exploration, explore
from cuir.interp import Schedule

TRIED = [
    "in_order",
    "adversarial:reverse",
    "adversarial:engines_first",
    "adversarial:starve:0",
    "adversarial:starve:1",
    *(f"random:{n}" for n in range(8)),
]


def check_text(text: str, consts: Mapping[str, Any] | None = None) -> Checked:
    return cuir.check(cuir.parse(text, "k.cuir"), None, consts)


def tensors(checked: Checked, dims: Mapping[str, int] | None = None, **scalars: Any) -> dict[str, Any]:
    """Ones for what is read, zeros for what is written and for integers."""
    result: dict[str, Any] = dict(scalars)
    dims = dict(dims or {})
    if "SPLITS" in checked.consts:  # shares of each sequence
        dims["BS"] = dims["B"] * int(checked.consts["SPLITS"])  # type: ignore[arg-type]
    for t in checked.tensors:
        shape = [dims[d] if isinstance(d, str) else d for d in t.dims]
        result[t.name] = (torch.zeros if t.written or t.dtype.name == "i32" else torch.ones)(shape, dtype=TORCH[t.dtype])
    return result


def explore_program(program: str | Checked, dims: Mapping[str, int] | None = None, **options: Any) -> Exploration:
    checked = program if isinstance(program, Checked) else check_text(program)
    return explore(checked, tensors(checked, dims), **options)


def fault(program: str | Checked, schedule: str | Schedule, dims: Mapping[str, int] | None = None, grid: int | None = None) -> str:
    """The code of the fault of one run, or ""."""
    checked = program if isinstance(program, Checked) else check_text(program)
    try:
        cuir.run(checked, tensors(checked, dims), schedule=schedule, grid=grid)
    except cuir.CuirError as error:
        return error.diagnostics[0].code
    return ""


def replay(program: str | Checked, result: Exploration, dims: Mapping[str, int] | None = None) -> str:
    """The code of the fault when the schedule that was found runs with data."""
    assert result.schedule is not None
    return fault(program, result.schedule.schedule("schedule.json"), dims, result.schedule.grid)

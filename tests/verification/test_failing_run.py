"""The run that a diagnostic names is read back as it was: problem, inputs, schedule, grid, consts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuir
from cuir.attn.verification.numeric import add_note
from cuir.attn.verification.problems import Case
from cuir.interp import Schedule
from cuir.spec.specification import Lengths
from cuir.text.diagnostics import CuirError
from cuir.verification.failing_run import find_failing_run
from cuir.verification.schedules import make_schedules
from cuir.verification.spec_dispatch import prepare_specification
from cuir.verification.values.cases import Draw
from tests.testing.programs import SCALE

CHECKED = cuir.check(SCALE)
SPEC = prepare_specification(lambda x, factor: x * factor, CHECKED.origin)
SCHEDULES = make_schedules(CHECKED, "quick")


def note(*texts: str) -> CuirError:
    error = CuirError.of("D401", "deadlock")
    for text in texts:
        error = add_note(error, text)
    return error


@given(st.integers(0, 9999), st.sampled_from(("normal", "tiny")), st.integers(0, 2**40), st.sampled_from(SCHEDULES), st.floats(-1e9, 1e9))
def test_a_draw_is_read_back(rows: int, kind: str, seed: int, schedule: Schedule, factor: float) -> None:
    draw = Draw("one, of: many", {"M": rows}, kind, seed, scalars=(("factor", factor),))
    run = find_failing_run(note(f"found under the schedule {schedule}, in the case {draw}, on a grid of 7").diagnostics[0])
    assert run is not None and run.schedule == schedule and run.grid == 7 and run.make_case(CHECKED, SPEC) == draw


def test_a_problem_of_an_attention_is_read_back() -> None:
    case = Case("short rows", Lengths(1, 4, 2, 128, 64), "strided", 3)
    error = note(
        "replay: --schedule adversarial:starve:2 --grid 2", f"in the case {case}", "found with -c BM=64 -c DYNAMIC=False -c T=bf16"
    )
    run = find_failing_run(error.diagnostics[0])
    attention = cuir.check(cuir.load("corpus/kernels/flash_fwd_sm90.cuir"), consts={"T": cuir.f16, "D": 64})
    assert run is not None and run.make_case(attention, SPEC) == case
    assert (str(run.schedule), run.grid, run.consts) == ("adversarial:starve:2", 2, {"BM": 64, "DYNAMIC": False, "T": cuir.bf16})


@pytest.mark.parametrize("text", ["", "seen in CTA 0", "in the case with too few words"])
def test_without_a_case_there_is_none(text: str) -> None:
    assert find_failing_run(note(text).diagnostics[0]) is None


def test_a_length_that_is_missing_makes_no_case() -> None:
    run = find_failing_run(note("in the case x: N=3, normal inputs").diagnostics[0])
    assert run is not None and run.make_case(CHECKED, SPEC) is None

"""Any order of tiles, and rings of any length: what a kernel's own order, or a short launch, keeps from running is run all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import corpus
from cuir.attn.verification.tile_orders import make_orders
from cuir.checking.checker import check
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.loading import as_specification
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from cuir.verification import check_schedules, verify
from cuir.verification.exhaustive import check_exhaustively
from cuir.verification.schedules import ScheduleOptions
from cuir.verification.spec_dispatch import make_ring_cases, make_schedule_cases

EXPERT = (Path(corpus.__file__).parent / "kernels" / "flash_fwd_sm90.cuir").read_text(encoding="utf-8")
CONSTS = {"T": F16, "D": 64}
CAUSAL = as_specification(corpus.variant("causal"), "causal")
ROWS = """\
@kernel(arch="sm_90a")
def scale_rows(X: Global[f16, M, 64], Y: Global[f16, M, 64], *, STAGES: const = 2):
    buf = shared(f16, [STAGES, 64, 64])
    filled, free = mbarrier(1, stages=STAGES), mbarrier(1, stages=STAGES)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        i = 0
        for t in work:
            s, phase = i % STAGES, i // STAGES % 2
            free[s].wait(phase ^ 1)
            filled[s].expect(nbytes(buf[s]))
            copy_async(X[t * 64 : t * 64 + 64, :], buf[s], filled[s])
            i += 1
    with role("scale", warpgroups=1):
        i = 0
        for t in work:
            s, phase = i % STAGES, i // STAGES % 2
            filled[s].wait(phase)
            x = cast(load(buf[s]), f32)
            free[s].arrive()
            store(Y[t * 64 : t * 64 + 64, :], cast(x * 2.0, f16))
            i += 1
"""


def reference(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_tiles_come_in_other_orders() -> None:
    program = parse(EXPERT)
    checked = check(program, None, CONSTS)
    results = list(make_orders(program, checked))
    assert [o.name for o in results] == ["backwards", "from both ends in turn"]
    assert all(o.checked.tensors == checked.tensors and o.checked.roles != checked.roles for o in results)
    assert not list(make_orders(parse(ROWS), check(parse(ROWS))))  # it has no `tile`


def test_a_line_that_only_another_order_reaches_is_judged() -> None:
    """Warpgroups behind the last query, after a tile in which they had work: the expert's own order has none in a small problem."""
    place = EXPERT.index("# all behind the last query")
    wrong = EXPERT[:place] + EXPERT[place:].replace("ring(vi, STAGES)", "ring(vi, STAGES + 1)", 1)
    checked = check(parse(wrong), None, CONSTS)
    (case,) = (c for c in make_schedule_cases(checked, CAUSAL) if c.name == "persistent tiles")
    assert check_schedules(parse(wrong), checked, CAUSAL, case, "quick", ScheduleOptions(seeded=0)) > 0  # nothing to find
    with pytest.raises(CuirError) as caught:
        check_schedules(
            parse(wrong), checked, CAUSAL, case, "quick", ScheduleOptions(seeded=0, orders=list(make_orders(parse(wrong), checked)))
        )
    note = caught.value.diagnostics[0].notes[-1].message
    assert "with the tiles backwards: @func def tile(t): return tile_0(cdiv(M, BM) * H * B - 1 - t)" in note


@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize("stages", [2, 3, 6])
@pytest.mark.parametrize(
    ("wrong", "by"), [("            free[s].wait(phase ^ 1)\n", ""), ("filled[s].wait(phase)", "filled[s].wait(min(i // STAGES, 1))")]
)
def test_rings_go_round_however_long_they_are(stages: int, wrong: str, by: str) -> None:
    spec, consts = FunctionSpecification("twice", reference), {"STAGES": stages}
    right = parse(ROWS)
    assert verify(right, spec, consts=consts, seeded=0).ok and all(
        e.result.ok for e in check_exhaustively(right, check(right, None, consts), spec)
    )
    faulty = parse(ROWS.replace(wrong, by))
    assert not verify(faulty, spec, consts=consts, shrink=False, seeded=0).ok
    assert not check_exhaustively(faulty, check(faulty, None, consts), spec)[-1].result.ok


def test_rings_of_an_attention_kernel_go_round() -> None:
    """Four buffers of Q, of which a CTA needs one a tile."""
    faulty = parse(EXPERT.replace("q_empty[x].wait(xphase ^ 1)", "x = x"))
    checked = check(faulty, None, {**CONSTS, "BN": 64, "QBUF": 4, "STAGES": 4})
    with pytest.raises(CuirError):
        for case in make_ring_cases(checked, CAUSAL):
            check_schedules(faulty, checked, CAUSAL, case, "quick", ScheduleOptions(few=True))


def test_rings_that_no_admitted_problem_goes_round_are_told() -> None:
    """A specification that says something of one length alone: a right kernel passes, and the report says what was not tried."""
    spec = FunctionSpecification("twice", reference, sizes=lambda sizes: sizes if sizes["M"] < 400 else None)
    report = verify(parse(ROWS), spec, consts={"STAGES": 6}, seeded=0)
    assert report.ok, report.as_markdown()
    item = next(s.reason for s in report.stages if s.name == "schedules")
    assert "admit goes round rings of 6 stages" in item
    assert "goes round" not in next(
        s.reason for s in verify(parse(ROWS), spec, consts={"STAGES": 1}, seeded=0).stages if s.name == "schedules"
    )

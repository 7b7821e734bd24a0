"""Ways to call the interpreter: an unchecked program, a schedule by its text, a list of what was wrong."""

from __future__ import annotations

import contextlib

import pytest
import torch

from cuir.interp import Schedule, run
from cuir.interp import interpreted_launch as launch
from cuir.interp.machine import Machine
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError

TEXT = """
@kernel(arch="sm_80")
def double(X: Global[T, M], Y: Global[T, M], *, T: const, FACTOR: const = 2):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            i = t * 16 + rows(16)
            store(Y[i], X[i] * FACTOR)
"""


def test_a_program_is_checked_with_what_the_tensors_say() -> None:
    x, y = torch.arange(40.0), torch.zeros(40)
    report = run(parse(TEXT), {"X": x, "Y": y}, consts={"FACTOR": 3}, schedule="random:7")
    assert torch.equal(y, 3 * x) and report.schedule == "random:7" and report.units == 3


@pytest.mark.parametrize("schedule", ["in_order", "random:3", "adversarial:5", "adversarial:starve:1"])
def test_schedules_by_text(schedule: str) -> None:
    assert str(Schedule.parse(schedule)) == schedule
    run(parse(TEXT), {"X": torch.ones(5), "Y": torch.ones(5)}, schedule=schedule)


def test_wrong_calls_are_told() -> None:
    for changed, code in (({"schedule": "sometimes"}, "U111"), ({"grid": 0}, "U112"), ({"consts": {"NOPE": 1}}, "N111")):
        with pytest.raises(CuirError) as caught:
            run(parse(TEXT), {"X": torch.ones(5), "Y": torch.ones(5)}, **changed)  # type: ignore[arg-type]
        assert [d.code for d in caught.value.diagnostics] == [code]


AHEAD = """
@kernel(arch="sm_90a")
def ahead(Y: Global[f32, U], *, AT: const = 1):
    told = mbarrier(1)
    work = tiles(U, dynamic=True)
    with role("first", warps=1):
        i = 0
        for t in work:
            if i == AT:
                told.arrive()
            store(Y[t], 1.0)
            i += 1
    with role("second", warps=1):
        i = 0
        for t in work:
            if i == 0:
                told.wait(0)
            i += 1
"""


@pytest.mark.parametrize(("at", "fine"), [(0, True), (1, True), (2, False)])
def test_units_handed_out_as_late_as_may_be(at: int, fine: bool) -> None:
    """The second role has one unit when it waits for what the first one does in its unit `at`."""
    program, consts = parse(AHEAD), {"AT": at}

    def go(schedule: str) -> None:
        run(program, {"Y": torch.zeros(4)}, consts=consts, grid=1, schedule=schedule)

    go("in_order")
    go("adversarial:reverse")
    if fine:
        go("adversarial:lockstep")
        return
    with pytest.raises(CuirError) as caught:
        go("adversarial:lockstep")
    assert [d.code for d in caught.value.diagnostics] == ["D401", "D401"]
    assert "first[0] waits for its next unit of work" in str(caught.value) and "second[0] has not" in str(caught.value)


def test_lockstep_only_where_the_lowering_queues() -> None:
    """A role with two loops over the units gets no queue, and nobody waits for it."""
    text = AHEAD.replace(
        "            i += 1\n    with role", "            i += 1\n        for t in work:\n            i += 1\n    with role"
    )
    run(parse(text), {"Y": torch.zeros(4)}, consts={"AT": 2}, grid=1, schedule="adversarial:lockstep")


@pytest.mark.parametrize("fails", [False, True])
def test_tiles_are_the_calling_threads_and_the_callers_setting_comes_back(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with many threads is no slower: small operations are not handed out."""
    observed = list[int]()
    finish = launch._finish

    def note_threads(machine: Machine) -> None:
        observed.append(torch.get_num_threads())
        finish(machine)

    monkeypatch.setattr(launch, "_finish", note_threads)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        text = TEXT.replace("store(Y[i]", "store(Y[i // 2]") if fails else TEXT
        with pytest.raises(CuirError) if fails else contextlib.nullcontext():
            run(parse(text), {"X": torch.arange(40.0), "Y": torch.zeros(40)})
        assert set(observed) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


CHOSEN = """
@kernel(arch="sm_80")
def products(X: Global[bf16, 16, 16], Y: Global[f32, 16, 16]):
    s = shared(bf16, [16, 16])
    work = tiles(1)
    with role("all", warps=1):
        for t in work:
            x = load(X[:, :])
            store(s, x)
            sync()
            y = mma(x, s)
            store(Y[:, :], where(y > 0.1, y, cast(x, f32)))
"""


def test_a_launch_under_autocast_has_the_same_bits() -> None:
    x, results = torch.randn(16, 16).bfloat16(), list[torch.Tensor]()
    for enabled in (False, True):
        y = torch.full((16, 16), torch.nan)
        with torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
            run(parse(CHOSEN), {"X": x, "Y": y})
        results.append(y)
    assert torch.equal(*results)

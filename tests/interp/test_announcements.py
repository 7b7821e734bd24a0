"""A consumer may announce a copy's bytes before its loader issues the copy; wrong orders stay errors.

They do in every schedule and in the explorer.
"""

from __future__ import annotations

import pytest
import torch

import cuir
from cuir.explore import explore
from cuir.interp import run
from cuir.text.diagnostics import CuirError

SCHEDULES = (
    "in_order",
    "random:1",
    "random:2",
    "adversarial:workers_first",
    "adversarial:reverse",
    "adversarial:engines_first",
    "adversarial:3",
)
LOAD = """
@kernel(arch="sm_90a")
def f(X: Global[f16, M, 64], Y: Global[f16, M, 64], *, STAGES: const):
    buf = shared(f16, [STAGES, 64, 64])
    full, go = mbarrier(1, stages=STAGES), mbarrier(1, stages=STAGES)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        i = 0
        for t in work:
            s, phase = i % STAGES, i // STAGES % 2
            go[s].wait({parity})
            copy_async(X[t * 64 : t * 64 + 64, :], buf[s], full[s])
            i += 1
    with role("use", warpgroups=1):
{first}
        i = 0
        for t in work:
            s, phase = i % STAGES, i // STAGES % 2
{body}
            i += 1
"""
ANNOUNCE_FIRST = "        for s in range(STAGES):\n            full[s].expect(nbytes(buf[s]))"
STORE = "store(Y[t * 64 : t * 64 + 64, :], x)"
EXPECT, WAIT, READ, GO = "full[s].expect(nbytes(buf[s]))", "full[s].wait(phase)", "x = load(buf[s])", "go[s].arrive()"


def kernel(*body: str, parity: str = "phase", first: str = "") -> str:
    return LOAD.format(parity=parity, first=first, body="\n".join(f"            {line}" for line in body))


RIGHT = {
    "asks for each copy": kernel(EXPECT, GO, WAIT, READ, STORE),
    "announces while the copy may be under way": kernel(EXPECT, WAIT, READ, GO, STORE, parity="phase ^ 1"),
    "announces the next use before it gives the stage back": kernel(
        WAIT, READ, EXPECT, GO, STORE, parity="phase ^ 1", first=ANNOUNCE_FIRST
    ),
    "announces the next use after it has given the stage back": kernel(
        WAIT, READ, GO, EXPECT, STORE, parity="phase ^ 1", first=ANNOUNCE_FIRST
    ),
}
WRONG = {
    "announces the next use before this one is there": (kernel(EXPECT, GO, EXPECT, WAIT, READ, STORE), "S402"),
    "gives the stage back twice": (kernel(EXPECT, WAIT, READ, GO, GO, STORE, parity="phase ^ 1"), "S401"),
    "gives the stage back before the read": (kernel(EXPECT, WAIT, GO, READ, STORE, parity="phase ^ 1"), "R401"),
    "never waits": (kernel(EXPECT, GO, READ, STORE), ("M401", "R401", "S402")),
    "announces nothing": (kernel(GO, WAIT, READ, STORE), "D401"),
    "announces too little": (kernel("full[s].expect(nbytes(buf[s]) // 2)", GO, WAIT, READ, STORE), ("S403", "R401")),
}
# the loader itself announces, before it knows the place free
AHEAD = kernel(WAIT, READ, GO, STORE, parity="phase ^ 1").replace("            go[s].wait", f"            {EXPECT}\n            go[s].wait")


def code(text: str, stages: int, schedule: str) -> str:
    """Return the codes that a run reports; none for a right one."""
    x = torch.randn(320, 64).half()
    y = torch.zeros_like(x)
    try:
        run(cuir.check(cuir.parse(text), consts={"STAGES": stages}), {"X": x, "Y": y}, grid=1, schedule=schedule)
    except CuirError as error:
        return error.diagnostics[0].code
    assert torch.equal(x, y)
    return ""


def explore_stages(text: str, stages: int) -> str:
    x = torch.zeros(320, 64).half()
    exploration = explore(cuir.check(cuir.parse(text), consts={"STAGES": stages}), {"X": x, "Y": x.clone()}, grid=1)
    assert exploration.verdict != "unknown"
    return "" if exploration.ok else exploration.diagnostics[0].code


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("name", RIGHT)
def test_a_consumer_may_announce_before_the_copy_can_be_issued(name: str, stages: int) -> None:
    assert {code(RIGHT[name], stages, s) for s in SCHEDULES} == {""}
    assert explore_stages(RIGHT[name], stages) == ""


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_order_is_an_error_in_every_schedule(name: str, stages: int) -> None:
    text, expected = WRONG[name]
    for actual in [explore_stages(text, stages), *(code(text, stages, s) for s in SCHEDULES)]:
        assert actual and actual in expected, actual


@pytest.mark.parametrize("stages", [1, 2])
def test_an_announcement_that_can_come_before_the_last_bytes_is_one_too_many(stages: int) -> None:
    """It is so in every schedule, also where the bytes happen to be there."""
    assert {code(AHEAD, stages, s) for s in SCHEDULES} == {"S402"} and explore_stages(AHEAD, stages) == "S402"


def test_the_report_of_an_early_announcement_says_behind_which_wait_it_stands() -> None:
    x = torch.zeros(320, 64).half()
    with pytest.raises(CuirError) as caught:
        run(cuir.check(cuir.parse(AHEAD), consts={"STAGES": 2}), {"X": x, "Y": x.clone()}, grid=1, schedule="adversarial:engines_first")
    (result,) = caught.value.diagnostics
    assert "can still miss its bytes" in result.message and result.hint is not None and "or on `go`" in result.hint

"""Programs whose fault only a rare schedule shows: runs in order and many random ones are free of faults, the exploration finds it, and the schedule replays."""

from __future__ import annotations

import pytest

from cuir.explore import explore
from tests.explore.programs import check_text, explore_program, fault, replay, tensors

# Three workers arrive and two are counted: the phase is over without the first one's data only if the third, which has most to do, overtakes it.
ONE_ARRIVAL_TOO_FEW = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, 192, 64], Y: Global[f16, 64, 64]):
    sX = shared(f16, [3, 64, 64])
    ready, own = mbarrier(2), mbarrier(1)
    with role("fill", warpgroups=3) as w:
        if w == 2:
            for i in range(20):
                store_wait()
        store(sX[w], load(X[w * 64 : w * 64 + 64, :]))
        ready.arrive()
    with role("use", warpgroups=1):
        ready.wait(0)
        store(Y[0 : 64, :], load(sX[0]))
"""
# Warps meet in pairs; that the right ones meet is chance, though a likely one: the second pair comes late.
ANY_TWO_MEET = """\
@kernel(arch="sm_90a")
def k(Y: Global[f32, 4, 16, 16]):
    sX = shared(f32, [4, 16, 16])
    meet = named_barrier(2)
    with role("pair", warps=4) as w:
        if w > 1:
            for i in range(20):
                store_wait()
        store(sX[w], full(f32, [16, 16], 1.0))
        meet.sync()
        store(Y[w, :, :], load(sX[w // 2 * 2 + 1 - w % 2]))
"""
# The bytes of one of two copies are expected: the phase is over with whichever lands first, and the other copy lands in a phase that is expected later.
# Right only if the copies land in the order of their issue, as engines that act early, or in order, have it.
BYTES_OF_THE_FIRST = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, 128, 64], Y: Global[f16, 128, 64]):
    sX = shared(f16, [2, 64, 64])
    full, go = mbarrier(1), mbarrier(1)
    with role("load", warps=1):
        full.expect(nbytes(sX[0]))
        copy_async(X[0 : 64, :], sX[0], full)
        copy_async(X[64 : 128, :], sX[1], full)
        go.wait(0)
        full.expect(nbytes(sX[1]))
    with role("use", warpgroups=1):
        full.wait(0)
        x = load(sX[0])
        go.arrive()
        full.wait(1)
        store(Y[0 : 64, :], x + load(sX[1]))
"""
RARE = {"one arrival too few": ONE_ARRIVAL_TOO_FEW, "any two meet": ANY_TWO_MEET, "bytes of the first": BYTES_OF_THE_FIRST}


@pytest.mark.parametrize("name", RARE)
def test_found_though_the_run_in_order_is_clean(name: str) -> None:
    checked = check_text(RARE[name])
    assert fault(checked, "in_order") == "" == fault(checked, "adversarial:engines_first")
    result = explore_program(checked)
    assert result.verdict == "faulty" and result.classes >= 1 and result.schedule is not None
    code = result.diagnostics[0].code
    assert code[0] in "DRSM" and result.schedule.code == code
    assert replay(checked, result) == code
    assert result.diagnostics[0].span is not None and result.diagnostics[0].span.source.name == "k.cuir"


@pytest.mark.parametrize("name", ["one arrival too few", "any two meet"])
def test_a_hundred_random_runs_miss_what_the_exploration_finds(name: str) -> None:
    checked = check_text(RARE[name])
    assert {fault(checked, f"random:{seed}") for seed in range(100)} == {""}
    assert not explore_program(checked).ok


# The parity is taken from the unit's number instead of a count: right for a CTA that gets units 0, 1 and so on.
PARITY_OF_THE_UNIT = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, 192, 64], Y: Global[f16, 192, 64]):
    sX = shared(f16, [64, 64])
    full, empty = mbarrier(1), mbarrier(1)
    work = tiles(3, dynamic=True)
    with role("load", warps=1):
        for t in work:
            empty.wait(t % 2 ^ 1)
            full.expect(nbytes(sX))
            copy_async(X[t * 64 : t * 64 + 64, :], sX, full)
    with role("use", warpgroups=1):
        for t in work:
            full.wait(t % 2)
            store(Y[t * 64 : t * 64 + 64, :], load(sX))
            empty.arrive()
"""


def test_units_of_work_are_handed_out_in_every_way() -> None:
    checked = check_text(PARITY_OF_THE_UNIT)
    assert fault(checked, "in_order", grid=1) == ""
    result = explore_program(checked, grid=1)
    assert result.verdict == "faulty" and result.schedule is not None
    assert result.schedule.units in ((0, 2), (1,), (1, 2)) and "which gets the units of work" in str(result.diagnostics[0].notes)
    assert replay(checked, result) == result.schedule.code
    static = check_text(PARITY_OF_THE_UNIT.replace(", dynamic=True", ""))
    assert explore_program(static, grid=1).ok and not explore_program(static, grid=2).ok  # units 0 and 2, then 1


def test_the_budget_is_kept_and_nothing_claimed() -> None:
    text = """\
@kernel(arch="sm_90a")
def k(Y: Global[f32, 6, 16, 16]):
    meet = named_barrier(2)
    with role("pair", warps=6) as w:
        meet.sync()
        store(Y[w, :, :], full(f32, [16, 16], 1.0))
"""
    checked = check_text(text)
    all_of_it = explore_program(checked, classes=None)
    assert all_of_it.verdict == "clean" and all_of_it.classes == 15 * 6 and not all_of_it.alike  # pairs of six, in any order
    some = explore(checked, tensors(checked), classes=10)
    assert some.verdict == "unknown" and some.classes == 10 and not some.ok
    assert [d.code for d in some.diagnostics] == ["V203"]
    assert "no deadlock" not in some.summary()

"""Each class of fault that warp-specialised kernels really have, as a small change to a good kernel: found with its code and at its place."""

from __future__ import annotations

import pytest
import torch

from cuir.interp import Schedule

WAIT_FULL = "                full[s].wait(it // STAGES % 2)\n"
WAIT_EMPTY = "                empty[s].wait(it // STAGES % 2 ^ 1)\n"
EXPECT = "                full[s].expect(nbytes(sX[s]))\n"
COPY = "copy_async(X[i, 0 : 64, :], sX[s], full[s])"
PRODUCT = "mma_async(sX[s], sW, acc)"
STORE = "store(sY[wg * 64 : wg * 64 + 64], cast(acc, f16))"
BULK_STORE = "store_async(sY[wg * 64 : wg * 64 + 64], Y[t, wg * 64 : wg * 64 + 64, :])"

# name: (changes, code, text at the place)
FAULTS = {
    "read before the copy landed": ([(WAIT_FULL, "")], "R401", PRODUCT),
    "wait on the wrong stage": ([(WAIT_FULL, WAIT_FULL.replace("full[s]", "full[0]"))], "R401", PRODUCT),
    "wrong parity of the consumer": ([(WAIT_FULL, WAIT_FULL.replace("% 2)", "% 2 ^ 1)"))], "R401", PRODUCT),
    "weights never waited for": ([("        w_full.wait(0)\n", "")], "R401", PRODUCT),
    "stage refilled too early": ([("mbarrier(2, stages=STAGES)", "mbarrier(1, stages=STAGES)")], "R401", PRODUCT),
    "producer does not wait": ([(WAIT_EMPTY, "")], "S402", "full[s].expect(nbytes(sX[s]))"),
    "released before the product retired": (
        [
            (
                "                mma_wait(acc)\n                empty[s].arrive()\n",
                "                empty[s].arrive()\n                mma_wait(acc)\n",
            )
        ],
        "R401",
        COPY,
    ),
    "accumulator read in flight": (
        [
            ("                mma_wait(acc)\n                empty[s].arrive()\n", "                empty[s].arrive()\n"),
            ("cast(acc, f16)", "cast(acc * 1.0, f16)"),
            (
                "range(N):\n                s = it % STAGES\n                empty",
                "range(1):\n                s = it % STAGES\n                empty",
            ),
            (
                "range(N):\n                s = it % STAGES\n                full",
                "range(1):\n                s = it % STAGES\n                full",
            ),
        ],
        "M405",
        "acc",
    ),
    "accumulator bound anew in flight": (
        [("                mma_wait(acc)\n", "                acc = zeros(f32, [64, 64])\n                mma_wait(acc)\n")],
        "M406",
        "acc = zeros(f32, [64, 64])",
    ),
    "no fence": ([("            fence_async()\n", "")], "R403", BULK_STORE),
    "no store_wait": ([("            store_wait()\n", "")], "R401", STORE),
    "too few bytes": ([("full[s].expect(nbytes(sX[s]))", "full[s].expect(nbytes(sX[s]) // 2)")], "S403", COPY),
    "no bytes": ([("full[s].expect(nbytes(sX[s]))", "full[s].arrive()")], "R401", PRODUCT),
    "expect missing": ([(EXPECT, "")], "D401", "full[s].wait(it // STAGES % 2)"),
    "too many bytes": ([("full[s].expect(nbytes(sX[s]))", "full[s].expect(nbytes(sX[s]) * 2)")], "D401", "full[s].wait(it // STAGES % 2)"),
    "negative bytes": (
        [("full[s].expect(nbytes(sX[s]))", "full[s].expect(0 - nbytes(sX[s]))")],
        "S404",
        "full[s].expect(0 - nbytes(sX[s]))",
    ),
    "phase instead of parity": ([(WAIT_FULL, WAIT_FULL.replace(" % 2)", ")"))], "S405", "full[s].wait(it // STAGES)"),
    "wrong parity of the producer": ([(WAIT_EMPTY, WAIT_EMPTY.replace(" ^ 1", ""))], "D401", "empty[s].wait(it // STAGES % 2)"),
    "never released": ([("                empty[s].arrive()\n", "")], "D401", "empty[s].wait(it // STAGES % 2 ^ 1)"),
    "released twice": (
        [("                empty[s].arrive()\n", "                empty[s].arrive()\n                empty[s].arrive()\n")],
        "R401",
        PRODUCT,
    ),
    "trip counts disagree": (
        [
            (
                "            for i in range(N):\n                s = it % STAGES\n                full",
                "            for i in range(N - 1):\n                s = it % STAGES\n                full",
            )
        ],
        "D401",
        "empty[s].wait(it // STAGES % 2 ^ 1)",
    ),
    "stage outside of the ring": (
        [("                s = it % STAGES\n                empty", "                s = it % (STAGES + 1)\n                empty")],
        "M412",
        "empty[s].wait(it // STAGES % 2 ^ 1)",
    ),
    "view outside of the array": (
        [("copy_async(X[i, 0 : 64, :], sX[s], full[s])", "copy_async(X[i, 0 : 64, :], sX[s + i], full[s])")],
        "M409",
        "copy_async(X[i, 0 : 64, :], sX[s + i], full[s])",
    ),
    "never written": ([(STORE, "store(Y[t, 0 : 64, :], load(sY[0 : 64]))")], "M401", "load(sY[0 : 64])"),
    "output over the ring": (
        [
            (
                "sX, sW, sY = shared(f16, [STAGES, 64, 64]), shared(f16, [64, 64]), shared(f16, [128, 64])\n",
                "sX, sW = shared(f16, [STAGES, 64, 64]), shared(f16, [64, 64])\n    sY = shared(f16, [128, 64], over=sX)\n",
            )
        ],
        "R401",
        PRODUCT,
    ),
    "two workers store the same rows": (
        [("Y[t, wg * 64 : wg * 64 + 64, :])", "Y[t, 0 : 64, :])")],
        "R402",
        "store_async(sY[wg * 64 : wg * 64 + 64], Y[t, 0 : 64, :])",
    ),
    "CTAs store the same rows": (
        [("Y[t, wg * 64 : wg * 64 + 64, :])", "Y[0, wg * 64 : wg * 64 + 64, :])")],
        "R402",
        "store_async(sY[wg * 64 : wg * 64 + 64], Y[0, wg * 64 : wg * 64 + 64, :])",
    ),
}


def test_the_kernel_is_good(pipe, pipe_error, any_schedule) -> None:
    ran = pipe(schedule=any_schedule)
    assert ran.error is None, ran.error
    assert pipe_error(ran) < 4e-3


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_at_its_place(pipe, name: str) -> None:
    changes, code, place = FAULTS[name]
    ran = pipe(*changes)
    assert (ran.code, ran.at) == (code, place)


RACES = [n for n, (_, code, _) in FAULTS.items() if code in ("R401", "R403", "S401", "D401", "M405")]


@pytest.mark.parametrize("name", RACES)
def test_fault_is_found_whatever_the_schedule(pipe, any_schedule, name: str) -> None:
    changes, _, _ = FAULTS[name]
    assert pipe(*changes, schedule=any_schedule).code[0] in "RSDM"


def test_division_by_zero(pipe) -> None:
    ran = pipe(("                s = it % STAGES\n                full", "                s = it % (N - 5)\n                full"))
    assert (ran.code, ran.at) == ("M411", "it % (N - 5)")


def test_element_outside(pipe) -> None:
    ran = pipe(
        ("            acc = full(f32, [64, 64], cast(t, f32))\n", "            acc = full(f32, [64, 64], B[t + 1])\n"),
        ("W: Global", "B: Global[f32, U], W: Global"),
        more={"B": torch.ones(3)},
    )
    assert (ran.code, ran.at) == ("M402", "B[t + 1]")


def test_register_operand_bound_anew(pipe) -> None:
    change = (
        "                acc = mma_async(sX[s], sW, acc)\n",
        "                P = load(sX[s])\n                acc = mma_async(P, sW, acc)\n                P = load(sX[s])\n",
    )
    ran = pipe(change)
    assert (ran.code, ran.at) == ("M407", "P = load(sX[s])")


def test_accumulator_read_after_it_was_taken_over(pipe) -> None:
    change = (
        "                acc = mma_async(sX[s], sW, acc)\n                mma_wait(acc)\n",
        "                before = acc\n                acc = mma_async(sX[s], sW, acc)\n                mma_wait(acc)\n                acc = acc + before\n",
    )
    ran = pipe(change)
    assert (ran.code, ran.at) == ("M408", "before")


def test_product_in_flight_at_the_end(pipe) -> None:
    bulk = "            store_async(sY[wg * 64 : wg * 64 + 64], Y[t, wg * 64 : wg * 64 + 64, :])\n"
    ran = pipe((bulk, bulk + "            Z = mma_async(sW, sW)\n"), U=1)
    assert (ran.code, ran.at) == ("M404", "mma_async(sW, sW)")


def test_copy_nobody_waits_for(pipe) -> None:
    ran = pipe(("        w_full.wait(0)\n", ""), ("acc = mma_async(sX[s], sW, acc)", "acc = mma_async(sX[s], sX[s], acc)"))
    assert (ran.code, ran.at) == ("M403", "copy_async(W[0 : 64, :], sW, w_full)")


def test_lap_behind(pipe) -> None:
    """The producer of a barrier that its waiter does not hold back."""
    ran = pipe(
        ("                empty[s].wait(it // STAGES % 2 ^ 1)\n", ""),
        (
            "                full[s].expect(nbytes(sX[s]))\n                copy_async(X[i, 0 : 64, :], sX[s], full[s])",
            "                full[s].arrive()",
        ),
        ("mma_async(sX[s], sW, acc)", "mma_async(sW, sW, acc)"),
        ("                empty[s].arrive()\n", ""),
        N=9,
    )
    assert (ran.code, ran.at) == ("S401", "full[s].wait(it // STAGES % 2)")


def test_a_late_lap_is_found_before_it_happens(pipe) -> None:
    """The order of phases is fixed only by luck: both roles run in step under the schedule, and nothing says so."""
    arrive = (
        "                full[s].expect(nbytes(sX[s]))\n                copy_async(X[i, 0 : 64, :], sX[s], full[s])",
        "                full[s].arrive()",
    )
    for schedule in (Schedule.in_order(), Schedule.random(3), Schedule.adversarial("reverse")):
        ran = pipe(
            arrive,
            ("                empty[s].wait(it // STAGES % 2 ^ 1)\n", ""),
            ("mma_async(sX[s], sW, acc)", "mma_async(sW, sW, acc)"),
            ("                empty[s].arrive()\n", ""),
            N=9,
            schedule=schedule,
        )
        assert ran.code == "S401"


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "name", ["weights never waited for", "no store_wait", "released before the product retired", "accumulator read in flight"]
)
def test_late_effects_corrupt_what_comes_too_early(pipe, pipe_error, name: str) -> None:
    """Without detection: poison until a copy lands and a product retires; a late reader sees what was written meanwhile."""
    errors = []
    for schedule in (
        *(make(seed) for make in (Schedule.random, Schedule.adversarial) for seed in range(12)),
        Schedule.adversarial("starve", 1),
    ):
        ran = pipe(*FAULTS[name][0], detect=False, grid=1, schedule=schedule)
        assert ran.error is None, ran.error
        errors.append(pipe_error(ran))
    assert any(not e < 4e-3 for e in errors)


def test_a_report_says_who_where_and_how_to_replay(pipe) -> None:
    ran = pipe((WAIT_FULL, ""), schedule=Schedule.adversarial("workers_first"), grid=1)
    assert ran.error is not None
    text = str(ran.error)
    assert "bulk copy #" in text and "by load[0]" in text and "by compute[" in text
    assert "replay: --schedule adversarial:workers_first --grid 1" in text
    assert "no wait by compute[0] on `full[0]` lies before this read: wait there for phase 0, parity 0" in text


def test_deadlock_names_every_blocked_worker(pipe) -> None:
    ran = pipe(("                empty[s].arrive()\n", ""))
    assert ran.error is not None
    (only,) = ran.error.diagnostics
    assert only.message == "deadlock: load[0] waits for phase 0 of `empty[0]`, which is in phase 0 with 0 of 2 arrivals"
    assert [n.message for n in only.notes][:2] == [
        "no statement arrives on `empty`",
        "other waits follow from this: compute[0] for phase 1 of `full[0]`, compute[1] for phase 1 of `full[0]`",
    ]


def test_deadlock_names_those_first_who_wait_for_each_other(attention) -> None:
    """Only the loader of V and the warpgroups wait for each other; the loader of K, who comes first in the text, waits for these alone."""
    releases = [("v_empty[u].arrive(cluster=True)", "v_empty[0].arrive(cluster=True)")]
    for changes in ([("v_empty[u].arrive(cluster=True)", "store_wait()")], releases):
        ran, _, _ = attention("corpus/kernels/flash_fwd_sm90.cuir", 1, 1, 1, 64, 640, consts={"BM": 64, "BN": 64}, changes=changes)
        assert ran.error is not None
        first = ran.error.diagnostics[0].message
        assert "load_v[0] waits" in first and "`v_empty[" in first, str(ran.error)


def test_deadlock_counts_missing_bytes(pipe) -> None:
    ran = pipe(("full[s].expect(nbytes(sX[s]))", "full[s].expect(nbytes(sX[s]) + 16)"))
    assert ran.error is not None
    assert any("1 of 1 arrival, 16 of 8208 bytes missing" in d.message for d in ran.error.diagnostics)

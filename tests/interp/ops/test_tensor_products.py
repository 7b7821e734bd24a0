"""Products into tensor memory: right results under any schedule, and faults that the interpreter and the explorer find."""

from __future__ import annotations

import pytest
import torch

from cuir.checking.checked import Checked
from cuir.explore import explore
from cuir.interp.interpreted_launch import run
from cuir.interp.schedule import Schedule
from cuir.text.diagnostics import CuirError
from tests.ops.test_tensor_memory import check_changed


def make_arguments(m: int, n: int, k: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(m + n + k)
    a, b = (torch.randn(rows, k, generator=draw).to(torch.float16) for rows in (m, n))
    return {"A": a, "B": b, "C": torch.zeros(m, n)}


def multiply(checked: Checked, arguments: dict[str, torch.Tensor], schedule: str) -> torch.Tensor:
    """Return the greatest error of a run."""
    run(checked, arguments, grid=1, schedule=Schedule.parse(schedule))
    a, b = arguments["A"].double(), arguments["B"].double()
    return (arguments["C"] - a @ b.mT).abs().max()


@pytest.mark.parametrize("schedule", ["in_order", "random:1", "random:2", "adversarial:3", "adversarial:4"])
def test_results_are_right_under_any_schedule(schedule: str) -> None:
    assert multiply(check_changed(), make_arguments(200, 200, 136), schedule) < 1e-4


def test_every_schedule_of_a_small_launch_is_clean() -> None:
    assert not explore(check_changed(), make_arguments(136, 200, 72), grid=1).diagnostics


COMMIT, PRODUCT = "            mma_commit(done[j % 2])\n", "accumulate=k > 0)\n"
FAULTS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "no wait for the commit": ("M401", [("            done[j % 2].wait(j // 2 % 2)\n", "")]),
    "a commit before the last product": (
        "R401",
        [(COMMIT, ""), (PRODUCT, f"{PRODUCT}                if k == 0:\n                    mma_commit(done[j % 2])\n")],
    ),
    "no wait for the load": ("M405", [("            load_wait(x)\n", "")]),
    "no wait for readers": ("R401", [("            read[j % 2].wait(j // 2 % 2 ^ 1)\n", "")]),
    "readers arrive too early": (
        "R401",
        [("load_wait(x)\n            read[j % 2].arrive()\n", "read[j % 2].arrive()\n            load_wait(x)\n")],
    ),
    "no wait for operands": ("R401", [("                full[s].wait(i // STAGES % 2)\n", "")]),
    "no commit for readers": ("D401", [(COMMIT, "")]),
    "no commit for the loader": ("D401", [("                mma_commit(empty[s])\n", "")]),
    "a commit too many": ("S401", [(COMMIT, f"{COMMIT}            mma_commit(empty[0])\n")]),
    "what nobody wrote is added to": ("M401", [("accumulate=k > 0", "accumulate=True")]),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    code, changes = FAULTS[name]
    checked, found = check_changed(*changes), set[str]()
    for schedule in ("in_order", "adversarial:1", "random:1"):
        try:
            multiply(checked, make_arguments(384, 128, 136), schedule)
        except CuirError as error:
            found |= {d.code for d in error.diagnostics}
    assert code in found, found
    explored = explore(checked, make_arguments(384, 128, 136), grid=1).diagnostics
    assert explored or name == "what nobody wrote is added to"


def test_two_issuers_of_one_accumulator_race() -> None:
    checked = check_changed(
        ('role("issuer", warps=1)', 'role("issuer", warps=2)'),
        ("empty = mbarrier(1, stages=STAGES), mbarrier(1,", "empty = mbarrier(1, stages=STAGES), mbarrier(2,"),
        ("done, read = mbarrier(1,", "done, read = mbarrier(2,"),
    )
    with pytest.raises(CuirError, match="products finish in order only if one worker issues them"):
        multiply(checked, make_arguments(128, 64, 64), "in_order")
    (fault,) = explore(checked, make_arguments(128, 64, 64), grid=1).diagnostics
    assert fault.code == "R401" and "only if one worker issues them" in fault.message


def test_a_commit_behind_all_waits_is_reported() -> None:
    checked = check_changed(
        ("    done, read", "    last = mbarrier(1)\n    done, read"),
        (
            "            mma_commit(done[j % 2])\n            j = j + 1\n",
            "            mma_commit(done[j % 2])\n            j = j + 1\n        mma_commit(last)\n",
        ),
    )
    with pytest.raises(CuirError, match=r"error\[M403\]"):
        multiply(checked, make_arguments(128, 64, 64), "in_order")
    assert {f.code for f in explore(checked, make_arguments(128, 64, 64), grid=1).diagnostics} == {"M403"}


def test_a_product_without_a_commit_is_reported() -> None:
    checked = check_changed(
        (
            "            mma_commit(done[j % 2])\n            j = j + 1\n",
            "            mma_commit(done[j % 2])\n            j = j + 1\n        mma_into(acc[0], sA[0], sB[0].T)\n",
        ),
    )
    with pytest.raises(CuirError, match=r"error\[(M404|R401)\]"):
        multiply(checked, make_arguments(128, 64, 64), "in_order")

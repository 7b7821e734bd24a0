"""Any grid: faults that show only with one unit of work a CTA, with several, or with shares that assume a number of CTAs; all refused at level quick."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.checker import check
from cuir.interp import run
from cuir.spec.function_specification import FunctionSpecification
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from cuir.verification import VerifyReport, verify
from cuir.verification.schedules import MANY, list_other_grids

PIPE = """
@kernel(arch="sm_90a")
def twice(X: Global[f32, M, 32], Y: Global[f32, M, 32], *, STAGES: const = 2):
    s, out = shared(f32, [STAGES, 32, 32]), shared(f32, [32, 32])
    full, empty, more = mbarrier(1, stages=STAGES), mbarrier(1, stages=STAGES), mbarrier(1)
    work = tiles(cdiv(M, 32))
    with role("load", warps=1):
        i = 0
        for t in work:
            empty[i % STAGES].wait(i // STAGES % 2 ^ 1)
            full[i % STAGES].expect(nbytes(s[i % STAGES]))
            copy_async(X[t * 32 : t * 32 + 32, :], s[i % STAGES], full[i % STAGES])
            i += 1
    with role("compute", warps=1):
        i = 0
        for t in work:
            full[i % STAGES].wait(i // STAGES % 2)
            x = load(s[i % STAGES]) * 2.0
            empty[i % STAGES].arrive()
            store_wait()
            store(out, x)
            fence_async()
            store_async(out, Y[t * 32 : t * 32 + 32, :])
            i += 1
"""
LOADED = "            copy_async(X[t * 32 : t * 32 + 32, :], s[i % STAGES], full[i % STAGES])\n"
STORE = "            store_async(out, Y[t * 32 : t * 32 + 32, :])\n"
FAULTS: dict[str, tuple[list[tuple[str, str]], set[str]]] = {
    "the first unit waits for what the second one brings": (
        [(LOADED, LOADED + "            if i == 1:\n                more.arrive()\n"), (STORE, STORE + "            if i == 0:\n                more.wait(0)\n")],
        {"D401"},
    ),
    "the second unit waits for what the third one brings": (
        [(LOADED, LOADED + "            if i == 2:\n                more.arrive()\n"), (STORE, STORE + "            if i == 1:\n                more.wait(0)\n")],
        {"D401"},
    ),
    "a CTA without work waits for some": ([(STORE + "            i += 1\n", STORE + "            i += 1\n        if i < 1:\n            more.wait(0)\n")], {"D401"}),
    "parities start anew with each unit": ([("        i = 0\n        for t in work:\n", "        for t in work:\n            i = 0\n")], {"D401", "R401", "S402"}),
    "shared memory that the unit before still sends from": ([("            store_wait()\n", "")], {"R401"}),
    "a counter that assumes two CTAs": ([("        for t in work:\n", "        for t in work:\n            i = t // 2\n")], {"D401", "R401", "S402", "M401"}),
    "values of the unit before, in one CTA of three": (
        [("            x = load(s[i % STAGES]) * 2.0\n", "            x = load(s[i % STAGES]) * 2.0\n            if i > 0 and t % 3 == 2:\n                x = x + last\n            last = x * 0.0 + 1.0\n"),
         ("    with role(\"compute\", warps=1):\n        i = 0\n", "    with role(\"compute\", warps=1):\n        i = 0\n        last = zeros(f32, [32, 32])\n")],
        {"V201"},
    ),
    "the last unit of one of two CTAs is left out": ([(STORE, "            if t + 2 < cdiv(M, 32) or i < 2:\n    " + STORE)], {"V201", "V302"}),
}  # fmt: skip


def verify_text(text: str) -> VerifyReport:
    return verify(parse(text, "twice.cuir"), FunctionSpecification("twice", lambda X: X * 2.0), shrink=False, seeded=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_right_kernels_pass_on_every_grid(dynamic: bool) -> None:
    report = verify_text(PIPE.replace("cdiv(M, 32))", "cdiv(M, 32), dynamic=True)") if dynamic else PIPE)
    assert report.ok, report.as_markdown()
    assert "grids that give a CTA no unit of work, one, and unequal shares" in report.stages[2].reason and not report.left_open


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_some_grid_are_refused(name: str, dynamic: bool) -> None:
    changes, codes = FAULTS[name]
    text = PIPE.replace("cdiv(M, 32))\n", "cdiv(M, 32), dynamic=True)\n") if dynamic else PIPE
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    report = verify_text(text)
    assert not report.ok and report.diagnostics[0].code in codes, report.as_markdown()
    assert any(n.message.startswith(("found under the schedule", "in the case", "replay")) for n in report.diagnostics[0].notes)


@given(st.integers(0, 300))
def test_grids_give_none_one_two_and_unequal_shares(units: int) -> None:
    grids = list_other_grids(units)
    shares = {tuple(len(range(c, units, g)) for c in range(g)) for g in grids}
    assert all(g > 2 or g > units for g in grids) and len(grids) == len(set(grids)) <= 3
    if 0 < units <= MANY:
        assert any(set(s) == {0, 1} for s in shares)
    if 4 < units <= MANY:
        assert any(2 in s and set(s) <= {1, 2} for s in shares) and any(len(s) > 2 and len(set(s)) == 2 and 0 not in s for s in shares)


ALONE = """
@kernel(arch="sm_90a")
def twice(X: Global[f32, M, 32], Y: Global[f32, M, 32]):
    with role("all", warps=1):
        for i in range(cdiv(M, 32)):
            store(Y[i * 32 + rows(32), cols(32)], X[i * 32 + rows(32), cols(32)] * 2.0)
"""


def test_a_kernel_without_units_of_work_is_one_cta() -> None:
    report = verify_text(ALONE)
    assert report.ok and "launched as one CTA" in report.stages[2].reason
    checked, x = check(parse(ALONE)), torch.ones(40, 32)
    with pytest.raises(CuirError, match=r"U112.*launched as one CTA"):
        run(checked, {"X": x, "Y": torch.empty_like(x)}, grid=2)
    assert run(checked, {"X": x, "Y": torch.empty_like(x)}, grid=1).grid == 1
    assert run(checked, {"X": x, "Y": torch.empty_like(x)}, grid=lambda units: 7).grid == 1

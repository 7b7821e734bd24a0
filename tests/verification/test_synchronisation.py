"""Problems whose synchronisation runs alone: launches far beyond those with data, and which values they still need.

Problems that take too long are left out where verification chose them large, and a fault where they are small.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import corpus
from cuir import CuirError, FunctionSpecification, check, parse, verify
from cuir.attn.verification.problems import Case
from cuir.checking.checked import Checked
from cuir.spec.loading import as_any
from cuir.spec.specification import Lengths
from cuir.syntax.types import F16
from cuir.verification import numbers_stage, schedules_stage, synchronisation
from cuir.verification.spec_dispatch import AnyCase
from cuir.verification.synchronisation import describe_left, is_too_large, make_arguments, needs_data, run_synchronisation
from cuir.verification.values.cases import Draw

CAUSAL = as_any(corpus.specification("causal"), "causal")
GROUPS = """
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    buf, filled, free = shared(f16, [4, 64, 64]), mbarrier(1, stages=4), mbarrier(1, stages=4)
    with role("load", warps=1):
        for i in range(cdiv(M, 64)):
            free[i % 4].wait(i // 4 % 2 ^ 1)
            filled[i % 4].expect(nbytes(buf[i % 4]))
            copy_async(X[i * 64 : i * 64 + 64, :], buf[i % 4], filled[i % 4])
    with role("store", warpgroups=1):
        for i in range(cdiv(M, 64)):
            filled[i % 4].wait(i // 4 % 2)
            store(Y[i * 64 : i * 64 + 64, :], load(buf[i % 4]))
            if {released}:
                free[i % 4].arrive()
"""


def make_grouped(released: str) -> tuple[Checked, FunctionSpecification]:
    return check(parse(GROUPS.format(released=released), "k.cuir")), FunctionSpecification("copy", lambda x: x)


def flash_checked(name: str = "flash_fwd_sm90") -> Checked:
    tree = parse(corpus.kernels()[name].read_text(encoding="utf-8"), f"{name}.cuir")
    return check(tree, "flash_fwd", {"T": F16, "D": 64})


@pytest.mark.thorough
def test_hundreds_of_blocks_and_of_units() -> None:
    checked = flash_checked()
    for at, grid in ((Lengths(1, 1, 1, 128, 520 * 128), 1), (Lengths(1, 300, 1, 128, 128), 1), (Lengths(501, 1, 1, 128, 128), 2)):
        finished = run_synchronisation(checked, CAUSAL, Case("long", at), grid=grid)
        assert finished.alone and not finished.reason and finished.report.seconds < 5


@pytest.mark.parametrize(("released", "steps"), [("i < 1000", 1010), ("i % 256 != 255", 270), ("i != 511", 530)])
def test_a_release_that_is_missing_far_out(released: str, steps: int) -> None:
    checked, spec = make_grouped(released)
    with pytest.raises(CuirError) as caught:
        run_synchronisation(checked, spec, Draw("long", {"M": 64 * steps}))
    first = caught.value.diagnostics[0]
    assert first.code == "D401" and any("run for its synchronisation" in n.message for n in first.notes)
    right, _ = make_grouped("True")
    assert run_synchronisation(right, spec, Draw("long", {"M": 64 * steps})).alone


@pytest.mark.thorough
def test_integers_come_from_the_specification() -> None:
    tree = parse(corpus.programs()["decode_paged"].read_text(encoding="utf-8"), "decode_paged.cuir")
    checked = check(tree, "decode", {"T": F16, "D": 64, "G": 4, "PAGE": 16})
    spec = as_any(corpus.specification("paged_decode"), "paged_decode")
    sizes = spec.admit_lengths({**dict.fromkeys(checked.dims, 40), "D": 64, "G": 4, "PAGE": 16, "H": 4, "HK": 1})
    draw = Draw("pages", {d: sizes[d] for d in checked.dims})
    values = make_arguments(checked, spec, draw)
    assert all(values[t.name].dtype == torch.int32 for t in checked.tensors if t.dtype.name == "i32")
    assert run_synchronisation(checked, spec, draw).alone


def test_data_where_results_decide() -> None:
    text = """
@kernel(arch="sm_80")
def k(X: Global[f32, M, 32], Y: Global[f32, M, 32], F: Scratch[i32, M]):
    with role("all", warps=1):
        store(F[0], 1)
        sync()
        for i in range(F[0]):
            sync()
        store(Y[rows(16), cols(32)], X[rows(16), cols(32)])
"""
    checked, spec = check(parse(text, "k.cuir")), FunctionSpecification("copy", lambda x: x)
    assert needs_data(checked).startswith("line 7: ")
    finished = run_synchronisation(checked, spec, Draw("short", {"M": 16}))
    assert not finished.alone and finished.reason.startswith("line 7: ")
    with pytest.raises(CuirError) as caught:
        run_synchronisation(checked, spec, Draw("long", {"M": 400_000}))
    assert caught.value.diagnostics[0].code == "V202"


TEXT = """
@kernel(arch="sm_90a")
def k(X: Global[f32, M, N], Y: Global[f32, M, N]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            for n in range(cdiv(N, 64)):
                store(Y[t * 16 + rows(16), n * 64 + cols(64)], X[t * 16 + rows(16), n * 64 + cols(64)])
"""
LATE = CuirError.of("D402", "the run was given up")


def slow(run: Any, least: int) -> Any:
    """A run that takes too long where the problem has so many elements."""

    def now(program: Any, kernel: Any, spec: Any, case: AnyCase, *rest: Any, **options: Any) -> Any:
        assert isinstance(case, Draw)
        if case.sizes["M"] * case.sizes["N"] >= least:
            raise LATE
        return run(program, kernel, spec, case, *rest, **options)

    return now


@pytest.mark.parametrize(
    ("sizes", "code", "remaining"), [((16, 64), "D402", False), ((1000, 64), "D402", True), ((1000, 64), "R401", False)]
)
def test_only_a_large_problem_is_left_out(sizes: tuple[int, int], code: str, remaining: bool) -> None:
    case = Draw("a problem", dict(zip("MN", sizes)))
    assert is_too_large(check(parse(TEXT)), case, CuirError.of(code, "a fault")) is remaining


@pytest.mark.sweep
@pytest.mark.parametrize(("stage", "index", "name"), [(numbers_stage, 4, "check_case"), (schedules_stage, 2, "check_schedules")])
@pytest.mark.parametrize(("least", "ok"), [(4_000, True), (1, False)])
def test_a_slow_machine_refuses_no_right_kernel(
    stage: Any, index: int, name: str, least: int, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = check(parse(TEXT))
    monkeypatch.setattr(synchronisation, "SMALL", 6_000)  # of schedules problems are small here
    monkeypatch.setattr(stage, name, slow(getattr(stage, name), least))
    report = verify(checked, FunctionSpecification("copy", lambda X: X.clone()), shrink=False)
    assert report.ok is ok
    assert not ok or "takes too long" in report.stages[index].reason
    assert ok or report.diagnostics[0].code == "D402"


def test_words() -> None:
    assert describe_left([]) == "" and "1 not asked" in describe_left([Draw("a problem", {"M": 1})])

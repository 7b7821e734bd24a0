"""Problems that take too long are left out where verification chose them large, and a fault where they are small."""

from __future__ import annotations

from typing import Any

import pytest

from cuir import CuirError, FunctionSpecification, check, parse, verify
from cuir.verification import large_problems, numbers_stage, schedules_stage
from cuir.verification.large_problems import describe_left, is_too_large
from cuir.verification.spec_dispatch import AnyCase
from cuir.verification.values.cases import Draw

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


@pytest.mark.parametrize(("stage", "index", "name"), [(numbers_stage, 4, "check_case"), (schedules_stage, 2, "check_schedules")])
@pytest.mark.parametrize(("least", "ok"), [(4_000, True), (1, False)])
def test_a_slow_machine_refuses_no_right_kernel(
    stage: Any, index: int, name: str, least: int, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = check(parse(TEXT))
    monkeypatch.setattr(large_problems, "SMALL", 6_000)  # of schedules problems are small here
    monkeypatch.setattr(stage, name, slow(getattr(stage, name), least))
    report = verify(checked, FunctionSpecification("copy", lambda X: X.clone()), shrink=False)
    assert report.ok is ok
    assert not ok or "takes too long" in report.stages[index].reason
    assert ok or report.diagnostics[0].code == "D402"


def test_words() -> None:
    assert describe_left([]) == "" and "1 not asked" in describe_left([Draw("a problem", {"M": 1})])

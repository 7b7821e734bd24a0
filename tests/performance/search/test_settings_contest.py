"""Programs against each other, on a GPU that is a formula: only what is right and faster takes the best's place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from cuir import CuirError, Program, check, parse
from cuir.performance.search.compiling import BuildResult
from cuir.performance.search.settings_contest import Contender, Contest, compare_interfaces, with_defaults
from cuir.syntax.printer import show
from cuir.syntax.types import F16

PROGRAM = """
@kernel(arch="sm_90a")
def copy(X: Global[T, M, D], Y: Global[T, M, D], *, T: const, D: const, ROWS: const = 64):
    work = tiles(cdiv(M, ROWS))
    with role("all", warpgroups=1):
        for t in work:
            store(Y[t * ROWS : t * ROWS + ROWS, :], load(X[t * ROWS : t * ROWS + ROWS, :]))
"""
FIXED = {"T": F16, "D": 64}


class Device:
    """Times by the number of rows; verdicts by it too."""

    def __init__(self, times: Mapping[int, float], verdicts: Mapping[int, str] | None = None):
        self.times, self.verdicts, self.requests = times, verdicts or {}, list[int]()

    def check(self, consts: Mapping, text: str) -> tuple[str, str]:
        status = self.verdicts.get(consts["ROWS"], "right")
        return status, "" if status == "right" else f"it {status}"

    def time(self, consts: Mapping, text: str) -> float:
        assert f"ROWS: const = {consts['ROWS']}" in text and consts["T"] == F16
        self.requests.append(consts["ROWS"])
        return self.times[consts["ROWS"]]


def contender(rows: int) -> Contender:
    return Contender.of(with_defaults(parse(PROGRAM), None, {"ROWS": rows, **FIXED}), None, FIXED)


def build(text: str, kernel: str, consts: Mapping) -> BuildResult:
    return BuildResult(refused="L002: no") if consts["ROWS"] == 448 else BuildResult(registers=90, spills=8 if consts["ROWS"] == 320 else 0)


def test_a_faster_program_takes_the_place_of_the_best_and_a_slower_one_does_not() -> None:
    device = Device({64: 2.0, 128: 1.0, 192: 1.5, 256: 0.999})
    contest = Contest(contender(64), device, build)
    assert contest.open().milliseconds == (2.0, 2.0, 2.0)
    won = contest.enter(contender(128))
    assert won.status == "faster" and won.speedup == 2.0 and contest.best.consts["ROWS"] == 128 and len(won.milliseconds) == 6
    assert contest.enter(contender(192)).status == "slower" and contest.best.consts["ROWS"] == 128
    assert contest.enter(contender(256)).status == "slower", "a gain within the noise is none"
    assert [e.status for e in contest.entries] == ["faster", "slower", "slower"] and contest.best.built == BuildResult(registers=90)


def test_a_faster_program_whose_longer_proof_fails_is_not_kept() -> None:
    contest = Contest(contender(64), Device({64: 2.0, 128: 1.0, 192: 3.0}), None)
    entry = contest.enter(contender(128), lambda: "R401 under a schedule")
    assert (entry.status, entry.why) == ("unconfirmed", "R401 under a schedule") and contest.best.consts["ROWS"] == 64
    requests: list[bool] = []
    assert contest.enter(contender(192), lambda: str(requests.append(True))).status == "slower" and not requests, (
        "asked only of what is faster"
    )


def test_contenders_are_timed_in_turns() -> None:
    device = Device({64: 2.0, 128: 2.5})
    Contest(contender(64), device, None).enter(contender(128))
    assert device.requests == [128, 64, 64, 128, 128, 64]


@pytest.mark.parametrize("status", ["wrong", "hangs", "fault", "refused"])
def test_what_is_not_right_is_never_timed(status: str) -> None:
    device = Device({64: 2.0, 128: 1.0}, {128: status})
    contest = Contest(contender(64), device, build)
    entry = contest.enter(contender(128))
    assert (entry.status, entry.why) == (status, f"it {status}") and not device.requests and contest.best.consts["ROWS"] == 64


def test_what_does_not_compile_never_runs_and_what_hangs_while_it_is_timed_is_not_kept() -> None:
    device = Device({64: 2.0, 448: 1.0, 128: math.nan})
    contest = Contest(contender(64), device, build)
    assert contest.enter(contender(448)).why == "L002: no" and not device.requests
    assert contest.enter(contender(128)).status == "hangs" and contest.best.consts["ROWS"] == 64


def test_without_a_gpu_nothing_is_ranked_and_nothing_kept() -> None:
    contest = Contest(contender(64), None, build)
    assert contest.open().milliseconds == ()
    entry = contest.enter(contender(320))
    assert entry.status == "unranked" and entry.contender.built == BuildResult(registers=90, spills=8) and contest.best.consts["ROWS"] == 64
    assert entry.as_json()["spills"] == 8 and entry.as_json()["milliseconds"] == []


@pytest.mark.parametrize(("status", "code"), [("wrong", "V401"), ("hangs", "V403"), ("fault", "V403"), ("refused", "L010")])
def test_a_start_that_is_wrong_is_an_error(status: str, code: str) -> None:
    with pytest.raises(CuirError) as error:
        Contest(contender(64), Device({64: 1.0}, {64: status}), None).open()
    assert error.value.diagnostics[0].code == code


def test_a_program_says_its_whole_setting() -> None:
    program = with_defaults(parse(PROGRAM), None, {**FIXED, "ROWS": 128})
    assert "T: const, D: const, ROWS: const = 128" in show(program)
    assert check(program, None, FIXED).consts["ROWS"] == 128
    assert with_defaults(parse(PROGRAM), None, FIXED) == parse(PROGRAM)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("def copy(", "def other(", "called `copy`"),
        ("X: Global[T, M, D], ", "", "takes X: Global[T, M, D], Y"),
        ("X: Global[T, M, D]", "X: Global[T, N, D]", "takes X: Global[T, M, D]"),
        ("X: Global[T, M, D], Y", "Y: Global[T, M, D], X", "takes X: Global[T, M, D]"),
        ("*, T", "scale: f32, *, T", "takes X"),
        ("ROWS: const = 64", "ROWS: const", "`ROWS` has no default"),
        ("D: const, ", "", "`D` is given by the caller"),
        ("sm_90a", "sm_80", "is for sm_90a"),
    ],
)
def test_an_interface_that_changes_is_named(old: str, new: str, says: str) -> None:
    (result,) = compare_interfaces(parse(PROGRAM), parse(PROGRAM.replace(old, new)), "copy")
    assert result.code == "V501" and says in result.message and result.hint


def test_consts_of_a_schedule_may_come_and_go() -> None:
    changed = parse(PROGRAM.replace("ROWS: const = 64", "STAGES: const = 2, ROWS: const = 128"))
    assert compare_interfaces(parse(PROGRAM), changed, "copy") == ()


def test_the_expert_kernel_keeps_its_interface_under_its_own_setting(program: Program) -> None:
    changed = with_defaults(program, None, {"BM": 192, "BN": 80, "CLUSTER": 1, "DYNAMIC": False})
    assert compare_interfaces(program, changed, "flash_fwd") == () and replace(changed, items=program.items) == program
    assert "BM: const = 192, BN: const = 80" in show(changed) and "DYNAMIC: const = False" in show(changed)

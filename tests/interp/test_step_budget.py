"""No program hangs the interpreter: a run that takes too long ends with the loop's place and its turns."""

from __future__ import annotations

import time

import pytest
import torch

import cuir
from cuir.checking.checked import Checked
from cuir.explore import explore
from cuir.interp.step_budget import format_duration, limit_seconds
from cuir.spec.function_specification import FunctionSpecification
from cuir.text.diagnostics import CuirError, Diagnostic
from cuir.verification import verify

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], n: i32):
    work = tiles(COUNT)
    with role("all", warpgroups=1):
        i = 0
        for t in work:
"""
END = "            store(X[t * 64 : t * 64 + 64, :], full(f32, [64, 64], cast(i, f32)))\n"


def kernel(body: str, count: str = "cdiv(M, 64)", end: str = END) -> Checked:
    lines = "".join(f"            {line}\n" for line in body.split("\n"))
    return cuir.check(cuir.parse(HEAD.replace("COUNT", count) + lines + end, "k.cuir"))


def give_up(checked: Checked, n: int = 1, **options: float) -> Diagnostic:
    begin = time.thread_time()
    with pytest.raises(CuirError) as error:
        cuir.run(checked, {"X": torch.zeros(100, 64), "n": n}, **options)  # type: ignore[arg-type]
    assert time.thread_time() - begin < 8
    return error.value.diagnostics[0]


@pytest.mark.parametrize("turns", ["1000000000", "2147483647", "n * 1000000000", "0, 2147483647, 2", "2147483647, -2147483648, -1"])
def test_a_loop_that_cannot_end_in_time_is_not_begun(turns: str) -> None:
    result = give_up(kernel(f"for j in range({turns}):\n    i += 1"))
    assert result.code == "D402" and result.span is not None and result.span.line == 7 and "none was begun" in result.message


@pytest.mark.parametrize("count", ["1073741824", "n * 2000000000"])
def test_units_of_work_that_cannot_end_in_time(count: str) -> None:
    result = give_up(kernel("i += 1", count, END.replace("t * 64 : t * 64 + 64", "0 : 64")))  # t * 64 would leave 32 bits
    assert result.code == "D402" and result.span is not None and result.span.line == 3 and "units of work" in result.message


def test_a_loop_is_given_up_at_its_pace() -> None:
    nested = kernel("for a in range(100000):\n    for b in range(100000):\n        i += 1")
    result = give_up(nested, budget=2)
    assert result.code == "D402" and result.span is not None and result.span.line == 7 and "of its 100,000 turns" in result.message
    assert result.hint is not None and "--budget" in result.hint


def test_a_run_over_its_time_ends() -> None:
    result = give_up(kernel("for a in range(200000):\n    i += 1"), budget=0.2)
    assert (result.code == "D402" and "0.2" in result.message) or "gave" in result.message


def test_more_time_is_allowed() -> None:
    checked, x = kernel("for a in range(20000):\n    i += 1"), torch.zeros(100, 64)
    with limit_seconds(0.01), pytest.raises(CuirError, match="D402"):
        cuir.run(checked, {"X": x, "n": 1})
    cuir.run(checked, {"X": x, "n": 1}, budget=60)
    assert x[0, 0] == 20000


def test_a_range_makes_the_turns_that_python_s_makes() -> None:
    for first, end, by in ((0, 10, 3), (10, 0, -3), (5, 5, 1), (5, 4, 1), (-3, 4, 7), (4, 5, -1), (10, -1, -5)):
        checked, x = kernel(f"for a in range({first}, {end}, {by}):\n    i += 1"), torch.zeros(64, 64)
        cuir.run(checked, {"X": x, "n": 1})
        assert x[0, 0] == len(range(first, end, by))


def test_exploration_and_verification_end() -> None:
    checked = kernel("for j in range(2147483647):\n    i += 1")
    with pytest.raises(CuirError, match="V203"):
        explore(checked, {"X": torch.zeros(100, 64), "n": 1})
    report = verify(checked, FunctionSpecification("any", lambda M: torch.zeros(M, 64)))
    assert not report.ok and report.diagnostics[0].code == "D402"


PIPELINE = """\
@kernel(arch="sm_80")
def pipe(X: Global[f16, N, 64, 64], Y: Global[f16, N, 64, 64]):
    s = shared(f16, [3, 64, 64])
    with role("all", warpgroups=1):
        for i in range(2):
            if i < N:
                copy_async(X[i, :, :], s[i])
            copy_commit()
        for i in range(N):
            copy_wait(1)
            sync()
            if i + 2 < N:
                copy_async(X[i + 2, :, :], s[(i + 2) % 3])
            copy_commit()
            store(Y[i, :, :], load(s[i % 3]))
            sync()
"""


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7])
def test_groups_may_be_empty_at_the_end(n: int) -> None:
    checked = cuir.check(cuir.parse(PIPELINE))
    x, y = torch.randn(n, 64, 64).half(), torch.zeros(n, 64, 64).half()
    for schedule in ("in_order", "adversarial:1", "random:3"):
        cuir.run(checked, {"X": x, "Y": y}, schedule=schedule)
        assert torch.equal(x, y)
    assert explore(checked, {"X": x, "Y": y}).ok


def test_a_copy_in_an_open_or_closed_group_is_in_flight() -> None:
    for last in ("copy_commit()", "copy_wait(1)"):
        text = (
            PIPELINE.replace("            sync()\n        for", "            sync()\n        for")
            + f"        copy_async(X[0, :, :], s[0])\n        {last}\n"
        )
        with pytest.raises(CuirError, match="M403"):
            cuir.run(cuir.check(cuir.parse(text)), {"X": torch.zeros(1, 64, 64).half(), "Y": torch.zeros(1, 64, 64).half()})


def test_long_times_in_words() -> None:
    assert [format_duration(t) for t in (5, 90, 150, 8000, 1e6, 1e9)] == [
        "5 seconds",
        "90 seconds",
        "2 minutes",
        "2 hours",
        "12 days",
        "32 years",
    ]

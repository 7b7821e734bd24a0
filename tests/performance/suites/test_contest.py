"""One kernel beside PyTorch's, as far as it goes without a GPU: kernels in the interpreter, the clock is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import CuirError, check
from cuir.attn.splicing.splice import TransferResult, transfer
from cuir.cli.command_inputs import read_variant
from cuir.performance.suites import contest as module
from cuir.performance.suites.cell_benchmark import Timing
from cuir.performance.suites.contest import compare
from tests.performance.suites.test_cell_benchmark import ORIGIN, SETTING, make_launch, on_cpu


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 1)
    monkeypatch.setattr(module, "HEADS", 2)
    monkeypatch.setattr(module, "LENGTH", 128)
    monkeypatch.setattr("cuir.performance.search.candidate_runs.RAGGED", (1, 2, 100, 130))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # what it computes, not how fast


def compare_launch(result: TransferResult, launch: Callable[..., Any]) -> dict[str, Any]:
    return compare(
        check(result.program, consts=SETTING), result, Timing(measure=lambda call: (call(), 0.5)[1]), prepare=on_cpu, launch=launch
    )


def test_a_right_kernel_is_timed_beside_its_peers() -> None:
    result = transfer(ORIGIN, read_variant("sliding_window", ("window=40",)))
    actual = compare_launch(result, make_launch(result.program)(SETTING))
    assert [r["what"] for r in actual["rows"]] == ["this kernel", "dense", "flex"]
    assert all(r["milliseconds"] == 0.5 for r in actual["rows"])
    assert actual["problem"] == "1 x 2 heads x 128 x 64, f16" and 0 < actual["error"] <= 1.5 * actual["yardstick"] + 2e-5
    assert actual["summary"].startswith("right (error ") and "1.00 x the best of PyTorch's" in actual["summary"]


def test_a_wrong_kernel_is_found() -> None:
    result, second = (transfer(ORIGIN, read_variant(v, ())) for v in ("sliding_window", "full"))
    launch = make_launch(second.program)(SETTING)

    def wrong(**arguments: Any) -> None:
        launch(**{name: arguments[name] for name in ("Q", "K", "V", "O", "LSE", "scale")})

    with pytest.raises(CuirError) as caught:
        compare_launch(result, wrong)
    assert [d.code for d in caught.value.diagnostics] == ["V401"]


def test_an_output_that_stays_unwritten_is_found() -> None:
    with pytest.raises(CuirError, match="V401"):
        compare_launch(transfer(ORIGIN, read_variant("full", ())), lambda **_: None)


def test_a_kernel_that_fails_at_the_timed_length_is_found() -> None:
    result = transfer(ORIGIN, read_variant("full", ()))
    launch = make_launch(result.program)(SETTING)

    def fails_later(**arguments: Any) -> None:
        if arguments["Q"].shape[2] == 128:
            raise RuntimeError("too many resources requested for launch")
        launch(**arguments)

    with pytest.raises(CuirError, match="too many resources"):
        compare_launch(result, fails_later)

"""Shares of a verification that are done, told with its messages."""

from __future__ import annotations

from pathlib import Path

import pytest

import cuir
from cuir.text.phrases import ProgressMessage, get_share
from cuir.verification.request import TYPICAL_TIMES, Level, StageShares

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("level", ["quick", "full"])
@pytest.mark.parametrize("has_mask", [True, False])
def test_shares_rise_from_stage_to_stage(level: Level, has_mask: bool) -> None:
    heard: list[str] = []
    shares = StageShares(heard.append, level, has_mask)
    for stage in TYPICAL_TIMES[level]:
        for message in (
            f"{stage}: begins",
            ProgressMessage(f"{stage}: half", 0.5),
            f"{stage}: no share",
            ProgressMessage(f"{stage}: all", 1.0),
        ):
            shares(message)
    reported = [get_share(m) for m in heard]
    assert reported == sorted(reported) and reported[0] == 0 and reported[-1] == pytest.approx(1)  # type: ignore[type-var]
    assert [str(m) for m in heard][1] == "well-formed: half"


def test_a_message_of_no_stage_keeps_the_share() -> None:
    heard: list[str] = []
    shares = StageShares(heard.append, "quick", True)
    shares(ProgressMessage("schedules: problem 1", 0.5))
    shares("gpu: 1 of 2")
    assert get_share(heard[0]) == get_share(heard[1])


@pytest.mark.usefixtures("few_problems")
def test_a_verification_tells_its_share() -> None:
    heard: list[str] = []
    program, function = ROOT / "corpus/programs/gemm.cuir", ROOT / "corpus/functions/gelu_gemm.py"
    assert cuir.verify(program, function, consts={"BM": 64, "BN": 64}, seeded=0, progress=heard.append)
    reported = [get_share(m) for m in heard]
    assert None not in reported and reported == sorted(reported) and reported[-1] > 0.7  # type: ignore[type-var, operator]
    assert len({round(t, 2) for t in reported}) > 10  # type: ignore[arg-type]

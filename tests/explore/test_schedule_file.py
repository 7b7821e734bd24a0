"""Schedules as files: what is written is read again, and anything else is refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cuir.explore import Written, read_schedule
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError

SCHEDULE = Written(
    "k", {"T": F16, "D": 64, "DYNAMIC": True}, {"M": 5}, 2, 1, (0, 3), True, ("load[0]", "copy 1 by load[0]"), "R401", "a race"
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    SCHEDULE.save(tmp_path / "new" / "s.json")
    result = read_schedule(tmp_path / "new" / "s.json")
    assert result == SCHEDULE
    schedule = result.schedule("s.json")
    assert schedule.steps == SCHEDULE.steps and schedule.cluster == 1 and schedule.policy == "lockstep" and schedule.units == (0, 3)
    assert schedule.replay_option == "--replay s.json"


@pytest.mark.parametrize(
    "change",
    [
        {"format": "another"},
        {"steps": [1]},
        {"steps": None},
        {"grid": 0},
        {"cluster": -1},
        {"dims": {"M": "5"}},
        {"consts": {"T": "f17"}},
        {"fault": {}},
        {"late_units": 3},
        {"units": [-1]},
        {"units": 0},
        {"kernel": None},
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(SCHEDULE.as_json() | change))
    with pytest.raises(CuirError) as caught:
        read_schedule(path)
    assert caught.value.diagnostics[0].code == "U124"


@pytest.mark.parametrize(("text", "code"), [("no json", "U124"), ("[]", "U124"), (None, "U201")])
def test_no_json_and_no_file(tmp_path: Path, text: str | None, code: str) -> None:
    path = tmp_path / "s.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CuirError) as caught:
        read_schedule(path)
    assert caught.value.diagnostics[0].code == code


def test_a_folder_is_no_place_to_write(tmp_path: Path) -> None:
    with pytest.raises(CuirError) as caught:
        SCHEDULE.save(tmp_path)
    assert caught.value.diagnostics[0].code == "U108"

"""Emitted text of two commits: what is the same is said to be, what differs is named, and old text is launched only where it takes the same arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import old_and_new


@pytest.fixture(autouse=True)
def _two_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_and_new, "SETTINGS", old_and_new.SETTINGS[:2])


@pytest.mark.thorough
def test_texts_that_differ_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.jsonl"
    old_and_new.write(path, ["full"])
    old_and_new.differ(path, ["full"], compile=False)
    assert capsys.readouterr().out == f"{len(old_and_new.SETTINGS)} texts are the same\n"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["source"] += "\n"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    old_and_new.differ(path, ["full"], compile=False)
    assert capsys.readouterr().out.splitlines() == [f"{rows[0]['name']}: another text", f"{len(rows) - 1} texts are the same"]


def test_old_text_takes_the_arguments_of_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    old_and_new.write(path, ["full"])
    old = old_and_new.read(path)
    name, _, _, _, cuda = next(old_and_new.texts(["full"]))
    assert old_and_new.old_kernel(cuda, {**old[name], "source": "other", "threads": 1}).source == "other"
    with pytest.raises(ValueError, match="scalars were"):
        old_and_new.old_kernel(cuda, {**old[name], "scalars": ["scale", "other"]})

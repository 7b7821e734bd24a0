"""tests/campaign.py: files as tasks, what passed is kept, and what failed is told and runs again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import campaign
from tests.campaign import find_files, hash_tree, main, make_command, run_file
from tests.campaigns.calls import Shuffled


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of two files of tests, one of which fails while a file is missing."""
    (tmp_path / "tests/inner").mkdir(parents=True)
    (tmp_path / "tests/test_a.py").write_text("def test_right(): pass\n", encoding="utf-8")
    (tmp_path / "tests/inner/test_b.py").write_text("import os\ndef test_there(): assert os.path.exists('there')\n", encoding="utf-8")
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--thorough')\n", encoding="utf-8")
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setattr(campaign, "hash_tree", lambda: "tree")
    return tmp_path


def test_what_failed_runs_again(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tree / "journal.jsonl"
    call = ["--jobs", "1", "--journal", str(journal)]
    assert find_files(["tests"]) == ["tests/inner/test_b.py", "tests/test_a.py"]
    assert main(call) == 1
    told = capsys.readouterr()
    assert "tests/inner/test_b.py: FAILED" in told.out and "os.path.exists" in told.out and "2 of 2 files" in told.err
    assert f"1 of 2 files failed; {make_command(call)}\n" in told.out
    assert len(journal.read_text(encoding="utf-8").splitlines()) == 2
    (tree / "there").touch()
    assert main(call) == 0
    head, *rows = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert head == {"options": ["--thorough=all"]} and all("1 passed" in row["value"] for row in rows) and len(rows) == 2


def test_an_interruption_tells_how_to_go_on(tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(campaign, "make_executor", lambda on, jobs: Shuffled([1, 0], stop=1))
    journal = tree / "journal.jsonl"
    kept_call = ["--journal", str(journal)]
    for kept, told in ((kept_call, f"interrupted; {make_command(kept_call)}\n"), ([], "interrupted\n")):
        assert main(kept) == 130 and told in capsys.readouterr().err
    assert len(journal.read_text(encoding="utf-8").splitlines()) == 2


def test_another_tree_is_refused(tree: Path) -> None:
    with pytest.raises(campaign.TaskError, match="another one"):
        run_file("tests/test_a.py", [], "other")


def test_the_tree_has_a_hash() -> None:
    assert hash_tree() == hash_tree() and len(hash_tree()) == 16

"""Journals: rows by key, torn lines, other files, order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.campaigns.journal import Journal, JournalKind
from cuir.text.diagnostics import CuirError

KIND = JournalKind("U122", "cuir mutate", "a program")
HEAD = {"mutate": "k", "level": "quick"}


def make_journal(path: Path, rows: int) -> Journal:
    journal = Journal(path, HEAD, KIND)
    for number in range(rows):
        journal.write({"id": str(number), "value": number * "x"})
    return journal


@given(st.integers(0, 200))
def test_a_torn_file_keeps_its_whole_lines(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "j.jsonl"
    make_journal(path, 5)
    data = path.read_bytes()
    head = data.index(b"\n") + 1
    path.write_bytes(data[: max(head, len(data) - cut)])
    journal = Journal(path, HEAD, KIND)
    kept = [k for k in "01234" if f'"{k}"' in path.read_text(encoding="utf-8") and k in journal.rows]
    assert list(journal.rows) == kept == [str(i) for i in range(len(kept))] and len(kept) >= 5 - cut // 25 - 1
    for key in sorted({*"01234"} - {*journal.rows}):
        journal.write({"id": key, "value": int(key) * "x"})
    assert path.read_bytes().splitlines() == data.splitlines()


def test_rows_get_the_order_of_the_tasks(tmp_path: Path) -> None:
    path = tmp_path / "new" / "j.jsonl"
    journal = Journal(path, HEAD, KIND)
    for key in "bca":
        journal.write({"id": key})
    journal.sort(["a", "b"])
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines == [HEAD, {"id": "a"}, {"id": "b"}, {"id": "c"}] and [p.name for p in path.parent.iterdir()] == ["j.jsonl"]
    assert list(Journal(path, HEAD, KIND).rows) == list(journal.rows) == ["a", "b", "c"]


def test_a_journal_in_memory_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    journal = Journal(None, HEAD, KIND)
    journal.write({"id": "a"})
    journal.sort(["a"])
    assert journal.rows == {"a": {"id": "a"}} and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"suite": 1}\n', "holds no results of `cuir mutate`"),
        ("notes\n", "holds no results"),
        ('{"mutate": "k", "level": "full"}\n', "other level"),
        ('{"mutate": "k", "level": "quick"}\n{"id": 3}\n', "line 2"),
        ('{"mutate": "k", "level": "quick"}\n{"id": "a"}\n[]\n', "line 3"),
    ],
)
def test_a_file_of_something_else_is_refused_and_kept(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CuirError, match=word) as caught:
        Journal(path, HEAD, KIND)
    assert caught.value.diagnostics[0].code == "U122" and path.read_text(encoding="utf-8") == text


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CuirError) as caught:
        Journal(tmp_path / "file" / "j.jsonl", HEAD, KIND).begin()
    assert caught.value.diagnostics[0].code == "U108"

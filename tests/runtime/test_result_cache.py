"""Results kept on disk: what the next process finds, what makes them anew, what no file may do."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cuir.caching.disk import RESULTS
from cuir.ops import TABLE
from cuir.runtime import result_cache
from cuir.runtime.result_cache import dump, make_entry_path, remember, restore
from cuir.text.source import Source, Span

pytestmark = pytest.mark.usefixtures("monkeypatch")  # with which each test has a folder of its own
SPAN = Span(Source("a.cuir", "text"), 1, 2, 3, 4)


@pytest.fixture
def ask() -> tuple[Callable[..., Span], list[int]]:
    """A function that asks for a result, and the times that it was made."""
    result: list[int] = []

    def ask(*key: str, kind: str = "spans") -> Span:
        def make() -> Span:
            result.append(len(result))
            return SPAN

        return remember(kind, key, Span, make)

    return ask, result


def test_a_result_is_made_once(ask: tuple[Callable[..., Span], list[int]]) -> None:
    call, result = ask
    assert call("a", "b") == call("a", "b") == SPAN and result == [0]


@pytest.mark.parametrize("change", ["part", "order", "joined", "kind", "package", "python"])
def test_another_key_is_another_result(ask: tuple[Callable[..., Span], list[int]], monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    call, result = ask
    call("a", "b")
    if change == "package":
        monkeypatch.setattr(result_cache, "describe_package", lambda: "another version")
    if change == "python":
        monkeypatch.setattr(result_cache.sys.implementation, "cache_tag", "another")  # type: ignore[attr-defined]
    key = {"part": ("a", "c"), "order": ("b", "a"), "joined": ("a\0b",)}.get(change, ("a", "b"))
    call(*key, kind="others" if change == "kind" else "spans")
    assert result == [0, 1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: b"no result",
        lambda whole: whole[:-3],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: bytes([*whole[:-1], whole[-1] ^ 1]),
        lambda whole: zlib.compress(dump("a text")),
        lambda whole: zlib.compress(pickle.dumps(os.path.join)),
    ],
    ids=["empty", "foreign", "end cut off", "half", "one bit", "another class", "a function"],
)
def test_a_damaged_entry_is_made_anew(ask: tuple[Callable[..., Span], list[int]], damage: Callable[[bytes], bytes]) -> None:
    call, result = ask
    call("a")
    entry = make_entry_path("spans", ["a"])
    entry.write_bytes(damage(entry.read_bytes()))
    assert call("a") == SPAN == call("a") and result == [0, 1]


class Foreign:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("ran",)


def test_a_foreign_entry_runs_nothing(ask: tuple[Callable[..., Span], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, result = ask
    monkeypatch.chdir(tmp_path)
    call("a")
    make_entry_path("spans", ["a"]).write_bytes(zlib.compress(pickle.dumps(Foreign())))
    assert call("a") == SPAN and result == [0, 1] and not (tmp_path / "ran").exists()
    with pytest.raises(pickle.UnpicklingError, match=r"mkdir does not belong"):
        restore(pickle.dumps(Foreign()))


def test_a_folder_that_cannot_be_written_is_no_error(
    ask: tuple[Callable[..., Span], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, result = ask
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(result_cache, "RESULTS", replace(RESULTS, folder=str(tmp_path / "file")))
    assert call("a") == call("a") == SPAN and result == [0, 1]


def test_a_use_counts_for_eviction(ask: tuple[Callable[..., Span], list[int]]) -> None:
    call, _ = ask
    call("0")
    os.utime(make_entry_path("spans", ["0"]), (1000, 1000))
    call("0")
    assert make_entry_path("spans", ["0"]).stat().st_mtime > 1000


def test_primitives_are_those_of_the_table() -> None:
    assert restore(dump(TABLE["store"])) is TABLE["store"]

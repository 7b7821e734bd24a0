"""The cache folder: kinds, atomic writes, the limit, eviction."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir.caching import disk
from cuir.caching.disk import CUBINS, KERNELS, KINDS, RESULTS, TUNING, VERDICTS, cache_dir, clear, evict, mark_used, size_limit, write_whole

MIB = 2**20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CUIR_CACHE_LIMIT", raising=False)
    monkeypatch.setattr(disk._Eviction, "at", float("-inf"))
    return tmp_path / "cache"


def fill(kind: disk.DiskCache, stem: str, size: int, age: int) -> Path:
    path = kind.path(stem)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (10**9 - age, 10**9 - age))
    return path


def test_a_file_is_of_one_kind(folder: Path) -> None:
    paths = {kind.name: fill(kind, "a" * 32, 3, 0) for kind in KINDS}
    assert {kind.name: [p for p, _ in kind.files()] for kind in KINDS} == {name: [path] for name, path in paths.items()}


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), max_size=12), limit=st.integers(1, 120))
def test_eviction_leaves_the_most_recently_used(sizes: list[tuple[int, int]], limit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUIR_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(disk, "size_limit", lambda: limit)
        files = [(age, fill((KERNELS, VERDICTS, RESULTS)[i % 3], f"{i:032d}", size, age), size) for i, (size, age) in enumerate(sizes)]
        before = sum(size for *_, size in files)
        evict()
        remaining = [f for f in files if f[1].exists()]
        assert (len(remaining) == len(files)) == (before <= limit)
        assert sum(size for *_, size in remaining) <= limit
        missing = [f for f in files if not f[1].exists()]
        assert not missing or min(age for age, *_ in missing) >= max((age for age, *_ in remaining), default=0)


def test_writing_evicts_what_is_old_but_neither_tuning_nor_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUIR_CACHE_LIMIT", "1")
    tuned, old = fill(TUNING, "best", 2 * MIB, 1000), fill(KERNELS, "old", MIB, 10)
    new = CUBINS.path("new", ".cubin")
    write_whole({new: bytes(MIB // 2)})
    assert tuned.exists() and new.exists() and not old.exists()


def test_the_folder_is_looked_at_again_after_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUIR_CACHE_LIMIT", "1")
    write_whole({KERNELS.path("first"): b"x"})
    old = fill(KERNELS, "old", 2 * MIB, 10)
    write_whole({KERNELS.path("small"): b"x"})
    assert old.exists()  # a minute has not passed
    write_whole({KERNELS.path("large"): bytes(MIB // 10)})
    assert not old.exists()


def test_use_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUIR_CACHE_LIMIT", "1")
    used, second = fill(KERNELS, "used", MIB // 2, 1000), fill(KERNELS, "other", MIB * 3 // 4, 10)
    mark_used(used)
    assert evict() == 1 and used.exists() and not second.exists()


@pytest.mark.parametrize(
    ("text", "mebibytes"), [("5", 5), ("0.5", 0.5), ("", 2048), ("many", 2048), ("-1", 2048), ("nan", 2048), ("inf", 2048)]
)
def test_limits(text: str, mebibytes: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUIR_CACHE_LIMIT", text)
    assert size_limit() == mebibytes * MIB


def test_a_failed_write_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", fail)
    write_whole({KERNELS.path("a"): b"content"})
    assert list(folder.iterdir()) == []


def test_other_users_may_read_what_the_umask_allows(folder: Path) -> None:
    """A folder that one user fills in an image serves another."""
    before = os.umask(0o022)
    try:
        write_whole({KERNELS.path("a"): b"content"})
    finally:
        os.umask(before)
    assert KERNELS.path("a").stat().st_mode & 0o777 == 0o644


def test_processes_that_write_one_entry_at_once_leave_it_whole(folder: Path) -> None:
    """Readers never see a part of it, nor a mixture."""
    contents, entry = [bytes([65 + i]) * 300_000 for i in range(3)], KERNELS.path("a")
    write_whole({entry: contents[0]})
    children = []
    for content in contents:
        if not (child := os.fork()):
            for _ in range(30):
                write_whole({entry: content})
            os._exit(0)
        children.append(child)
    while children:
        assert entry.read_bytes() in contents
        if os.waitpid(children[-1], os.WNOHANG)[0]:
            children.pop()
    assert list(folder.iterdir()) == [entry]


def test_clearing_leaves_other_kinds() -> None:
    kernel, verdict = fill(KERNELS, "a", 5, 0), fill(VERDICTS, "a", 7, 0)
    assert clear(KERNELS) == (1, 5) and not kernel.exists() and verdict.exists() and clear(KERNELS) == (0, 0)


def test_leftovers_of_killed_processes_go(folder: Path) -> None:
    kernel = fill(KERNELS, "tmp", 1, 0)
    old, new = folder / "tmpabc", folder / "tmpdef"
    old.touch(), new.touch()
    os.utime(old, (10**9, 10**9))
    disk.remove_leftovers()
    assert kernel.exists() and new.exists() and not old.exists()
    assert cache_dir() == folder

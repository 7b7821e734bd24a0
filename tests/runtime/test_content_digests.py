"""Digests of the package and of nvcc: contents decide, neither places nor times; contents are read once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cuir.runtime import content_digests
from cuir.runtime.content_digests import describe_folder, describe_nvcc, describe_package, digest, list_status

NAMES = ("a.py", "room/b.toml", "room/__pycache__/b.pyc")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / name).write_text("x")
    return tmp_path / "package"


def describe(folder: Path) -> str:
    return describe_folder(folder, list_status(folder))


def rewrite(folder: Path, name: str, text: str) -> None:
    """Another content, of the same time."""
    status = (folder / name).stat()
    (folder / name).write_text(text)
    os.utime(folder / name, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda p: rewrite(p, "a.py", "y"),
        lambda p: rewrite(p, "a.py", "longer"),
        lambda p: rewrite(p, "room/b.toml", "y"),
        lambda p: (p / "room/b.toml").rename(p / "room/c.toml"),
        lambda p: (p / "room/b.toml").rename(p / "b.toml"),
        lambda p: (p / "a.py").unlink(),
        lambda p: (p / "room/new.cuh").write_text(""),
    ],
    ids=["content", "size", "content of data", "name", "folder", "deleted", "new"],
)
def test_every_change_of_a_file_is_another_package(package: Path, change: Callable[[Path], object]) -> None:
    before = describe(package)
    change(package)
    assert before != describe(package)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: os.utime(p / "a.py", (10**9, 10**9)),
        lambda p: rewrite(p, "room/__pycache__/b.pyc", "longer"),
        lambda p: (p / "room/__pycache__/new.pyc").write_text("x"),
    ],
    ids=["time", "byte code", "new byte code"],
)
def test_times_and_byte_code_are_not_the_package(package: Path, change: Callable[[Path], object]) -> None:
    before = describe(package)
    change(package)
    assert before == describe(package)


@pytest.mark.parametrize("has_cache", [True, False])
def test_a_copy_elsewhere_is_the_same_package(package: Path, cache: Path, has_cache: bool) -> None:
    before, copy = describe(package), package.with_name("elsewhere")
    shutil.copytree(package, copy, copy_function=shutil.copyfile)
    if not has_cache:
        shutil.rmtree(cache)
    assert describe(copy) == before


def test_contents_are_read_once(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe(package)
    monkeypatch.setattr(content_digests, "_read_contents", lambda *_: pytest.fail("read again"))
    assert describe(package) == before


@pytest.mark.parametrize("damage", [b"", b"x" * 32, b"\xff" * 32, b"a" * 31])
def test_a_damaged_digest_is_made_anew(package: Path, cache: Path, damage: bytes) -> None:
    before = describe(package)
    (entry,) = (cache / "results" / "digests").iterdir()
    entry.write_bytes(damage)
    assert describe(package) == before


def test_an_upgrade_of_running_code_is_not_stored_as_that_code(package: Path, cache: Path) -> None:
    status, before = list_status(package), describe(package)
    shutil.rmtree(cache)
    rewrite(package, "a.py", "y")
    upgraded = describe(package)
    assert len({before, upgraded, describe_folder(package, status)}) == 3
    rewrite(package, "a.py", "x")
    assert describe(package) == before


def test_this_package_is_described() -> None:
    assert describe_package() == describe(content_digests.PACKAGE)


def test_a_digest_tells_parts_apart() -> None:
    texts = [["ab"], ["a", "b"], ["a", "b", ""], ["", "a", "b"], ["a\0b"], ["b", "a"], [], ["\ud800"]]
    assert len({digest(t) for t in texts}) == len(texts)


# ---- nvcc
def make_nvcc(file: Path, version: str, code: int = 0) -> str:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\necho {version}\nexit {code}\n")
    file.chmod(0o755)
    describe_nvcc.cache_clear()
    return describe_nvcc(str(file))


def test_a_compiler_is_its_version(tmp_path: Path) -> None:
    first = make_nvcc(tmp_path / "bin/nvcc", "release 12.8, V12.8.93")
    os.utime(tmp_path / "bin/nvcc", (10**9, 10**9))
    describe_nvcc.cache_clear()
    assert first == describe_nvcc(str(tmp_path / "bin/nvcc")) == make_nvcc(tmp_path / "other/nvcc", "release 12.8, V12.8.93")
    assert first != make_nvcc(tmp_path / "bin/nvcc", "release 12.9, V12.9.41")


@pytest.mark.parametrize(("version", "code"), [("what?", 0), ("release 1", 1)])
def test_a_compiler_without_a_version_is_its_file(tmp_path: Path, version: str, code: int) -> None:
    assert make_nvcc(tmp_path / "bin/nvcc", version, code) != make_nvcc(tmp_path / "other/nvcc", version, code)


def test_no_compiler_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nvcc"):
        describe_nvcc(str(tmp_path / "nvcc"))

"""`cuir cache`: kinds of files, clearing, kinds that do not exist."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cuir.caching.disk import KERNELS, TUNING, VERDICTS


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "cache"))
    paths = [KERNELS.path("a"), VERDICTS.path("b"), TUNING.path("c")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(2**20))
    return paths


def test_cache_lists_kinds_and_the_limit(cuir: Callable, tmp_path: Path) -> None:
    output = cuir("cache", "--json")
    assert output.code == 0 and output.json["folder"] == str(tmp_path / "cache") and output.json["limit"] == 2**31
    assert {k["kind"]: (k["files"], k["bytes"]) for k in output.json["kinds"] if k["files"]} == {
        "kernels": (1, 2**20),
        "verdicts": (1, 2**20),
        "tuning": (1, 2**20),
    }
    assert "kernels" in cuir("cache").out and "2048 MiB" in cuir("cache").out.replace("\n", "")


def test_clear_leaves_results_of_tuning(cuir: Callable, files: list[Path]) -> None:
    output = cuir("cache", "--clear")
    assert output.code == 0 and [p.exists() for p in files] == [False, False, True] and "cuir cache tuning --clear" in output.out
    assert cuir("cache", "tuning", "--clear").code == 0 and not files[2].exists()


def test_clear_of_one_kind(cuir: Callable, files: list[Path]) -> None:
    assert cuir("cache", "kernels", "--clear").code == 0 and [p.exists() for p in files] == [False, True, True]


def test_another_kind_is_an_error(cuir: Callable, files: list[Path]) -> None:
    output = cuir("cache", "kernel", "--clear")
    assert output.code == 2 and "U127" in output.err and "kernels" in output.err and all(p.exists() for p in files)

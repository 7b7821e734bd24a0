"""`cuir check`: what it says of a program, and of errors with their place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.programs import GOOD


def test_check_says_what_it_found(cuir: Callable, good: Path) -> None:
    shown = cuir("check", good, "-c", "T=f16")
    assert shown.code == 0 and shown.out.startswith("ok") and "all: 1 x 128 threads" in shown.out
    data = cuir("check", good, "-c", "T=f16", "--json").json
    assert data["ok"] and data["kernel"]["consts"] == {"T": "f16"} and data["kernel"]["roles"][0]["threads"] == 128


def test_check_takes_names_of_the_corpus(cuir: Callable) -> None:
    assert cuir("check", "flash_fwd_sm90", "-c", "T=f16,D=64").code == 0


def test_check_shows_errors_with_place_and_caret(cuir: Callable, tmp_path: Path) -> None:
    path = tmp_path / "wrong.cuir"
    path.write_text(GOOD.replace("load(", "laod("), encoding="utf-8")
    shown = cuir("check", path, "-c", "T=f16")
    assert shown.code == 1 and not shown.out
    assert f"{path}:6:47: error[N105]" in shown.err and "^^^^" in shown.err and "did you mean `load`?" in shown.err
    found = cuir("check", path, "-c", "T=f16", "--json")
    assert found.code == 1 and not found.err
    assert [(d["code"], d["span"]["line"], d["span"]["column"]) for d in found.json["diagnostics"]] == [("N105", 6, 47)]


def test_watch_checks_again_after_each_change(cuir: Callable, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def wait(seconds: float) -> None:
        looks.append(1)
        if len(looks) == 2:
            good.write_text(GOOD.replace("load(", "laod("), encoding="utf-8")
        if len(looks) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("cuir.cli.commands.check.time.sleep", wait)
    shown = cuir("check", good, "-c", "T=f16", "--watch")
    assert shown.code == 130 and shown.out.count("ok") == 1 and shown.err.count("error[N105]") == 1


def test_watch_needs_a_file(cuir: Callable) -> None:
    assert "--watch needs a file" in cuir("check", "flash_fwd", "--watch").err

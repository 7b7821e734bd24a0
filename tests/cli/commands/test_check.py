"""`cuir check`: what it says of a program, and of errors with their place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.programs import GOOD


def test_check_says_what_it_found(cuir: Callable, good: Path) -> None:
    output = cuir("check", good, "-c", "T=f16")
    assert output.code == 0 and output.out.startswith("ok") and "all: 1 x 128 threads" in output.out
    data = cuir("check", good, "-c", "T=f16", "--json").json
    assert data["ok"] and data["kernel"]["consts"] == {"T": "f16"} and data["kernel"]["roles"][0]["threads"] == 128


def test_check_takes_names_of_the_corpus(cuir: Callable) -> None:
    assert cuir("check", "flash_fwd_sm90", "-c", "T=f16,D=64").code == 0


def test_check_shows_errors_with_place_and_caret(cuir: Callable, tmp_path: Path) -> None:
    path = tmp_path / "wrong.cuir"
    path.write_text(GOOD.replace("load(", "laod("), encoding="utf-8")
    display = cuir("check", path, "-c", "T=f16")
    assert display.code == 1 and not display.out
    assert f"{path}:6:47: error[N105]" in display.err and "^^^^" in display.err and "did you mean `load`?" in display.err
    output = cuir("check", path, "-c", "T=f16", "--json")
    assert output.code == 1 and not output.err
    assert [(d["code"], d["span"]["line"], d["span"]["column"]) for d in output.json["diagnostics"]] == [("N105", 6, 47)]


def test_watch_checks_again_after_each_change(cuir: Callable, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def wait(seconds: float) -> None:
        looks.append(1)
        if len(looks) == 2:
            good.write_text(GOOD.replace("load(", "laod("), encoding="utf-8")
        if len(looks) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("cuir.cli.commands.check.time.sleep", wait)
    output = cuir("check", good, "-c", "T=f16", "--watch")
    assert output.code == 130 and output.out.count("ok") == 1 and output.err.count("error[N105]") == 1


def test_watch_needs_a_file(cuir: Callable) -> None:
    assert "--watch needs a file" in cuir("check", "flash_fwd", "--watch").err

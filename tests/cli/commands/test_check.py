"""`cuir check`: what it says of a program, and of errors with their place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.programs import GOOD, ROOT


def test_check_says_what_it_found(cuir: Callable, good: Path) -> None:
    output = cuir("check", good, "-c", "T=f16")
    assert output.code == 0 and output.out.startswith("ok") and "all: 1 x 128 threads" in output.out
    data = cuir("check", good, "-c", "T=f16", "--json").json
    assert data["ok"] and data["kernel"]["consts"] == {"T": "f16"} and data["kernel"]["roles"][0]["threads"] == 128


def test_check_estimates_registers_and_warns_beyond_them(cuir: Callable, tmp_path: Path) -> None:
    path = tmp_path / "wide.cuir"
    path.write_text(
        """@kernel(arch="sm_90a")
def copy(X: Global[f32, M, 2048], Y: Global[f32, M, 1], *, C: const = 2048):
    with role("all", warps=4):
        store(Y[0 : 16, :], row_sum(load(X[0 : 16, 0 : C])))
"""
    )
    wide = cuir("check", path)
    assert wide.code == 0 and "tiles of all take about" in wide.out and "of a thread's 255" in wide.out
    assert "warning[M307]" in wide.err and f"{path}:4:" in wide.err
    data = cuir("check", path, "--json").json
    assert data["ok"] and data["warnings"][0]["code"] == "M307"
    assert data["kernel"]["tile_registers"]["all"]["limit"] == 255 < data["kernel"]["tile_registers"]["all"]["estimate"]
    narrow = cuir("check", path, "-c", "C=64", "--json").json
    assert narrow["warnings"] == [] and 8 <= narrow["kernel"]["tile_registers"]["all"]["estimate"] < 64


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


def test_watch_follows_a_file_through_edits(cuir: Callable, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors, a file that is deleted and comes back (as editors save), one that is no program."""
    text = good.read_text(encoding="utf-8")

    def replace() -> None:
        replacement = good.with_name("other")
        replacement.write_text(text, encoding="utf-8")
        replacement.replace(good)

    edits: list[Callable[[], object]] = [
        lambda: None,
        lambda: good.write_text(text.replace("load(", "laod("), encoding="utf-8"),
        lambda: good.write_text(text.replace("def ", "dfe "), encoding="utf-8"),
        lambda: good.unlink(),
        lambda: None,
        replace,
        lambda: good.write_bytes(b"\xff\xfe"),
        lambda: good.write_text("", encoding="utf-8"),
        lambda: (good.unlink(), good.mkdir()),
        lambda: (good.rmdir(), replace()),
    ]

    def wait(seconds: float) -> None:
        if not edits:
            raise KeyboardInterrupt
        edits.pop(0)()

    monkeypatch.setattr("cuir.cli.commands.check.time.sleep", wait)
    output = cuir("check", good, "-c", "T=f16", "--watch")
    assert output.code == 130 and output.out.count("ok") == 3
    codes = [line.split("error[")[1][:4] for line in output.err.splitlines() if "error[" in line]
    assert codes[0] == "N105" and codes[1].startswith("P") and codes[2:] == ["U203", "U204", "U202"]
    assert output.err.count("is gone; it is checked when it is back") == 1


def test_watch_reads_python_anew(cuir: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.py"
    program = "from cuir import Global, cdiv, const, kernel, load, role, store, tiles\n\n\n" + GOOD
    path.write_text(program, encoding="utf-8")
    edits = [program.replace("load(", "laod("), program.replace("def ", "dfe "), program]

    def wait(seconds: float) -> None:
        if not edits:
            raise KeyboardInterrupt
        path.write_text(edits.pop(0), encoding="utf-8")

    monkeypatch.setattr("cuir.cli.commands.check.time.sleep", wait)
    output = cuir("check", path, "-c", "T=f16", "--watch")
    assert output.code == 130 and output.out.count("ok") == 2 and output.err.count("error[") == 2, output.err


def test_watch_needs_a_file(cuir: Callable) -> None:
    assert "--watch needs a file" in cuir("check", "flash_fwd", "--watch").err
    folder = cuir("check", ROOT, "--watch")
    assert folder.code == 2 and "is a folder" in folder.err


def test_check_prints_what_the_kernel_takes(cuir: Callable) -> None:
    """Tensors with dtypes and dims, scalars, the dims to give, consts: enough to run it without reading the file."""
    output = cuir("check", "flash_fwd", "-c", "D=64")
    assert "takes     Q: Global[f16, B, H, M, 64], " in output.out and "O: Global[f16, B, H, M, 64] (written)" in output.out
    assert "scale: f32" in output.out and "dims      B, H, M, HK, N" in output.out
    parameters = cuir("check", "gemm", "--json").json["kernel"]["parameters"]
    assert {"name": "A", "type": "Global[f16, M, K]", "written": False} in parameters
    assert [p["name"] for p in parameters if p["written"]] == ["C"]

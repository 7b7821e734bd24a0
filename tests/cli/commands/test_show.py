"""`cuir show`: the canonical text, and differences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cuir import parse, show
from tests.cli.programs import GOOD


def test_show_prints_the_canonical_text(cuir: Callable, good: Path) -> None:
    assert cuir("show", good).out == show(parse(GOOD))
    assert cuir("show", good, "--json").json["text"] == show(parse(GOOD))


def test_show_diff(cuir: Callable, good: Path, tmp_path: Path) -> None:
    second = tmp_path / "other.cuir"
    second.write_text(GOOD.replace("warpgroups=1", "warpgroups=2"), encoding="utf-8")
    lines = cuir("show", good, "--diff", second).out.splitlines()
    assert [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")] == [
        '-    with role("all", warpgroups=1):',
        '+    with role("all", warpgroups=2):',
    ]
    assert "equal" in cuir("show", good, "--diff", good).out
    assert cuir("show", good, "--diff", good, "--json").json["equal"] is True


def test_show_layouts(cuir: Callable, good: Path) -> None:
    text = cuir("show", good, "--layouts").out
    assert "tiles in registers" in text and "cells: lane.register" in text
    found = cuir("show", good, "--layouts", "--json").json
    assert found["ok"] and {"role", "layout", "dtype", "shape", "registers", "bits", "tiles"} == found["layouts"][0].keys()
    assert any(row["bits"].startswith("register: c0 r3") for row in found["layouts"] if row["layout"] == "full")
    moves = cuir("show", "flash_fwd_sm90", "--layouts", "--json").json["moves"]
    assert moves and all(m["wavefronts"] >= m["least"] and len(m["banks"]) == 32 for m in moves)
    for argv, problem in (
        (("--layouts", "--diff", good), "--diff says nothing beside --layouts"),
        (("-k", "f"), "--kernel is for --layouts"),
    ):
        refused = cuir("show", good, *argv)
        assert refused.code == 2 and problem in refused.err

"""Kernels alone with a launch file: what a launch file returns, and the fat binary that a PTX is entered as."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cuir.judge.arena_tensors import DeviceArena
from cuir.judge.launch_solutions import LaunchSolution, make_fat_binary
from cuir.ptx.launch.fat_binaries import read_ptx

PTX = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry nothing() {\n    ret;\n}\n"


def test_a_fat_binary_holds_the_text() -> None:
    (text,) = read_ptx(make_fat_binary(PTX))
    assert text.rstrip("\0") == PTX


@pytest.mark.parametrize(("returned", "words"), [("3", "a pair"), ("(3, 4)", "found int"), ("([], 5)", "")])
def test_a_launch_file_returns_launches_and_outputs(tmp_path: Path, returned: str, words: str) -> None:
    source, launch = tmp_path / "k.ptx", tmp_path / f"launch_{len(words)}.py"
    source.write_text(PTX, encoding="utf-8")
    launch.write_text(f"def launch(*inputs):\n    return {returned}\n", encoding="utf-8")
    solution = LaunchSolution(source, launch, cast(DeviceArena, SimpleNamespace()), "sm_90a", lambda: 0)
    if not words:
        assert solution.run() == 5
        return
    with pytest.raises(TypeError, match=words):
        solution.run()

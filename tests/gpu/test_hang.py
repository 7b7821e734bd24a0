"""A kernel that hangs: the watchdog's build names the waits that do not end."""

from __future__ import annotations

import re

import pytest
import torch

import corpus
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import lower
from cuir.runtime.watchdog import find_hang
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from tests.gpu.isolation import run_isolated
from tests.strategies.typed import arguments

FAULTY = ("D401_bytes_never_come", "D401_count_of_arrivals", "D401_never_released", "D401_one_block_too_many")


def text(name: str) -> str:
    return corpus.faulty()[name]


def faulty(name: str) -> Checked:
    return check(parse(text(name), f"{name}.cuir"))


def find_expected_lines(name: str) -> set[int]:
    """Lines of the program where workers wait for ever in the interpreter: of the wait that it reports, and of those that follow from it."""
    lines = text(name).splitlines()
    with pytest.raises(CuirError) as caught:
        run(faulty(name), arguments(faulty(name), _lengths(name), seed=0))
    reports = caught.value.diagnostics
    following = {b for d in reports for note in d.notes if "follow" in note.message for b in re.findall(r"of `(\w+)", note.message)}
    waits = {i for i, line in enumerate(lines, 1) if any(re.search(rf"\b{b}\b.*\.wait\(", line) for b in following)}
    return waits | {d.span.line for d in reports if d.span}


def _lengths(name: str) -> dict[str, int]:
    return {dim: int(size) for dim, size in re.findall(r"(\w+)=(\d+)", text(name).splitlines()[1])}


def find_stuck_lines(name: str) -> list[int]:
    """Lines of the program where warps wait for ever on the GPU."""
    checked = faulty(name)
    inputs = {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in arguments(checked, _lengths(name), seed=0).items()}
    cuda = lower(checked)
    return sorted({cuda.line_map[s.line].line for s in find_hang(cuda, inputs, 0.5)})


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAULTY)
def test_the_waits_are_those_of_the_interpreter(name: str) -> None:
    assert set(run_isolated(find_stuck_lines, name, seconds=120)) == find_expected_lines(name)

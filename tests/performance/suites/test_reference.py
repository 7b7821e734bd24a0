"""A kernel from outside: what its file holds, which configurations fit, its result is checked; files that hold something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cuir import CuirError
from cuir.attn.splicing.splice import transfer
from cuir.cli.command_inputs import read_variant
from cuir.performance.suites.cell_benchmark import Cell, Contenders, Timing, measure_cell
from cuir.performance.suites.reference import Reference
from cuir.performance.timing.problem import Shape
from tests.performance.suites.test_cell_benchmark import ORIGIN, SETTING, make_launch, on_cpu

SHAPE = Shape(1, 2, 1, 100, 100, 64)
FILE = """
import sys
import torch

SETS = {"golden": {"C": dict(D=64, CAUSAL=1), "wrong": dict(D=64, CAUSAL=1, SHIFT=1), "ends": dict(D=64, CAUSAL=1, ENDS=1), "F": dict(D=64), "L": dict(D=128)}}
BUILT = []

class Kernel:
    def __init__(self, config):
        if config.get("ENDS"):
            sys.exit("no compiler here")
        BUILT.append(config)
        self.config = config

    def prepare(self, q, k, v, o, lse):
        def launch():
            s = (q.double() @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT.double()) * q.shape[-1] ** -0.5
            if self.config.get("CAUSAL"):
                s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + self.config.get("SHIFT", 0)), -torch.inf)
            o.copy_(torch.softmax(s, -1) @ v.double().repeat_interleave(q.shape[1] // v.shape[1], 1))
            lse.copy_(s.logsumexp(-1))
        return launch
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bench_ref.py").write_text(FILE, encoding="utf-8")
    return tmp_path


def measure(variant: str, reference: Reference, dtype: str = "f16") -> dict:
    transferred = transfer(ORIGIN, read_variant(variant, ()))
    launch: Callable = make_launch(transferred.program)
    setting = SETTING if dtype == "f16" else {}
    result = measure_cell(
        Cell(variant, {}, "small", SHAPE),
        transferred,
        dtype,
        Contenders([setting] if setting else [], [], reference),
        Timing(2, measure=lambda call: (call() and None) or 0.5),
        prepare=on_cpu,
        launch=launch,
    )
    return {n: c for n, c in result["contenders"].items() if n.startswith("reference")}


def test_it_is_checked_and_timed_as_any_other(folder: Path) -> None:
    reference = Reference(folder)
    result = measure("causal", reference)
    assert result["reference C"]["milliseconds"] == 0.5
    assert "relative error" in result["reference wrong"]["wrong"] and "milliseconds" not in result["reference wrong"]
    assert result["reference ends"] == {"failed": "no compiler here"}
    assert [c for c in reference.module.BUILT if not c.get("SHIFT")] == [{"D": 64, "CAUSAL": 1}], "built once, the others not at all"


def test_it_takes_part_where_it_can(folder: Path) -> None:
    reference = Reference(folder)
    assert list(measure("full", reference)) == ["reference F"]
    assert measure("prefix_lm", reference) == {} and measure("softcap", reference) == {} and measure("causal", reference, "bf16") == {}
    assert reference.fitting(128, False) == ["L"] and reference.fitting(128, True) == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "U121"),
        ("x = 1", "U121"),
        ("SETS = {'golden': 3}\nKernel = int", "U121"),
        ("SETS = {'golden': {'A': {}}}\nKernel = int", "U121"),
        ("SETS = {'golden': {'A': {'D': 64}}}", "U121"),
        ("import nothing_of_that_name", "X113"),
    ],
)
def test_files_that_hold_no_kernel(tmp_path: Path, text: str | None, code: str) -> None:
    if text is not None:
        (tmp_path / "bench_ref.py").write_text(text, encoding="utf-8")
    with pytest.raises(CuirError) as error:
        Reference(tmp_path)
    assert error.value.diagnostics[0].code == code


def test_results_hold_nothing_of_the_problem(folder: Path) -> None:
    reference = Reference(folder)
    q = torch.randn(1, 2, 10, 64).half()
    (call,) = reference.contenders(False, {"Q": q, "K": q, "V": q}).values()
    o, lse = call()
    assert o.shape == q.shape and lse.shape == (1, 2, 10) and lse.dtype == torch.float32 and o.data_ptr() != q.data_ptr()

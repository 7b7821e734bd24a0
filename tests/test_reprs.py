"""A repr of programs, kernels and reports is one line that names them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch

import corpus
import cuir
from cuir.bridging import BridgeReport
from cuir.bridging import Step as BridgeStep
from cuir.explore import Exploration
from cuir.mutation import MutateReport
from cuir.performance.search import TuneReport
from cuir.runtime.nvcc import Compiled, Resources
from cuir.verification import Stage, VerifyReport

GEMM = Path(str(files("corpus").joinpath("programs/gemm.cuir")))
LINE = 250


def objects() -> list[tuple[Any, str]]:
    program = cuir.load(GEMM)
    checked = cuir.check(program)
    cuda = cuir.lower(checked)
    expert = cuir.load(Path(str(files("corpus").joinpath("programs/flash_fwd.cuir"))))
    variant = corpus.variant("prefix_lm")()
    A, B, C = torch.zeros(8, 8).half(), torch.zeros(8, 8).half(), torch.zeros(8, 8).half()
    resources = Resources("gemm", 168, 0, 0, 0, 1024, 384, 1.0, "nvcc")
    return [
        (program, "gemm.cuir"),
        (program.kernels()["gemm"], "gemm"),
        (next(iter(expert.funcs().values())), "Func("),
        (checked, "T=f16"),
        (cuda, "T=f16"),
        (Compiled(cuda, bytes(100_000), resources), "168 registers"),
        (cuir.transfer(expert, variant), "prefix_lm"),
        (VerifyReport("gelu_gemm", "gemm", "quick", dict(checked.consts)), "gelu_gemm"),
        (cuir.run(checked, {"A": A, "Bt": B, "C": C, "bias": torch.zeros(8)}), "units of work"),
        (Exploration(), "no deadlock"),
        (MutateReport(()), "faulty programs"),
        (TuneReport(None, []), "nothing timed"),
    ]


@pytest.fixture(scope="module")
def reprs() -> list[tuple[str, str, str]]:
    return [(type(value).__name__, repr(value), part) for value, part in objects()]


def test_reprs_are_lines_that_name_what_they_are_of(reprs: list[tuple[str, str, str]]) -> None:
    for name, text, part in reprs:
        assert text.startswith(f"{name}(") and part in text
        assert len(text) <= LINE and "\n" not in text, name


def test_a_failed_verification_shows_its_stage_and_code() -> None:
    wrong = cuir.parse(GEMM.read_text(encoding="utf-8").replace("mma_async(", "mma_asinc("), "gemm.cuir")
    report = cuir.verify(wrong, corpus.specification("gelu_gemm")())
    assert repr(report).endswith("wrong, well-formed N105)")


def test_reports_are_true_exactly_if_nothing_is_wrong() -> None:
    wrong = cuir.verify(
        cuir.parse(GEMM.read_text(encoding="utf-8").replace("mma_async(", "mma_asinc("), "gemm.cuir"), corpus.specification("gelu_gemm")()
    )
    assert not wrong and wrong.diagnostics
    right = VerifyReport("v", "k", "quick", {}, [Stage("numbers", "", "passed")])
    assert right and right.ok and not VerifyReport("v", "k", "quick", {})
    assert Exploration() and not Exploration("faulty") and not Exploration("unknown")
    assert BridgeReport("v", steps=[BridgeStep("verify", "done")]) and not BridgeReport("v", steps=[BridgeStep("verify", "failed")])


def test_the_text_of_a_diagnostic_shows_its_excerpt_and_its_repr_is_a_line() -> None:
    with pytest.raises(cuir.CuirError) as raised:
        cuir.parse("kernel x(\n", "mine.cuir")
    (diagnostic,) = raised.value.diagnostics
    assert str(diagnostic) == diagnostic.render() and f"{diagnostic}" == str(raised.value)
    assert "mine.cuir:1" in str(diagnostic) and "^" in str(diagnostic)
    assert repr(diagnostic).startswith("Diagnostic(code=") and "\n" not in repr(diagnostic)

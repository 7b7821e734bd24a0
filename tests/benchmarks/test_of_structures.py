"""Programs of structures that no mask says, as they are timed on a GPU: inputs, the verdict, the table. The interpreter is in the kernels' place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import cuir
from benchmarks.of_models import CONSTS, read_accepted
from benchmarks.of_structures import Problem, table
from benchmarks.recorded import open_transcripts
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.cli.command_inputs import read_specification
from cuir.interp import run
from cuir.performance.timing.problem import Shape
from cuir.spec.function_specification import FunctionSpecification

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FOLDERS = {"fa3": "eval-lifted-structures-2026-11-25", "fa2": "eval-lifted-fa2-structures-2026-11-26"}
TEXTS = {name: read_accepted(open_transcripts(RESULTS / f"{folder}.tar.xz")) for name, folder in FOLDERS.items()}
FUNCTIONS = [to for to in sorted(TEXTS["fa3"]) if isinstance(read_specification(to, ()), FunctionSpecification)]
SMALL = Shape(1, 2, 2, 130, 200, 128)


def problem_of(to: str, text: str) -> tuple[Problem, Any]:
    spec = read_specification(to, ())
    assert isinstance(spec, FunctionSpecification)

    def interpret(checked: Checked, arguments: dict[str, Any]) -> None:
        run(checked, arguments)

    problem = Problem(spec, check(cuir.parse(text, "x.cuir"), None, CONSTS), SMALL, "cpu")
    return problem, problem.program_call(text, interpret)


@pytest.mark.sweep
@pytest.mark.parametrize("to", FUNCTIONS, ids=lambda to: to.rpartition(":")[2])
def test_accepted_programs_are_right_for_its_inputs_and_others_are_not(to: str) -> None:
    assert len(FUNCTIONS) >= 14
    problem, call = problem_of(to, TEXTS["fa3"][to])
    error, why = problem.judge(call())
    assert why == "" and 0 < error < 2e-2
    results = {n: x.clone() for n, x in call().items()}
    results["O"][0, 0, :64] *= 1.1
    assert "O is off by" in problem.judge(results)[1]


def test_both_origins_programs_take_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for to in FUNCTIONS:
        of = [check(cuir.parse(texts[to], "x.cuir"), None, CONSTS) for texts in TEXTS.values() if to in texts]
        assert len({tuple(sorted((t.name, str(t.dims)) for t in c.tensors)) for c in of}) == 1, to
    assert capsys.readouterr().out == ""


def test_the_formula_is_asked_by_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    right = 0
    for to in FUNCTIONS:
        problem, _ = problem_of(to, TEXTS["fa3"][to])
        result = problem.formula()()
        assert set(problem.outputs) <= set(result)
        right += problem.judge(result)[1] == ""
    assert right >= len(FUNCTIONS) - 2  # squares of scores overflow in half precision


def test_full_attention_is_not_asked() -> None:
    to = FUNCTIONS[0]
    problem, _ = problem_of(to, TEXTS["fa3"][to])
    assert problem.judge(torch.zeros(3)) == (0.0, "")


def test_the_table() -> None:
    rows = [
        {
            "variant": "a",
            "contenders": {
                "cuir": {"tflops": 600.0},
                "flex": {"tflops": 300.0},
                "compiled": {"failed": "no memory"},
                "fa3": {"tflops": 450.0},
            },
        },
        {
            "variant": "b",
            "contenders": {
                "cuir": {"tflops": 600.0},
                "flex": {"tflops": 300.0},
                "compiled": {"tflops": 30.0},
                "fa3": {"wrong": "O is off"},
            },
        },
    ]
    output = table(rows)
    assert "| a | 600.0 | 300.0 | no memory | 450.0 |" in output and "| b | 600.0 | 300.0 | 30.0 | O is off |" in output
    assert "fa3 / flex: 1.50 in the geometric mean of 1 structures, smallest 1.50" in output and "fa3 / compiled" not in output

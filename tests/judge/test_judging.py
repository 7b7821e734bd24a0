"""Verdicts on solutions: right ones pass, and each kind of fault is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.judged.cases import CASES, FOLDER, Case
from cuir.judge.judging import Judgement, SolutionJudge
from cuir.judge.references import Reference
from tests.cli.commands.test_cuda_check import STORE

pytestmark = pytest.mark.nvcc
ARCH = "sm_90a"
QUICK = ("returns memory as it is", "returns zeros")  # refused by the first call
# one of each kind; `python -m benchmarks.judged` runs all
LONGER = (
    *("columns by atomics", "clamp by a launch file", "returns an input", "calls the reference", "computes once", "uniform weights"),
    *("a stream that nothing waits for", "sums without atomics", "sums onto memory as it is"),
)


def judge(case: Case, folder: Path, seconds: float = 120.0) -> Judgement:
    launch = FOLDER / case.launch if case.launch else None
    made = SolutionJudge(Reference(FOLDER / f"{case.reference}.py"), case.write(folder), launch, ARCH, 2, seconds)
    made.stops_at_fault = True
    return made.run()


@pytest.mark.sweep
@pytest.mark.parametrize("case", [c for c in CASES if c.name in QUICK], ids=lambda c: c.name)
def test_a_fault_of_the_first_call_is_found(case: Case, tmp_path: Path) -> None:
    assert judge(case, tmp_path).verdict == "wrong"


@pytest.mark.thorough
@pytest.mark.parametrize("case", [c for c in CASES if c.name in LONGER], ids=lambda c: c.name)
def test_verdicts_are_those_that_are_known(case: Case, tmp_path: Path) -> None:
    found = judge(case, tmp_path)
    assert found.verdict in case.verdicts, (found.faults, found.refused, found.reason)


def test_every_case_edits_what_its_file_has(tmp_path: Path) -> None:
    assert all(case.write(tmp_path).is_file() for case in CASES) and len({c.name for c in CASES}) == len(CASES) > 60


@pytest.mark.thorough("the test of the command has this verdict, too")
def test_what_the_stand_ins_lack_is_not_judged(tmp_path: Path) -> None:
    solution = tmp_path / "lacking.py"
    solution.write_text("import a_module_that_nobody_has\n", encoding="utf-8")
    found = SolutionJudge(Reference(FOLDER / "add.py"), solution, None, ARCH).run()
    assert found.verdict == "not judged" and "a_module_that_nobody_has" in found.reason


@pytest.mark.thorough("a process for each of two solutions; the warning itself is tested in tests/ptx")
def test_what_no_card_minds_is_a_warning_beside_the_verdict(tmp_path: Path) -> None:
    texts = {
        "save.ptx": STORE,
        "reference.py": "import torch\n\ndef reference(x):\n    return torch.full((4,), 7, dtype=torch.int32)\n\n"
        "def get_inputs():\n    return [torch.rand(4)]\n",
        "launch.py": "import torch\nfrom cuir.cuda import KernelCall\n\ndef launch(x):\n"
        "    y = torch.empty_like(x, dtype=torch.int32)\n    return KernelCall(1, 1, y), y\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    made = SolutionJudge(Reference(tmp_path / "reference.py"), tmp_path / "save.ptx", tmp_path / "launch.py", ARCH, 2)
    found = made.run()
    assert [d.code for d in found.warnings] == ["M416"] and not found.diagnostics, (found.faults, found.reason)
    assert all(f.kind != "rule" for f in found.faults)

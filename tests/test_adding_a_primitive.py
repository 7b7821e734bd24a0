"""docs/adding_a_primitive.md, followed to the letter on a copy of the project."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page_blocks import ROOT, find_block, read_blocks

PROGRAM = "norms.cuir"
STEPS = {b.name: b.text for b in read_blocks(ROOT / "docs/adding_a_primitive.md") if b.kind == "step" and b.name != PROGRAM}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with what the page adds appended to the files that it names, and the page's program."""
    place = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "cuir", place / "cuir")  # with what Python has compiled: it is as old as its source
    for name, text in STEPS.items():
        with (place / name).open("a", encoding="utf-8") as file:
            file.write(f"\n\n{text}")
    (place / PROGRAM).write_text(find_block("docs/adding_a_primitive.md", "step", PROGRAM).text, encoding="utf-8")
    return place


def run(place: Path, *argv: str) -> str:
    output = subprocess.run([sys.executable, *argv], cwd=place, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr
    return output.stdout


def test_the_page_has_its_steps() -> None:
    assert [Path(name).parent.as_posix() for name in STEPS] == ["cuir/ops", "cuir/ops/meaning", "cuir/interp/ops", "cuir/lowering/cuda"]


@pytest.fixture(scope="module")
def answers(copy: Path) -> list[str]:
    """Return the output of a process that uses the copy: gaps of the table, the lowered call, a wrong dtype."""
    code = (
        "import cuir, torch\n"
        "from cuir.interp.ops import gaps as a; from cuir.lowering.targets import gaps as b\n"
        "print(any([*a(), *b()]))\n"
        "checked = cuir.check(cuir.load('norms.cuir'))\n"
        "x = torch.randn(100, 64); y = torch.zeros(100, 64)\n"
        "cuir.run(checked, {'X': x, 'Y': y})\n"
        "torch.testing.assert_close(y, x * torch.rsqrt((x * x).sum(-1, keepdim=True)), rtol=1e-5, atol=1e-6)\n"
        "print('rsqrtf(' in cuir.lower(checked).source)\n"
        "text = open('norms.cuir').read().replace('rsqrt(row_sum(x * x))', 'cast(rsqrt(cast(x, f16)), f32)')\n"
        "try:\n    cuir.check(cuir.parse(text))\n"
        "except cuir.CuirError as error:\n    print([d.code for d in error.diagnostics])"
    )
    return run(copy, "-c", code).splitlines()


def test_the_entry_is_complete(copy: Path, answers: list[str]) -> None:
    output = run(copy, "-m", "cuir", "ops", "rsqrt")
    assert "interpreter: cuir/interp/ops/compute.py" in output and "lowering: cuir/lowering/cuda/operator_text.py" in output
    assert answers[0] == "False"


def test_the_program_runs_and_lowers(answers: list[str]) -> None:
    assert answers[1] == "True"


def test_the_typing_rule_holds(answers: list[str]) -> None:
    assert answers[2] == "['T142']"

"""docs/lowering.md: its example of a pass, followed to the letter on a copy of the project, and its lists, which are complete."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cuir
from cuir.lowering.ir.ir_types import LAYOUTS
from cuir.lowering.ir.text import dialect, parse, show
from cuir.lowering.stage_files import Lowering

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/lowering.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.S))
ENTRY = re.search(r"```python\n# in PASSES\n(.*?)```", PAGE, re.S)


def test_the_page_names_every_operation_and_layout() -> None:
    assert not [op.name for op in dialect().operations if f"`{op.name}" not in PAGE]
    assert not [name for name in LAYOUTS if f"| `{name}` |" not in PAGE]


def test_the_page_names_every_fact() -> None:
    assert not [p.name for p in (ROOT / "cuir/lowering/analyses").glob("[a-z]*.py") if f"`{p.name}`" not in PAGE]


def test_files_that_the_page_names_are_there() -> None:
    named = set(re.findall(r"`((?:ir|passes|facts|cuda)/[\w/]+\.py)", PAGE))
    assert named and not [name for name in named if not (ROOT / "cuir/lowering" / name).is_file()]


def test_the_ir_of_the_page_is_that_of_its_program() -> None:
    program = re.search(r"<!-- check: -->\n```python\n(.*?)```", PAGE, re.S)
    ir = re.search(r"```\n(tile\.kernel .*?)```", PAGE, re.S)
    assert program and ir
    stages = {s.name: s.text for s in list(Lowering(cuir.check(cuir.parse(program.group(1)))).stages())[:3]}
    assert stages["eliminate_common_subexpressions"] == ir.group(1) == show(parse(ir.group(1)))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the files of the page, and its pass behind the first ones of the pipeline."""
    place = tmp_path_factory.mktemp("project")
    for folder in ("cuir", "corpus", "tests"):
        shutil.copytree(ROOT / folder, place / folder)  # with what Python has compiled: it is as old as its source
    for name, text in FILES.items():
        (place / name).write_text(text, encoding="utf-8")
    pipeline = place / "cuir/lowering/passes/pipeline.py"
    assert ENTRY
    text = pipeline.read_text(encoding="utf-8").replace("from . import (\n", "from . import (\n    fold_same_extremum,\n")
    pipeline.write_text(text.replace("    *CLEAN,\n", f"    *CLEAN,\n    {ENTRY.group(1)}", 1), encoding="utf-8")
    return place


def run(place: Path, *argv: str) -> str:
    output = subprocess.run([sys.executable, "-m", *argv], cwd=place, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stdout + output.stderr
    return output.stdout


def test_the_test_of_the_pass_passes(copy: Path) -> None:
    assert sorted(FILES) == ["cuir/lowering/passes/fold_same_extremum.py", "tests/lowering/passes/test_fold_same_extremum.py"]
    assert "3 passed" in run(copy, "pytest", "-q", "-p", "no:cacheprovider", "tests/lowering/passes/test_fold_same_extremum.py")


def test_the_pass_is_one_of_the_pipeline(copy: Path) -> None:
    output = run(copy, "cuir", "lower", "gemm", "-c", "T=f16", "-d", "M=70,N=72,K=64", "--validate")
    assert re.search(r"^04 fold_same_extremum +unchanged +[\d.]+ +same", output, re.M)

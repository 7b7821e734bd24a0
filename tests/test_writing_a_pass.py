"""docs/lowering.md: its example of a pass, followed to the letter on a copy of the project, and its lists, which are complete."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cuir.lowering.ir.ir_text import dialect
from cuir.lowering.layouts.tile_layouts import LAYOUTS
from tests.page_blocks import ROOT, read_blocks

PAGE = (ROOT / "docs/lowering.md").read_text(encoding="utf-8")
STEPS = {b.name: b.text for b in read_blocks(ROOT / "docs/lowering.md") if b.kind == "step"}
ENTRY = STEPS.pop("PASSES")


def test_the_page_names_every_operation_and_layout() -> None:
    assert not [op.name for op in dialect().operations if f"`{op.name}" not in PAGE]
    assert not [name for name in LAYOUTS if f"| `{name}` |" not in PAGE]


def test_the_page_names_every_fact() -> None:
    assert not [p.name for p in (ROOT / "cuir/lowering/analyses").glob("[a-z]*.py") if f"`{p.name}`" not in PAGE]


def test_files_that_the_page_names_are_there() -> None:
    named = set(re.findall(r"`((?:ir|passes|facts|cuda)/[\w/]+\.py)", PAGE))
    assert named and not [name for name in named if not (ROOT / "cuir/lowering" / name).is_file()]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the files of the page, and its pass behind the first ones of the pipeline."""
    place = tmp_path_factory.mktemp("project")
    for folder in ("cuir", "corpus", "tests"):
        shutil.copytree(ROOT / folder, place / folder)  # with what Python has compiled: it is as old as its source
    for name, text in STEPS.items():
        (place / name).write_text(text, encoding="utf-8")
    pipeline = place / "cuir/lowering/passes/pipeline.py"
    text = pipeline.read_text(encoding="utf-8").replace("from . import (\n", "from . import (\n    fold_same_extremum,\n")
    pipeline.write_text(text.replace("    *CLEAN,\n", "    *CLEAN,\n" + textwrap.indent(ENTRY, "    "), 1), encoding="utf-8")
    return place


def run(place: Path, *argv: str) -> str:
    output = subprocess.run([sys.executable, "-m", *argv], cwd=place, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stdout + output.stderr
    return output.stdout


@pytest.mark.thorough("runs pytest in a copy of the project")
def test_the_test_of_the_pass_passes(copy: Path) -> None:
    assert sorted(STEPS) == ["cuir/lowering/passes/fold_same_extremum.py", "tests/lowering/passes/test_fold_same_extremum.py"]
    assert "3 passed" in run(copy, "pytest", "-q", "-p", "no:cacheprovider", "tests/lowering/passes/test_fold_same_extremum.py")


@pytest.mark.thorough("validates all passes in a copy of the project")
def test_the_pass_is_one_of_the_pipeline(copy: Path) -> None:
    output = run(copy, "cuir", "lower", "gemm", "-c", "T=f16", "-d", "M=70,N=72,K=64", "--validate")
    assert re.search(r"^04 fold_same_extremum +unchanged +[\d.]+ +same", output, re.M)

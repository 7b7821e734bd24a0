"""Names of a program beside those of C++ and of what printers write."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cuir.lowering import lower
from cuir.lowering.cuda.writer import identifier
from cuir.runtime.nvcc import include_dir
from tests.lowering.kernels import NAMES, corpus_kernel
from tests.lowering.tile_ir import program

KEYWORDS = {"for", "if", "while", "switch", "return", "sizeof"}
CALL = re.compile(r"(?<![\w:.>])([A-Za-z]\w*)\s*\(")  # without a namespace, of no object


def body(source: str) -> str:
    """Return the body of the kernel, without comments."""
    return re.sub("//.*", "", source[source.index("extern __shared__") :])


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_program_hides_a_function_that_is_called(name: str) -> None:
    checked = corpus_kernel(name)
    called = {n for n in CALL.findall(body(lower(checked).source)) if not re.fullmatch(r"\w+__\d+", n)} - KEYWORDS
    assert {"int"} <= called and {n for n in called if identifier(n) == n} == set()


@pytest.mark.parametrize("name", ["fabsf", "fmaxf", "fminf", "fmaf", "unsigned"])
def test_a_tile_called_like_a_function(name: str) -> None:
    text = """
@kernel(arch="sm_90a")
def k(X: Global[f32, N, 64], Z: Global[f32, N, 64]):
    with role("all", warpgroups=1):
        NAME = load(X[0:64, :])
        store(Z[0:64, :], abs(NAME * 1.5) + 1.0 / tanh(NAME))
"""
    assert f"float {name}[" not in body(lower(program(text.replace("NAME", name))).source)


@pytest.mark.nvcc
def test_no_name_of_a_program_is_a_macro_of_the_headers(tmp_path: Path) -> None:
    """`EOF: f32` is a parameter as good as another; its name in C++ is no number."""
    source = lower(program(SCALAR)).source
    includes = tmp_path / "includes.cu"
    includes.write_text("".join(f"{line}\n" for line in source.splitlines() if line.startswith("#include")), encoding="utf-8")
    command = ["nvcc", "-std=c++17", "-arch=sm_90a", "-I", include_dir(), "-E", "-Xcompiler", "-dM", str(includes)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    macros = set(re.findall(r"^#define ([A-Za-z]\w*)", listed, re.MULTILINE))
    assert {"EOF", "EIO", "NULL", "INT_MAX", "cuMemAlloc"} <= macros
    assert {m for m in macros if identifier(m) == m} == set()


SCALAR = """
@kernel(arch="sm_90a")
def k(X: Global[f32, N, 64], EOF: f32):
    with role("all", warpgroups=1):
        store(X[0:64, :], load(X[0:64, :]) * EOF)
"""


def test_common_names_stay() -> None:
    assert all(identifier(n) != n for n in ("EOF", "EIO", "_Complex", "_Bool", "__x", "NULL"))
    assert all(identifier(n) == n for n in ("M", "N", "LSE", "MAX_SCORES", "total", "top", "island", "PARTS", "cursor", "Y"))

"""Text before the roles: scalars of the kernel's frame, in branches where one side alone needs them."""

from __future__ import annotations

import re

import pytest

from cuir.lowering import lower
from cuir.runtime.nvcc import compile_cuda
from tests.lowering.tile_ir import program

TEXT = """
@kernel(arch="sm_90a")
def k(X: Global[f32, N, 64], Z: Global[f32, N, 64], I: Global[i32, M], n: i32):
    {declaration}
    with role("all", warpgroups=1):
        store(Z[q : q + 64, :], load(X[0:64, :]))
"""


def frame(declaration: str) -> str:
    source = lower(program(TEXT.format(declaration=declaration))).source
    return re.sub("//.*", "", source[source.index("const int lane") : source.index("// ---- role all")])


def test_a_read_that_only_one_side_makes_stands_in_its_branch() -> None:
    text = frame("q = I[0] if M > 0 else n")
    assert text.index("int q;") < text.index("if (0 < M)") < text.index("I[0]") < text.index("  else") < text.index("q = n;")


def test_sides_within_sides() -> None:
    text = frame("q = (I[0] if M > 0 and I[M - 1] > 3 else n // N) * 64")
    assert text.count("I[") == 2 and text.count("if (") == 2, "the second read only if there is one"
    assert text.index("I[") > text.index("if (0 < M)")


def test_a_branch_without_reads_or_divisions_is_an_expression() -> None:
    assert "q = (0 < n) ? n : 2;" in frame("q = n if n > 0 else 2")


@pytest.mark.nvcc
def test_it_compiles() -> None:
    compile_cuda(lower(program(TEXT.format(declaration="q = (I[0] if M > 0 and I[M - 1] > 3 else n // N) * 64"))))

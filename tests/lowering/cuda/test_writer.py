"""Names of a program beside those of C++ and of what printers write."""

from __future__ import annotations

import re

import pytest

from cuir.checking.checked import Checked
from cuir.lowering import lower
from cuir.lowering.cuda.writer import identifier
from tests.lowering.kernels import KERNELS
from tests.lowering.tile_ir import program

KEYWORDS = {"for", "if", "while", "switch", "return", "sizeof"}
CALL = re.compile(r"(?<![\w:.>])([A-Za-z]\w*)\s*\(")  # without a namespace, of no object


def body(source: str) -> str:
    """What stands in the kernel, without comments."""
    return re.sub("//.*", "", source[source.index("extern __shared__") :])


@pytest.mark.parametrize(("name", "checked"), KERNELS, ids=lambda x: x if isinstance(x, str) else "")
def test_no_name_of_a_program_hides_a_function_that_is_called(name: str, checked: Checked) -> None:
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

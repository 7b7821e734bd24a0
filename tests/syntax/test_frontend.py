# ruff: noqa: F821, F841
"""Decorated functions and files give the same programs as text; nothing of them is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cuir
from cuir.syntax.frontend import DecoratedFunc, DecoratedKernel, load
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError

SCALE = -2.5
UNUSED = 7
rows_of = 3  # hidden by the kernel's own name

TEXT = """
SCALE = -2.5

@func
def twice(x):                            # a comment
    return half(x) * SCALE

@func
def half(x):
    return x / (2.0 * N)

@kernel(arch="sm_90a", cluster=2)
def double(A: Global[f32, M, N], B: Global[f32, M, N], *, R: const = 16):
    rows_of = R
    with role("all", warps=1) as w:
        x = twice(
            load(A[0 : 16, 0 : 16]),
        )
        store(B[0 : 16, 0 : 16], x)
"""


@cuir.func
def twice(x):  # a comment
    return half(x) * SCALE


@cuir.func
def half(x):
    return x / (2.0 * N)


@cuir.kernel(arch="sm_90a", cluster=2)
def double(A: Global[f32, M, N], B: Global[f32, M, N], *, R: const = 16):
    rows_of = R
    with role("all", warps=1) as w:
        x = twice(
            load(A[0:16, 0:16]),
        )
        store(B[0:16, 0:16], x)


PAIR, CLUSTER = 2, 1  # Python evaluates the options of a decorator, so a const that is named there has a Python value, too


def code_of(call) -> str:
    with pytest.raises(CuirError) as caught:
        call()
    assert caught.value.diagnostics[0].message
    return caught.value.diagnostics[0].code


def test_a_decorated_kernel_equals_the_text():
    assert isinstance(double, DecoratedKernel) and isinstance(half, DecoratedFunc)
    assert double.program == parse(TEXT)
    assert half.ast == parse(TEXT).funcs()["half"]


def test_the_size_of_a_cluster_is_read_from_the_text():
    @cuir.kernel(arch="sm_90a", cluster=PAIR * CLUSTER)
    def clustered(A: Global[f32, M], *, CLUSTER: const = 4):
        with role("all", warps=1) as w:
            x = cta_rank()

    assert show(clustered.program).startswith('PAIR = 2\n\n@kernel(arch="sm_90a", cluster=PAIR * CLUSTER)\ndef clustered(')
    assert cuir.check(clustered.program).cluster == 8 and cuir.check(clustered.program, consts={"CLUSTER": 1}).cluster == 2


def test_spans_name_the_python_file_and_its_lines():
    span = double.ast.body[0].span
    assert Path(span.source.name).samefile(__file__)
    assert Path(__file__).read_text().split("\n")[span.line - 1] == "    rows_of = R"
    assert (span.column, span.end_column) == (5, 16)


def test_an_indented_function_keeps_its_columns():
    class Holder:
        @cuir.func
        def shifted(x):
            """What it does."""
            return x + 1

    value = Holder.shifted.ast.body[0].value
    assert (value.span.column, value.span.text()) == (20, "x + 1")
    assert Holder.shifted.ast.comments.lead == ("# What it does.",)


def test_variables_around_a_function_are_seen():
    factor = 3

    @cuir.func
    def scaled(x):
        return x * factor

    @cuir.kernel(arch="sm_80")
    def k(A: Global[f32, M]):
        y = scaled(1)

    assert k.program == parse(
        'factor = 3\n@func\ndef scaled(x):\n    return x * factor\n@kernel(arch="sm_80")\ndef k(A: Global[f32, M]):\n    y = scaled(1)\n'
    )


def test_one_name_for_two_things_is_refused():
    def define_kernel():
        half = 5

        @cuir.func
        def uses(x):
            return x + half

        return uses

    uses = define_kernel()

    @cuir.kernel(arch="sm_80")
    def k(A: Global[f32, M]):
        y = uses(1) + half(2)

    assert code_of(lambda: k.program) == "N001"


def test_errors_in_a_decorated_function_are_found_when_its_tree_is_asked_for():
    @cuir.func
    def wrong(x):
        while x:
            x = 1
        return x

    with pytest.raises(CuirError) as caught:
        _ = wrong.ast
    (error,) = caught.value.diagnostics
    assert error.code == "P005"
    assert error.span and error.span.column == 9
    assert error.span.source.line(error.span.line).strip() == "while x:"


def test_python_never_runs_the_body():
    assert code_of(lambda: double(1, 2)) == "U207"


def test_no_source_text():
    scope: dict = {"cuir": cuir}
    assert code_of(lambda: exec("@cuir.func\ndef f(x):\n    return x\n", scope)) == "U205"
    assert code_of(lambda: cuir.func(3)) == "U205"


# ---- files
def test_load_a_text(tmp_path):
    file = tmp_path / "double.cuir"
    file.write_text(TEXT)
    program = load(file)
    assert program == parse(TEXT)
    assert program.span.source.name == str(file)


def test_load_a_python_file_without_importing_it(tmp_path):
    file = tmp_path / "kernels.py"
    text = (
        "import sys\nimport cuir\nraise SystemExit('imported')\nsys.exit(1)\nUNUSED = 7\nNAMES = ['a']\nSCALE = -2.5  # why\n"
        "class A:\n    pass\n"
        + TEXT.replace("SCALE = -2.5\n", "# above\n").replace("@", "@cuir.")
        + "\nif __name__ == '__main__':\n    double()\n"
    )
    file.write_text(text)
    program = load(file)
    assert program == parse(TEXT)
    assert program.constants()["SCALE"].comments.trail == "# why"
    span = program.kernels()["double"].span
    assert text.split("\n")[span.line - 1] == '@cuir.kernel(arch="sm_90a", cluster=2)'


def test_load_this_file():
    assert load(__file__) == parse(TEXT)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("missing.cuir", None, "U201"),
        ("folder", ..., "U202"),
        ("bytes.cuir", b"\xff\xfe\x00", "U203"),
        ("empty.cuir", b"", "U204"),
        ("empty.py", b"", "U204"),
        ("comment.cuir", b"# nothing\n", "U204"),
        ("plain.py", b"def f(x):\n    return x\n", "U204"),
        ("nul.py", b"x = 1\0", "U204"),
        ("broken.py", b"def f(:\n", "P001"),
        ("broken.cuir", b"def f(:\n", "P001"),
        ("while.py", b"import cuir\n@cuir.func\ndef f(x):\n    while x:\n        x = 1\n    return x\n", "P005"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, code):
    path = tmp_path / name
    if content is ...:
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    result = code_of(lambda: load(path))
    assert result == code if name != "nul.py" else result in ("U204", "P001")  # Python 3.12 calls it a syntax error


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "bom.cuir"
    path.write_bytes(b"\xef\xbb\xbfA = 1\n")
    assert load(path) == parse("A = 1\n")


def test_functions_take_a_program_or_the_path_of_one(tmp_path: Path) -> None:
    text = '@kernel(arch="sm_90a")\ndef k(X: Global[f32, M, 64]):\n    with role("all", warpgroups=1):\n        store(X[0 : 64, :], zeros(f32, [64, 64]))\n'
    path = tmp_path / "k.cuir"
    path.write_text(text, encoding="utf-8")
    x = torch.ones(64, 64)
    cuir.run(path, {"X": x})
    assert not x.any()
    for inputs in (str(path), path, cuir.load(path)):
        assert cuir.check(inputs).name == "k" and cuir.show(inputs) == cuir.show(cuir.parse(text)) and "k_u(" in cuir.lower(inputs).source


@pytest.mark.parametrize("inputs", [3, None, "gemm", b"x", ["k.cuir"], "@kernel\ndef k():\n    x = 1\n"])
def test_what_is_no_program_is_said(inputs: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: cuir.check(inputs),
        lambda: cuir.run(inputs, {}),
        lambda: cuir.lower(inputs),
        lambda: cuir.compile(inputs),
        lambda: cuir.show(inputs),
        lambda: cuir.verify(inputs, lambda b, h, q, k: q >= k),
        lambda: cuir.transfer(inputs, lambda b, h, q, k: q >= k),
    ]
    for call in calls:
        with pytest.raises(CuirError) as error:
            call()
        assert error.value.diagnostics[0].code == "U208" and error.value.diagnostics[0].hint


def test_a_path_of_no_file_is_said() -> None:
    with pytest.raises(CuirError, match="U201"):
        cuir.check("nowhere.cuir")

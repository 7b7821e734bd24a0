"""The evaluator of splice points means what CuIR means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.attn.verification.splice_evaluator import Evaluator, collect_kernel_values
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError


def run(text: str, *arguments: object, **names: object) -> object:
    body = "\n    ".join(text.split("\n"))
    params = ", ".join("xyz"[: len(arguments)])
    return Evaluator(parse(f"TWO = 2\n\n@func\ndef f({params}):\n    {body}\n\n@func\ndef twice(x):\n    return x * TWO\n"), names).call(
        "f", *arguments
    )


@given(st.integers(-50, 50), st.integers(-9, 9).filter(bool))
def test_integer_division_is_pythons(x: int, y: int) -> None:
    assert run("return x // y, x % y, cdiv(x, abs(y))", x, y) == (x // y, x % y, -(-x // abs(y)))


def test_arrays_and_scalars_agree() -> None:
    text = "a = max(0, x - 3) // 2\nreturn a + y if x > 4 else min(a, y, 1)"
    xs = np.arange(-3, 12)
    assert [int(v) for v in np.asarray(run(text, xs, 7))] == [run(text, int(x), 7) for x in xs]


def test_functions_tuples_statements_and_constants() -> None:
    assert run("a, b = twice(x), N\na += b\nfor i in range(3):\n    a = a + i\nif a > 3:\n    a = a * 10\nreturn (a, b)[0]", 4, N=1) == 120


def test_choices_of_tuples_are_made_part_by_part() -> None:
    text = "a, b = (x, twice(x)) if x > 2 else (0, (x, 1)[1])\nreturn a * 10 + b"
    xs = np.arange(6)
    assert [int(v) for v in np.asarray(run(text, xs))] == [run(text, int(x)) for x in xs]


def test_lazy_branches() -> None:
    assert run("return 1 // x if x > 0 else 0", 0) == 0
    assert [int(v) for v in np.asarray(run("return 12 // x if x > 0 else 0", np.array([0, 3, 4])))] == [0, 4, 3]
    assert run("return x > 0 and 4 // x > 1", 0) is False


def test_reads_outside_give_zero() -> None:
    table = np.array([[1, 2, 3], [4, 5, 6]])
    assert np.asarray(run("return t[x, y]", np.array([[0], [1], [2]]), np.array([[-1, 2, 3]]), t=table)).tolist() == [
        [0, 3, 0],
        [0, 6, 0],
        [0, 0, 0],
    ]


def test_floats_are_single_precision() -> None:
    result = run(
        "return tanh(x) * s + exp2(log2(x)), cast(x, i32), where(x > 1.0, cast(y, f32), 0.5)",
        np.float32([0.5, 2.7]),
        np.array([3, 4]),
        s=np.float32(3),
    )
    assert isinstance(result, tuple) and result[0].dtype == np.float32 and result[1].tolist() == [0, 2] and result[2].tolist() == [0.5, 4.0]


@pytest.mark.parametrize(
    ("text", "code"),
    [("return x // 0", "T154"), ("return row_max(x)", "X140"), ("return nowhere", "N101"), ("if x > 0:\n    y = 1\nreturn x", "X140")],
)
def test_errors_have_a_place(text: str, code: str) -> None:
    with pytest.raises(CuirError) as caught:
        run(text, np.array([1, -1]))
    assert caught.value.diagnostics[0].code == code and caught.value.diagnostics[0].span is not None


def test_an_unknown_name_is_told_what_is_known() -> None:
    with pytest.raises(CuirError) as caught:
        run("return x + nowhere", 1, BM=64)
    assert caught.value.diagnostics[0].hint == "these have: BM, TWO, x"


def test_every_dim_of_the_signature_has_a_value() -> None:
    """Dims of Q, K and V by their role, whatever their names, others by their tensor; consts stay."""
    text = """@kernel(arch="sm_90a")
def f(Q: Global[f16, batch, H, N, D], K: Global[f16, batch, HK, keys, D], spans: Global[i32, batch, rows_, 3, WIDE], *, D: const, WIDE: const = 4):
    x = 0
"""
    kernel, dims = parse(text).kernels()["f"], {"B": 2, "H": 4, "HK": 1, "M": 7, "N": 9}
    names = collect_kernel_values(kernel, dims, {"D": 64, "WIDE": 4}, {"spans": np.zeros((2, 5, 3, 4))})
    learned = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    contents = collect_kernel_values(kernel, dims, {"D": 64}, {"learned": learned})["learned"]
    assert contents.dtype == np.float32 and contents.tolist() == [1.5, -2.0]  # NumPy has no bfloat16
    assert {n: names[n] for n in ("batch", "H", "N", "HK", "keys", "rows_", "D", "WIDE")} == {
        "batch": 2,
        "H": 4,
        "N": 7,
        "HK": 1,
        "keys": 9,
        "rows_": 5,
        "D": 64,
        "WIDE": 4,
    }

"""Floats that decide: operands of comparisons, casts and step functions, up to memory and reductions."""

from __future__ import annotations

import re

import pytest

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.checking.decisions import collect_deciding, jumps, list_deciders, list_expressions
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.walk import IdentityKey

HEAD = """\
@func
def scaled(x):
    return x * 0.1

@kernel(arch="sm_90a")
def k(X: Global[f32, 64, 64], Y: Global[f32, 64, 64], n: i32, s: f32):
    buf = shared(f32, [64, 64])
    other = shared(f32, [64, 64])
    with role("all", warpgroups=1):
        x = X[rows(64), cols(64)]
        q, k_ = cast(rows(64), f32), cast(cols(64), f32)
"""


def kernel(body: str) -> Checked:
    return check(parse(HEAD + "".join(f"        {line}\n" for line in body.split("\n"))))


def collect_decisions(checked: Checked) -> set[str]:
    return {show(e) for placed in list_expressions(checked)[1:] for e in placed if IdentityKey(e) in collect_deciding(checked)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "y = where(q * 0.1 - k_ * 0.1 >= 0.0, x, 0.0)",
            {"q * 0.1", "k_ * 0.1", "q * 0.1 - k_ * 0.1", "cast(rows(64), f32)", "cast(cols(64), f32)"},
        ),
        ("d = x * 0.5 + x\ny = where(d > 0.0, x * 3.0 + 1.0, 0.0)", {"x * 0.5", "x * 0.5 + x"}),
        ("y = where(row_max(x * 2.0) - s > 0.0, x * 3.0, 0.0)", {"row_max(x * 2.0) - s"}),
        ("y = where(exp2(x * 2.0 + s) >= 1.0, x, 0.0)", {"exp2(x * 2.0 + s)", "x * 2.0 + s", "x * 2.0"}),
        ("i = cast(x * 2.0 + 1.0, i32)\ny = cast(i, f32) * 0.5", {"x * 2.0 + 1.0", "x * 2.0"}),
        ("y = floor(x * 0.7 - 7.0)", {"x * 0.7 - 7.0", "x * 0.7"}),
        ("d = x * 0.7\ny = round(d - 7.0) * 2.0 + 1.0", {"x * 0.7", "d - 7.0"}),
        ("y = fmod(x * 2.0, s + 1.0)", {"x * 2.0", "s + 1.0"}),
        ("y = floor(where(x > 0.0, x * 2.0, x / s))", {"where(x > 0.0, x * 2.0, x / s)", "x * 2.0", "x / s"}),
        ("t = x\nfor i in range(n):\n    t = t * 0.5 + 1.0\ny = floor(t)", {"t * 0.5 + 1.0", "t * 0.5"}),
        ("y = x - floor(row_max(x * 2.0))", {"x * 2.0"}),
        ("y = x - floor(row_sum(x * 2.0) * 0.7 - 7.0)", {"row_sum(x * 2.0) * 0.7 - 7.0", "row_sum(x * 2.0) * 0.7"}),
        (
            "t = zeros(f32, [64, 1])\nfor i in range(n):\n    t = t * 0.5 + row_sum(x)\ny = x - floor(t)",
            {"t * 0.5 + row_sum(x)", "t * 0.5", "zeros(f32, [64, 1])"},
        ),
        ("store(buf, x * 0.7 - 7.0)\nsync()\ny = floor(load(buf))", {"x * 0.7 - 7.0", "x * 0.7"}),
        ("store(buf, x * 0.7 - 7.0)\nsync()\ny = load(buf)", set()),
        ("y = x * s + 12582912.0 - 12582912.0", {"x * s + 12582912.0", "x * s"}),
        ("y = x * s + 1000000000.0", set()),
        ("y = x * 2.0 + 1.0", set()),
        ("y = where(rows(64) * 3 >= cols(64), x * 2.0, 0.0)", set()),
        ("t = zeros(f32, [64, 1])\nfor i in range(n):\n    t = t * 0.5 + row_sum(x)\ny = where(t == 0.0, x, 1.0 / t)", set()),
        (
            "t = zeros(f32, [64, 1])\np = row_sum(x) * 3.0\nfor i in range(n):\n    t = t * 0.5 + p\ny = where(t * 2.0 == p, x, 1.0 / t)",
            {"t * 2.0"},
        ),
        ("t = row_sum(x)\nt = t * 0.5 + 1.0\ny = where(t == 0.0, x, 1.0 / t)", {"t * 0.5 + 1.0", "t * 0.5"}),
        (
            "y = x\nfor i in range(n):\n    t = row_sum(y)\n    t = t * 0.5 + 1.0\n    y = where(t == 0.0, x, 1.0 / t)",
            {"t * 0.5 + 1.0", "t * 0.5"},
        ),
        (
            "t = row_sum(x)\nfor i in range(n):\n    if i > 0:\n        t = row_max(x)\n    t = t * 0.5 + row_sum(x)\ny = where(t == 0.0, x, 1.0 / t)",
            set(),
        ),
        ("t = row_sum(x) / 48.0\ny = where(x >= t, x, 0.0)", {"row_sum(x) / 48.0"}),
        ("y = where(x >= row_sum(x) / 48.0, x, 0.0)", {"row_sum(x) / 48.0"}),
    ],
)
def test_what_decides(body: str, expected: set[str]) -> None:
    assert collect_decisions(kernel(f"{body}\nstore(Y[rows(64), cols(64)], y)")) == expected


def test_through_functions() -> None:
    checked = kernel("y = where(scaled(q) - scaled(k_) >= 0.0, x, 0.0)\nstore(Y[rows(64), cols(64)], y)")
    assert sum("* 0.1" in text for text in collect_decisions(checked)) >= 2
    assert len(list(list_deciders(checked))) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("floor(x)", True),
        ("round(x)", True),
        ("fmod(x, s)", True),
        ("cast(x, i32)", True),
        ("x + 12582912.0", True),
        ("cast(x, bool)", False),
        ("x > 0.0", False),
        ("abs(x)", False),
        ("sqrt(x)", False),
    ],
)
def test_what_jumps(text: str, expected: bool) -> None:
    checked = kernel(f"store(Y[rows(64), cols(64)], cast({text}, f32))")
    (e,) = (e for placed in list_expressions(checked)[1:] for e in placed if show(e) == text)
    assert jumps(checked, e) is expected


@pytest.mark.parametrize(
    "body",
    [
        "y = floor(x * 0.7 - 7.0)",
        "d = x * 0.7\ny = round(d - 7.0)",
        "y = fmod(where(x > 0.0, x * 0.7 - 7.0, x), s)",
        "t = x\nfor i in range(n):\n    t = t * 0.7 - 7.0\ny = cast(cast(t, i32), f32)",
        "y = floor(scaled(x) - 7.0)",
        "y = floor(row_max(x * 0.7 - 7.0)) + x",
        "store(buf, x * 0.7 - 7.0)\nsync()\ny = floor(load(buf))",
        "y = x * s - 7.0 * s + 12582912.0 - 12582912.0",
    ],
)
def test_the_text_of_what_jumps_is_as_written(body: str) -> None:
    from cuir.lowering import lower

    source = re.sub("//.*", "", lower(kernel(f"{body}\nstore(Y[rows(64), cols(64)], y)")).source)
    assert "__fmul_rn(" in source and "__fsub_rn(" in source and not re.search(r"\* (0\.7f|0\.1f|s\b)", source)


def test_what_does_not_decide_may_be_fused() -> None:
    from cuir.lowering import lower

    source = lower(kernel("y = floor(x) * 0.7 - 7.0\nstore(Y[rows(64), cols(64)], y)")).source
    assert "* 0.7f" in source and "__fmul_rn" not in source


@pytest.mark.parametrize(
    ("quotient", "text"), [("floor(x / s)", "cuir::divide_rn("), ("floor(1.0 / x)", "cuir::divide_rn("), ("x / s", "cuir::divide(")]
)
def test_quotients_that_decide_are_exact(quotient: str, text: str) -> None:
    from cuir.lowering import lower

    assert text in lower(kernel(f"store(Y[rows(64), cols(64)], {quotient})")).source


def test_the_text_of_what_decides_is_not_fused() -> None:
    from cuir.lowering import lower

    text = lower(kernel("y = where(q * 0.1 - k_ * 0.1 >= 0.0, x * 0.3 + 1.0, 0.0)\nstore(Y[rows(64), cols(64)], y)")).source
    line = next(line for line in text.splitlines() if "__fsub_rn(" in line)
    assert "0.0f" in line and "=" in line and "fmaf" not in line and "* 0.3f" in text and "__fmul_rn(" in text

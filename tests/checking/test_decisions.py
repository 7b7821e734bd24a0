"""Which floats decide: the operands of comparisons and casts, through names and functions, up to memory, reductions and products."""

from __future__ import annotations

import pytest

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.checking.decisions import deciders, expressions
from cuir.syntax.parser import parse
from cuir.syntax.printer import show

HEAD = """\
@func
def scaled(x):
    return x * 0.1

@kernel(arch="sm_90a")
def k(X: Global[f32, 64, 64], Y: Global[f32, 64, 64], n: i32, s: f32):
    with role("all", warpgroups=1):
        x = X[rows(64), cols(64)]
        q, k_ = cast(rows(64), f32), cast(cols(64), f32)
"""


def kernel(body: str) -> Checked:
    return check(parse(HEAD + "".join(f"        {line}\n" for line in body.split("\n"))))


def found(checked: Checked) -> set[str]:
    return {show(e) for r in checked.roles for e in expressions(r.body) if e.decides}


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (
            "y = where(q * 0.1 - k_ * 0.1 >= 0.0, x, 0.0)",
            {"q * 0.1", "k_ * 0.1", "q * 0.1 - k_ * 0.1", "cast(rows(64), f32)", "cast(cols(64), f32)"},
        ),
        ("d = x * 0.5 + x\ny = where(d > 0.0, x * 3.0 + 1.0, 0.0)", {"x * 0.5", "x * 0.5 + x"}),
        ("y = where(row_max(x * 2.0) - s > 0.0, x * 3.0, 0.0)", {"row_max(x * 2.0)", "row_max(x * 2.0) - s"}),
        ("y = where(exp2(x * 2.0 + s) >= 1.0, x, 0.0)", {"exp2(x * 2.0 + s)", "x * 2.0 + s", "x * 2.0"}),
        ("i = cast(x * 2.0 + 1.0, i32)\ny = cast(i, f32) * 0.5", {"x * 2.0 + 1.0", "x * 2.0"}),
        ("y = x * 2.0 + 1.0", set()),
        ("y = where(rows(64) * 3 >= cols(64), x * 2.0, 0.0)", set()),
        ("t = zeros(f32, [64, 1])\nfor i in range(n):\n    t = t * 0.5 + row_sum(x)\ny = where(t == 0.0, x, 1.0 / t)", set()),
    ],
)
def test_what_decides(body: str, wanted: set[str]) -> None:
    assert found(kernel(f"{body}\nstore(Y[rows(64), cols(64)], y)")) == wanted


def test_through_functions() -> None:
    checked = kernel("y = where(scaled(q) - scaled(k_) >= 0.0, x, 0.0)\nstore(Y[rows(64), cols(64)], y)")
    assert sum("* 0.1" in text for text in found(checked)) >= 2
    assert len(list(deciders(checked))) == 1


def test_the_text_of_what_decides_is_not_fused() -> None:
    from cuir.lowering import lower

    text = lower(kernel("y = where(q * 0.1 - k_ * 0.1 >= 0.0, x * 0.3 + 1.0, 0.0)\nstore(Y[rows(64), cols(64)], y)")).source
    line = next(line for line in text.splitlines() if "__fsub_rn(" in line)
    assert "0.0f" in line and "=" in line and "fmaf" not in line and "* 0.3f" in text and "__fmul_rn(" in text

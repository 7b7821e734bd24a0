"""Arithmetic that is computed as written: operands of comparisons, casts and step functions."""

from __future__ import annotations

from collections import Counter

import pytest

from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes import eliminate_common_subexpressions
from tests.lowering.tile_ir import kernel_of, program, role

HEAD = """\
@func
def scaled(x):
    return x * 0.1

@kernel(arch="sm_90a")
def k(X: Global[f32, 64, 64], Y: Global[f32, 64, 64], n: i32, s: f32):
    half = s * 0.5
    buf = shared(f32, [64, 64])
    with role("all", warpgroups=1):
        x = X[rows(64), cols(64)]
        q, k_ = cast(rows(64), f32), cast(cols(64), f32)
"""


def list_marked(kernel: ops.Kernel | ops.Role) -> list[ops.Apply]:
    return [op for op in every(kernel) if isinstance(op, ops.Apply) and op.exact is not None]


def count_exact(body: str) -> Counter[str]:
    """The primitives in the role that are exact."""
    kernel = build(program(HEAD + "".join(f"        {line}\n" for line in [*body.split("\n"), "store(Y[rows(64), cols(64)], y)"])))
    kernel.verify()
    return Counter(op.op for op in list_marked(kernel.roles[0]))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = where(q * 0.1 - k_ * 0.1 >= 0.0, x, 0.0)", ["*", "*", "-", "cast", "cast"]),
        ("d = x * 0.5 + x\ny = where(d > 0.0, x * 3.0 + 1.0, 0.0)", ["*", "+"]),
        ("y = where(row_max(x * 2.0) - s > 0.0, x * 3.0, 0.0)", ["-"]),
        ("y = where(exp2(x * 2.0 + s) >= 1.0, x, 0.0)", ["exp2", "+", "*"]),
        ("i = cast(x * 2.0 + 1.0, i32)\ny = cast(i, f32) * 0.5", ["*", "+"]),
        ("y = x * 2.0 + 1.0", []),
        ("y = where(rows(64) * 3 >= cols(64), x * 2.0, 0.0)", []),
        ("t = zeros(f32, [64, 1])\nfor i in range(n):\n    t = t * 0.5 + row_sum(x)\ny = where(t == 0.0, x, 1.0 / t)", []),
        (
            "t = zeros(f32, [64, 1])\np = row_sum(x) * 3.0\nfor i in range(n):\n    t = t * 0.5 + p\ny = where(t * 2.0 == p, x, 1.0 / t)",
            ["*"],
        ),
        ("t = row_sum(x)\nt = t * 0.5 + 1.0\ny = where(t == 0.0, x, 1.0 / t)", ["*", "+"]),
        ("t = row_sum(x) / 48.0\ny = where(x >= t, x, 0.0)", ["/"]),
        ("y = where(x >= row_sum(x) / 48.0, x, 0.0)", ["/"]),
        ("t = row_max(x)\nfor i in range(n):\n    t = t * 0.5\ny = where(t == 0.0, x, 1.0 / t)", ["*"]),
        ("t = x\nif n > 0:\n    t = x * 2.0\nelse:\n    t = x * 2.0 + 1.0\ny = where(t > 0.0, x, 0.0)", ["*", "*", "+"]),
        ("t = x + 1.0\nfor i in range(n):\n    t = x * 2.0\ny = t + 1.0", []),
        ("u = x * 3.0\nt = x\nfor i in range(n):\n    t = u\n    u = u + 1.0\ny = where(t > 0.0, x, 0.0)", ["*", "+"]),
        ("y = where(scaled(q) - scaled(k_) >= 0.0, x, 0.0)", ["*", "*", "-", "cast", "cast"]),
        ("y = floor(x * 0.7 - 7.0)", ["*", "-"]),
        ("y = fmod(x * 0.7, x + 1.0) * 2.0 + 1.0", ["*", "+"]),
        ("y = round(where(x > 0.0, x * 2.0, x / s))", ["where", "*", "/"]),
        ("t = x\nfor i in range(n):\n    t = t * 0.5\ny = floor(t)", ["*"]),
        ("y = x - floor(row_max(x * 2.0))", ["*"]),
        ("y = x - floor(row_sum(x * 2.0) * 0.7 - 7.0)", ["*", "-"]),
        ("t = zeros(f32, [64, 1])\nfor i in range(n):\n    t = t * 0.5 + row_sum(x)\ny = x - floor(t)", ["*", "+", "zeros"]),
        ("store(buf, x * 0.7 - 7.0)\nsync()\ny = floor(load(buf))", ["*", "-"]),
        ("store(buf, x * 0.7 - 7.0)\nsync()\ny = load(buf)", []),
        ("y = x * s + 12582912.0 - 12582912.0", ["*", "+"]),
        ("y = where(min(x * 2.0, s, 1.0) > 0.0, x, 0.0)", ["min", "min", "*"]),
    ],
)
def test_what_is_exact(body: str, expected: list[str]) -> None:
    assert count_exact(body) == Counter(expected)


def test_scalars_of_the_frame_are_exact() -> None:
    kernel = build(program(HEAD + "        store(Y[rows(64), cols(64)], x * half)\n"))
    assert [op.op for op in list_marked(kernel)] == ["*"] and not list_marked(kernel.roles[0])


def test_the_text_says_it() -> None:
    r = role(
        '%x = tile.perform "load"(view: %a) : !tile.reg<f32, 64, 64>',
        '%y = tile.apply "*"(%x, %s) exact : !tile.reg<f32, 64, 64>',
        '%z = tile.apply "+"(%y, %x) : !tile.reg<f32, 64, 64>',
        '%c = tile.apply "<"(%y, %x) : !tile.reg<bool, 64, 64>',
    )
    text = show(kernel_of(r))
    assert '"*"(%x, %s) exact :' in text and text.count("exact") == 1
    assert show(parse(text)) == text


def test_an_equal_value_keeps_that_it_decides() -> None:
    r = role(
        '%x = tile.perform "load"(view: %a) : !tile.reg<f32, 64, 64>',
        '%y = tile.apply "*"(%x, %s) : !tile.reg<f32, 64, 64>',
        '%z = tile.apply "*"(%x, %s) exact : !tile.reg<f32, 64, 64>',
        '%c = tile.apply "<"(%z, %x) : !tile.reg<bool, 64, 64>',
    )
    eliminate_common_subexpressions.run(kernel_of(r))
    assert [op.result.name_hint for op in list_marked(r)] in (["y"], ["z"])

"""A checked kernel becomes IR: names are values, loops and branches carry them, places are places, waits give tiles anew."""

from __future__ import annotations

import re

import pytest
from xdsl.dialects.builtin import FileLineColLoc

from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build, build_for_analyses
from cuir.lowering.ir.ir_text import show
from cuir.lowering.ir.ir_types import from_language
from cuir.syntax.nodes import Binary, For
from cuir.syntax.walk import IdentityKey, walk
from tests.lowering.conftest import kernel


def body(text: str) -> list[str]:
    """The lines of the role's block, without indentation and types, values without a name numbered from 0."""
    lines = show(build(kernel(text))).split("\n")
    first = next(i for i, line in enumerate(lines) if "^bb0(" in line)
    bare = "\n".join(re.sub(r" : !tile\.[^=]*$", "", line.strip()) for line in lines[first + 1 : -5])
    numbers = {old: f"%{new}" for new, old in enumerate(dict.fromkeys(re.findall(r"%\d+", bare)))}
    return re.sub(r"%\d+", lambda m: numbers[m.group()], bare).split("\n")


def test_declarations() -> None:
    ir = build(kernel("store(Y[0], scale)"))
    assert [d.name for d in ir.body.block.ops][:7] == ["tile.tensor"] * 4 + ["tile.parameter"] * 3
    (role,) = ir.roles
    assert (role.symbol.data, role.workers.data, role.threads.data) == ("all", 1, 128)
    x, m, s, full = (ir.declaration(name) for name in ("X", "M", "s", "full"))
    assert isinstance(x, ops.Tensor) and x.written is None and isinstance(m, ops.Parameter) and m.dim is not None
    assert isinstance(s, ops.Shared) and s.offset.data == 0 and isinstance(full, ops.Barrier) and full.count.data == 1
    y = ir.declaration("Y")
    assert isinstance(y, ops.Tensor) and y.written is not None


def test_operations_have_the_place_of_their_statement() -> None:
    ir = build(kernel("x = 1.0\n\nstore(Y[0], scale * x)"))
    apply = next(op for op in ir.roles[0].body.block.ops if isinstance(op, ops.Apply))
    assert isinstance(apply.location, FileLineColLoc) and (apply.location.filename.data, apply.location.line.data) == ("k.cuir", 10)


def test_a_subscript_that_is_written_is_a_place_and_one_that_is_read_a_gather() -> None:
    assert body("i = rows(64)\nstore(Z[i, cols(64)], Z[i, cols(64)])") == [
        '%i = tile.apply "rows"()',
        '%0 = tile.apply "cols"()',
        "%1 = tile.at %Z[%i, %0]",
        '%2 = tile.apply "cols"()',
        "%3 = tile.at %Z[%i, %2]",
        '%4 = tile.perform "gather"(place: %3)',
        'tile.perform "store"(place: %1, tile: %4)',
    ]


def test_several_operands_are_taken_two_at_a_time() -> None:
    assert body("store(Y[max(n, M, 3)], scale)")[:3] == [
        "%0 = tile.constant 3",
        '%1 = tile.apply "max"(%n, %M)',
        '%2 = tile.apply "max"(%1, %0)',
    ]


@pytest.mark.parametrize(
    ("condition", "lazy"),
    [
        ("n > 3 and M > 4", False),
        ("n > 3 or I[n] > 4", True),
        ("n > 3 and M // n > 4", True),
        ("n > 3 and M // 2 > 4", False),
        ("(1 if n > 3 else cdiv(M, n)) > 0", True),
        ("(1 if n > 3 else cast(scale, i32)) > 0", False),
    ],
)
def test_what_might_fail_is_a_branch(condition: str, lazy: bool) -> None:
    assert any("tile.if" in line for line in body(f"p = {condition}\nstore(Y[0], 1.0 if p else 0.0)")) == lazy


def test_loops_and_branches_carry_what_they_bind() -> None:
    lines = body("a, b = 1.0, 2.0\nfor i in range(n):\n    c = a\n    if i > 3:\n        a = b\n    b = c\nstore(Y[0], a - b)")
    assert any(re.fullmatch(r"%a_1, %b_1 = tile.for %i = %\d+ to %n carrying \(%a_2 = %a, %b_2 = %b\) \{", line) for line in lines), lines
    inner = lines[next(i for i, line in enumerate(lines) if "tile.for" in line) + 1 :]
    assert inner[2].startswith("%a_3 = tile.if ") and inner[3:7] == ["tile.yield(%b_2)", "} else {", "tile.yield(%a_2)", "}"]
    assert inner[7] == "tile.yield(%a_3, %a_2)"


def test_a_wait_gives_anew_what_it_finishes() -> None:
    """Three products in flight: a wait for the first leaves two, one for the second finishes both."""
    lines = body(
        "x = mma_async(s[0], s[1])\ny = mma_async(s[0], s[1])\nz = mma_async(s[0], s[1])\nmma_wait(x)\nstore(Z[0 : 64, :], x)\nmma_wait(z)\nstore(Z[0 : 64, :], y + z)"
    )
    waits = [line for line in lines if "mma_wait" in line]
    assert waits[0] == '%x_1 = tile.perform "mma_wait"(x0: %x) {pending=2}'
    assert set(waits[1].split(" = ")[0].split(", ")) >= {"%y_1", "%z_1"} and waits[1].endswith("{pending=0}")
    assert any('"+"(%y_1, %z_1)' in line for line in lines)


def test_a_tile_that_a_product_took_over_is_not_given_anew() -> None:
    lines = body("x = mma_async(s[0], s[1])\nbefore = x\nx = mma_async(s[0], s[1], x)\nmma_wait(before)\nmma_wait(x)")
    assert [line for line in lines if "mma_wait" in line] == [
        'tile.perform "mma_wait"() {pending=1}',
        '%x_2 = tile.perform "mma_wait"(x0: %x_1) {pending=0}',
    ]


def test_views_of_views_are_one_place() -> None:
    lines = body("v = s[n]\nu = v[0 : 64]\nx = load(u[n * 8 - 16 : n * 8 - 16 + 64])\nstore(Z[0 : 64, :], cast(x, f32))")
    (at,) = (line for line in lines if "tile.at %s" in line)
    assert re.fullmatch(r"%\d+ = tile.at %s\[%n, %\d+ : 64, : 64\]", at)


@pytest.mark.parametrize(
    ("lines", "judged"),
    [
        ("store(Y[n], 1.0)", {"n"}),
        ("for i in range(n):\n    store(Y[0], 1.0)", {"n"}),
        ("i = 0\nfor j in range(2):\n    i = i + n\nstore(Y[i], 1.0)", {"n"}),
        ("i = 0\nif n > 3:\n    i = 1\nstore(Y[i], 1.0)", set()),  # the index is 0 or 1
        ("i = 0\nif scale > 3.0:\n    i = n\nstore(Y[i], 1.0)", {"n"}),
        ("store(Y[0], scale)", set()),
        ("store(Y[0], cast(n, f32))", set()),
    ],
)
def test_numbers_from_which_indices_follow_are_judged(lines: str, judged: set[str]) -> None:
    ir = build(kernel(lines))
    assert {op.symbol.data for op in ir.body.block.ops if isinstance(op, ops.Parameter) and op.judged is not None} == judged


def test_each_expression_has_its_value_at_its_place() -> None:
    checked = kernel("i = n\nfor j in range(n + 1):\n    i = i + j\nx = load(s[i % 2])\nstore(Z[0 : 64, :], cast(x, f32) * scale)")
    built = build_for_analyses(checked)
    numbers = [e for stmt in checked.roles[0].body for e in walk(stmt) if isinstance(e, Binary)]
    values = [built.values[IdentityKey(e)] for e in numbers]
    assert [v.type for v in values] == [from_language(checked.type_of(e)) for e in numbers]
    (remainder,) = (v for v in values if ops.kind_of(v).remainder)
    (stmt,) = (stmt for stmt in checked.roles[0].body if isinstance(stmt, For))
    loop = remainder.owner.operands[0].owner  # type: ignore[union-attr]
    assert isinstance(loop, ops.For) and built.values[IdentityKey(stmt.iter.args[0])] is loop.stop  # type: ignore[union-attr]
    assert build_for_analyses(checked) is built

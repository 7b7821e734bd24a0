"""Divisions of numbers that are not negative, and by divisors that never change: texts before and after."""

from __future__ import annotations

import pytest

from cuir.lowering.ir import machine_ops as machine
from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.passes import multiply_by_inverses

HEAD = """tile.kernel "k" arch="sm_90a" cluster=1 cluster_x=1 threads=128 {
  %n = tile.parameter "n" : !tile.scalar<i32>
  %M = tile.parameter "M" dim : !tile.scalar<i32>
  %N = tile.parameter "N" dim : !tile.scalar<i32>
  %work = tile.units "work"(%M) : !tile.units_of_work
"""


def role(body: str, threads: int = 128) -> str:
    lines = "".join(f"      {line}\n" for line in body.strip("\n").split("\n"))
    head = f'  tile.role "r" workers=1 threads={threads} registers=0 warpgroup=0 warp=0 {{\n  ^bb0(%w: !tile.scalar<i32>):\n'
    return (
        HEAD + head + "    tile.for_units %t in %work {\n" + lines + "      tile.yield()\n    }\n    tile.yield()\n  }\n  tile.yield()\n}\n"
    )


def after(text: str) -> str:
    kernel = parse(text)
    multiply_by_inverses.run(kernel)
    kernel.verify()
    return show(parse(show(kernel)))


def divide(body: str, threads: int = 128) -> tuple[list[str], list[str]]:
    """Return the text before the loop, and in it."""
    before, inside = after(role(body, threads)).split("^bb0")[1].split("tile.for_units")
    return [line.strip() for line in before.split("\n")[1:-1]], [line.strip() for line in inside.split("\n")[1:] if "=" in line]


def test_a_divisor_that_never_changes_is_inverted_once() -> None:
    body = """
%d = tile.apply "max"(%M, %N) : !tile.scalar<i32>
%a = tile.apply "//"(%t, %d) : !tile.scalar<i32>
%b = tile.apply "%"(%t, %d) : !tile.scalar<i32>
%c = tile.apply "cdiv"(%t, %N) : !tile.scalar<i32>
"""
    before, inside = divide(body)
    assert before == [
        '%d = tile.apply "max"(%M, %N) : !tile.scalar<i32>',
        "%inverse = tile.inverse(%d) : !tile.scalar<i32>",
        "%inverse_1 = tile.inverse(%N) : !tile.scalar<i32>",
    ]
    assert inside == [
        "%a = tile.quotient(%t, %d, %inverse) : !tile.scalar<i32>",
        "%b = tile.remainder(%t, %d, %inverse) : !tile.scalar<i32>",
        "%c = tile.quotient(%t, %N, %inverse_1) up : !tile.scalar<i32>",
    ]


def test_one_lane_divides() -> None:
    before, inside = divide('%a = tile.apply "//"(%t, %N) : !tile.scalar<i32>', threads=32)
    assert not before and inside == ["%a = tile.quotient(%t, %N) : !tile.scalar<i32>"]


def test_a_division_that_never_changes_is_done_once() -> None:
    before, inside = divide("""
%g = tile.apply "//"(%M, %N) : !tile.scalar<i32>
%a = tile.apply "//"(%t, %g) : !tile.scalar<i32>
""")
    assert before == ["%g = tile.quotient(%M, %N) : !tile.scalar<i32>", "%inverse = tile.inverse(%g) : !tile.scalar<i32>"]
    assert inside == ["%a = tile.quotient(%t, %g, %inverse) : !tile.scalar<i32>"]


@pytest.mark.parametrize(
    ("op", "y", "becomes"),
    [
        ("//", 7, "tile.quotient(%t, %y)"),
        ("%", 7, "tile.remainder(%t, %y)"),
        ("cdiv", 8, "tile.quotient(%t, %y) up"),
        ("//", 8, 'tile.apply "//"(%t, %y)'),
        ("%", 8, 'tile.apply "%"(%t, %y)'),
        ("cdiv", 1, 'tile.apply "cdiv"(%t, %y)'),
        ("//", -7, 'tile.apply "//"(%t, %y)'),
    ],
)
def test_known_divisors(op: str, y: int, becomes: str) -> None:
    before, inside = divide(f'%y = tile.constant {y} : !tile.scalar<i32>\n%a = tile.apply "{op}"(%t, %y) : !tile.scalar<i32>')
    assert not before and inside[1] == f"%a = {becomes} : !tile.scalar<i32>"


def test_what_may_be_negative_stays() -> None:
    for x, y in (("n", "N"), ("t", "n")):
        before, inside = divide(f'%a = tile.apply "//"(%{x}, %{y}) : !tile.scalar<i32>')
        assert not before and inside == [f'%a = tile.apply "//"(%{x}, %{y}) : !tile.scalar<i32>']


def test_what_may_divide_by_zero_is_not_moved() -> None:
    before, inside = divide("""
%g = tile.apply "//"(%n, %N) : !tile.scalar<i32>
%z = tile.constant 0 : !tile.scalar<i32>
%d = tile.apply "max"(%g, %z) : !tile.scalar<i32>
%a = tile.apply "//"(%t, %d) : !tile.scalar<i32>
""")
    assert not before and inside[-1] == "%a = tile.quotient(%t, %d) : !tile.scalar<i32>"


@pytest.mark.parametrize("y", [1, 2, 3, 7, 2**16 + 1, 2**31 - 1])
def test_a_product_with_the_inverse_is_the_quotient_or_one_less(y: int) -> None:
    """The assumption of the printer: __umulhi(x, inverse) and one correction."""
    kernel = parse(
        role(
            "%a = tile.inverse(%N) : !tile.scalar<i32>\n%b = tile.quotient(%M, %N, %a) : !tile.scalar<i32>\n%c = tile.remainder(%M, %N, %a) : !tile.scalar<i32>"
        )
    )
    inverse, quotient, remainder = [op for op in kernel.walk() if isinstance(op, (machine.Inverse, machine.Quotient, machine.Remainder))]
    (bits,) = inverse.evaluate(None, [y])
    for x in (0, 1, y - 1, y, y + 1, 2**31 - 1, 2**31 - y):
        high = x * (bits % 2**32) >> 32
        (q,), (r,) = quotient.evaluate(None, [x, y, bits]), remainder.evaluate(None, [x, y, bits])
        assert q == high + (x - high * y >= y) == x // y and r == x % y
    assert quotient.evaluate(None, [5, 0, -1]) == [-1]  # no error: it may be computed where nobody asks for it


def test_operations_in_text() -> None:
    assert isinstance(machine.note("x").text.data, str)
    text = after(role("%a = tile.inverse(%N) : !tile.scalar<i32>\n%b = tile.quotient(%M, %N, %a) up : !tile.scalar<i32>"))
    assert text == show(parse(text)) and "tile.quotient(%M, %N, %a) up" in text
    assert all(op.name.startswith("tile.") for op in [*ops.OPERATIONS, *machine.OPERATIONS])


SIGNED = """
%r = tile.apply "rows"() : !tile.reg<i32, 64, 1>
%x = tile.apply "-"(%r, %N) : !tile.reg<i32, 64, 1>
%a = tile.apply "//"(%x, %n) : !tile.reg<i32, 64, 1>
%b = tile.apply "%"(%x, %n) : !tile.reg<i32, 64, 1>
"""


def test_a_divisor_of_unknown_sign_is_inverted_by_its_magnitude() -> None:
    before, inside = divide(SIGNED)
    assert before == [
        '%0 = tile.apply "neg"(%n) : !tile.scalar<i32>',
        '%1 = tile.apply "max"(%n, %0) : !tile.scalar<i32>',
        "%inverse = tile.inverse(%1) : !tile.scalar<i32>",
    ]
    assert inside[2:] == [
        "%a = tile.quotient(%x, %n, %inverse) signed : !tile.reg<i32, 64, 1>",
        "%b = tile.remainder(%x, %n, %inverse) signed : !tile.reg<i32, 64, 1>",
    ]


def test_what_may_be_at_the_ends_of_32_bits_is_divided_as_it_is() -> None:
    _, inside = divide(SIGNED.replace("(%r, %N)", "(%r, %n)"))
    assert not any("signed" in line for line in inside)


def test_a_divisor_that_is_a_quotient_is_hoisted_without_dividing_by_zero() -> None:
    divisor = '%g = tile.apply "//"(%n, %n) : !tile.scalar<i32>\n'
    before, inside = divide(divisor + SIGNED.strip().replace("(%x, %n)", "(%x, %g)"))
    constants, used = before[:2], before[2:]
    assert sorted(c.split("tile.constant ")[1] for c in constants) == ["0 : !tile.scalar<i32>", "1 : !tile.scalar<i32>"]
    zero, item = (next(c.split()[0] for c in constants if f"constant {n}" in c) for n in (0, 1))
    test, choice, quotient = (line.split(" = ")[0] for line in used[:3])
    assert used[0].startswith(f'{test} = tile.apply "=="(%n, {zero})')
    assert used[1].startswith(f'{choice} = tile.apply "ifexp"({test}, {item}, %n)')
    assert used[2].startswith(f'{quotient} = tile.apply "//"(%n, {choice})')
    assert used[-1].startswith("%inverse = tile.inverse(")
    assert sum("signed" in line for line in inside) == 2 and not any('"//"' in line for line in inside)

"""Which operations may be moved, dropped or repeated: their memory effect, and whether they are speculatable."""

from __future__ import annotations

import pytest

from cuir.lowering.analyses.memory import find_memory_effect, is_speculatable
from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_walk import every
from tests.lowering.tile_ir import role

SCALAR = "!tile.scalar<i32>"
TILE = "!tile.reg<f32, 64, 64>"


@pytest.mark.parametrize(
    ("line", "effect", "speculatable"),
    [
        (f'%x = tile.apply "+"(%n, %0) : {SCALAR}', "none", True),
        (f'%x = tile.apply "//"(%0, %n) : {SCALAR}', "none", False),
        (f'%x = tile.apply "//"(%n, %0) : {SCALAR}', "none", False),
        (f"%x = tile.constant 3 : {SCALAR}", "none", True),
        ('%x = tile.perform "load"(view: %X) : ' + TILE, "none", False),  # never written
        ('%x = tile.perform "load"(view: %a) : ' + TILE, "read", False),
        (f"%x = tile.nothing : {TILE}", "read", False),
        ('tile.perform "sync"()', "write", False),
        ('tile.note "n"', "write", False),
    ],
)
def test_the_effect_of_an_operation(line: str, effect: str, speculatable: bool) -> None:
    op = next(op for op in every(role(line)) if not isinstance(op, ops.Yield))
    assert (find_memory_effect(op), is_speculatable(op)) == (effect, speculatable)


def test_a_constant_divisor_is_speculatable() -> None:
    lines = [f"%c = tile.constant 3 : {SCALAR}", f'%x = tile.apply "//"(%n, %c) : {SCALAR}']
    (op,) = (op for op in every(role(*lines)) if isinstance(op, ops.Apply))
    assert is_speculatable(op)


@pytest.mark.parametrize(("inner", "effect"), [(f"%y = tile.constant 3 : {SCALAR}", "none"), ('tile.perform "sync"()', "write")])
def test_a_branch_has_the_effects_of_its_regions(inner: str, effect: str) -> None:
    lines = ["%c = tile.constant True : !tile.scalar<bool>", "tile.if %c {", inner, "tile.yield()", "} else {", "tile.yield()", "}"]
    branch = next(op for op in every(role(*lines)) if isinstance(op, ops.Branch))
    assert find_memory_effect(branch) == effect and not is_speculatable(branch)

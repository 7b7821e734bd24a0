"""Products that are computed together give the registers that one behind the other gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir.ptx.isa.instruction_table import split_opcode
from cuir.ptx.machine.groups import Group
from cuir.ptx.machine.product_runs import ProductRun, Step, WarpProduct, fuse_products

OP = split_opcode("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
REGISTERS = 24
registers = st.integers(0, REGISTERS - 1)


def make_product(a: list[int], b: list[int], c: list[int], d: list[int]) -> WarpProduct:
    def fetch(n: int):
        return lambda g: g.regs[n]

    parts = tuple(tuple(fetch(n) for n in part) for part in (a, b, c))
    return WarpProduct(OP, parts, (tuple(a), tuple(b), tuple(c)), tuple(d))  # type: ignore[arg-type]


@st.composite
def draw_products(draw: st.DrawFn) -> list[WarpProduct]:
    """Draw products whose registers often meet."""
    tuples = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]
    pairs = [[20, 21], [22, 23], [4, 5], [12, 13]]
    some = st.sampled_from(tuples)
    count = draw(st.integers(1, 8))
    return [make_product(draw(some), draw(st.sampled_from(pairs)), draw(some), draw(some)) for _ in range(count)]


def make_group(seed: int) -> Group:
    halves = np.random.default_rng(seed).normal(size=(REGISTERS, 64, 2)).astype(np.float16)
    return Group(None, np.arange(64), list(np.ascontiguousarray(halves).view(np.uint32)[..., 0]))


@settings(max_examples=40, deadline=None)
@given(draw_products(), st.integers(0, 99))
def test_a_run_gives_what_its_products_give_in_turn(products: list[WarpProduct], seed: int) -> None:
    one, other = make_group(seed), make_group(seed)
    with np.errstate(all="ignore"):
        ProductRun(products, frozenset(range(REGISTERS)))(one)
        for p in products:
            p(other)
    for n in range(REGISTERS):
        assert np.array_equal(one.regs[n], other.regs[n]), n


def uses_of(p: WarpProduct) -> tuple[frozenset[int], frozenset[int]]:
    return frozenset(r for part in p.registers for r in part), frozenset(p.targets)


def test_steps_between_products_keep_their_order_where_registers_meet() -> None:
    first, second = (
        make_product([0, 1, 2, 3], [20, 21], [4, 5, 6, 7], [4, 5, 6, 7]),
        make_product([0, 1, 2, 3], [22, 23], [4, 5, 6, 7], [8, 9, 10, 11]),
    )

    def other(g: Group) -> None:
        g.keep(4, g.regs[4])

    free = (frozenset({12}), frozenset({13}))
    touching = (frozenset({4}), frozenset({4}))
    steps: list[Step] = [first, other, second]
    moved, _ = fuse_products(steps, [uses_of(first), free, uses_of(second)], frozenset())
    assert moved[0] is other and isinstance(moved[1], ProductRun) and len(moved) == 2
    assert fuse_products(steps, [uses_of(first), touching, uses_of(second)], frozenset())[0] == steps


def test_values_that_only_products_read_are_not_kept() -> None:
    first, second = (
        make_product([0, 1, 2, 3], [20, 21], [4, 5, 6, 7], [8, 9, 10, 11]),
        make_product([12, 13, 14, 15], [22, 23], [8, 9, 10, 11], [16, 17, 18, 19]),
    )
    g, whole = make_group(1), make_group(1)
    before = g.regs[8]
    ProductRun([first, second], frozenset({16, 17, 18, 19}))(g)
    first(whole)
    second(whole)
    assert g.regs[8] is before and all(np.array_equal(g.regs[n], whole.regs[n]) for n in range(16, 20))


@pytest.mark.parametrize("lanes", [range(32), range(5, 40)])
def test_a_part_of_the_warps_computes_alone(lanes: range) -> None:
    p = make_product([0, 1, 2, 3], [20, 21], [4, 5, 6, 7], [8, 9, 10, 11])
    whole = make_group(2)
    slots = np.array(lanes)
    part = Group(None, slots, {n: whole.regs[n][slots] for n in range(REGISTERS)})
    ProductRun([p, p], frozenset(range(REGISTERS)))(part)
    assert part.regs[8].shape == slots.shape

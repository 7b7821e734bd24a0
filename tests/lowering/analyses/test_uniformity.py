"""Origins of values, equality of scalars, and roles that run on one lane."""

from __future__ import annotations

import re

import pytest
from xdsl.ir import SSAValue

from cuir.lowering.analyses.uniformity import Uniformity, analyse_uniformity, compute_uniformity, is_uniform_in_worker, runs_on_one_lane
from cuir.lowering.analyses.value_numbers import Numbers
from cuir.lowering.ir.ir_text import parse
from cuir.lowering.ir.ops import Kernel

HEAD = """
tile.kernel "k" arch="sm_90a" cluster=2 cluster_x=2 threads=128 {
  %I = tile.tensor "I" : !tile.tensor<i32, "M">
  %J = tile.tensor "J" written : !tile.tensor<i32, "M">
  %n = tile.parameter "n" : !tile.scalar<i32>
  %M = tile.parameter "M" dim : !tile.scalar<i32>
  %s = tile.shared "s" offset=0 : !tile.shared<i32, 64>
  %bar = tile.barrier "bar" count=1 warps=1 : !tile.barrier<mbarrier, 0>
  %four = tile.constant 4 : !tile.scalar<i32>
  %work = tile.units "work"(%M) : !tile.units_of_work
"""


def role(body: str, workers: int = 2, threads: int = 32, name: str = "r") -> str:
    return f"""
  tile.role "{name}" workers={workers} threads={threads} registers=0 warpgroup=0 warp=0 {{
  ^bb0(%w: !tile.scalar<i32>):
{body}
    tile.yield()
  }}
"""


def kernel(*roles: str) -> Kernel:
    return parse(HEAD + "".join(roles) + "  tile.yield()\n}\n")


def values(result: Kernel) -> dict[str, SSAValue]:
    return {
        v.name_hint: v
        for op in result.walk()
        for v in [*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]
        if v.name_hint
    }


UNITS = """
    %r = tile.for_units %t in %work carrying (%c = %four) {
      %a = tile.apply "//"(%t, %n) : !tile.scalar<i32>
      %b = tile.apply "+"(%a, %w) : !tile.scalar<i32>
      %d = tile.apply "//"(%M, %n) : !tile.scalar<i32>
      %e = tile.apply "cta_rank"() : !tile.scalar<i32>
      %p = tile.at %I[%n] : !tile.element<i32, 0, 0>
      %f = tile.perform "element"(place: %p) : !tile.scalar<i32>
      %q = tile.at %J[%n] : !tile.element<i32, 0, 0>
      %g = tile.perform "element"(place: %q) : !tile.scalar<i32>
      %o = tile.at %s[%n] : !tile.element<i32, 0, 0>
      %h = tile.perform "element"(place: %o) : !tile.scalar<i32>
      %x = tile.apply "<"(%t, %n) : !tile.scalar<bool>
      %i = tile.if %x {
        tile.yield(%d)
      } else {
        tile.yield(%four)
      }
      tile.yield(%a)
    }
"""


def test_what_values_follow_from() -> None:
    actual = kernel(role(UNITS))
    follow, v = analyse_uniformity(actual), values(actual)
    expected = {
        "M": Uniformity.LAUNCH,
        "d": Uniformity.LAUNCH,
        "f": Uniformity.LAUNCH,
        "e": Uniformity.CTA,
        "t": Uniformity.WORK_ITEM,
        "a": Uniformity.WORK_ITEM,
        "i": Uniformity.WORK_ITEM,
        "w": Uniformity.WORKER,
        "b": Uniformity.WORK_ITEM | Uniformity.WORKER,
        "c": Uniformity.VARYING,
        "r": Uniformity.VARYING,
        "g": Uniformity.VARYING,
        "h": Uniformity.VARYING,
    }
    assert {n: follow[v[n]] for n in expected} == expected
    assert {n: compute_uniformity([v[n]])[v[n]] for n in expected} == expected
    assert {n for n in expected if is_uniform_in_worker(v[n])} == {"M", "d", "f", "e", "w"}


def test_the_number_of_a_worker_alone_is_known() -> None:
    result = kernel(role("", workers=1))
    assert analyse_uniformity(result)[values(result)["w"]] == Uniformity.LAUNCH


def test_equal_scalars_of_two_roles_have_one_number() -> None:
    result = kernel(role(UNITS), role(re.sub(r"%([abft])\b", r"%\g<1>z", UNITS), name="q"))
    numbers, v = Numbers(result), values(result)
    assert numbers[v["a"]] == numbers[v["az"]] is not None and numbers[v["f"]] == numbers[v["fz"]] is not None
    assert numbers[v["b"]] != numbers[v["bz"]]  # of different workers
    assert all(numbers[v[n]] is None for n in "cghr")
    b = numbers.table[numbers[v["b"]] or 0]
    assert b.of_unit and b.copies == 2 and numbers.costs(b.number, 11) and not numbers.costs(b.number, 12)
    free = {numbers[v["a"]] or 0}
    assert numbers.costs(b.number, 1, free) and not numbers.costs(b.number, 2, free)
    assert not numbers.costs(numbers[v["d"]] or 0, 1)  # the same for all units


def test_a_branch_whose_sides_agree_is_their_value() -> None:
    result = kernel(role(UNITS.replace("tile.yield(%d)", "tile.yield(%four)")))
    numbers, v = Numbers(result), values(result)
    assert numbers[v["i"]] == numbers[v["four"]]


WAITS = '    tile.perform "mbarrier.wait"(bar: %bar, parity: %four)'


@pytest.mark.parametrize(
    ("body", "threads", "single"),
    [
        (UNITS, 32, True),
        (WAITS, 32, True),
        (WAITS, 128, False),
        ('    %z = tile.apply "zeros"() : !tile.reg<f32, 64, 1>', 32, False),
        ('    tile.perform "store_wait"()', 32, True),
        ('    tile.perform "named_barrier.sync"(bar: %bar)', 32, False),
        ("    %z = tile.inverse(%four) : !tile.scalar<i32>\n    %y = tile.quotient(%n, %four, %z) : !tile.scalar<i32>", 32, True),
    ],
)
def test_roles_on_one_lane(body: str, threads: int, single: bool) -> None:
    (r,) = kernel(role(body, threads=threads)).roles
    assert runs_on_one_lane(r) == single


def test_no_role_of_sm_80_runs_on_one_lane() -> None:
    program = parse((HEAD + role(UNITS) + "  tile.yield()\n}\n").replace("sm_90a", "sm_80"))
    assert not runs_on_one_lane(program.roles[0])

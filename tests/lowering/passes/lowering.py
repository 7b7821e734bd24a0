"""Kernels as IR for tests of passes, and as the CUDA that is printed from it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import UnitAttr

from cuir.checking.checked import Checked
from cuir.lowering.compiler import print_kernel
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.ops import Kernel
from cuir.lowering.lowered import CudaText
from cuir.lowering.passes import (
    branch_row_functions,
    decompose_affine_tiles,
    eliminate_common_subexpressions,
    eliminate_dead_code,
    gather_per_column,
    inline_elementwise,
    limit_columns,
    materialise_affine_products,
    select_instructions,
    share_reciprocals,
    simplify,
    split_row_bias,
)
from cuir.lowering.select.number_ways import FAR
from cuir.lowering.select.number_ways import NEAR as NEAR_MARK

Pass = Callable[[Kernel], None]


def materialise(ir: Kernel) -> None:
    """Run `materialise_affine_products` behind the pass whose marks it reads, as the pipeline does."""
    inline_elementwise.run(ir)
    materialise_affine_products.run(ir)


NEAR = functools.partial(decompose_affine_tiles.run, near=lambda value: True)  # numbers of these programs are small
LINES: tuple[Pass, ...] = (limit_columns.run, NEAR)
BIAS: tuple[Pass, ...] = (*LINES, split_row_bias.run)
ALL: tuple[Pass, ...] = (
    limit_columns.run,
    gather_per_column.run,
    NEAR,
    split_row_bias.run,
    share_reciprocals.run,
    branch_row_functions.run,
    materialise,
)


def clean(ir: Kernel) -> None:
    for _ in range(2):
        simplify.run(ir)
        eliminate_common_subexpressions.run(ir)
        eliminate_dead_code.run(ir)


def after(ir: Kernel, passes: Sequence[Pass]) -> Kernel:
    """The IR behind passes, each of which leaves it valid, and its text readable."""
    clean(ir)
    for run in passes:
        run(ir)
        ir.verify()
        clean(ir)
    text = show(ir)
    assert show(parse(text)) == text
    return ir


def text(checked: Checked, passes: Sequence[Pass]) -> str:
    return show(after(build(checked), passes))


def cuda(checked: Checked, passes: Sequence[Pass] = ALL) -> CudaText:
    ir = after(build(checked), passes)
    inline_elementwise.run(ir)
    select_instructions.run(ir)
    for op in every(ir):  # numbers of these programs are small
        op.attributes.update(dict.fromkeys((NEAR_MARK, *FAR), UnitAttr()))
    return print_kernel(ir)


# ---- IR texts
def role(body: str, *results: str) -> str:
    """A kernel of one role: %S is a full tile, %x a number a row, %f, %g and %n are scalars. `results`: full tiles that are stored, and so needed."""
    stores = [f'tile.perform "store"(place: %place, tile: {v})' for v in results]
    lines = ["%place = tile.at %Z[: 64, : 64] : !tile.tensor<f32, 64, 64>", *body.strip("\n").split("\n"), *stores]
    return HEAD + "".join(f"    {line}\n" for line in lines) + "    tile.yield()\n  }\n  tile.yield()\n}\n"


HEAD = """\
tile.kernel "k" arch="sm_90a" cluster=1 cluster_x=1 threads=128 {
  %X = tile.tensor "X" : !tile.tensor<f32, "M", 64>
  %R = tile.tensor "R" : !tile.tensor<f32, "M">
  %Z = tile.tensor "Z" written : !tile.tensor<f32, "M", 64>
  %n = tile.parameter "n" : !tile.scalar<i32>
  %f = tile.parameter "f" : !tile.scalar<f32>
  %g = tile.parameter "g" : !tile.scalar<f32>
  tile.role "all" workers=1 threads=128 registers=0 warpgroup=0 warp=0 {
  ^bb0(%w: !tile.scalar<i32>):
    %r = tile.apply "rows"() : !tile.reg<i32, 64, 1>
    %c = tile.apply "cols"() : !tile.reg<i32, 1, 64>
    %at_S = tile.at %X[%r, %c] : !tile.element<f32, 64, 64>
    %S = tile.perform "gather"(place: %at_S) : !tile.reg<f32, 64, 64>
    %at_x = tile.at %R[%r] : !tile.element<f32, 64, 1>
    %x = tile.perform "gather"(place: %at_x) : !tile.reg<f32, 64, 1>
"""

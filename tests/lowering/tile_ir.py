"""Tile IR for tests: of programs, after the passes that always run, and as texts in a frame."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import parse
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes import (
    eliminate_common_subexpressions,
    eliminate_dead_code,
    inline_elementwise,
    select_instructions,
    simplify,
    split_exchanges,
)
from cuir.syntax.parser import parse as parse_program

FRAME = """\
tile.kernel "k" arch="sm_90a" cluster=1 cluster_x=1 threads=128 {
  %X = tile.tensor "X" : !tile.tensor<f32, 64, 64>
  %Y = tile.tensor "Y" written : !tile.tensor<f32, 256, 64>
  %n = tile.parameter "n" : !tile.scalar<i32>
  %s = tile.parameter "s" : !tile.scalar<f32>
  %a = tile.shared "a" offset=0 : !tile.shared<f32, 64, 64>
  %over = tile.shared "over" offset=0 : !tile.shared<f32, 32, 64>
  %b = tile.shared "b" offset=16384 : !tile.shared<f32, 64, 64>
  %0 = tile.constant 0 : !tile.scalar<i32>
  tile.role "all" workers=1 threads=128 registers=0 warpgroup=0 warp=0 {
  ^bb0(%w: !tile.scalar<i32>):
"""


def role(*lines: str) -> ops.Role:
    """The role of a kernel with a tensor X, a tensor Y that it writes, numbers n and s, arrays a, over (in a's memory) and b."""
    return parse(FRAME + "".join(f"    {line}\n" for line in lines) + "    tile.yield()\n  }\n  tile.yield()\n}\n").roles[0]


def kernel_of(role: ops.Role) -> ops.Kernel:
    kernel = role.parent_op()
    assert isinstance(kernel, ops.Kernel)
    return kernel


def program(text: str, **consts: object) -> Checked:
    return check(parse_program(text, "k.cuir"), consts=consts)  # type: ignore[arg-type]


def clean(checked: Checked) -> ops.Kernel:
    """A checked kernel's IR as its roles are printed, but for what makes them fast."""
    kernel = build(checked)
    for _ in range(2):
        simplify.run(kernel)
        eliminate_common_subexpressions.run(kernel)
        eliminate_dead_code.run(kernel)
    inline_elementwise.run(kernel)
    split_exchanges.run(kernel)
    select_instructions.run(kernel)
    kernel.verify()
    return kernel


def value(role: ops.Role, hint: str) -> SSAValue:
    """The value of a name of the text, or of the program."""
    return next(r for op in every(role) for r in [*op.results, *(a for g in op.regions for a in g.block.args)] if r.name_hint == hint)

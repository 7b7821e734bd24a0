"""Products of halves by one mma.sync m16n8k16 a step, of bf16 too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....syntax.types import BF16, F16, DType
from ...cuda.registry import Printers
from ...ir import ops
from ..sm75.warp_products import multiply_blocks
from .warp_ways import LOADED_AHEAD, WHOLE_STEPS

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter

PRINTERS = Printers()
NAMES = {F16: "F16", BF16: "BF16"}  # of operands, in CUTLASS


@PRINTERS.code_of("multiply", WHOLE_STEPS)
def multiply_whole_steps(role: RolePrinter, op: ops.Perform, target: str) -> None:
    """Emit a product of halves by one of m16n8k16 a step."""
    multiply_blocks(role, op, target, _emit_step)


@PRINTERS.code_of("multiply", LOADED_AHEAD)
def multiply_loaded_ahead(role: RolePrinter, op: ops.Perform, target: str) -> None:
    """Emit a product of halves by one of m16n8k16 a step, whose blocks are loaded one step ahead."""
    multiply_blocks(role, op, target, _emit_step, ahead=True)


def _emit_step(role: RolePrinter, guard: str, element: DType, operands: list[str]) -> None:
    """Emit `d += a @ b` of 16 x 8 x 16 halves; operands: registers of d, a and b."""
    d = operands[:4]
    role.out.line(f"{guard}cute::SM80_16x8x16_F32{NAMES[element] * 2}F32_TN::fma({', '.join([*operands, *d])});")

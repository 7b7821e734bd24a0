"""Products of halves by one mma.sync m16n8k16 a step, of bf16 too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....syntax.types import BF16, F16, DType
from ...cuda.registry import Printers

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter

PRINTERS = Printers()
NAMES = {F16: "F16", BF16: "BF16"}  # of operands, in CUTLASS


@PRINTERS.choice("multiply step")
def emit_step(role: RolePrinter, guard: str, element: DType, operands: list[str]) -> None:
    """Emit `d += a @ b` of 16 x 8 x 16 halves; operands: registers of d, a and b."""
    d = operands[:4]
    role.out.line(f"{guard}cute::SM80_16x8x16_F32{NAMES[element] * 2}F32_TN::fma({', '.join([*operands, *d])});")

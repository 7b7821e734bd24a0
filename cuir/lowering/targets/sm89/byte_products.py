"""Products of 8-bit floats by mma.sync m16n8k32.

A step takes 32 bytes of the inner dim, as one of halves does, so that ldmatrix gives lanes the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....syntax.types import DType
from ...cuda.registry import Printers
from ...ir import ops
from ..sm75.warp_products import multiply_blocks
from .byte_ways import BYTES

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter

PRINTERS = Printers()


@PRINTERS.code_of("multiply", BYTES)
def multiply_bytes(role: RolePrinter, op: ops.Perform, target: str) -> None:
    """Emit a product of 8-bit floats by one of m16n8k32 a step."""
    multiply_blocks(role, op, target, _emit_step)


def _emit_step(role: RolePrinter, guard: str, element: DType, operands: list[str]) -> None:
    """Emit `d += a @ b` of 32 bytes of the inner dim; operands: registers of d, a and b."""
    role.out.line(f"{guard}cuir::mma_{element.name}({', '.join(operands)});")

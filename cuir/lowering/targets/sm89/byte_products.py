"""Products of 8-bit floats by mma.sync m16n8k32.

A step takes 32 bytes of the inner dim, as one of halves does, so that ldmatrix gives lanes the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....syntax.types import DType
from ...cuda.registry import Printers
from ..sm80 import half_products

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter

PRINTERS = Printers()


@PRINTERS.choice("multiply step")
def emit_step(role: RolePrinter, guard: str, element: DType, operands: list[str]) -> None:
    """Emit `d += a @ b` of 32 bytes of the inner dim; operands: registers of d, a and b."""
    if element.itemsize > 1:
        half_products.emit_step(role, guard, element, operands)
    else:
        role.out.line(f"{guard}cuir::mma_{element.name}({', '.join(operands)});")

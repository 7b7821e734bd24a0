"""Facts that ways of products judge: a product of warps, and where its operands lie."""

from __future__ import annotations

from dataclasses import dataclass

from ...syntax.types import DType
from ..analyses.alignment import begins_panel, lies_in_panel
from ..analyses.memory import array_of
from ..analyses.stores import is_panelled
from ..ir import ops
from ..ir.ir_types import SharedT, TileT
from .role_facts import RoleFacts
from .ways import Verdict, fits, misfits


@dataclass(frozen=True)
class Product:
    """A product of a tile in registers, or a view of shared memory, by a view of shared memory."""

    op: ops.Perform
    role: RoleFacts

    @property
    def left(self) -> TileT | SharedT:
        """Type of the left operand."""
        t = self.op.arg("a").type
        assert isinstance(t, (TileT, SharedT))
        return t

    @property
    def right(self) -> TileT | SharedT:
        """Type of the right operand."""
        t = self.op.arg("b").type
        assert isinstance(t, (TileT, SharedT))
        return t

    @property
    def elements(self) -> tuple[DType, DType]:
        """Dtypes of the operands."""
        return self.left.element, self.right.element

    def of_one_size(self, itemsize: int) -> bool:
        """Return whether both operands have one dtype, of that many bytes."""
        a, b = self.elements
        return a == b and a.itemsize == itemsize

    @property
    def in_registers(self) -> bool:
        """The left operand is a tile in registers."""
        return isinstance(self.left, TileT)

    @property
    def by_columns(self) -> bool:
        """The right operand lies column by column: its columns are rows of the array."""
        return isinstance(self.right, SharedT) and bool(self.right.transposed.data)

    @property
    def inner(self) -> int:
        """Columns of the left operand."""
        return self.left.shape[1] if isinstance(self.left, TileT) else int(self.left.sizes[1])

    @property
    def columns(self) -> int:
        """Columns of the result."""
        t = self.op.results[0].type
        assert isinstance(t, TileT)
        return t.shape[1]

    def judge_operands(self, in_blocks: bool = False) -> Verdict:
        """Return the verdict on products whose lanes load operands from shared memory, the right one always.

        Args:
            in_blocks: They load blocks of 8 x 8 halves, as they lie or transposed, from any block of a panel on.
        """
        if isinstance(self.right, TileT):
            return misfits("a register tile as the right operand of mma", hint="store it to shared memory and give its view")
        if reason := check_panels(self.op, in_blocks):
            return misfits(reason)
        if isinstance(self.left, SharedT) and self.left.transposed.data and not in_blocks:
            return misfits("a transposed left operand of mma")
        return fits(self.describe())

    def describe(self) -> str:
        """Return where the operands lie."""
        a, b = self.elements
        left = f"{a.name} in {'registers' if self.in_registers else 'shared memory'}"
        return f"{left} by {b.name} that {'lie column by column' if self.by_columns else 'lie row by row'}"


def check_panels(op: ops.Perform, inside: bool = False) -> str:
    """Return why a product cannot read its operands in shared memory, "" if it can.

    inside: an operand may begin inside of a panel and end in it.
    """
    views = [v for v in (op.arg("a"), op.arg("b")) if isinstance(v.type, SharedT)]
    if not all(is_panelled(array) for v in views if isinstance(array := array_of(v), ops.Shared)):
        return "an operand in shared memory whose rows are no whole panels"
    if not all(begins_panel(v) or (inside and lies_in_panel(v)) for v in views):
        return "an operand in shared memory that begins inside of a panel"
    return ""

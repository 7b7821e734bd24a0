"""Rounding of intermediate values to 16 bits in a kernel: weights of a product, sums in f16."""

from __future__ import annotations

from collections.abc import Iterator

from ..checking.checked import BoundCall, Checked
from ..checking.kernel_results import keep_with_kernel
from ..checking.tensor_modes import has_addition
from ..checking.views import root_name
from ..syntax.nodes import Assign, Attribute, Binary, Call, Expr, IfExp, Name, Node, Subscript, Unary
from ..syntax.types import BF16, BOOL, F16, I32, TileType
from ..syntax.walk import IdentityKey, walk

_HALF = (F16, BF16)


@keep_with_kernel
def rounds_between(checked: Checked) -> bool:
    """Return whether a computed value that is rounded to f16 or bf16 is used for anything but a store.

    If not, all intermediate values are in f32, or inputs.
    """
    return _Flow(checked).rounds()


@keep_with_kernel
def rounds_for_products(checked: Checked) -> bool:
    """Return whether values are rounded to f16 or bf16 only as operands of products, as these require.

    Then the function in that dtype overflows where the kernel may.
    """
    flow = _Flow(checked)
    return flow.rounds() and not flow.rounds(besides_products=True)


class _Flow:
    """Names and memory that hold computed and rounded values, whatever the order of statements."""

    def __init__(self, checked: Checked):
        self.checked = checked
        self.tensors = {t.name: t.dtype for t in checked.tensors}
        self.holders: set[str] = set()

    def rounds(self, besides_products: bool = False) -> bool:
        nodes = [n for role in self.checked.roles for stmt in role.body for n in walk(stmt)]
        size = -1
        while len(self.holders) > size:
            size = len(self.holders)
            for node in nodes:
                if isinstance(node, Assign) and self.is_rounded(node.value):
                    self.holders.update(node.targets)
                elif isinstance(node, Call) and (bound := self.checked.find_call(node)) is not None:
                    self.holders.update(self.list_written(bound))
        calls = [bound for n in nodes if (bound := self.checked.find_call(n)) is not None]
        left_out = {IdentityKey(e) for b in calls for e, _ in self.list_places(b).values()}  # accesses are judged by their calls
        if besides_products:
            left_out |= {
                IdentityKey(n) for n in nodes if (b := self.checked.find_call(n)) is not None and b.op.sums and len(b.op.params) > 1
            }
        return any(self.uses_rounded(n) for n in nodes if IdentityKey(n) not in left_out)

    def list_written(self, bound: BoundCall) -> Iterator[str]:
        """Yield the roots of the places into which the call moves a rounded value."""
        places = self.list_places(bound)
        moved = any(self.is_rounded(e) for n, e in bound.args.items() if n not in places) or any(
            root_name(e) in self.holders for e, mode in places.values() if mode == "read"
        )
        for e, mode in places.values():
            if moved and mode != "read" and (root := root_name(e)) is not None:
                yield root

    def list_places(self, bound: BoundCall) -> dict[str, tuple[Expr, str]]:
        """Return arguments in memory, with their access mode; an operand of a product may be a tile instead."""
        named = {a.arg: (bound.args[a.arg], a.mode) for a in bound.op.effects.accesses if a.arg in bound.args}
        return {n: (e, mode) for n, (e, mode) in named.items() if mode != "read" or not isinstance(self.checked.find_type(e), TileType)}

    def is_rounded(self, e: Node) -> bool:
        """Return whether the expression is a 16-bit tile that was computed here."""
        if isinstance(e, Name):
            return e.id in self.holders and self.is_half(e)
        if not self.is_half(e) or isinstance(e, (Subscript, Attribute)):
            return False
        if isinstance(e, Call):
            bound = self.checked.find_call(e)
            if bound is not None and self.loads(bound):
                return any(root_name(place) in self.holders for place, _ in self.list_places(bound).values())
            if bound is not None and self.converts_integers(bound):
                return False
            return bound is None or (
                not bound.op.effects.accesses and any(isinstance(self.checked.find_type(x), TileType) for x in bound.args.values())
            )
        return isinstance(e, (Binary, Unary, IfExp))

    def converts_integers(self, bound: BoundCall) -> bool:
        """Return whether the call converts integers or truth values, in steps or at once.

        A position beyond 2,048 is no number of f16: that is an error of the kernel, not of the dtype of its data.
        """
        if not bound.op.traits.converts:
            return False
        value = next(iter(bound.args.values()))
        inner = self.checked.find_call(value) if isinstance(value, Call) else None
        if getattr(self.checked.find_type(value), "dtype", None) in (I32, BOOL):
            return True
        return inner is not None and self.converts_integers(inner)

    def loads(self, bound: BoundCall) -> bool:
        """Return whether the call only loads a tile from memory unchanged."""
        places = self.list_places(bound)
        return (
            len(places) == 1 == len(bound.op.effects.accesses) and not bound.op.sums and {mode for _, mode in places.values()} == {"read"}
        )

    def is_half(self, e: Node) -> bool:
        kind = self.checked.find_type(e)
        return getattr(kind, "dtype", None) in _HALF

    def uses_rounded(self, node: Node) -> bool:
        """Return whether the node computes with a rounded value."""
        if isinstance(node, Binary):
            return self.is_rounded(node.left) or self.is_rounded(node.right)
        if isinstance(node, Unary):
            return self.is_rounded(node.operand)
        if isinstance(node, Subscript):  # a gather of what the kernel wrote
            return isinstance(self.checked.find_type(node), TileType) and root_name(node) in self.holders and self.is_half(node)
        if not isinstance(node, Call) or (bound := self.checked.find_call(node)) is None:
            return False
        if self.loads(bound):
            return False  # uses of the tile are judged separately
        places = self.list_places(bound)
        stores = [mode for _, mode in places.values() if mode != "read"]
        if any(root_name(e) in self.holders and mode == "read" for e, mode in places.values()) and not stores:
            return True  # read back, or an operand of a product
        if any(mode == "add" or has_addition(bound) for _, mode in places.values()) and any(self.is_half(e) for e, _ in places.values()):
            return True  # each sum is rounded
        return not stores and not self.is_half(node) and any(self.is_rounded(e) for n, e in bound.args.items() if n not in places)

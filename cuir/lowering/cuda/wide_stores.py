"""Stores of whole tiles to tensors, many bytes of a row at once.

The accumulator layout gives a thread two neighbours of every eight columns, so element by element a warp writes
pieces of 2 or 4 bytes, each of them work for the L2 cache. Four threads share a row: they exchange halves until
each has eight columns, 16 bytes; elements of 4 bytes go in pairs. So do atomic additions of f32, on cards that
have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ..analyses.multiples import is_multiple
from ..analyses.vector_accesses import GROUP, find_first_column, varies_by_column
from ..ir import ops
from ..ir.ir_types import ElementT, TensorT, TileT, is_scalar
from .address_sums import stride
from .loops import Position
from .operator_text import wrapping
from .writer import identifier

if TYPE_CHECKING:
    from .role import RolePrinter

AT = Position("", "r_", "", "")


@dataclass(frozen=True)
class WidePlace:
    """A place for a tile each of whose rows is contiguous in a tensor."""

    tensor: str
    indices: tuple[str, ...]  # texts of the element at row value r_ and column k_
    uniform: tuple[bool, ...]  # which of them are scalars


def width(t: TileT) -> int:
    """Return the elements that a thread stores at once."""
    return 8 if t.is_packed else 2


def find_wide_place(role: RolePrinter, place: SSAValue, t: TileT, adds: bool) -> WidePlace | None:
    """Return the place of a wide store, or None if there are no whole pieces of `width` elements.

    There are none if the columns are no neighbours, or if a tile does not start at a multiple of the width.
    `adds` says that the tile is added to the tensor.
    """
    at = place.owner
    if adds and not (t.dtype.data == "f32" and role.target.limits.has("wide_atomics")):
        return None
    if not t.layout.is_accumulator or t.shape[1] % GROUP or t.element.itemsize not in (2, 4):
        return None
    assert isinstance(at, (ops.At, ops.Tensor))
    if isinstance(place.type, TensorT):
        box = role.places.box(place)
        first = at.parts[-1][0] if isinstance(at, ops.At) else None
        tensor, indices = box.tensor, role.places.box_indices(box, role.elements.row(role.fragment(t), "r_"), "k_")
        uniform: tuple[bool, ...] = ()
    else:
        assert isinstance(place.type, ElementT)
        tensor, values = role.places.elements(place)
        counted = find_first_column(values[-1])
        if counted is None or any(varies_by_column(v) for v in values[:-1]):
            return None
        first, near = counted
        column = "k_" if first is None else wrapping("+", role.elements.scalar(first), "k_", near)
        indices, uniform = [*(role.elements.element(v, AT) for v in values[:-1]), column], (*map(is_scalar, values[:-1]), False)
    dims, n = role.kernel.tensors[tensor].dims, width(t)
    whole = not isinstance(dims[-1], int) or dims[-1] % n == 0
    return WidePlace(tensor, tuple(indices), uniform) if whole and (first is None or is_multiple(first, n)) else None


def make_alignment_test(role: RolePrinter, to: WidePlace, t: TileT) -> str:
    """Return a condition on the launch, "" for none: pieces are aligned and none crosses its row's end."""
    if role.kernel.tensors[to.tensor].scratch and isinstance(role.kernel.tensors[to.tensor].dims[-1], int):
        return ""
    name, dims, size = identifier(to.tensor), role.kernel.tensors[to.tensor].dims, t.element.itemsize
    lengths = [stride(to.tensor, i) for i in range(len(dims) - 1)] + ([] if isinstance(dims[-1], int) else [identifier(dims[-1])])
    return f"cuir::aligned<{width(t) * size}>({name}, ({' | '.join(lengths) or '0'}) * {size})"


def store_wide(role: RolePrinter, to: WidePlace, value: str, t: TileT, adds: bool) -> None:
    """Emit the store of the array `value`, or its addition, for the case that `make_alignment_test` holds."""
    frag, kernel, out, name = role.fragment(t), role.kernel, role.out, identifier(to.tensor)
    inside = kernel.make_bounds_test(to.tensor, to.indices)
    location = f"{name}[{kernel.make_offset(to.tensor, to.indices, to.uniform)}]"
    halves, x = t.is_packed, out.temp("x")
    steps, column = (-(-frag.groups // 4), f"{4 * GROUP} * g_ + {GROUP} * (lane % 4)") if halves else (frag.groups, f"{GROUP} * g_ + col")
    piece = f"cuir::eight<{frag.groups}>({value}, r_, g_, lane)" if halves else f"cuir::pair<{frag.groups}>({value}, r_, g_)"
    if halves and frag.groups % 4:  # the last group of four is not whole
        inside = f"k_ < {t.shape[1]} && {inside}"
    rows, groups = (f"#pragma unroll\nfor (int {i} = 0; {i} < {n}; ++{i})" for i, n in (("r_", frag.row_values), ("g_", steps)))
    with out.block(rows), out.block(groups):
        out.line(f"const int k_ = {column};")
        out.line(f"const auto {x} = {piece};")
        out.line(f"if ({inside}) cuir::{'add' if adds else 'put'}_wide(&{location}, {x});")

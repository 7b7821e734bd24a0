"""Printers of loads, stores, and elements of memory.

Stores of whole tiles to tensors, many bytes of a row at once.

The accumulator layout gives a thread two neighbours of every eight columns, so element by element a warp writes
pieces of 2 or 4 bytes, each of them work for the L2 cache. Four threads share a row: they exchange halves until
each has eight columns, 16 bytes; elements of 4 bytes go in pairs. So do atomic additions of f32, on cards that
have them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ....syntax.types import F32
from ...analyses.alignment import GROUP, find_first_column, is_multiple, reads_pairs, varies_by_column
from ...ir import ops
from ...ir.ir_types import ElementT, SharedT, TensorT, TileT, dtype_of, is_scalar
from ...layouts.shared_memory import choose_way
from ...layouts.tile_layouts import CHUNKS, DEALT
from ..address_sums import SharedRef, stride
from ..operator_text import MEMORY, from_memory, strip, to_memory, wrapping
from ..print_scope import Position, index_of
from ..registry import prints
from ..variable_storage import Storage
from ..writer import identifier

if TYPE_CHECKING:
    from ..role import RolePrinter

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


@prints("element")
def element(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a read of the element at scalar indices."""
    s = role.storage(op.results[0])
    text = strip(role.places.element(op.arg("place")))
    if isinstance(op.results[0].type, TileT):
        raise AssertionError(op)
    role.out.line(f"{'const ' if s.constant else ''}{s.ctype + ' ' if s.constant else ''}{s.name} = {text};")


@prints("gather")
def gather(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a read of the elements at index tiles, 0 outside of the tensor."""
    s, t = role.storage(op.results[0]), op.results[0].type
    assert isinstance(t, TileT)
    if reads_pairs(op):
        _read_pairs(role, op, s, t)
        return
    if s.packed:
        values = role.out.temp("v")
        role.out.line(f"float {values}[{2 * s.count}];")
        role.elements.emit_loop(
            t, lambda at: f"{values}[{at.i}] = {strip(role.places.gather(op, lambda v: role.elements.element(v, at)))};"
        )
        _emit_pack(role, s, values, t)
        return
    role.elements.emit_loop(
        t, lambda at: f"{s.name}[{index_of(t, at)}] = {strip(role.places.gather(op, lambda v: role.elements.element(v, at)))};"
    )


def _read_pairs(role: RolePrinter, op: ops.Perform, s: Storage, t: TileT) -> None:
    """Emit reads of two neighbours at a time, 0 outside of the tensor."""
    frag, kernel, out = role.fragment(t), role.kernel, role.out
    name, values = role.places.elements(op.arg("place"))
    at = Position("", "r_", "", "")
    first, near = find_first_column(values[-1]) or (None, True)
    column = "k_" if first is None else wrapping("+", role.elements.scalar(first), "k_", near)
    texts = [*(role.elements.element(v, at) for v in values[:-1]), column]
    location = kernel.make_offset(name, texts, [*map(is_scalar, values[:-1]), False])
    with (
        out.block(f"#pragma unroll\nfor (int r_ = 0; r_ < {frag.row_values}; ++r_)"),
        out.block(f"#pragma unroll\nfor (int g_ = 0; g_ < {frag.groups}; ++g_)"),
    ):
        out.line(f"const int k_ = {GROUP} * g_ + col;")
        out.line(
            f"cuir::read_pair<{frag.groups}>({s.name}, r_, g_, {kernel.make_bounds_test(name, texts)}, &{identifier(name)}[{location}]);"
        )


# ---- load
@prints("load")
def load(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a load of a box of a tensor or of a view of shared memory.

    The target's instruction for the layout is used if there is one.
    """
    view, target, t = op.arg("view"), role.storage(op.results[0]), op.results[0].type
    assert isinstance(t, TileT)
    if isinstance(view.type, TensorT):
        _load_box(role, view, t, target)
        return
    ref = role.places.shared(view)
    base = role.out.temp("from")
    role.out.line(f"const uint32_t {base} = {ref.address};")
    if ref.transposed:
        _load_elementwise(role, t, target, lambda row, col: _make_shared_read(ref, base, col, row))
        return
    cols = t.shape[1]
    chunks = role.target.choice("load chunks") if t.layout == CHUNKS else None
    if chunks is not None:
        chunks(role, ref, base, target.name, t)
        return
    if ref.alloc.dtype != t.element:
        widened = role.target.choice("load widened")
        if widened is None or not widened(role, ref, base, target, t):
            _load_elementwise(role, t, target, lambda row, col: _make_shared_read(ref, base, row, col))
        return
    operand = role.target.choice("load operand")
    if operand is not None and operand(role, op, ref, base, target.name):
        return
    way = choose_way(t.layout, t.element, cols, ref.alloc.panelled)
    blocks = role.target.choice("load blocks") if way == "blocks" else None
    if blocks is not None:
        blocks(role, ref, base, target, t)
        return
    pairs = role.target.choice("load pairs")
    if pairs is not None and pairs(role, ref, base, target, t):
        return
    if way == "pairs":
        role.out.line(f"cuir::load_accumulator<{ref.alloc.rows}, {t.shape[1]}, {role.fragment(t).slab}>({target.name}, {base}, row, lane);")
        return
    if t.element == F32 and t.layout.is_per_column and not ref.alloc.panelled and cols % 8 == 0:
        role.out.line(f"cuir::load_columns<{cols}>({target.name}, {base}, col);")
        return
    _load_elementwise(role, t, target, lambda row, col: _make_shared_read(ref, base, row, col))


def _make_shared_read(ref: SharedRef, base: str, row: str, col: str) -> str:
    local = SharedRef(ref.alloc, base, "", (), ref.rows, ref.cols, False)
    text = f"cuir::get<{MEMORY[ref.alloc.dtype]}>({local.at(row, f'({col}) * {ref.alloc.dtype.itemsize}')})"
    return from_memory(ref.alloc.dtype, text)


def _load_box(role: RolePrinter, view: SSAValue, t: TileT, target: Storage) -> None:
    box, kernel = role.places.box(view), role.kernel

    def read(row: str, col: str) -> str:
        indices = role.places.box_indices(box, row, col)
        return f"({kernel.make_bounds_test(box.tensor, indices)} ? {kernel.make_tensor_read(box.tensor, kernel.make_offset(box.tensor, indices))} : {role.places.zero(box.tensor)})"

    _load_elementwise(role, t, target, read)


def _load_elementwise(role: RolePrinter, t: TileT, target: Storage, read: Callable[[str, str], str]) -> None:
    """Emit `target = read(row, column)` for each element; `read` takes and returns texts."""
    array = role.out.temp("v") if target.packed else target.name
    if target.packed:
        role.out.line(f"float {array}[{2 * target.count}];")

    def body(at: Position) -> str:
        return f"{array}[{index_of(t, at)}] = {read(*_make_place_texts(role, t, at))};"

    role.elements.emit_loop(t, body)
    if target.packed:
        _emit_pack(role, target, array, t)


def _emit_pack(role: RolePrinter, target: Storage, array: str, t: TileT) -> None:
    """Emit the packing of an array of floats to pairs of halves."""
    role.out.line(
        f"#pragma unroll\nfor (int p_ = 0; p_ < {target.count}; ++p_) {target.name}[p_] = cuir::pack_{t.dtype.data}({array}[2 * p_], {array}[2 * p_ + 1]);"
    )


def _make_place_texts(role: RolePrinter, t: TileT, at: Position) -> tuple[str, str]:
    """Return the texts of row and column of a position."""
    assert t.layout.has_accumulator_columns or not t.layout.varies_by_column, f"no place of an element of {t} is known"
    row = role.elements.row(role.fragment(t), at.r) if t.layout.varies_by_row else "0"
    return row, f"(col + {at.k})" if t.layout.varies_by_column else "0"


# ---- store
@prints("store")
def store(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a store to shared memory or to a tensor."""
    place, value, mask = op.arg("place"), op.arg("tile"), op.args.get("mask")
    adds = bool(op.const("add"))
    if isinstance(place.type, SharedT):
        _store_shared(role, op, role.places.shared(place), value, mask)
    elif is_scalar(value):
        _store_scalar(role, place, value, adds)
    else:
        _store_global(role, op, place, value, mask, adds)


def _store_shared(role: RolePrinter, op: ops.Perform, ref: SharedRef, tile: SSAValue, mask: SSAValue | None) -> None:
    t, out = tile.type, role.out
    assert isinstance(t, TileT)
    half, way = t.is_packed, choose_way(t.layout, t.element, t.shape[1], ref.alloc.panelled)
    blocks = role.target.choice("store blocks") if way == "blocks" and mask is None else None
    value = role.elements.array(tile)
    if op in role.joins_inside:
        role.emit_join()
    base = out.temp("to")
    out.line(f"const uint32_t {base} = {ref.address};")
    chunks = role.target.choice("store chunks") if t.layout == CHUNKS else None
    if chunks is not None:
        chunks(role, ref, base, value, t)
        return
    if blocks is not None:
        blocks(role, op, ref, base, value, t)
        return
    dealt = t.layout == DEALT
    if mask is None and way == "pairs":
        out.line(
            f"cuir::store_{'dealt' if dealt else 'accumulator'}<{ref.alloc.rows}, {t.shape[1]}, {role.fragment(t).slab}>({value}, {base}, row, lane);"
        )
        return
    assert not dealt, "dealt columns are stored to whole panels alone"
    local = SharedRef(ref.alloc, base, "", (), ref.rows, ref.cols, False)

    def body(at: Position) -> str:
        row, col = _make_place_texts(role, t, at)
        read = f"cuir::unpack_{t.dtype.data}({value}, {at.i})" if half else f"{value}[{index_of(t, at)}]"
        memory = MEMORY[ref.alloc.dtype]
        read = to_memory(t.element, read)
        test = _make_owner_test(role, t, mask, at)
        return f"{test}cuir::put<{memory}>({local.at(row, f'{col} * {ref.alloc.dtype.itemsize}')}, {read});"

    role.elements.emit_loop(t, body)


def _make_owner_test(role: RolePrinter, t: TileT, mask: SSAValue | None, at: Position) -> str:
    """Return the `if` that selects a single lane of those that hold the same value, and applies the mask."""
    tests = []
    if not t.layout.varies_by_column:
        tests.append("lane % 4 == 0")
    if not t.layout.varies_by_row:
        tests.append("lane < 4")
        if role.threads == 128:
            tests.append("warp == 0")
    if mask is not None:
        tests.append(role.elements.element(mask, at))
    return f"if ({strip(' && '.join(tests))}) " if tests else ""


def _store_scalar(role: RolePrinter, place: SSAValue, value: SSAValue, adds: bool) -> None:
    name, indices = role.places.elements(place)
    text = strip(role.elements.scalar(value))
    if not role.single:
        role.emit_join()
    if name in role.kernel.checked.shared:
        address = role.places.shared_element(name, indices)
        role.out.line(f"{role.first_lane}cuir::put<{MEMORY[dtype_of(value)]}>({address}, {text});")
        role.emit_join()
        return
    location = f"{identifier(name)}[{role.kernel.make_offset(name, [role.elements.scalar(i) for i in indices])}]"
    dtype = role.kernel.tensors[name].dtype
    text = to_memory(dtype, text)
    role.out.line(f"{role.first_lane}atomicAdd(&{location}, {text});" if adds else f"{role.first_lane}{location} = {text};")


def _store_global(role: RolePrinter, op: ops.Perform, place: SSAValue, tile: SSAValue, mask: SSAValue | None, adds: bool) -> None:
    kernel, t = role.kernel, tile.type
    assert isinstance(t, TileT)
    box = role.places.box(place) if isinstance(place.type, TensorT) else None
    name, indices = (box.tensor, []) if box else role.places.elements(place)
    dtype, value = kernel.tensors[name].dtype, role.elements.array(tile)
    if op in role.joins_inside:
        role.emit_join()
    half = t.is_packed
    wide = find_wide_place(role, place, t, adds) if mask is None else None
    if wide is not None:
        condition = make_alignment_test(role, wide, t)
        if not condition:
            store_wide(role, wide, value, t, adds)
            return
        with role.out.block(f"if ({condition})"):
            store_wide(role, wide, value, t, adds)

    def body(at: Position) -> str:
        uniform: list[bool] = []
        if box is not None:
            texts = role.places.box_indices(box, *_make_place_texts(role, t, at))
        else:
            assert isinstance(place.type, ElementT)
            texts = [role.elements.element(i, at) for i in indices]
            uniform = [is_scalar(i) for i in indices]
        read = f"cuir::unpack_{t.dtype.data}({value}, {at.i})" if half else f"{value}[{index_of(t, at)}]"
        read = to_memory(dtype, read)
        test = _make_owner_test(role, t, mask, at)
        inside = f"if ({kernel.make_bounds_test(name, texts)}) "
        location = f"{identifier(name)}[{kernel.make_offset(name, texts, uniform)}]"
        return f"{test}{inside}" + (f"atomicAdd(&{location}, {read});" if adds else f"{location} = {read};")

    with role.out.block("else") if wide is not None else nullcontext():
        role.elements.emit_loop(t, body)

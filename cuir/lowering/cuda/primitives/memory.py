"""Printers of loads, stores, and elements of memory.

Stores of whole tiles to tensors, many bytes of a row at once.

The accumulator layout gives a thread two neighbours of every eight columns, so element by element a warp writes
pieces of 2 or 4 bytes, each of them work for the L2 cache. Four threads share a row: they exchange halves until
each has eight columns, 16 bytes; elements of 4 bytes go in pairs. So do atomic additions of f32, on cards that
have them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ....syntax.types import F32
from ...analyses.alignment import GROUP, find_first_column, split_sum
from ...ir import ops
from ...ir.ir_types import SharedT, TensorT, TileT, dtype_of, is_scalar
from ...layouts.tile_layouts import DEALT
from ...select.move_ways import count_vector
from ...select.ways import way_of
from ..address_sums import SharedRef, stride
from ..operator_text import MEMORY, from_memory, strip, to_memory, wrapping
from ..print_scope import Position, index_of
from ..registry import code_of, prints
from ..variable_storage import Storage
from ..writer import identifier

if TYPE_CHECKING:
    from ..role import RolePrinter

AT = Position("", "r_", "", "")


@dataclass(frozen=True)
class SharedLoad:
    """A load from shared memory while it is printed: `base` names the address of the view's first element."""

    op: ops.Perform
    ref: SharedRef
    base: str
    target: Storage
    t: TileT


@dataclass(frozen=True)
class SharedStore:
    """A store to shared memory while it is printed: `base` names the view's address, `value` an array with the tile."""

    op: ops.Perform
    ref: SharedRef
    base: str
    value: str
    t: TileT


@dataclass(frozen=True)
class TensorStore:
    """A store to a tensor while it is printed: `value` names an array with the tile."""

    op: ops.Perform
    tensor: str
    value: str
    t: TileT

    @property
    def adds(self) -> bool:
        """The tile is added to the tensor."""
        return bool(self.op.const("add"))


@dataclass(frozen=True)
class WidePlace:
    """A place for a tile each of whose rows is contiguous in a tensor."""

    tensor: str
    indices: tuple[str, ...]  # texts of the element at row value r_ and column k_
    uniform: tuple[bool, ...]  # which of them are scalars


def make_wide_place(role: RolePrinter, place: SSAValue, t: TileT) -> WidePlace:
    """Return the place of a store in vectors."""
    if isinstance(place.type, TensorT):
        box = role.places.box(place)
        return WidePlace(box.tensor, tuple(role.places.box_indices(box, role.elements.row(role.fragment(t), "r_"), "k_")), ())
    tensor, values = role.places.elements(place)
    return WidePlace(tensor, tuple(_make_pair_texts(role, values)), (*map(is_scalar, values[:-1]), False))


def _make_pair_texts(role: RolePrinter, indices: Sequence[SSAValue]) -> list[str]:
    """Return the texts of indices at row value r_, whose last one is column k_ of neighbours in a row."""
    first, near = find_first_column(indices[-1]) or (None, True)
    column = "k_" if first is None else wrapping("+", role.elements.scalar(first), "k_", near)
    return [*(role.elements.element(v, AT) for v in indices[:-1]), column]


def make_alignment_test(role: RolePrinter, to: WidePlace, t: TileT) -> str:
    """Return a condition on the launch: vectors are aligned and none crosses its row's end."""
    name, dims, size = identifier(to.tensor), role.kernel.tensors[to.tensor].dims, t.element.itemsize
    lengths = [stride(to.tensor, i) for i in range(len(dims) - 1)] + ([] if isinstance(dims[-1], int) else [identifier(dims[-1])])
    return f"cuir::aligned<{count_vector(t) * size}>({name}, ({' | '.join(lengths) or '0'}) * {size})"


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


@prints("element", "gather")
def read(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a read of single elements, in the way that was selected."""
    role.target.code("gather", way_of(op))(role, op)


@code_of("gather", "one number")
def read_number(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a read of the element at scalar indices."""
    s = role.storage(op.results[0])
    text = strip(role.places.element(op.arg("place")))
    role.out.line(f"{'const ' if s.constant else ''}{s.ctype + ' ' if s.constant else ''}{s.name} = {text};")


@code_of("gather", "elements")
def read_elements(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a read of the elements at index tiles, 0 outside of the tensor."""
    s, t = role.storage(op.results[0]), op.results[0].type
    assert isinstance(t, TileT)
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


@code_of("gather", "pairs")
def read_pairs(role: RolePrinter, op: ops.Perform) -> None:
    """Emit reads of two neighbours at a time, 0 outside of the tensor."""
    s, t = role.storage(op.results[0]), op.results[0].type
    assert isinstance(t, TileT)
    frag, kernel, out = role.fragment(t), role.kernel, role.out
    name, values = role.places.elements(op.arg("place"))
    texts = _make_pair_texts(role, values)
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
    """Emit a load of a box of a tensor or of a view of shared memory, in the way that was selected."""
    view, target, t = op.arg("view"), role.storage(op.results[0]), op.results[0].type
    assert isinstance(t, TileT)
    if isinstance(view.type, TensorT):
        role.target.code("load from a tensor", way_of(op))(role, view, t, target)
        return
    ref = role.places.shared(view)
    base = role.out.temp("from")
    role.out.line(f"const uint32_t {base} = {ref.address};")
    role.target.code("load", way_of(op))(role, SharedLoad(op, ref, base, target, t))


@code_of("load", "pairs")
def load_pairs(role: RolePrinter, load: SharedLoad) -> None:
    """Emit loads of an accumulator's neighbours, in an order without bank conflicts."""
    sizes = f"{load.ref.alloc.rows}, {load.t.shape[1]}, {role.fragment(load.t).slab}"
    role.out.line(f"cuir::load_accumulator<{sizes}>({load.target.name}, {load.base}, row, lane);")


@code_of("load", "columns")
def load_columns(role: RolePrinter, load: SharedLoad) -> None:
    """Emit loads of the numbers that a thread's columns take, two at a time."""
    role.out.line(f"cuir::load_columns<{load.t.shape[1]}>({load.target.name}, {load.base}, col);")


@code_of("load", "elements")
def load_elements(role: RolePrinter, load: SharedLoad) -> None:
    """Emit loads of one element at a time."""
    ref, base = load.ref, load.base
    if ref.transposed:
        _load_elementwise(role, load.t, load.target, lambda row, col: _make_shared_read(ref, base, col, row))
        return
    _load_elementwise(role, load.t, load.target, lambda row, col: _make_shared_read(ref, base, row, col))


def _make_shared_read(ref: SharedRef, base: str, row: str, col: str) -> str:
    local = SharedRef(ref.alloc, base, "", (), ref.rows, ref.cols, False, ref.inside)
    text = f"cuir::get<{MEMORY[ref.alloc.dtype]}>({local.at(row, f'({col}) * {ref.alloc.dtype.itemsize}')})"
    return from_memory(ref.alloc.dtype, text)


@code_of("load from a tensor", "elements")
def load_box(role: RolePrinter, view: SSAValue, t: TileT, target: Storage) -> None:
    """Emit reads of the elements of a box, 0 outside of the tensor."""
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
    """Emit a store to shared memory or to a tensor, in the way that was selected."""
    place, value = op.arg("place"), op.arg("tile")
    t = value.type
    if not isinstance(t, TileT):
        role.target.code("store a number", way_of(op))(role, place, value, bool(op.const("add")))
        return
    if isinstance(place.type, SharedT):
        ref = role.places.shared(place)
        array = role.elements.array(value)
        base = role.out.temp("to")
        role.out.line(f"const uint32_t {base} = {ref.address};")
        role.target.code("store", way_of(op))(role, SharedStore(op, ref, base, array, t))
        return
    name = role.places.box(place).tensor if isinstance(place.type, TensorT) else role.places.elements(place)[0]
    array = role.elements.array(value)
    role.target.code("store to a tensor", way_of(op))(role, TensorStore(op, name, array, t))


@code_of("store", "pairs")
def store_pairs(role: RolePrinter, store: SharedStore) -> None:
    """Emit stores of an accumulator's neighbours, in an order without bank conflicts."""
    _store_pairs(role, store, "store_accumulator")


@code_of("store", "dealt pairs")
def store_dealt(role: RolePrinter, store: SharedStore) -> None:
    """Emit stores of columns that were dealt, in their order and without bank conflicts."""
    _store_pairs(role, store, "store_dealt")


def _store_pairs(role: RolePrinter, store: SharedStore, function: str) -> None:
    sizes = f"{store.ref.alloc.rows}, {store.t.shape[1]}, {role.fragment(store.t).slab}"
    role.out.line(f"cuir::{function}<{sizes}>({store.value}, {store.base}, row, lane);")


@code_of("store", "elements")
def store_elements(role: RolePrinter, store: SharedStore) -> None:
    """Emit stores of one element at a time, by one of the lanes that hold it."""
    ref, t, value = store.ref, store.t, store.value
    assert t.layout != DEALT, "dealt columns are stored to whole panels alone"
    local = SharedRef(ref.alloc, store.base, "", (), ref.rows, ref.cols, False, ref.inside)

    def body(at: Position) -> str:
        row, col = _make_place_texts(role, t, at)
        read = f"cuir::unpack_{t.dtype.data}({value}, {at.i})" if t.is_packed else f"{value}[{index_of(t, at)}]"
        memory = MEMORY[ref.alloc.dtype]
        read = to_memory(t.element, read)
        test = _make_owner_test(role, t, store.op.args.get("mask"), at)
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


@code_of("store a number", "one lane")
def store_number(role: RolePrinter, place: SSAValue, value: SSAValue, adds: bool) -> None:
    """Emit a store, or an addition, of a scalar by one lane."""
    name, indices = role.places.elements(place)
    text = strip(role.elements.scalar(value))
    if name in role.kernel.shared:
        address = role.places.shared_element(name, indices)
        role.out.line(f"{role.first_lane}cuir::put<{MEMORY[dtype_of(value)]}>({address}, {text});")
        return
    location = f"{identifier(name)}[{role.kernel.make_offset(name, [role.elements.scalar(i) for i in indices])}]"
    dtype = role.kernel.tensors[name].dtype
    text = to_memory(dtype, text)
    role.out.line(f"{role.first_lane}atomicAdd(&{location}, {text});" if adds else f"{role.first_lane}{location} = {text};")


@code_of("store to a tensor", "vectors")
def store_vectors(role: RolePrinter, store: TensorStore) -> None:
    """Emit stores of many bytes of a row at once."""
    store_wide(role, make_wide_place(role, store.op.arg("place"), store.t), store.value, store.t, store.adds)


@code_of("store to a tensor", "vectors if aligned")
def store_vectors_if_aligned(role: RolePrinter, store: TensorStore) -> None:
    """Emit stores of many bytes of a row at once, and those of elements for launches whose tensor is not aligned."""
    wide = make_wide_place(role, store.op.arg("place"), store.t)
    with role.out.block(f"if ({make_alignment_test(role, wide, store.t)})"):
        store_wide(role, wide, store.value, store.t, store.adds)
    with role.out.block("else"):
        store_tensor_elements(role, store)


def _add_from_one_place(role: RolePrinter, store: TensorStore, outer: Sequence[SSAValue], split: tuple[SSAValue, SSAValue]) -> None:
    """Emit additions of f32 at indices that are a number plus a tile.

    A thread's places differ from its first by constants, which go into the instructions: one test is enough where all lie inside.
    """
    kernel, t, name, elements, out = role.kernel, store.t, store.tensor, role.elements, role.out
    texts, start, own, place = [elements.scalar(i) for i in outer], out.temp("start"), out.temp("own"), out.temp("place")
    least, most = out.temp("least"), out.temp("most")
    *whole, inner = kernel.make_bounds_tests(name, [*texts, "index_"])
    out.line(f"const int {start} = {strip(elements.scalar(split[0]))};")
    out.line(f"const int {own} = {strip(elements.element(split[1], Position('0', '0', '0', '0')))};")
    out.line(f"float* const {place} = &{identifier(name)}[{kernel.make_offset(name, [*texts, start], [True] * len(outer))}] + {own};")

    def find_distance(at: Position) -> str:
        return f"({strip(elements.element(split[1], at))}) - {own}"

    def make_test(distance: str) -> str:
        return inner.replace("index_", f"{start} + {own} + {distance}")

    def extend(at: Position) -> str:
        distance = find_distance(at)
        return f"{least} = min({least}, {distance}), {most} = max({most}, {distance});"

    def add(guarded: bool) -> Callable[[Position], str]:
        def body(at: Position) -> str:
            distance, test = f"({find_distance(at)})", _make_owner_test(role, t, store.op.args.get("mask"), at)
            inside = f"if ({' && '.join([*whole, make_test(distance)])}) " if guarded else ""
            return f"{test}{inside}atomicAdd({place} + {distance}, {store.value}[{index_of(t, at)}]);"

        return body

    out.line(f"int {least} = 0, {most} = 0;  // constants, once the loop is unrolled")
    elements.emit_loop(t, extend)
    with out.block(f"if ({' && '.join([*whole, make_test(least), make_test(most)])})"):
        elements.emit_loop(t, add(guarded=False))
    with out.block("else"):
        elements.emit_loop(t, add(guarded=True))


@code_of("store to a tensor", "elements")
def store_tensor_elements(role: RolePrinter, store: TensorStore) -> None:
    """Emit stores of one element at a time, by one of the lanes that hold it."""
    kernel, t, name, value, place = role.kernel, store.t, store.tensor, store.value, store.op.arg("place")
    box = role.places.box(place) if isinstance(place.type, TensorT) else None
    indices = [] if box else role.places.elements(place)[1]
    dtype = kernel.tensors[name].dtype
    split = split_sum(indices[-1]) if store.adds and indices and dtype == F32 and all(map(is_scalar, indices[:-1])) else None
    if split is not None:
        _add_from_one_place(role, store, indices[:-1], split)
        return

    def body(at: Position) -> str:
        uniform: list[bool] = []
        if box is not None:
            texts = role.places.box_indices(box, *_make_place_texts(role, t, at))
        else:
            texts = [role.elements.element(i, at) for i in indices]
            uniform = [is_scalar(i) for i in indices]
        read = f"cuir::unpack_{t.dtype.data}({value}, {at.i})" if t.is_packed else f"{value}[{index_of(t, at)}]"
        read = to_memory(dtype, read)
        test = _make_owner_test(role, t, store.op.args.get("mask"), at)
        inside = f"if ({kernel.make_bounds_test(name, texts)}) "
        location = f"{identifier(name)}[{kernel.make_offset(name, texts, uniform)}]"
        return f"{test}{inside}" + (f"atomicAdd(&{location}, {read});" if store.adds else f"{location} = {read};")

    role.elements.emit_loop(t, body)

"""Register tiles made from nothing, loads and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...syntax.nodes import Call, Expr, Literal, Subscript
from ...syntax.types import GlobalView, Scalar, SharedView, TileType
from ..layouts import shape_of
from ..registry import emits
from ..tiles import At
from ..values import HALVES, MEMORY, strip, unsupported
from ..views import Box, SharedRef
from ..writer import identifier

if TYPE_CHECKING:
    from ..role import RoleEmitter

for _name in ("shared", "nbytes", "zeros", "full", "rows", "cols"):
    emits(_name, "structure")(lambda: None)  # frame of the kernel; scalars in values.py; elements in tiles.py


# ---- load
@emits("load", "tile")
def load(role: RoleEmitter, call: Call, target: str) -> None:
    view = role.call(call).args["view"]
    t = role.tile_type(call)
    if isinstance(role.kernel.checked.type_of(view), GlobalView):
        _load_box(role, view, t, target)
        return
    ref = role.views.shared(view)
    base = role.out.temp("from")
    role.out.line(f"const uint32_t {base} = {ref.address};")
    if t.dtype in HALVES and shape_of(t) == "full" and ref.alloc.panelled and t.cols % 16 == 0:
        frag = role.fragment(t)
        warp_row = "16 * warp + " if role.threads == 128 else ""
        with role.out.block(f"#pragma unroll\nfor (int p_ = 0; p_ < {frag.count // 2}; p_ += 4)"):
            per_slab = frag.groups * 2
            j = f"p_ % {per_slab} / 4" if frag.slabs > 1 else "p_ / 4"
            slab = f"{frag.slab} * (p_ / {per_slab}) + " if frag.slabs > 1 else ""
            where = f"cuir::at<{ref.alloc.rows}>({base}, {slab}{warp_row}(lane & 15), 32 * ({j}) + 16 * (lane >> 4))"
            role.out.line(f"cuir::load_matrix({where}, {target}[p_], {target}[p_ + 1], {target}[p_ + 2], {target}[p_ + 3]);")
        return
    _elementwise(role, t, target, lambda row, col: _shared_read(ref, base, row, col))


def _shared_read(ref: SharedRef, base: str, row: str, col: str) -> str:
    local = SharedRef(ref.alloc, base, "", (), ref.rows, ref.cols, False)
    text = f"cuir::get<{MEMORY[ref.alloc.dtype]}>({local.at(row, f'({col}) * {ref.alloc.dtype.itemsize}')})"
    return f"cuir::to_float({text})" if ref.alloc.dtype in HALVES else text


def _load_box(role: RoleEmitter, view: Expr, t: TileType, target: str) -> None:
    box = role.views.box(view)
    kernel = role.kernel

    def read(row: str, col: str) -> str:
        indices = role.views.box_indices(box, row, col)
        return f"({kernel.inside(box.tensor, indices)} ? {kernel.tensor_read(box.tensor, kernel.index(box.tensor, indices))} : {role.views.zero(box.tensor)})"

    _elementwise(role, t, target, read)


def _elementwise(role: RoleEmitter, t: TileType, target: str, read: object) -> None:
    """target = what `read` gives for the texts of row and column."""
    frag, shape = role.fragment(t), shape_of(t)
    packed = role.tiles.storage_of(t).kind == "packed"
    array = role.out.temp("v") if packed else target
    if packed:
        role.out.line(f"float {array}[{frag.count}];")

    def body(at: At) -> str:
        row = role.tiles.row_text(frag, at.r) if shape in ("rows", "full") else "0"
        col = f"(col + {at.col})" if shape in ("cols", "full") else "0"
        index = {"full": at.i, "rows": at.r, "cols": at.c, "one": "0"}[shape]
        return f"{array}[{index}] = {read(row, col)};"  # type: ignore[operator]

    role.tiles.loop(shape, frag, body)
    if packed:
        role.out.line(
            f"#pragma unroll\nfor (int p_ = 0; p_ < {frag.count // 2}; ++p_) {target}[p_] = cuir::pack_{t.dtype}({array}[2 * p_], {array}[2 * p_ + 1]);"
        )


# ---- store
@emits("store", "statement")
def store(role: RoleEmitter, call: Call) -> None:
    args = role.call(call).args
    place, tile = args["place"], args["tile"]
    adds = isinstance(args.get("add"), Literal) and bool(args["add"].value)  # type: ignore[union-attr]
    checked = role.kernel.checked
    kind = checked.type_of(place)
    if isinstance(kind, SharedView):
        _store_shared(role, role.views.shared(place), tile, args.get("mask"), call)
    elif role.views.is_scalar_place(place):
        _store_scalar(role, place, tile, adds)
    else:
        _store_global(role, place, tile, args.get("mask"), adds)


def _store_shared(role: RoleEmitter, ref: SharedRef, tile: Expr, mask: Expr | None, call: Call) -> None:
    t = role.tile_type(tile)
    frag, shape = role.fragment(t), shape_of(t)
    out = role.out
    matrix = (
        t.dtype in HALVES
        and shape == "full"
        and ref.alloc.panelled
        and t.cols % 16 == 0
        and mask is None
        and role.kernel.checked.arch != "sm_80"
    )
    value = role.tiles.packed(tile) if matrix else role.tiles.array(tile)
    if role.reads_what_it_stores:
        role.join()
    base = out.temp("to")
    out.line(f"const uint32_t {base} = {ref.address};")
    if matrix:
        if frag.slabs > 1:
            raise unsupported(
                "a store of more than one slab of rows to shared memory at once", call.span, f"store {frag.slab} rows at a time"
            )
        row = "16 * warp" if role.threads == 128 else "0"
        out.line(f"cuir::store_matrix<{ref.alloc.rows}>({value}, {base}, {row}, lane, {t.cols});")
        return
    local = SharedRef(ref.alloc, base, "", (), ref.rows, ref.cols, False)
    packed = role.tiles.storage_of(t).kind == "packed"

    def body(at: At) -> str:
        row = role.tiles.row_text(frag, at.r) if shape in ("rows", "full") else "0"
        col = f"(col + {at.col})" if shape in ("cols", "full") else "0"
        index = {"full": at.i, "rows": at.r, "cols": at.c, "one": "0"}[shape]
        read = f"cuir::unpack_{t.dtype}({value}, {index})" if packed else f"{value}[{index}]"
        memory = MEMORY[ref.alloc.dtype]
        read = f"{memory}({read})" if t.dtype in HALVES else read
        test = _owner(role, shape, mask, at)
        return f"{test}cuir::put<{memory}>({local.at(row, f'{col} * {ref.alloc.dtype.itemsize}')}, {read});"

    role.tiles.loop(shape, frag, body)


def _owner(role: RoleEmitter, shape: str, mask: Expr | None, at: At) -> str:
    """A condition that one lane of those with the same value meets, and the mask."""
    tests = []
    if shape in ("rows", "one"):
        tests.append("lane % 4 == 0")
    if shape in ("cols", "one"):
        tests.append("lane < 4")
        if role.threads == 128:
            tests.append("warp == 0")
    if mask is not None:
        tests.append(role.tiles.element(mask, at, shape))  # type: ignore[arg-type]
    return f"if ({strip(' && '.join(tests))}) " if tests else ""


def _store_scalar(role: RoleEmitter, place: Expr, value: Expr, adds: bool) -> None:
    assert isinstance(place, Subscript)
    text = strip(role.scalars.scalar(value))
    where = role.scalars.element(place, role.scalars.scalar)
    if not role.single:
        role.join()
    if place.value.id in role.kernel.checked.shared:  # type: ignore[union-attr]
        address = where[where.index("(") + 1 : -1]
        role.out.line(f"{role.first_lane}cuir::put<{MEMORY[role.dtype(value)]}>({address}, {text});")
        role.join()
        return
    role.out.line(f"{role.first_lane}atomicAdd(&{where}, {text});" if adds else f"{role.first_lane}{where} = {text};")


def _store_global(role: RoleEmitter, place: Expr, tile: Expr, mask: Expr | None, adds: bool) -> None:
    kernel = role.kernel
    t = role.tile_type(tile)
    frag, shape = role.fragment(t), shape_of(t)
    box: Box | None = role.views.box(place) if role.views.is_box(place) else None
    name = box.tensor if box else place.value.id  # type: ignore[union-attr]
    dtype = kernel.tensors[name].dtype
    value = None
    if shape == "full" or t.dtype in HALVES or role.reads_what_it_stores:
        value = role.tiles.packed(tile) if role.tiles.storage_of(t).kind == "packed" else role.tiles.array(tile)
    if role.reads_what_it_stores:
        role.join()
    packed = role.tiles.storage_of(t).kind == "packed"

    def body(at: At) -> str:
        uniform: list[bool] = []
        if box is not None:
            row = role.tiles.row_text(frag, at.r) if shape in ("rows", "full") else "0"
            col = f"(col + {at.col})" if shape in ("cols", "full") else "0"
            indices = role.views.box_indices(box, row, col)
        else:
            assert isinstance(place, Subscript)
            indices = [role.tiles.element(i, at, shape) for i in place.indices]  # type: ignore[arg-type]
            uniform = [isinstance(kernel.checked.type_of(i), Scalar) for i in place.indices]  # type: ignore[arg-type]
        index = {"full": at.i, "rows": at.r, "cols": at.c, "one": "0"}[shape]
        if value is None:
            read = strip(role.tiles.element(tile, at, shape))
        else:
            read = f"cuir::unpack_{t.dtype}({value}, {index})" if packed else f"{value}[{index}]"
        if dtype in HALVES:
            read = f"{MEMORY[dtype]}({read})"
        test = _owner(role, shape, mask, at)
        inside = f"if ({kernel.inside(name, indices)}) "
        where = f"{identifier(name)}[{kernel.index(name, indices, uniform)}]"
        return f"{test}{inside}" + (f"atomicAdd(&{where}, {read});" if adds else f"{where} = {read};")

    role.tiles.loop(shape, frag, body)

"""The layouts of a kernel's tiles and arrays as text: which lane and register hold an element, who meets in banks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..syntax.types import PANEL_BYTES, DType
from .analyses.memory import array_of
from .analyses.stores import is_panelled
from .ir import ops
from .ir.ir_types import SharedT, TileT
from .ir.ir_walk import every, is_inlined
from .ir.machine_tiles import ConvertLayout
from .layouts.conversions import Conversion
from .layouts.layouts import LANES, Layout
from .layouts.linear_maps import Span, show_map, split
from .layouts.shared_memory import Access, find_access, find_block_access, lay_out_array, swap_odd_rows
from .layouts.tile_layouts import TileLayout
from .select.ways import way_of

MOST_ROWS, MOST_COLUMNS = 16, 16  # drawn
BLOCK_WAYS, SWAPPED_WAYS = ("ldmatrix", "stmatrix"), ("pairs", "dealt pairs")  # of moves: blocks of 8 x 8; odd rows in another order


@dataclass(frozen=True)
class TileUse:
    """Tiles of a role that have a type in common; `registers` of each thread, a single tile's; `names` of the program."""

    role: str
    type: TileT
    threads: int
    registers: int
    names: tuple[str, ...]

    @property
    def layout(self) -> TileLayout:
        """The layout, of any shape."""
        return self.type.layout


@dataclass(frozen=True)
class ArrayUse:
    """A move of tiles between registers and an array in shared memory, by the lanes of a warp."""

    role: str
    array: str
    rows: int
    columns: int
    element: DType
    swizzle: int
    tile: TileLayout
    way: str
    access: Access


def collect_tiles(kernel: ops.Kernel) -> list[TileUse]:
    """Collect the tiles of a kernel that stand in registers, by role and type."""
    uses = dict[tuple[str, TileT], dict[str, None]]()
    threads = {role.symbol.data: role.threads.data for role in kernel.roles}
    for role in kernel.roles:
        for op in every(role):
            for value in (*(a for region in op.regions for a in region.block.args), *op.results):
                if isinstance(value.type, TileT) and not is_inlined(value):
                    uses.setdefault((role.symbol.data, value.type), {}).update({value.name_hint: None} if value.name_hint else {})
    return [TileUse(role, t, threads[role], t.registers(threads[role]), tuple(names)) for (role, t), names in uses.items()]


def collect_moves(kernel: ops.Kernel) -> list[ArrayUse]:
    """Collect the moves of whole tiles between registers and arrays of shared memory, each kind once."""
    return list(dict.fromkeys(use for role in kernel.roles for op in every(role) if (use := _find_move(role, op)) is not None))


def _find_move(role: ops.Role, op: object) -> ArrayUse | None:
    if not isinstance(op, ops.Perform) or op.entry.effects.group is not None:
        return None
    place = op.args.get("view", op.args.get("place"))
    tile = op.args["tile"].type if "tile" in op.args else op.results[0].type if op.results else None
    if place is None or not isinstance(place.type, SharedT) or place.type.transposed.data or not isinstance(tile, TileT):
        return None
    array = array_of(place)
    assert isinstance(array, ops.Shared)
    array_type = array.result.type
    assert isinstance(array_type, SharedT)
    rows, columns = (int(n) for n in ((1, *array_type.sizes))[-2:])
    element, panelled = array_type.element, is_panelled(array)
    if not (tile.layout.varies_by_row and tile.layout.varies_by_column) or rows < tile.shape[0] or columns < tile.shape[1]:
        return None
    cells = lay_out_array(rows, columns, element.itemsize, PANEL_BYTES if panelled else 0)
    way = way_of(op)
    registers = tile.layout.of(tile.shape, role.threads.data)
    if way in BLOCK_WAYS and tile.layout.is_accumulator:
        access = find_block_access(registers, cells)
    else:
        access = find_access(swap_odd_rows(registers) if way in SWAPPED_WAYS else registers, cells, element.itemsize)
    name = array.symbol.data
    return ArrayUse(role.symbol.data, name, rows, columns, element, PANEL_BYTES if panelled else 0, tile.layout, way, access)


@dataclass(frozen=True)
class ConversionUse:
    """A conversion of a tile in a role, and what it takes of a thread."""

    role: str
    type: TileT
    source: TileLayout
    plan: Conversion


def collect_conversions(kernel: ops.Kernel) -> list[ConversionUse]:
    """Collect the conversions of tiles to other layouts."""
    return [
        ConversionUse(role.symbol.data, op.result.type, op.x.type.layout, op.plan(role.threads.data))
        for role in kernel.roles
        for op in every(role)
        if isinstance(op, ConvertLayout) and isinstance(op.x.type, TileT) and isinstance(op.result.type, TileT)
    ]


# ---- text
def draw_layout(layout: Layout) -> Iterator[str]:
    """Yield lines of a picture: a cell names the lane and the register of an element, those of warp 0 at most."""
    rows, columns = (min(layout.extent(n), most) for n, most in (("row", MOST_ROWS), ("column", MOST_COLUMNS)))
    cells = [[_name_holder(layout, row, column) for column in range(columns)] for row in range(rows)]
    width = max(len(cell) for line in cells for cell in line)
    yield (
        "      " + " ".join(f"c{column}".rjust(width) for column in range(columns)) + ("  ..." if layout.extent("column") > columns else "")
    )
    for row, line in enumerate(cells):
        yield f"r{row}".ljust(6) + " ".join(cell.rjust(width) for cell in line)
    if layout.extent("row") > rows:
        yield "..."


def _name_holder(layout: Layout, row: int, column: int) -> str:
    """Return the first lane that holds an element, and the register: `3.1`."""
    register, lane, warp = layout.find(row=row, column=column)
    return f"{lane}.{register}" if not warp else f"w{warp}:{lane}.{register}"


def describe_layout(layout: Layout) -> str:
    """Return the bits that registers, lanes and warps stand for, and what repeats."""
    repeats = [f"{count} times by {name}" for name, count in layout.repeats]
    return " | ".join([show_map(layout.atom), *(["repeated " + ", ".join(repeats)] if repeats else [])])


def count_copies(layout: Layout) -> int:
    """Return the lanes of a warp that hold an element each, or its parts."""
    columns = [split(layout.atom.outputs, c) for c in layout.atom.columns_of("lane")]
    return LANES >> Span(c.get("row", 0) | c.get("column", 0) << 16 for c in columns).rank


def draw_banks(access: Access) -> str:
    """Return a digit for each bank: the words of it that lanes want at once."""
    return "".join("." if n == 0 else str(min(n, 9)) for n in access.banks)

"""Printers of bulk copies and stores of the copy engine (TMA), and the tensor maps that they read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from xdsl.ir import Operation

from ....syntax.types import PANEL_BYTES
from ...cuda.primitives.sync import barrier
from ...cuda.registry import Printers
from ...ir import ops
from ...lowered import TensorMap
from ...select.parameter_space import MapKey, find_map
from ...select.ways import because_of, way_of
from .barriers import select_ctas
from .warpgroup_ways import BY_WARPS

if TYPE_CHECKING:
    from ...cuda.context import KernelContext
    from ...cuda.role import RolePrinter

PRINTERS = Printers()
HINTS = {"evict_first": "EVICT_FIRST", "evict_last": "EVICT_LAST", "evict_normal": "EVICT_NORMAL"}


def _get_tensor_map(kernel: KernelContext, key: MapKey) -> str:
    """Return the name of a tensor map, registering it if it is new."""
    if key not in kernel.maps:
        maps_of_tensor = sum(m.tensor == key.tensor for m in kernel.maps.values())
        kernel.maps[key] = TensorMap(f"map_{key.tensor}" + (f"_{maps_of_tensor}" if maps_of_tensor else ""), *key)
    return kernel.maps[key].name


def _split_into_panels(role: RolePrinter, op: ops.Perform, parts: int = 1) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the copies that move a box panel by panel.

    Args:
        role: The role that issues them.
        op: The copy or store.
        parts: 4 if each warp moves its quarter of the rows.

    Returns: The tensor map, its rank, and for each panel (or the single row without panels) a pointer to shared memory
    and the coordinates, innermost first.
    """
    box, view = role.places.box(op.arg("box")), role.places.shared(op.arg("shared"))
    key = find_map(op)
    assert key is not None
    name, sizes, width = _get_tensor_map(role.kernel, key), key.sizes, key.sizes[-1]
    starts, offset = list(box.starts), view.offset
    if parts > 1:
        starts[-2] += f" + warp * {sizes[-2]}"
        offset += f" + warp * {sizes[-2] * PANEL_BYTES}"
    pieces = []
    for p in range(view.cols // width):
        panel = f" + {p * view.alloc.rows * PANEL_BYTES}" if p else ""
        first = starts[-1]
        column = str(p * width) if first == "0" else f"{first} + {p * width}" if p else first
        pieces.append((f"smem + {offset}{panel}", ", ".join([column, *starts[-2::-1]] if len(starts) > 1 else [column])))
    return name, f"{len(starts)}D", pieces


@PRINTERS.prints("copy_async.bulk")
def copy_bulk(role: RolePrinter, first: ops.Perform, batch: Sequence[Operation] = ()) -> None:
    """Emit bulk copies, issued by one lane."""
    each = [(op, _make_copies(role, op)) for op in batch or [first] if isinstance(op, ops.Perform) and op.op == first.op]
    # the compiler knows that an elected lane is a single one
    with (
        nullcontext() if role.single else role.out.block("if (cute::elect_one_sync())" if role.threads == 32 else role.first_lane.rstrip())
    ):
        for op, lines in each:
            role.out.mark(role.span(op))
            for line in lines:
                role.out.line(line)


def _make_copies(role: RolePrinter, op: ops.Perform) -> list[str]:
    """Return the calls that issue a bulk copy."""
    name, rank, pieces = _split_into_panels(role, op)
    bar = barrier(role, op.arg("bar"))
    hint = f"uint64_t(cute::TMA::CacheHintSm90::{HINTS[op.const('hint', 'evict_normal')]})"
    ctas = select_ctas(role.kernel.kernel, op.const("cluster", False))
    mask = f"uint16_t({ctas.mask}), " if ctas is not None else ""
    function = f"cute::SM90_TMA_LOAD_{'MULTICAST_' if ctas is not None else ''}{rank}::copy"
    return [f"{function}(&{name}, {bar}, {mask}{hint}, {address}, {coordinates});" for address, coordinates in pieces]


def _emit_on_one_lane(role: RolePrinter, lines: list[str]) -> None:
    """Emit lines for one lane of the worker."""
    if role.single:
        for line in lines:
            role.out.line(line)
        return
    with role.out.block(role.first_lane.rstrip()):
        for line in lines:
            role.out.line(line)


@PRINTERS.prints("store_async")
def store_async(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a bulk store, by each warp for its rows if it was selected, else by one lane."""
    split = way_of(op) == BY_WARPS
    name, rank, pieces = _split_into_panels(role, op, 4 if split else 1)
    function = f"cute::SM90_TMA_{'REDUCE_ADD' if op.const('add') else 'STORE'}_{rank}::copy"
    lines = [f"{function}(&{name}, {address}, {coordinates});" for address, coordinates in pieces] + ["cute::tma_store_arrive();"]
    if split:
        role.kernel.record_choice(because_of(op), role.span(op))
        with role.out.block("if (lane == 0)"):
            for line in lines:
                role.out.line(line)
        return
    _emit_on_one_lane(role, lines)


@PRINTERS.prints("store_wait")
def store_wait(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a wait until all but the last `n` bulk stores of the worker have read shared memory."""
    lane = "if (lane == 0) " if way_of(op) == BY_WARPS else role.first_lane
    role.out.line(f"{lane}cute::tma_store_wait<{op.const('n', 0)}>();")

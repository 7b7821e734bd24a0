"""Products into tensor memory (tcgen05.mma), their commits, and loads of tensor memory into fragments, with their ways.

An instruction multiplies 64 rows, and its 16 rows of warp w lie in 16 of the warp's 32 lanes, from lane 32 w or 32 w + 16
on. So two instructions fill the lanes with 128 rows, and a load of 16 lanes gives a warp its rows of an accumulator in
the registers of mma.sync and wgmma (`tcgen05 16x256b` in `layouts/layouts.py`), of each slab of 64 rows.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ....syntax.types import BF16, COLUMN_BYTES, F16, TENSOR_MEMORY
from ...cuda.operator_text import strip
from ...cuda.primitives.sync import barrier
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.ir_types import SharedT, TileT
from ...select.product_ways import check_panels
from ...select.role_facts import RoleFacts
from ...select.ways import Verdict, Ways, fits, misfits
from ..sm90.warpgroup_products import STEP, Operand

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter

PRINTERS, WAYS = Printers(), Ways()
FORMATS = {F16: 0, BF16: 1}  # of operands, in the instruction descriptor
ROWS = 64  # of an instruction
SLAB_LANES = 16 << 16  # from the lanes of a slab of 64 rows to those of the next, in an address
LOADED = 32  # columns of a load


def describe_shape(dtype_format: int, columns: int) -> int:
    """Return the instruction descriptor: f32 += halves, both K-major, 64 rows (`UMMA::InstrDescriptor` of CUTLASS)."""
    return 1 << 4 | dtype_format << 7 | dtype_format << 10 | columns >> 3 << 17 | ROWS >> 4 << 24


def _add(text: str, number: int) -> str:
    return f"{text} + {number:#x}" if number else text


def _make_address(role: RolePrinter, view: SSAValue) -> str:
    """Return the address of a view's first column."""
    place = view.owner
    array = place if isinstance(place, ops.Shared) else place.array.owner  # type: ignore[union-attr]
    assert isinstance(array, ops.Shared) and isinstance(array.result.type, SharedT)
    constant, terms = (array.offset.data - TENSOR_MEMORY) // COLUMN_BYTES, list[str]()
    if isinstance(place, ops.At):
        columns = int(array.result.type.sizes[-1])
        for (start, _), factor in zip((place.parts[-1], *place.parts[:-2]), (1, columns)):
            if start is not None:
                known = ops.constant_value(start)
                if known is None:
                    terms.append(f"{role.elements.scalar(start)} * {factor}")
                else:
                    constant += int(known) * factor
    return " + ".join(["tensor_memory", *terms, *([str(constant)] if constant else [])])


def _make_operand(role: RolePrinter, view: SSAValue) -> tuple[Operand, str]:
    """Return an operand's layout and the text of its descriptor."""
    ref = role.places.shared(view)
    return Operand(ref.alloc, k_major=True), f"cuir::operand((({ref.address}) & 0x3FFFF) >> 4)"


@WAYS.way("multiply into tensor memory", "tcgen05.mma SS")
def multiply_shared(op: ops.Perform) -> Verdict:
    """Multiply two operands in shared memory, 64 rows at a time."""
    a, b = op.arg("a").type, op.arg("b").type
    assert isinstance(a, SharedT) and isinstance(b, SharedT)
    if reason := check_panels(op):
        return misfits(reason)
    count = int(a.sizes[1]) * a.element.itemsize // STEP * (int(a.sizes[0]) // ROWS)
    return fits(
        f"both operands lie in shared memory, K-major; one lane issues {count} instructions of {ROWS} rows and {b.sizes[1]} columns"
    )


@WAYS.way("load from tensor memory", "tcgen05.ld 16x256b")
def load_fragment(op: ops.Perform, role: RoleFacts) -> Verdict:
    """Load 16 lanes and 32 columns at a time, in the order of an accumulator."""
    t = op.results[0].type
    assert isinstance(t, TileT)
    count = -(-t.shape[0] // ROWS) * -(-t.shape[1] // LOADED)
    return fits(f"a warp loads its 16 rows of each {ROWS} in the layout {t.layout.name}, by {count} instructions of {LOADED} columns")


@PRINTERS.prints("mma_into")
def multiply_into(role: RolePrinter, op: ops.Perform) -> None:
    """Emit the instructions of a product, issued by one lane."""
    out, a, b = role.out, op.arg("a"), op.arg("b")
    assert isinstance(a.type, SharedT) and isinstance(b.type, SharedT)
    (left, at_left), (right, at_right) = _make_operand(role, a), _make_operand(role, b)
    (rows, inner), columns = (int(n) for n in a.type.sizes), int(b.type.sizes[1])
    adds = strip(role.elements.scalar(op.arg("accumulate"))) if "accumulate" in op.args else "true"
    with out.block("") if role.single else out.block("if (cute::elect_one_sync())"):
        out.line(f"const uint64_t a_ = {at_left}, b_ = {at_right};")
        out.line(f"const uint32_t d_ = {_make_address(role, op.arg('acc'))};")
        out.line("cuir::after_thread_sync();")
        shape = describe_shape(FORMATS[a.type.element], columns)
        for k in range(inner * a.type.element.itemsize // STEP):
            for s in range(rows // ROWS):
                places = _add("d_", SLAB_LANES * s), _add("a_", left.step(k) + left.slab(s)), _add("b_", right.step(k))
                out.line(f"cuir::multiply_into({', '.join(places)}, {shape:#x}, {'true' if k else adds});")


@PRINTERS.prints("mma_commit")
def commit(role: RolePrinter, op: ops.Perform) -> None:
    """Emit the arrival for all earlier products, by the lane that issued them."""
    with nullcontext() if role.single else role.out.block("if (cute::elect_one_sync())"):
        role.out.line(f"cuir::commit({barrier(role, op.arg('bar'))});")


@PRINTERS.prints("load_async")
def load(role: RolePrinter, op: ops.Perform) -> None:
    """Emit loads by each warp of its lanes, 16 lanes and 32 columns at a time."""
    out, t, target = role.out, op.results[0].type, role.storage(op.results[0]).name
    assert isinstance(t, TileT)
    frag = role.fragment(t)
    address = out.temp("from")
    out.line("cuir::after_thread_sync();")
    out.line(f"const uint32_t {address} = {_make_address(role, op.arg('view'))} + (warp << 21);")
    for s in range(frag.slabs):
        for column in range(0, t.shape[1], LOADED):
            first = 4 * (s * frag.groups + column // 8)
            out.line(f"cuir::load_columns<{first}>({target}, {_add(address, SLAB_LANES * s + column)});")


@PRINTERS.prints("load_wait", "mma_wait")
def wait(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a wait for all loads."""
    role.out.line("cuir::wait_for_loads();")
    live = role.live_after(op)
    role.out.line("cuir::before_thread_sync();")
    copied = [(r, x) for r, x in zip(op.results, op.arguments, strict=True) if r in live]
    role.emit_moves([r for r, _ in copied], [x for _, x in copied])

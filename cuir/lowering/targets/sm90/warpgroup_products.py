"""wgmma: batches of products in flight, their waits, and descriptors of operands in swizzled panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.ir import Operation, SSAValue

from ....syntax.types import BF16, F8E4M3, F8E5M2, F16, PANEL_BYTES, DType, SharedLayout
from ...cuda.operator_text import strip
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.ir_types import SharedT, TileT
from ...select.ways import way_of

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter

SWIZZLE_ROWS = 8  # period of the 128-byte swizzle
SBO = SWIZZLE_ROWS * PANEL_BYTES  # bytes between groups of 8 rows


@dataclass(frozen=True)
class Operand:
    """A wgmma operand in shared memory.

    Steps are in descriptor units of 16 bytes. K-major: the contiguous dim is the inner one of the product. MN-major: it is
    the outer one (`.T` of the memory is read).
    """

    alloc: SharedLayout
    k_major: bool

    @property
    def leading(self) -> int:
        """Leading byte offset: between panels of an MN-major operand; unused (1) for a swizzled K-major one."""
        return 16 if self.k_major else self.alloc.rows * PANEL_BYTES

    def step(self, k: int) -> int:
        """Return the offset of the k-th slice of 32 bytes along the inner dim."""
        if self.k_major:
            per_panel = PANEL_BYTES // 32
            return k // per_panel * (self.alloc.rows * PANEL_BYTES >> 4) + k % per_panel * 2
        return k * (16 * PANEL_BYTES >> 4)

    def slab(self, s: int) -> int:
        """Return the offset of the s-th 64 rows of an `a` operand."""
        return s * (64 * PANEL_BYTES >> 4) if self.k_major else s * (self.alloc.rows * PANEL_BYTES >> 4)


PRINTERS = Printers()
NAMES = {F16: "F16", BF16: "BF16", F8E4M3: "E4M3", F8E5M2: "E5M2"}  # of operands, in CUTLASS
FENCES = {"wgmma RS": "fence_regs", "wgmma RS, renewed": "renew_regs"}  # of left operands in registers, by the selected way
STEP = 32  # bytes of the inner dim that an instruction takes


@PRINTERS.prints("mma_async")
def issue(role: RolePrinter, first: ops.Perform, batch: Sequence[Operation] = ()) -> None:
    """Emit a run of products (and scalars between them): fences of all operands, then the instructions."""
    out, steps = role.out, list(batch) or [first]
    products = [op for op in steps if isinstance(op, ops.Perform)]
    results: set[SSAValue] = set()
    for op in steps:  # scalars first: they are pure
        if not isinstance(op, ops.Perform):
            role.emit_statement(op, [op])
    for op in products:
        target = role.storage(op.results[0])
        if "c" in op.args:
            c = op.arg("c")
            if role.storage_or_none(c) is not target:
                role.elements.assign(target, c)
            if c not in results:
                out.line(f"cuir::fence_regs({target.name});")
        a = op.arg("a")
        if isinstance(a.type, TileT):
            out.line(f"cuir::{FENCES[way_of(op)]}({role.elements.array(a)});")
        results.add(op.results[0])
    out.line("cute::warpgroup_arrive();")
    for op in products:
        out.mark(role.span(op))
        _issue_product(role, op)


def _issue_product(role: RolePrinter, op: ops.Perform) -> None:
    """Emit the instructions of one product."""
    out, a, t, target = role.out, op.arg("a"), op.results[0].type, role.storage(op.results[0]).name
    assert isinstance(t, TileT) and isinstance(a.type, (TileT, SharedT))
    frag = role.fragment(t)
    register = role.elements.array(a) if isinstance(a.type, TileT) else None
    right_operand = _make_operand(role, op.arg("b"), transposed_is_k_major=True)
    left_operand = None if register else _make_operand(role, a, transposed_is_k_major=False)
    inner = a.type.shape[1] if isinstance(a.type, TileT) else int(a.type.sizes[1])
    major_a = "K" if left_operand is None or left_operand[0].k_major else "MN"
    cols = t.shape[1]
    function = _get_function(role, cols, a.type.element, "RS" if register else "SS", major_a, "K" if right_operand[0].k_major else "MN")
    per_slab = frag.groups * 4
    begin = "GMMA::ScaleOut::Zero"
    if "c" in op.args:
        holds = op.args.get("holds")
        begin = "GMMA::ScaleOut::One" if holds is None else f"GMMA::ScaleOut({strip(role.elements.scalar(holds))})"
    with out.block(""):
        out.line(f"const uint64_t b_ = {right_operand[1]};")
        if left_operand is not None:
            out.line(f"const uint64_t a_ = {left_operand[1]};")
        for k in range(inner * a.type.element.itemsize // STEP):
            for s in range(frag.slabs):
                at_b = f"b_ + {right_operand[0].step(k)}" if k else "b_"
                if register:
                    first = s * inner * a.type.element.itemsize // 8 + 4 * k
                    text = ", ".join(f"{register}[{first + i}]" for i in range(4))
                else:
                    assert left_operand is not None
                    offset = left_operand[0].step(k) + left_operand[0].slab(s)
                    text = f"a_ + {offset}" if offset else "a_"
                scale = "GMMA::ScaleOut::One" if k else begin
                out.line(f"{function}<{s * per_slab}>({target}, {text}, {at_b}, {scale});")
    out.line("cute::warpgroup_commit_batch();")


def _get_function(role: RolePrinter, cols: int, dtype: DType, kind: str, major_a: str, major_b: str) -> str:
    """Return the function for one shape of product, registering it.

    It takes the accumulators O .. O + cols / 2 of an array.
    """
    operands, step = NAMES[dtype], STEP // dtype.itemsize
    name = f"wgmma_64x{cols}_{operands.lower()}_{kind.lower()}_{major_a.lower()}_{major_b.lower()}"
    # operands of 16 bits alone may lie along the outer dim
    majors = f"<GMMA::Major::{major_a}, GMMA::Major::{major_b}>" if dtype.itemsize == 2 else "_TN<>"
    left_parameters = "uint64_t a" if kind == "SS" else "uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3"
    pass_left = "a" if kind == "SS" else "a0, a1, a2, a3"
    regs = ", ".join(f"d[O + {i}]" for i in range(cols // 2))
    role.kernel.functions[name] = (
        f"template <int O, int N> DEV void {name}(float (&d)[N], {left_parameters}, uint64_t b, GMMA::ScaleOut scale) {{\n"
        f"  GMMA::MMA_64x{cols}x{step}_F32{operands * 2}_{kind}{majors}::fma({pass_left}, b, {regs}, scale);\n}}"
    )
    return f"cuir::{name}"


def _make_operand(role: RolePrinter, value: SSAValue, transposed_is_k_major: bool) -> tuple[Operand, str]:
    """Return an operand's layout and the text of its descriptor."""
    view = role.places.shared(value)
    operand = Operand(view.alloc, view.transposed == transposed_is_k_major)
    # in a cluster the upper bits name the CTA
    low = role.hoist_to_start("const uint32_t", "shared_units", "(smem_address & 0x3FFFF) >> 4")
    base = f"cuir::descriptor({low} + {operand.leading >> 4 << 16 | view.alloc.offset >> 4:#x})"
    for index, factor in view.within:
        base = f"cuir::descriptor_at({base}, {strip(index)}, {factor >> 4})"
    if view.inside:  # the swizzle is of addresses, so that no other place of the panel needs another pattern
        base = f"cuir::descriptor_at({base}, {view.inside.removeprefix(' + ')} / 16, 1)"
    return operand, base


@PRINTERS.prints("mma_wait")
def wait(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a wait for products."""
    role.out.line(f"cute::warpgroup_wait<{op.const('pending')}>();")
    live = role.live_after(op)
    copied = [(r, x) for r, x in zip(op.results, op.arguments, strict=True) if r in live]
    role.emit_moves([r for r, _ in copied], [x for _, x in copied])

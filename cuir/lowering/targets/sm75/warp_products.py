"""Products of single warps (mma.sync) whose operands ldmatrix loads, in steps of 32 bytes of the inner dim.

A target that extends sm_75 chooses its own instruction for a step, and those of operands that lanes load otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....syntax.types import DType
from ...cuda.address_sums import make_unsupported_error
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.ir_types import SharedT, TileT
from ...select.ways import way_of
from .warp_ways import HALF_STEPS

if TYPE_CHECKING:
    from ...cuda.primitives.memory import SharedLoad
    from ...cuda.role import RolePrinter

PRINTERS = Printers()
Step = Callable[["RolePrinter", str, DType, list[str]], None]
STEP_BYTES = 32  # of the inner dim


@PRINTERS.prints("mma")
def mma(role: RolePrinter, op: ops.Perform) -> None:
    """Emit mma.sync: each warp multiplies 16 rows of each slab.

    Raises: CuirError L002 for operands that the instruction cannot read.
    """
    result, target = op.results[0].type, role.storage(op.results[0])
    assert isinstance(result, TileT)
    if not isinstance(op.arg("b").type, SharedT):
        raise make_unsupported_error(
            "a register tile as the right operand of mma", role.span(op), "store it to shared memory and give its view"
        )
    if "c" in op.args:
        c = op.arg("c")
        if role.storage_or_none(c) is not target:
            role.elements.assign(target, c)
    else:
        role.elements.emit_loop(result, lambda at: f"{target.name}[{at.i}] = 0.f;")
    role.target.code("multiply", way_of(op))(role, op, target.name)


def multiply_blocks(role: RolePrinter, op: ops.Perform, target: str, emit_step: Step) -> None:
    """Emit `target += a @ b` of operands whose blocks ldmatrix loads.

    Args:
        role: The role.
        op: The product.
        target: Name of the accumulator.
        emit_step: Emits the instructions of a step, 32 bytes of the inner dim.

    Raises: CuirError L002 for operands in shared memory that ldmatrix cannot load.
    """
    a, b, out, span, t = op.arg("a"), op.arg("b"), role.out, role.span(op), op.results[0].type
    assert isinstance(a.type, (TileT, SharedT)) and isinstance(t, TileT)
    frag = role.fragment(t)
    inner = a.type.shape[1] if isinstance(a.type, TileT) else int(a.type.sizes[1])
    register_a = role.elements.array(a) if isinstance(a.type, TileT) else None
    b_view, a_view = role.places.shared(b), None if register_a else role.places.shared(a)
    for view in (a_view, b_view):
        if view is not None and not view.alloc.panelled:
            raise make_unsupported_error("an operand in shared memory whose rows are no whole panels", span)
    if a_view is not None and a_view.transposed:
        raise make_unsupported_error("a transposed left operand of mma", span)
    fragments, base_b = out.temp("b"), out.temp("base")
    per_slab = frag.groups * 4
    base_a = ""
    if a_view is not None:
        base_a = out.temp("base")
        first = f"{'16 * warp + ' if role.threads == 128 else ''}(lane & 15), 16 * (lane >> 4)"
        out.line(f"const uint32_t {base_a} = cuir::at<{a_view.alloc.rows}>({a_view.address}, {first});")
    odd = frag.groups % 2 == 1
    rows = b_view.alloc.rows
    if b_view.transposed:  # memory rows are columns of b
        first, step, load = "(lane & 7) + 8 * (lane >> 4), 16 * (lane >> 3 & 1)", "8 * j_, 32 * k_", "load_matrix"
    else:
        first, step, load = "(lane & 15), 16 * (lane >> 4)", "16 * k_, 16 * j_", "load_matrix_T"
    out.line(f"const uint32_t {base_b} = cuir::at<{rows}>({b_view.address}, {first});")
    last_b = ""
    if odd:  # the last pair's second block of columns does not exist: it reads the first again
        last_b = out.temp("last")
        out.line(f"const uint32_t {last_b} = cuir::at<{rows}>({b_view.address}, {first.replace('(lane >> 4)', '0')});")
    step_rows = STEP_BYTES // a.type.element.itemsize
    with out.block(f"#pragma unroll\nfor (int k_ = 0; k_ < {inner // step_rows}; ++k_)"):
        for s in range(frag.slabs):
            if a_view is not None:
                out.line(f"uint32_t a{s}_[4];")
                location = f"cuir::beyond<{a_view.alloc.rows}>({base_a}, {s * frag.slab}, 32 * k_)"
                out.line(f"cuir::load_matrix({location}, a{s}_[0], a{s}_[1], a{s}_[2], a{s}_[3]);")
        with out.block(f"#pragma unroll\nfor (int j_ = 0; j_ < {frag.groups}; j_ += 2)"):
            out.line(f"uint32_t {fragments}[4];  // columns 8 j .. 8 j + 15, rows {step_rows} k .. {step_rows} k + {step_rows - 1} of b")
            parts = ", ".join(f"{fragments}[{i}]" for i in range(4))
            place = f"j_ + 1 < {frag.groups} ? {base_b} : {last_b}" if odd else base_b
            out.line(f"cuir::{load}(cuir::beyond<{rows}>({place}, {step}), {parts});")
            for s in range(frag.slabs):
                left_fragment = (
                    [f"a{s}_[{i}]" for i in range(4)] if a_view else [f"{register_a}[{s * inner // 4} + 4 * k_ + {i}]" for i in range(4)]
                )
                for half in range(2):
                    i0 = f"{s * per_slab} + 4 * j_ + {4 * half}"
                    d = [f"{target}[{i0} + {e}]" for e in range(4)]
                    right_fragment = [f"{fragments}[{2 * half}]", f"{fragments}[{2 * half + 1}]"]
                    guard = f"if (j_ + 1 < {frag.groups}) " if half and odd else ""
                    emit_step(role, guard, a.type.element, [*d, *left_fragment, *right_fragment])


@PRINTERS.code_of("multiply", HALF_STEPS)
def multiply_half_steps(role: RolePrinter, op: ops.Perform, target: str) -> None:
    """Emit a product of halves by two of m16n8k8 a step."""
    multiply_blocks(role, op, target, _emit_step)


def _emit_step(role: RolePrinter, guard: str, element: DType, operands: list[str]) -> None:
    """Emit `d += a @ b` of 16 x 8 x 16 halves; operands: registers of d, a and b."""
    role.out.line(f"{guard}cuir::mma_16x8x16({', '.join(operands)});")


@PRINTERS.code_of("load", "ldmatrix")
def load_blocks(role: RolePrinter, load: SharedLoad) -> None:
    """Emit the load of a packed tile whose columns are a multiple of 16."""
    ref, base = load.ref, load.base
    frag = role.fragment(load.t)
    first, rows = role.out.temp("first"), ref.alloc.rows
    row = f"{'16 * warp + ' if role.threads == 128 else ''}(lane & 15)"
    role.out.line(f"const uint32_t {first} = cuir::at<{rows}>({base}, {row}, 16 * (lane >> 4));")
    with role.out.block(f"#pragma unroll\nfor (int p_ = 0; p_ < {frag.count // 2}; p_ += 4)"):
        per_slab = frag.groups * 2
        j = f"p_ % {per_slab} / 4" if frag.slabs > 1 else "p_ / 4"
        slab = f"{frag.slab} * (p_ / {per_slab})" if frag.slabs > 1 else "0"
        location = f"cuir::beyond<{rows}>({first}, {slab}, 32 * ({j}))"
        name = load.target.name
        role.out.line(f"cuir::load_matrix({location}, {name}[p_], {name}[p_ + 1], {name}[p_ + 2], {name}[p_ + 3]);")

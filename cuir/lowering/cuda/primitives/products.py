"""Products on the tensor core: mma.sync warp by warp, wgmma batches in flight and their waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.ir import Operation, SSAValue

from ...ir import ops
from ...ir.types import SharedT, TileT, is_scalar
from ..layouts import Operand
from ..operators import strip
from ..places import unsupported
from ..registry import prints

if TYPE_CHECKING:
    from ..role import RolePrinter


@prints("mma")
def mma(role: RolePrinter, op: ops.Perform) -> None:
    """mma.sync m16n8k16: each warp multiplies its own 16 rows of each slab."""
    a, b, out, span = op.arg("a"), op.arg("b"), role.out, role.span(op)
    result = op.results[0].type
    assert isinstance(result, TileT)
    frag, target = role.elements.fragment(result), role.storage(op.results[0])
    assert isinstance(a.type, (TileT, SharedT))
    inner = a.type.shape[1] if isinstance(a.type, TileT) else int(a.type.sizes[1])
    if not isinstance(b.type, SharedT):
        raise unsupported("a register tile as the right operand of mma", span, "store it to shared memory and give its view")
    if "c" in op.args:
        c = op.arg("c")
        if role.storage_or_none(c) is not target:
            role.elements.into(target, c)
    else:
        role.elements.loop(result, lambda at: f"{target.name}[{at.i}] = 0.f;")
    kind = f"F32{'F16F16' if a.type.element.name == 'f16' else 'BF16BF16'}F32"
    register_a = role.elements.array(a) if isinstance(a.type, TileT) else None
    b_view, a_view = role.places.shared(b), None if register_a else role.places.shared(a)
    for view in (a_view, b_view):
        if view is not None and not view.alloc.panelled:
            raise unsupported("an operand in shared memory whose rows are no whole panels", span)
    if a_view is not None and a_view.transposed:
        raise unsupported("a transposed left operand of mma", span)
    fragments, base_b = out.temp("b"), out.temp("base")
    per_slab = frag.groups * 4
    out.line(f"const uint32_t {base_b} = {b_view.address};")
    base_a = ""
    if a_view is not None:
        base_a = out.temp("base")
        out.line(f"const uint32_t {base_a} = {a_view.address};")
    warp_row = "16 * warp" if role.threads == 128 else "0"
    with out.block(f"#pragma unroll\nfor (int k_ = 0; k_ < {inner // 16}; ++k_)"):
        for s in range(frag.slabs):
            if a_view is not None:
                out.line(f"uint32_t a{s}_[4];")
                row = f"{s * frag.slab} + {warp_row} + (lane & 15)"
                where = f"cuir::at<{a_view.alloc.rows}>({base_a}, {row}, 32 * k_ + 16 * (lane >> 4))"
                out.line(f"cuir::load_matrix({where}, a{s}_[0], a{s}_[1], a{s}_[2], a{s}_[3]);")
        with out.block(f"#pragma unroll\nfor (int j_ = 0; j_ < {frag.groups}; j_ += 2)"):
            out.line(f"uint32_t {fragments}[4];  // columns 8 j .. 8 j + 15, rows 16 k .. 16 k + 15 of b")
            if b_view.transposed:  # memory rows are columns of b
                where, load = "8 * j_ + (lane & 7) + 8 * (lane >> 4), 32 * k_ + 16 * (lane >> 3 & 1)", "load_matrix"
            else:
                where, load = "16 * k_ + (lane & 15), 16 * j_ + 16 * (lane >> 4)", "load_matrix_T"
            odd = frag.groups % 2 == 1
            if odd:  # the pair's second block of columns does not exist: read the first again
                where = where.replace("(lane >> 4)", f"(j_ + 1 < {frag.groups} ? lane >> 4 : 0)")
            parts = ", ".join(f"{fragments}[{i}]" for i in range(4))
            out.line(f"cuir::{load}(cuir::at<{b_view.alloc.rows}>({base_b}, {where}), {parts});")
            for s in range(frag.slabs):
                left = [f"a{s}_[{i}]" for i in range(4)] if a_view else [f"{register_a}[{s * inner // 4} + 4 * k_ + {i}]" for i in range(4)]
                for half in range(2):
                    i0 = f"{s * per_slab} + 4 * j_ + {4 * half}"
                    d = [f"{target.name}[{i0} + {e}]" for e in range(4)]
                    right = [f"{fragments}[{2 * half}]", f"{fragments}[{2 * half + 1}]"]
                    text = f"cute::SM80_16x8x16_{kind}_TN::fma({', '.join([*d, *left, *right, *d])});"
                    out.line(f"if (j_ + 1 < {frag.groups}) {text}" if half and odd else text)


# ---- products in flight
def _batch(op: ops.Perform) -> Sequence[Operation]:
    """Products that follow each other, with nothing but places and scalars between them."""
    batch: list[Operation] = [op]
    end = 1
    following = op.next_op
    while following is not None:
        if isinstance(following, ops.Perform) and following.op == op.op:
            batch.append(following)
            end = len(batch)
        elif isinstance(following, (ops.At, ops.Constant)) or (isinstance(following, ops.Apply) and is_scalar(following.result)):
            batch.append(following)
        else:
            break
        following = following.next_op
    return batch[:end]


@prints("mma_async", batch=_batch)
def issue(role: RolePrinter, first: ops.Perform, batch: Sequence[Operation] = ()) -> None:
    """A run of products (and scalars between them): operands are fenced first, then issued without anything in between."""
    out, steps = role.out, list(batch) or [first]
    products = [op for op in steps if isinstance(op, ops.Perform)]
    made: set[SSAValue] = set()
    for op in steps:  # scalars first: they are pure
        if not isinstance(op, ops.Perform):
            role.statement(op, [op])
    for op in products:
        target = role.storage(op.results[0])
        if "c" in op.args:
            c = op.arg("c")
            if role.storage_or_none(c) is not target:
                role.elements.into(target, c)
            if c not in made:
                out.line(f"cuir::fence_regs({target.name});")
        if isinstance(op.arg("a").type, TileT):
            out.line(f"cuir::fence_regs({role.elements.array(op.arg('a'))});")
        made.add(op.results[0])
    out.line("cute::warpgroup_arrive();")
    for op in products:
        out.mark(role.span(op))
        _one(role, op)


def _one(role: RolePrinter, op: ops.Perform) -> None:
    out, a, t, target = role.out, op.arg("a"), op.results[0].type, role.storage(op.results[0]).name
    assert isinstance(t, TileT) and isinstance(a.type, (TileT, SharedT))
    frag = role.elements.fragment(t)
    register = role.elements.array(a) if isinstance(a.type, TileT) else None
    right = _operand(role, op.arg("b"), op, transposed_is_k_major=True)
    left = None if register else _operand(role, a, op, transposed_is_k_major=False)
    inner = a.type.shape[1] if isinstance(a.type, TileT) else int(a.type.sizes[1])
    dtype = "F16" if a.type.element.name == "f16" else "BF16"
    major_a = "K" if left is None or left[0].k_major else "MN"
    cols = t.shape[1]
    function = role.kernel.wgmma(cols, dtype, "RS" if register else "SS", major_a, "K" if right[0].k_major else "MN")
    per_slab = frag.groups * 4
    begin = "GMMA::ScaleOut::Zero"
    if "c" in op.args:
        holds = op.args.get("holds")
        begin = "GMMA::ScaleOut::One" if holds is None else f"GMMA::ScaleOut({strip(role.elements.scalar(holds))})"
    with out.block(""):
        out.line(f"const uint64_t b_ = {right[1]};")
        if left is not None:
            out.line(f"const uint64_t a_ = {left[1]};")
        for k in range(inner // 16):
            for s in range(frag.slabs):
                at_b = f"b_ + {right[0].step(k)}" if k else "b_"
                if register:
                    first = s * inner // 4 + 4 * k
                    text = ", ".join(f"{register}[{first + i}]" for i in range(4))
                else:
                    assert left is not None
                    offset = left[0].step(k) + left[0].slab(s)
                    text = f"a_ + {offset}" if offset else "a_"
                scale = "GMMA::ScaleOut::One" if k else begin
                out.line(f"{function}<{s * per_slab}>({target}, {text}, {at_b}, {scale});")
    out.line("cute::warpgroup_commit_batch();")


def _operand(role: RolePrinter, value: SSAValue, op: ops.Perform, transposed_is_k_major: bool) -> tuple[Operand, str]:
    """How an operand lies, and the text of its descriptor."""
    view = role.places.shared(value)
    if not view.alloc.panelled:
        raise unsupported("an operand in shared memory whose rows are no whole panels", role.span(op))
    operand = Operand(view.alloc, view.transposed == transposed_is_k_major)
    low = role.once("const uint32_t", "shared_units", "(smem_address & 0x3FFFF) >> 4")  # in a cluster the upper bits name the CTA
    base = f"cuir::descriptor({low} + {operand.leading >> 4 << 16 | view.alloc.offset >> 4:#x})"
    for index, factor in view.within:
        base = f"cuir::descriptor_at({base}, {strip(index)}, {factor >> 4})"
    return operand, base


@prints("mma_wait")
def wait(role: RolePrinter, op: ops.Perform) -> None:
    """Registers that were written under the products are fenced on both sides: the compiler knows of no wait."""
    out = role.out
    made = [role.storage(v).name for v in role.made_since(op)]
    for name in made:
        out.line(f"cuir::fence_regs({name});")
    out.line(f"cute::warpgroup_wait<{op.const('pending')}>();")
    live = role.allocation.liveness.after[op]
    over = [role.storage(r).name for r in op.results if r in live]
    for name in dict.fromkeys([*(n for n in over if n not in made), *made]):
        out.line(f"cuir::fence_regs({name});")
    copied = [(r, x) for r, x in zip(op.results, op.arguments, strict=True) if r in live]
    role.move([r for r, _ in copied], [x for _, x in copied])

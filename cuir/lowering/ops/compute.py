"""Elementwise functions, row reductions and products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...syntax.nodes import Call
from ...syntax.types import BOOL, F32, I32, SharedView, TileType
from ..registry import emits
from ..values import HALVES, Operation, strip, unsupported

if TYPE_CHECKING:
    from ..role import RoleEmitter


# ---- elementwise
@emits("min", "value")
def minimum(cx: Operation, *xs: str) -> str:
    return _nested("min" if cx.dtype == I32 else "cuir::min_nan", xs)


@emits("max", "value")
def maximum(cx: Operation, *xs: str) -> str:
    return _nested("max" if cx.dtype == I32 else "cuir::max_nan", xs)


def _nested(function: str, xs: tuple[str, ...]) -> str:
    text = xs[0]
    for x in xs[1:]:
        text = f"{function}({text}, {x})"
    return text


@emits("where", "value")
def where(cx: Operation, cond: str, x: str, y: str) -> str:
    return f"({cond} ? {x} : {y})"


@emits("exp2", "value")
def exp2(cx: Operation, x: str) -> str:
    return f"cuir::ex2({x})"


@emits("log2", "value")
def log2(cx: Operation, x: str) -> str:
    return f"{'cuir::log2' if cx.few else 'log2f'}({strip(x)})"


@emits("tanh", "value")
def tanh(cx: Operation, x: str) -> str:
    return f"cuir::tanh({x})"


@emits("abs", "value")
def absolute(cx: Operation, x: str) -> str:
    return f"cuir::absolute({strip(x)})" if cx.dtype == I32 else f"fabsf({x})"


@emits("cast", "value")
def cast(cx: Operation, x: str) -> str:
    if cx.result in HALVES:
        return x if cx.dtype == cx.result else f"cuir::round_{cx.result}({x if cx.dtype.is_float else f'float({x})'})"
    if cx.result == BOOL:
        return x if cx.dtype == BOOL else f"({x} != {'0' if cx.dtype == I32 else '0.f'})"
    if cx.result == F32:
        return x if cx.dtype.is_float else f"float({x})"
    return x if cx.dtype == I32 else f"int({x})" if cx.dtype == BOOL else f"cuir::to_int({strip(x)})"


# ---- whole tiles
@emits("row_max", "tile")
def row_max(role: RoleEmitter, call: Call, target: str) -> None:
    x = role.tiles.reduced(call)
    function = "row_max_nan" if role.nans.negative(x) else "row_max"
    role.out.line(f"cuir::{function}({role.tiles.array(x)}, {target});")
    role.tiles.affine_bias.row_max(x, target)


@emits("row_sum", "tile")
def row_sum(role: RoleEmitter, call: Call, target: str) -> None:
    """Of the whole row; a sum that stays partial is emitted with its statement (tiles.py)."""
    part = role.tiles.row_part(call)
    frag = role.fragment(role.tile_type(call))
    role.tiles.loop("rows", frag, lambda at: f"{target}[{at.r}] = cuir::quad_sum({part}[{at.r}]);")


@emits("mma_async", "tile")
def mma_async(role: RoleEmitter, call: Call, target: str) -> None:
    raise unsupported("a product in flight inside an expression", call.span, "bind it to a name: S = mma_async(...)")


@emits("mma", "tile")
def mma(role: RoleEmitter, call: Call, target: str) -> None:
    """mma.sync m16n8k16, warp by warp: each warp multiplies its own 16 rows of each slab."""
    args = role.call(call).args
    a, b = args["a"], args["b"]
    out, checked = role.out, role.kernel.checked
    result = role.tile_type(call)
    frag = role.fragment(result)
    a_type, b_type = checked.type_of(a), checked.type_of(b)
    assert isinstance(a_type, (TileType, SharedView))
    inner = a_type.cols if isinstance(a_type, TileType) else a_type.dims[1]
    if not isinstance(b_type, SharedView):
        raise unsupported("a register tile as the right operand of mma", b.span, "store it to shared memory and give its view")
    if "c" in args:
        role.tiles.into(target, args["c"], result)
    else:
        role.tiles.loop("full", frag, lambda at: f"{target}[{at.i}] = 0.f;")
    kind = f"F32{'F16F16' if a_type.dtype.name == 'f16' else 'BF16BF16'}F32"
    register_a = role.tiles.packed(a) if isinstance(a_type, TileType) else None
    b_view = role.views.shared(b)
    a_view = None if register_a else role.views.shared(a)
    for view in (a_view, b_view):
        if view is not None and not view.alloc.panelled:
            raise unsupported("an operand in shared memory whose rows are no whole panels", call.span)
    if a_view is not None and a_view.transposed:
        raise unsupported("a transposed left operand of mma", a.span)
    fragments = out.temp("b")
    base_b = out.temp("base")
    steps = inner // 16
    per_slab = frag.groups * 4
    out.line(f"const uint32_t {base_b} = {b_view.address};")
    base_a = ""
    if a_view is not None:
        base_a = out.temp("base")
        out.line(f"const uint32_t {base_a} = {a_view.address};")
    warp_row = "16 * warp" if role.threads == 128 else "0"
    with out.block(f"#pragma unroll\nfor (int k_ = 0; k_ < {steps}; ++k_)"):
        for s in range(frag.slabs):
            if a_view is not None:
                out.line(f"uint32_t a{s}_[4];")
                row = f"{s * frag.slab} + {warp_row} + (lane & 15)"
                out.line(
                    f"cuir::load_matrix(cuir::at<{a_view.alloc.rows}>({base_a}, {row}, 32 * k_ + 16 * (lane >> 4)), a{s}_[0], a{s}_[1], a{s}_[2], a{s}_[3]);"
                )
        with out.block(f"#pragma unroll\nfor (int j_ = 0; j_ < {frag.groups}; j_ += 2)"):
            out.line(f"uint32_t {fragments}[4];  // columns 8 j .. 8 j + 15, rows 16 k .. 16 k + 15 of b")
            if b_view.transposed:  # memory rows are columns of b
                where = "8 * j_ + (lane & 7) + 8 * (lane >> 4), 32 * k_ + 16 * (lane >> 3 & 1)"
                load = "load_matrix"
            else:
                where = "16 * k_ + (lane & 15), 16 * j_ + 16 * (lane >> 4)"
                load = "load_matrix_T"
            last = frag.groups % 2 == 1
            if last:  # the pair's second block of columns does not exist: read the first again
                where = where.replace("(lane >> 4)", f"(j_ + 1 < {frag.groups} ? lane >> 4 : 0)")
            out.line(f"cuir::{load}(cuir::at<{b_view.alloc.rows}>({base_b}, {where}), {', '.join(f'{fragments}[{i}]' for i in range(4))});")
            for s in range(frag.slabs):
                ops = [f"a{s}_[{i}]" for i in range(4)] if a_view else [f"{register_a}[{s * inner // 4} + 4 * k_ + {i}]" for i in range(4)]
                for half in range(2):
                    i0 = f"{s * per_slab} + 4 * j_ + {4 * half}"
                    d = [f"{target}[{i0} + {e}]" for e in range(4)]
                    text = f"cute::SM80_16x8x16_{kind}_TN::fma({', '.join([*d, *ops, f'{fragments}[{2 * half}]', f'{fragments}[{2 * half + 1}]', *d])});"
                    out.line(f"if (j_ + 1 < {frag.groups}) {text}" if half and last else text)


@emits("mma_wait", "statement")
def mma_wait(role: RoleEmitter, call: Call) -> None:
    role.products.wait(call)

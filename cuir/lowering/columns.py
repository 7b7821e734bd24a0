"""Gathers whose place depends on the column alone: a warp reads each column once, and its lanes take what they need from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..syntax.nodes import Name, Subscript
from ..syntax.types import Scalar, TileType
from .values import strip

if TYPE_CHECKING:
    from .tiles import TileEmitter

LANES = 32


def column_values(tiles: TileEmitter, expr: Subscript) -> str | None:
    """The name of an array with a thread's column values of a gather [1, C] along consecutive elements, emitted now; None for other gathers.

    Eight lanes need the same column: one bounds check and one read of each, coalesced, instead of C / 4 by each lane, which would all be in flight at once
    and leave no registers. All lanes of the warp are here: nothing but tiles differs between them.
    """
    role, key = tiles.role, f"columns:{id(expr)}"
    if key in role.hoisted:
        return role.hoisted[key]
    t = tiles.checked.type_of(expr)
    assert isinstance(t, TileType) and isinstance(expr.value, Name)
    places = [tiles.linear(i) for i in expr.indices]  # type: ignore[arg-type]
    slopes = [p.slope if p is not None and len(p.rows) == 1 else None for p in places]
    if sorted(map(str, slopes)) != ["0"] * (len(slopes) - 1) + ["1"]:
        return None
    kernel, tensor = role.kernel, role.kernel.tensors[expr.value.id]
    texts = [p.rows[0] if p.slope == 0 else f"({p.rows[0]} + ({LANES} * x_ + lane - col))" for p in places if p is not None]
    scalars = [isinstance(tiles.checked.type_of(i), Scalar) for i in expr.indices]  # type: ignore[arg-type]
    read = kernel.tensor_read(tensor.name, kernel.index(tensor.name, texts, scalars))
    ctype = "float" if tensor.dtype.is_float else "int"
    own, found = tiles.out.temp("own"), tiles.out.temp("columns")
    tiles.out.line(f"{ctype} {own}[{-(-t.cols // LANES)}], {found}[{t.cols // 4}];")
    tiles.out.line(
        f"#pragma unroll\nfor (int x_ = 0; x_ < {-(-t.cols // LANES)}; ++x_) {own}[x_] = {kernel.inside(tensor.name, texts)} ? {strip(read)} : 0;"
    )
    with tiles.out.block(f"#pragma unroll\nfor (int c_ = 0; c_ < {t.cols // 4}; ++c_)"):
        tiles.out.line("const int k_ = 8 * (c_ / 2) + c_ % 2;")
        tiles.out.line(f"{found}[c_] = __shfl_sync(~0u, {own}[k_ / {LANES}], k_ % {LANES} + col);")
    role.hoisted[key] = found
    return found

"""Keys and values of one batch that all batches of queries share: K and V [1, HK, N, D], as the pages of a cache are. Owns that edit of a kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..syntax.nodes import Func, GlobalType, Kernel, Literal, Name, Param, Program, Subscript
from ..syntax.rewrite import rewrite
from ..text.diagnostics import CuirError

SHARED = ("K", "V")


def with_shared_keys(program: Program, target: Kernel) -> Program:
    """The program with K and V [1, HK, N, D] instead of [B, HK, N, D]. target: its attention kernel. Raises CuirError X131 if its batch is no dim of theirs."""
    own = {p.name: p.type for p in target.params}
    for name in SHARED:
        kind = own.get(name)
        if not isinstance(kind, GlobalType) or len(kind.dims) != 4 or kind.dims[0] not in ("B", 1):
            raise CuirError.of(
                "X131", f"keys that batches share are K and V [B, HK, N, D], and `{target.name}` has other ones", target.span
            )

    def shared(p: Param) -> Param:
        return replace(p, type=replace(p.type, dims=(1, *p.type.dims[1:]))) if p.name in SHARED and isinstance(p.type, GlobalType) else p

    def of_one_batch(node: Any) -> Any:
        if isinstance(node, Subscript) and isinstance(node.value, Name) and node.value.id in SHARED:
            return replace(node, indices=(Literal(0), *node.indices[1:]))
        return node

    items = tuple(rewrite(i, of_one_batch) if isinstance(i, Func) or i is target else i for i in program.items)
    return replace(
        program,
        items=tuple(
            replace(i, params=tuple(map(shared, i.params))) if isinstance(i, Kernel) and i.name == target.name else i for i in items
        ),
    )


__all__ = ["SHARED", "with_shared_keys"]

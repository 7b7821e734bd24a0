"""Content of specialised kernels, by which a mutant is compared with its original."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from ..checking.checked import Checked
from ..ops.expressions import traits
from ..syntax.nodes import Assign, Binary, Expr, For, Keyword, Literal, Name, Node, Stmt
from ..syntax.types import I32, Scalar, TileType
from ..syntax.walk import copy_marks, names_read, rewrite, walk
from .equivalence_arguments import sort_factors


def list_content(checked: Checked) -> tuple[object, ...]:
    """Return the content of a specialised kernel as a comparable tuple.

    Without the text that it came from, barriers that nothing uses, and `cluster=` where a cluster is one CTA.
    """
    alone = checked.cluster == 1
    roles = tuple(
        (r.name, r.workers, r.threads, r.registers, r.index, _normalise(r.body, alone, _find_ones(r.body)), r.warpgroup, r.warp)
        for r in checked.roles
    )
    used = {name for r in checked.roles for stmt in r.body for name in names_read(stmt)}
    barriers = {name: b for name, b in checked.barriers.items() if name in used}
    return checked.cluster, dict(checked.shared), barriers, checked.tiles, checked.declarations, roles, checked.scalars, checked.tensors


def _find_ones(body: tuple[Stmt, ...]) -> set[str]:
    """Return the names that every statement which binds them binds to 1.0."""
    only_ones: dict[str, bool] = {}
    for node in (n for stmt in body for n in walk(stmt)):
        if isinstance(node, For):
            only_ones[node.target] = False
        elif isinstance(node, Assign):
            only_ones |= {name: only_ones.get(name, True) and node.value == Literal(1.0) for name in node.targets}
    return {name for name, is_one in only_ones.items() if is_one}


def _normalise(body: tuple[Stmt, ...], alone: bool, names: Set[str]) -> tuple[Stmt, ...]:
    """Normalise statements: x / 1.0 becomes x * 1.0, which are both x exactly; factors are sorted, whose product is the same.

    Without the keyword `cluster` if a cluster is one CTA: it has no meaning there.
    """

    def normalise(node: Node) -> Node | tuple[Node, ...]:
        if isinstance(node, Keyword) and node.name == "cluster" and alone:
            return ()
        if isinstance(node, Binary) and isinstance(node.type, (Scalar, TileType)) and node.type.dtype == I32:
            node = _fold_neutral(node)
        if isinstance(node, Binary) and traits(node).divisor and traits(node).factors:
            divisor = node.right
            is_one = divisor == Literal(1.0) or (isinstance(divisor, Name) and divisor.id in names)
            node = copy_marks(node, replace(node, op="*")) if is_one else node
        return sort_factors(node)

    return tuple(rewrite(stmt, normalise) for stmt in body)


def _fold_neutral(e: Binary) -> Expr:
    """Fold operations on integers that change nothing: x // 1, x + 0 and x - 0 are x, and x % 1 is 0."""
    operator = traits(e)
    if e.right == Literal(1) and operator.remainder:
        return copy_marks(e, Literal(0, span=e.span))
    is_neutral = e.right == Literal(1 if operator.rounds is not None else 0) and (operator.rounds is not None or operator.linear)
    return e.left if is_neutral else e


def has_spare_stages(kernel: Checked, other: Checked) -> bool:
    """Return whether a kernel is another one with more stages of some arrays and barriers.

    The statements are the same, so the stages beyond the other's are never used.
    """
    _, arrays, barriers, *rest = list_content(kernel)
    _, fewer_arrays, fewer_barriers, *other_rest = list_content(other)
    if rest != other_rest or kernel.cluster != other.cluster:
        return False
    assert isinstance(arrays, dict) and isinstance(fewer_arrays, dict) and isinstance(barriers, dict) and isinstance(fewer_barriers, dict)
    if arrays.keys() != fewer_arrays.keys() or barriers.keys() != fewer_barriers.keys():
        return False
    spare = False
    for name, array in arrays.items():
        fewer = fewer_arrays[name]
        if replace(array, dims=fewer.dims, offset=fewer.offset) != fewer or array.dims[1:] != fewer.dims[1:] or array.dims < fewer.dims:
            return False
        spare |= array.dims != fewer.dims
    for name, barrier in barriers.items():
        fewer = fewer_barriers[name]
        if replace(barrier, stages=fewer.stages) != fewer or (barrier.stages or 0) < (fewer.stages or 0):
            return False
        spare |= barrier.stages != fewer.stages
    return spare


__all__ = ["has_spare_stages", "list_content"]

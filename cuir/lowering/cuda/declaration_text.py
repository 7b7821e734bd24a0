"""Declarations of multi-valued variables, in the innermost block that holds all definitions and uses."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from ..analyses.liveness import iterate_leaves
from ..ir import ops
from .storage import Storage, Storages

Path = list[tuple[Block, Operation]]  # from the role's block to an operation


def place_declarations(role: Operation, storages: Storages) -> dict[Operation, list[Storage]]:
    """Map each operation to the variables that are declared before it."""
    paths: dict[Storage, list[Path]] = {}

    def touch(value: SSAValue, path: Path) -> None:
        s = storages.get(value)
        if s is not None and not s.constant:
            paths.setdefault(s, []).append(path)

    def visit(block: Block, path: Path) -> None:
        for op in block.ops:
            location = [*path, (block, op)]
            for operand in op.operands:
                for leaf in iterate_leaves(operand):
                    touch(leaf, location)
            for result in (*op.results, *(op.inner if isinstance(op, ops.Loop) else ())):  # set before the loop
                touch(result, location)
            for region in op.regions:
                visit(region.block, location)

    visit(role.regions[0].block, [])
    before: dict[Operation, list[Storage]] = {}
    for storage, uses in paths.items():
        before.setdefault(_find_declaration_point(uses), []).append(storage)
    return before


def _find_declaration_point(paths: list[Path]) -> Operation:
    """Return the operation before which a variable is declared that is used at the ends of these paths."""
    depth = 0
    while all(len(p) > depth + 1 for p in paths) and len({p[depth][1] for p in paths}) == 1 and len({p[depth + 1][0] for p in paths}) == 1:
        depth += 1
    block = paths[0][depth][0]
    heads = {p[depth][1] for p in paths}
    return next(op for op in block.ops if op in heads)

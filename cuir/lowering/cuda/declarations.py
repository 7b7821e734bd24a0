"""Where variables of several values are declared: in the innermost block that holds all that is made of them and read."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from ..facts.liveness import iterate_leaves
from ..ir import ops
from .storage import Storage, Storages

Path = list[tuple[Block, Operation]]  # from the role's block to an operation


def declarations(role: Operation, storages: Storages) -> dict[Operation, list[Storage]]:
    """Operation -> the variables that are declared before it."""
    paths: dict[Storage, list[Path]] = {}

    def touch(value: SSAValue, path: Path) -> None:
        s = storages.get(value)
        if s is not None and not s.constant:
            paths.setdefault(s, []).append(path)

    def visit(block: Block, path: Path) -> None:
        for op in block.ops:
            here = [*path, (block, op)]
            for operand in op.operands:
                for leaf in iterate_leaves(operand):
                    touch(leaf, here)
            for result in (*op.results, *(op.inner if isinstance(op, ops.Loop) else ())):  # what a loop carries is set before it
                touch(result, here)
            for region in op.regions:
                visit(region.block, here)

    visit(role.regions[0].block, [])
    before: dict[Operation, list[Storage]] = {}
    for storage, uses in paths.items():
        before.setdefault(_before(uses), []).append(storage)
    return before


def _before(paths: list[Path]) -> Operation:
    """The operation before which a variable stands that is used at the ends of these paths."""
    depth = 0
    while all(len(p) > depth + 1 for p in paths) and len({p[depth][1] for p in paths}) == 1 and len({p[depth + 1][0] for p in paths}) == 1:
        depth += 1
    block = paths[0][depth][0]
    at = {p[depth][1] for p in paths}
    return next(op for op in block.ops if op in at)

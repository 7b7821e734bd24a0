"""Choices by `warp_any` become branches of each warp, which works out only the side that it needs.

Choices of a block by the same vote share a branch: what only they read goes inside. What decides the vote need not be known row by row: where it can only
become true with a greater row maximum, each thread asks its own elements, and the threads of a row meet inside the branch alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import Block, Operation, Region, SSAValue

from ...ops.traits import BELOW
from ...syntax.types import BOOL, F32
from ..ir import make, ops
from ..ir.types import ScalarT, TileT, dtype_of, is_scalar, scalar, tile
from ..ir.warps import RowBound, WarpIf
from .rewriting import before, every, insert, replace
from .simplify import number


def run(kernel: ops.Kernel) -> None:
    for role in kernel.roles:
        for block in [role.body.block, *(r.block for op in every(role) for r in op.regions)]:
            _block(block, role.threads.data // 2)


def _votes(value: SSAValue) -> SSAValue | None:
    """x of warp_any(x)."""
    op = value.owner
    return op.arguments[0] if isinstance(op, ops.Apply) and op.kind.votes else None


def _block(block: Block, slab: int) -> None:
    done: set[SSAValue] = set()
    for op in list(block.ops):
        if op.parent is block and isinstance(op, ops.Apply) and op.kind.chooses:
            vote = op.arguments[0]
            if _votes(vote) is not None and vote not in done:
                done.add(vote)
                _branch(block, vote, slab)


def _branch(block: Block, vote: SSAValue, slab: int) -> None:
    group: list[ops.Apply] = []
    for op in block.ops:
        if isinstance(op, ops.Apply) and op.kind.chooses and op.arguments[0] is vote:
            if group and not _movable(op.arguments[1:], group[0]):
                break
            group.append(op)
    first = group[0]
    for op in group[1:]:  # what the later choices take comes before the first one; choices before them are known inside the branch
        for x in op.arguments[1:]:
            _move(x, first, {g.result for g in group})
    asked = _votes(vote)
    assert asked is not None
    known = all(number(op.arguments[2]) is not None for op in group)  # every row moves away from a known number
    part = None if known else _partial(asked, first)
    sides = []
    for k in (1, 2):
        chosen: dict[SSAValue, SSAValue] = {}
        inner = Block()
        for op in group:
            value = _inside(op.arguments[k], op, inner, chosen, k)
            several = isinstance(op.result.type, TileT) and op.result.type.shape[0] > slab
            # a warp that holds several groups of rows chooses for each; one whose vote may hold where it need not asks again
            chosen[op.result] = _selected(op, value, inner) if k == 1 and (several or part is not None) else value
        inner.add_op(ops.end([chosen[op.result] for op in group]))
        sides.append(Region(inner))
    decided = asked if part is None else part
    if is_scalar(decided):
        decided = insert(first, make.full(decided, tile(BOOL, 1, 1)))
    new = WarpIf.made(decided, *sides)
    before(first, new)
    for op, result in zip(group, new.results, strict=True):
        result.name_hint = op.result.name_hint
        replace(op, [result])
    if not list(vote.uses) and isinstance(vote.owner, Operation):  # what it asks may go inside now
        vote.owner.detach()
        vote.owner.erase()
    _sink(new)


def _selected(op: ops.Apply, value: SSAValue, inner: Block) -> SSAValue:
    """A value of the side that is taken if the vote holds, by the vote itself."""
    made = make.where(op.arguments[0], value, op.arguments[2], op.result.type)
    inner.add_op(made)
    return made.result


def _movable(values: Iterable[SSAValue], first: Operation) -> bool:
    """Whether what makes these values can stand before an operation of its block: it is pure there, or made before."""
    for value in values:
        op = value.owner
        if not isinstance(op, Operation) or op.parent is not first.parent or op.is_before_in_block(first):
            continue
        if isinstance(op, ops.Apply) and op.kind.chooses and op.arguments[0] is first.arguments[0]:  # type: ignore[attr-defined]
            continue
        if not isinstance(op, (ops.Apply, ops.Constant)) or not _movable(op.operands, first):
            return False
    return True


def _move(value: SSAValue, first: Operation, choices: set[SSAValue]) -> None:
    op = value.owner
    if value in choices or not isinstance(op, Operation) or op.parent is not first.parent or op.is_before_in_block(first):
        return
    if any(o in choices or _reads(o, choices, first) for o in op.operands):
        return  # it goes inside
    for operand in op.operands:
        _move(operand, first, choices)
    op.detach()
    assert first.parent is not None
    first.parent.insert_op_before(op, first)


def _reads(value: SSAValue, choices: set[SSAValue], first: Operation) -> bool:
    op = value.owner
    if value in choices:
        return True
    if not isinstance(op, Operation) or op.parent is not first.parent or op.is_before_in_block(first):
        return False
    return any(_reads(o, choices, first) for o in op.operands)


def _inside(value: SSAValue, choice: ops.Apply, inner: Block, chosen: dict[SSAValue, SSAValue], side: int) -> SSAValue:
    """A value as it is on one side of the branch, where earlier choices are known: what reads them is worked out anew inside."""
    if value in chosen:
        return chosen[value]
    op = value.owner
    t, made = value.type, value
    if isinstance(op, ops.Apply) and any(_reads_any(o, chosen) for o in op.operands):
        copy = make.like(op, [_inside(o, choice, inner, chosen, side) for o in op.operands])
        copy.location = op.location
        inner.add_op(copy)
        made = copy.result
    if made.type == choice.result.type or not isinstance(choice.result.type, TileT):
        return made
    if is_scalar(made):  # a number for all rows
        full = make.full(made, choice.result.type)
        full.location = choice.location
        inner.add_op(full)
        return full.result
    assert t == choice.result.type, (t, choice.result.type)
    return made


def _reads_any(value: SSAValue, chosen: dict[SSAValue, SSAValue]) -> bool:
    if value in chosen:
        return True
    op = value.owner
    return isinstance(op, ops.Apply) and any(_reads_any(o, chosen) for o in op.operands)


def _sink(branch: WarpIf) -> None:
    """Puts inside what only one side of the branch reads."""
    for region in branch.regions:
        for op in reversed([o for o in branch.parent.ops if o.is_before_in_block(branch)]):  # type: ignore[union-attr]
            if not isinstance(op, ops.Apply) or not list(op.result.uses):
                continue
            if all(_region_of(u.operation, branch) is region for u in op.result.uses):
                op.detach()
                first = region.block.first_op
                assert first is not None
                region.block.insert_op_before(op, first)


def _region_of(op: Operation, branch: WarpIf) -> Region | None:
    while op.parent_op() is not branch:
        parent = op.parent_op()
        if parent is None:
            return None
        op = parent
    return op.parent_region()


# ---- votes by parts
def _partial(value: SSAValue, at: Operation) -> SSAValue | None:
    """The vote with each thread's own elements in the place of a row's maximum, if it can only become true with a greater one; None if it cannot be so."""
    found = _maximum(value)
    if found is None:
        return None
    bound = RowBound(operands=[found.owner.arguments[0]], result_types=[found.type])  # type: ignore[union-attr]
    signs: list[SSAValue] = []
    if not _rises(value, found, signs):
        return None
    insert(at, bound)
    made = _with(value, found, bound.result, at)
    for sign in signs:  # a factor that is negative turns the order around: then all rows are looked at
        zero = insert(at, ops.constant(0.0, F32))
        test = insert(at, make.less(sign, zero, _bool_like(sign)))
        made = insert(at, make.either(made, test, made.type))
    return made


def _bool_like(value: SSAValue) -> TileT | ScalarT:
    return tile(BOOL, *value.type.shape) if isinstance(value.type, TileT) else scalar(BOOL)


def _maximum(value: SSAValue) -> SSAValue | None:
    """The maximum of rows that a value is made of, if it is one alone."""
    op = value.owner
    if not isinstance(op, ops.Apply):
        return None
    if op.kind.reduction == "max":
        return value
    found = {m for o in op.operands if (m := _maximum(o)) is not None}
    return found.pop() if len(found) == 1 else None


def _rises(value: SSAValue, top: SSAValue, signs: list[SSAValue], falling: bool = False) -> bool:
    """Whether a value does not fall as `top` rises (or, `falling`, does not rise), given that `signs` are not negative."""
    if value is top:
        return not falling
    if not _depends(value, top):
        return True
    op = value.owner
    assert isinstance(op, ops.Apply)
    of = op.kind
    if of.compares in BELOW:
        a, b = op.arguments
        return dtype_of(a) == F32 and _rises(b, top, signs, falling) and _rises(a, top, signs, not falling)
    if of.linear or of.extremum:
        times = of.linear or (1,) * len(op.arguments)
        return all(_rises(a, top, signs, falling if by > 0 else not falling) for a, by in zip(op.arguments, times, strict=True))
    if of.multiplies:
        for x, factor in (op.arguments, op.arguments[::-1]):
            if _depends(x, top) and not _depends(factor, top):
                n = number(factor)
                if n is None:
                    signs.append(factor)
                elif not n >= 0:
                    return False
                return _rises(x, top, signs, falling)
    return False


def _depends(value: SSAValue, top: SSAValue) -> bool:
    return value is top or (isinstance(value.owner, ops.Apply) and any(_depends(o, top) for o in value.owner.operands))


def _with(value: SSAValue, old: SSAValue, new: SSAValue, at: Operation) -> SSAValue:
    """A value anew, with one of the values that it is made of exchanged."""
    if value is old:
        return new
    if not _depends(value, old):
        return value
    op = value.owner
    assert isinstance(op, ops.Apply)
    return insert(at, make.like(op, [_with(o, old, new, at) for o in op.operands]))

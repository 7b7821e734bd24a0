"""Turn selects by `warp_any` into branches of each warp, which computes only the side that it needs.

The pass moves all selects by the same vote, and the values that only these selects read, into one branch.

Where a vote can only become true with a greater row maximum, each thread tests its own elements, and the threads of a
row meet inside the branch alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import Block, Operation, Region, SSAValue

from ...ops.traits import BELOW
from ...syntax.types import BOOL, F32
from ..analyses.memory import is_memory_effect_free
from ..analyses.value_flow import walk_expression
from ..ir import constructors, ops
from ..ir.ir_types import ScalarT, TileT, dtype_of, is_scalar, scalar, tile
from ..ir.ir_walk import every, operations
from ..ir.machine_ops import RowBound, WarpIf
from ..ir.ops import is_same_number, number
from .rewriting import before, insert, replace


def run(kernel: ops.Kernel) -> None:
    """Rewrite the choices of each block."""
    for role in kernel.roles:
        for block in [role.body.block, *(r.block for op in every(role) for r in op.regions)]:
            _rewrite_block(block, role.threads.data // 2)


def _find_vote_operand(value: SSAValue) -> SSAValue | None:
    """Return x of warp_any(x), None for other values."""
    op = value.owner
    return op.arguments[0] if isinstance(op, ops.Apply) and op.kind.votes else None


def _rewrite_block(block: Block, slab: int) -> None:
    """Rewrite the choices of a block.

    `slab` is the number of rows that the warps of a worker hold together.
    """
    for op in operations(block):
        if isinstance(op, ops.Apply) and op.kind.chooses:
            _split_choice(op)
    visited: set[SSAValue] = set()
    for op in operations(block):
        if op.parent is block and isinstance(op, ops.Apply) and op.kind.chooses:
            vote = op.arguments[0]
            if _find_vote_operand(vote) is not None and vote not in visited:
                visited.add(vote)
                _insert_branch(block, vote, slab)


def _split_choice(choice: ops.Apply) -> None:
    """Split a choice by a vote and a condition of rows: one by the condition within one by the vote."""
    test, x, y = choice.arguments
    conjunction = test.owner
    if not isinstance(conjunction, ops.Apply) or conjunction.kind.decided_by is not False or dtype_of(test) != BOOL:
        return
    vote = next((v for v in conjunction.arguments if _find_vote_operand(v) is not None), None)
    if vote is None:
        return
    rows = conjunction.arguments[1] if conjunction.arguments[0] is vote else conjunction.arguments[0]
    t = choice.result.type
    replace(choice, [insert(choice, constructors.where(vote, insert(choice, constructors.where(rows, x, y, t)), y, t))])
    if not list(conjunction.result.uses):  # it would keep the vote and its operands outside of the branch
        conjunction.detach()
        conjunction.erase()


def _insert_branch(block: Block, vote: SSAValue, slab: int) -> None:
    """Replace all choices by a vote by one branch of the warp."""
    group: list[ops.Apply] = []
    for op in block.ops:
        if isinstance(op, ops.Apply) and op.kind.chooses and op.arguments[0] is vote:
            if group and not _can_move(op.arguments[1:], group[0]):
                break
            group.append(op)
    first = group[0]
    for op in group[1:]:  # operands of later choices go before the first; earlier choices are known inside the branch
        for x in op.arguments[1:]:
            _move(x, first, {g.result for g in group})
    condition = _find_vote_operand(vote)
    assert condition is not None
    # nearly every warp moves away from a known number: a branch would only cost
    if all(number(op.arguments[2]) is not None for op in group):
        for op in group:
            _use_row_choice(op, condition)
        return
    part = _make_partial_vote(condition, first)
    sides = []
    for k in (1, 2):
        replacements: dict[SSAValue, SSAValue] = {}
        inner = Block()
        for op in group:
            value = _with_type(_rebuild_inside(op.arguments[k], group[0], inner, replacements), op.result, inner)
            has_groups = isinstance(op.result.type, TileT) and op.result.type.shape[0] > slab
            # a warp that holds several groups of rows chooses for each; so does one whose vote is only a bound
            if k == 1 and (has_groups or part is not None):
                value = _insert_choice(op, value, _rebuild_inside(op.arguments[2], group[0], inner, replacements), inner)
            replacements[op.result] = value
        inner.add_op(ops.end([replacements[op.result] for op in group]))
        sides.append(Region(inner))
    decision = condition if part is None else part
    if is_scalar(decision):
        decision = insert(first, constructors.full(decision, tile(BOOL, 1, 1)))
    new = WarpIf.from_regions(decision, *sides)
    before(first, new)
    for op, result in zip(group, new.results, strict=True):
        result.name_hint = op.result.name_hint
        replace(op, [result])
    if not list(vote.uses) and isinstance(vote.owner, Operation):  # its operands may go inside now
        vote.owner.detach()
        vote.owner.erase()
    _sink(new)


def _use_row_choice(choice: ops.Apply, condition: SSAValue) -> None:
    """Replace a choice by its chosen side, if that chooses row by row by the condition of the vote."""
    inner = choice.arguments[1].owner
    if not isinstance(inner, ops.Apply) or not inner.kind.chooses or inner.result.type != choice.result.type:
        return
    if inner.arguments[0] is condition and is_same_number(inner.arguments[2], choice.arguments[2]):
        replace(choice, [inner.result])


def _insert_choice(op: ops.Apply, value: SSAValue, alternative: SSAValue, inner: Block) -> SSAValue:
    """Choose a value of the side that is taken if the vote holds, by the vote itself."""
    choice = constructors.where(op.arguments[0], value, alternative, op.result.type)
    inner.add_op(choice)
    return choice.result


def _can_move(values: Iterable[SSAValue], first: ops.Apply) -> bool:
    """Return whether the definitions of these values can be moved before an operation of their block.

    They have no memory effect, and lanes do not meet there; or they come before it already.
    """
    for value in values:
        for v in walk_expression(value, ends := lambda v: _stands_before(v, first) or _has_same_vote(v, first)):
            if ends(v):
                continue
            if not isinstance(v.owner, Operation) or not is_memory_effect_free(v.owner) or ops.kind_of(v).column_reduction:
                return False
    return True


def _has_same_vote(value: SSAValue, choice: ops.Apply) -> bool:
    """Return whether a value is chosen by the same vote."""
    op = value.owner
    return isinstance(op, ops.Apply) and op.kind.chooses is not None and op.arguments[0] is choice.arguments[0]


def _move(value: SSAValue, first: Operation, choices: set[SSAValue]) -> None:
    """Move a value and its operands before an operation, unless it depends on a choice."""
    op = value.owner
    if value in choices or not isinstance(op, Operation) or _stands_before(value, first):
        return
    if any(v in choices for v in walk_expression(value, lambda v: _stands_before(v, first))):
        return  # it goes inside
    for operand in op.operands:
        _move(operand, first, choices)
    op.detach()
    assert first.parent is not None
    first.parent.insert_op_before(op, first)


def _stands_before(value: SSAValue, first: Operation) -> bool:
    op = value.owner
    return not isinstance(op, Operation) or op.parent is not first.parent or op.is_before_in_block(first)


def _rebuild_inside(value: SSAValue, first: Operation, inner: Block, cache: dict[SSAValue, SSAValue]) -> SSAValue:
    """Return a value on one side of the branch, where earlier choices are known.

    Values that depend on these are computed anew there. `cache`: values of this side.
    """
    if value not in cache:
        op = value.owner
        cache[value] = value
        if isinstance(op, ops.Apply) and not _stands_before(value, first):
            assert not op.kind.column_reduction, "the warps of a worker meet nowhere inside of a branch of warps"
            operands = [_rebuild_inside(o, first, inner, cache) for o in op.operands]
            if operands != list(op.operands):
                copy = constructors.like(op, operands)
                copy.location = op.location
                inner.add_op(copy)
                cache[value] = copy.result
    return cache[value]


def _with_type(value: SSAValue, choice: SSAValue, inner: Block) -> SSAValue:
    """Return a value with the type of the choice, which repeats numbers per row or column."""
    if value.type == choice.type or not isinstance(choice.type, TileT):
        return value
    if is_scalar(value):
        new: list[Operation] = [constructors.full(value, choice.type)]
    else:  # a choice by True: the operation of the table that repeats a number per row or column
        always = ops.constant(True, BOOL)
        new = [always, constructors.where(always.result, value, value, choice.type)]
    for op in new:
        op.location = choice.owner.location  # type: ignore[union-attr]
        inner.add_op(op)
    return new[-1].results[0]


def _sink(branch: WarpIf) -> None:
    """Sink values that only one side of the branch reads into it."""
    for region in branch.regions:
        for op in reversed([o for o in branch.parent.ops if o.is_before_in_block(branch)]):  # type: ignore[union-attr]
            if not isinstance(op, ops.Apply) or not list(op.result.uses) or op.kind.column_reduction:
                continue
            if all(_find_region(u.operation, branch) is region for u in op.result.uses):
                op.detach()
                first = region.block.first_op
                assert first is not None
                region.block.insert_op_before(op, first)


def _find_region(op: Operation, branch: WarpIf) -> Region | None:
    while op.parent_op() is not branch:
        parent = op.parent_op()
        if parent is None:
            return None
        op = parent
    return op.parent_region()


# ---- votes by parts
def _make_partial_vote(value: SSAValue, at: Operation) -> SSAValue | None:
    """Return the vote with each thread's own elements in place of a row's maximum, or None.

    This requires that the vote can only become true with a greater maximum.
    """
    maxima = [v for v in walk_expression(value, _is_maximum) if _is_maximum(v)]
    if len(maxima) != 1:
        return None
    votes = _Monotone(value, maxima[0])
    return votes.with_bound(at) if votes.rises else None


def _is_maximum(value: SSAValue) -> bool:
    """Return whether a value is the maximum of each row of an accumulator."""
    op = value.owner
    if not isinstance(op, ops.Apply) or op.kind.reduction != "max":
        return False
    t = op.arguments[0].type
    return isinstance(t, TileT) and t.layout.is_accumulator


class _Monotone:
    """A vote and the maximum of rows from which it is computed.

    `rises`: it does not fall as the maximum rises, given that the factors in `signs` are not negative.
    """

    def __init__(self, vote: SSAValue, top: SSAValue):
        self.vote, self.top = vote, top
        self.signs: dict[SSAValue, None] = {}
        self.depends: dict[SSAValue, bool] = {top: True}
        self.monotone: dict[tuple[SSAValue, bool], bool] = {}
        self.rises = self._rises(vote, False)

    def with_bound(self, at: Operation) -> SSAValue:
        """Return the vote with a bound of the maximum in its place, inserted before `at`."""
        maximum = self.top.owner
        assert isinstance(maximum, ops.Apply)
        bound = insert(at, RowBound(operands=[maximum.arguments[0]], result_types=[self.top.type]))
        bounded = self._rebuild(self.vote, {self.top: bound}, at)
        for sign in self.signs:  # a negative factor reverses the order: then the bound says nothing, and the vote holds
            zero = insert(at, ops.constant(0.0, F32))
            test = insert(at, constructors.less(sign, zero, _make_bool_type(sign)))
            bounded = insert(at, constructors.make_or(bounded, test, bounded.type))
        return bounded

    def _depends(self, value: SSAValue) -> bool:
        if value not in self.depends:
            self.depends[value] = isinstance(value.owner, ops.Apply) and any(map(self._depends, value.owner.arguments))
        return self.depends[value]

    def _rises(self, value: SSAValue, falling: bool) -> bool:
        """Return whether a value does not fall as the maximum rises, or, with `falling`, does not rise."""
        if value is self.top:
            return not falling
        if not self._depends(value):
            return True
        key = value, falling
        if key not in self.monotone:
            assert isinstance(value.owner, ops.Apply)
            self.monotone[key] = self._operation(value.owner, falling)
        return self.monotone[key]

    def _operation(self, op: ops.Apply, falling: bool) -> bool:
        kind = op.kind
        if kind.compares in BELOW:
            a, b = op.arguments
            return dtype_of(a) == F32 and self._rises(b, falling) and self._rises(a, not falling)
        if kind.linear or kind.extremum:
            signs = kind.linear or (1,) * len(op.arguments)
            return all(self._rises(a, falling if by > 0 else not falling) for a, by in zip(op.arguments, signs, strict=True))
        if kind.multiplies:
            for x, factor in (op.arguments, op.arguments[::-1]):
                if self._depends(x) and not self._depends(factor):
                    n = number(factor)
                    if n is None:
                        self.signs[factor] = None
                    elif not n >= 0:
                        return False
                    return self._rises(x, falling)
        return False

    def _rebuild(self, value: SSAValue, copies: dict[SSAValue, SSAValue], at: Operation) -> SSAValue:
        if not self._depends(value):
            return value
        if value not in copies:
            op = value.owner
            assert isinstance(op, ops.Apply)
            copies[value] = insert(at, constructors.like(op, [self._rebuild(a, copies, at) for a in op.arguments]))
        return copies[value]


def _make_bool_type(value: SSAValue) -> TileT | ScalarT:
    return tile(BOOL, *value.type.shape) if isinstance(value.type, TileT) else scalar(BOOL)

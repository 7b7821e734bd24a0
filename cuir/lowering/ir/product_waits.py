"""Waits for products, by the IR of their role: how many each leaves in flight, and the tiles that it finishes.

The builder meets a wait before it knows what the loops around it issue. All tiles that may be products therefore pass
through the wait, until the role is complete. Then a wait for one product finishes this and older ones; other tiles
pass by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xdsl.ir import Block, Operation, SSAValue

from ...ops.base import PRODUCTS
from . import ops
from .in_flight import MOST, Ages, InFlight
from .ir_types import is_tile
from .ir_walk import inner_first, last, operations

ALL = MOST + 1  # more than any age


class ProductWaits:
    """The waits for products of a role that is built, each with the tiles that the program waits for."""

    def __init__(self) -> None:
        self.waited: dict[ops.Perform, Sequence[SSAValue]] = {}

    def make(self, primitive: str, names: Sequence[str], env: dict[str, SSAValue]) -> ops.Perform:
        """Make a wait for the tiles of these names, and bind all names in `env` whose tiles pass through it anew."""
        waited = [env[n] for n in names if n in env and is_tile(env[n])]
        through = [v for v in dict.fromkeys([*waited, *filter(_may_be_product, env.values())]) if not _is_accumulator(v)]
        wait = _make_wait(primitive, through)
        self.waited[wait] = waited
        behind = dict(zip(through, wait.outputs, strict=True))
        env |= {name: behind[v] for name, v in env.items() if v in behind}
        return wait

    def settle(self, body: Block) -> dict[SSAValue, SSAValue]:
        """Decide the waits of a complete role, and return each value that goes with the one in its place."""
        if not self.waited:
            return {}
        flight = _Unsettled(body, self.waited)
        counts = [flight.count_pending(wait, flight.before[wait]) for wait in self.waited]
        finished = [self._find_finished(wait, flight.before[wait], n) for wait, n in zip(self.waited, counts, strict=True)]
        branches = {b for wait in self.waited for b in _iterate_branches(wait)}
        replaced: dict[SSAValue, SSAValue] = {}
        for wait, pending, indices in zip(self.waited, counts, finished, strict=True):
            replaced |= _settle(wait, pending, indices)
        for op in (inner for outer in operations(body) if branches for inner in (*inner_first(outer), outer)):
            if isinstance(op, ops.Branch) and op in branches:
                replaced |= _pass_by(op)
        return replaced

    def _find_finished(self, wait: ops.Perform, ages: Ages, pending: int) -> list[int]:
        """Return which operands a wait finishes: those that it is for, then others, the oldest first.

        `pending`: the number of products that it leaves in flight.
        """
        if pending == ALL:
            return []
        tiles, waited = list(wait.arguments), self.waited[wait]
        others = [i for i, v in enumerate(tiles) if v not in waited and ages.get(v, -1) >= pending]
        return [i for i, v in enumerate(tiles) if v in waited] + sorted(others, key=lambda i: -ages[tiles[i]])


class _Unsettled(InFlight):
    """Products in flight in a role whose waits are not decided.

    An accumulator that a product took over keeps its age, since the program may wait for it.
    """

    def __init__(self, body: Block, waited: Mapping[ops.Perform, Sequence[SSAValue]]):
        self.waited = waited
        super().__init__(body)

    def run(self, block: Block, state: Ages) -> Ages:
        """Return the state at the end of a block; only waits keep theirs."""
        for op in operations(block):
            if isinstance(op, ops.Perform):
                if op in self.waited:
                    self.before[op] = state
                state = self.transfer(op, state)
            elif op.regions:
                state = self.visit(op, state)
        return state

    def transfer(self, op: Operation, state: Ages) -> Ages:
        """Add the product that an operation issues; remove those that it waits for."""
        after = super().transfer(op, state)
        if after is state or not isinstance(op, ops.Perform):
            return after
        if op in self.waited:
            return {**after, **{new: after[v] for v, new in zip(op.arguments, op.outputs, strict=True) if v in after}}
        taken = [v for n, v in op.args.items() if n == "c" and v in state]
        return {**after, **{v: min(state[v] + 1, MOST) for v in taken}}

    def count_pending(self, wait: ops.Perform, state: Ages) -> int:
        """Return the least age of the products waited for; ALL if none of them is in flight."""
        return min((state[v] for v in self.waited[wait] if v in state), default=ALL)

    def rename(self, state: Ages, values: Sequence[SSAValue], into: Sequence[SSAValue]) -> Ages:
        """Add the values that others flow into; these keep their names, which the program may still use."""
        return {**super().rename(state, values, into), **{v: state[v] for v in values if v in state and v not in into}}


def _make_wait(primitive: str, tiles: Sequence[SSAValue], pending: int = 0) -> ops.Perform:
    """Make a wait through which tiles pass."""
    wait = ops.perform(primitive, {f"x{i}": v for i, v in enumerate(tiles)}, [v.type for v in tiles], {"pending": pending})
    for tile, behind in zip(tiles, wait.outputs, strict=True):
        behind.name_hint = tile.name_hint
    return wait


def _settle(wait: ops.Perform, pending: int, finished: Sequence[int]) -> dict[SSAValue, SSAValue]:
    """Put the decided wait in place of one, or nothing if nothing is in flight."""
    tiles, outputs = list(wait.arguments), list(wait.outputs)
    replaced: dict[SSAValue, SSAValue] = dict(zip(outputs, tiles, strict=True))
    if pending < ALL:
        settled = _make_wait(wait.op, [tiles[i] for i in finished], pending)
        settled.location = wait.location
        assert wait.parent is not None
        wait.parent.insert_op_before(settled, wait)
        replaced |= {outputs[i]: new for i, new in zip(finished, settled.outputs, strict=True)}
    for old, new in replaced.items():
        old.replace_all_uses_with(new)
    wait.detach()
    wait.erase()
    return replaced


def _pass_by(branch: ops.Branch) -> dict[SSAValue, SSAValue]:
    """Replace results of a branch that both sides leave as they are: their tiles passed a wait, and do no longer."""
    ends = zip(branch.results, last(branch.then).values, last(branch.orelse).values, strict=True)
    replaced: dict[SSAValue, SSAValue] = {result: then for result, then, orelse in ends if then is orelse}
    for result, value in replaced.items():
        result.replace_all_uses_with(value)
    return replaced


def _iterate_branches(op: Operation) -> Iterator[ops.Branch]:
    """Yield the branches around an operation."""
    while (parent := op.parent_op()) is not None:
        if isinstance(parent, ops.Branch):
            yield parent
        op = parent


def _may_be_product(value: SSAValue) -> bool:
    """Return whether a value is a tile that a product, a wait, or a path on which there is one may give."""
    if not is_tile(value):
        return False
    op = value.owner
    if isinstance(op, ops.Perform):
        return PRODUCTS in (op.entry.effects.group, op.entry.effects.drains)
    return isinstance(op, (Block, ops.Loop, ops.Branch))


def _is_accumulator(value: SSAValue) -> bool:
    """Return whether a product took a tile over as its accumulator: it may be waited for, and not read."""
    return any(
        isinstance(u.operation, ops.Perform) and u.operation.entry.effects.group and u.operation.args.get("c") is value for u in value.uses
    )


__all__ = ["ProductWaits"]

"""The choice of a way for each operation of a kernel that has several."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from xdsl.ir import Operation

from ...ops.base import PRODUCTS
from ...ops.limits import TARGETS
from ..analyses.memory import iterate_accesses
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_types import TensorT, TileT
from ..ir.ir_walk import every
from . import loop_ways, move_ways, tile_ways
from .loop_ways import Turns
from .move_ways import Move
from .product_ways import Product
from .role_facts import RoleFacts
from .runs import record_run
from .tile_ways import is_computed_in_fours
from .ways import Decide, Ways, choose

COMMON = (move_ways.WAYS, loop_ways.WAYS, tile_ways.WAYS)  # behind the ways of a target
PRODUCT_STEPS = {None: "multiply", PRODUCTS: "multiply asynchronously"}  # by the group of a product's effects
Subject = tuple[str, tuple[object, ...]]  # the name of a step, and the arguments of its ways


class HasWays(Protocol):
    """A target, whose `lineage` begins with it and ends with the oldest target that it extends."""

    @property
    def ways(self) -> Ways: ...

    @property
    def lineage(self) -> Sequence[HasWays]: ...


def find_target(arch: str) -> HasWays:
    """Return the target of an architecture, whose package is imported when it is first needed."""
    target: HasWays = importlib.import_module(f"{__package__.rpartition('.')[0]}.targets.{TARGETS[arch].folder}").TARGET
    return target


def list_ways(target: HasWays, step: str) -> list[tuple[str, Decide]]:
    """Return the ways of a step in the order in which they are tried: a target's own, its base's, those of all targets."""
    chosen: dict[str, Decide] = {}
    for ways in (*(t.ways for t in target.lineage), *COMMON):
        chosen = {**chosen, **{name: decide for name, decide in ways.list_ways(step) if name not in chosen}}
    return list(chosen.items())


def select(kernel: ops.Kernel, target: HasWays) -> None:
    """Record a way on each operation that has several."""
    ways: dict[str, list[tuple[str, Decide]]] = {}
    for facts in _list_roles(kernel):
        for op in every(facts.role):
            for find in SUBJECTS:
                if (found := find(op, facts)) is not None:
                    step, subject = found
                    if step not in ways:
                        ways[step] = list_ways(target, step)
                    if ways[step]:
                        choose(ways[step], *subject).record(op)
            record_run(op)


def _list_roles(kernel: ops.Kernel) -> Iterator[RoleFacts]:
    for op in kernel.body.block.ops:
        if isinstance(op, (ops.Role, machine.Queue)):
            yield RoleFacts(kernel, op)


# ---- what is chosen of an operation
def _find_loop(op: Operation, role: RoleFacts) -> Subject | None:
    return ("loop", (Turns(op, role),)) if isinstance(op, ops.For) else None


def _find_gather(op: Operation, role: RoleFacts) -> Subject | None:
    return ("gather", (op,)) if isinstance(op, ops.Perform) and op.kind.indexed else None


def _find_move(op: Operation, role: RoleFacts) -> Subject | None:
    """Return the move of a tile or a number that an operation does itself, with no engine."""
    if not isinstance(op, ops.Perform) or op.entry.effects.group is not None or op.entry.traits.product or op.kind.indexed:
        return None
    accesses = list(iterate_accesses(op))
    if len(accesses) != 1 or accesses[0].access.late:
        return None
    place, array = accesses[0].place, accesses[0].array
    of_tensor = isinstance(array.result.type, TensorT)
    step = ("store" if accesses[0].writes else "load") + (f" {'to' if accesses[0].writes else 'from'} a tensor" if of_tensor else "")
    tile = op.arg("tile").type if accesses[0].writes else op.results[0].type
    return (step, (Move(op, place, tile, array, role),)) if isinstance(tile, TileT) else ("store a number", (op,))


def _find_engine_work(op: Operation, role: RoleFacts) -> Subject | None:
    """Return a product, or a copy or store that an engine or later instructions finish."""
    if not isinstance(op, ops.Perform):
        return None
    effects = op.entry.effects
    if op.entry.traits.product and effects.group in PRODUCT_STEPS:
        step = PRODUCT_STEPS[effects.group]
        return step, (Product(op, role),) if effects.group is None else (op,)
    if effects.group == "cp_async":
        return "copy by threads", (op, role)
    if "bulk_store" in (effects.group, effects.drains):
        return "store by the engine", (op,)
    return ("copy by the engine", (op,)) if effects.completes and effects.accesses else None


def _find_tile(op: Operation, role: RoleFacts) -> Subject | None:
    return ("tile", (op,)) if is_computed_in_fours(op) else None


SUBJECTS: tuple[Callable[[Operation, RoleFacts], Subject | None], ...] = (
    _find_loop,
    _find_gather,
    _find_move,
    _find_engine_work,
    _find_tile,
)

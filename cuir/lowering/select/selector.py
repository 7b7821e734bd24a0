"""The choice of a way for each operation of a kernel that has several."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from xdsl.ir import Operation

from ...ops.base import PRODUCTS
from ...ops.limits import TARGETS
from ...ops.tensor_memory import QUEUE
from ...text.diagnostics import CuirError
from ..analyses import Facts
from ..analyses.memory import iterate_accesses
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.exchanges import GiveColumns
from ..ir.ir_types import TensorT, TileT
from ..ir.ir_walk import every
from ..ir.synchronisation import CtaSync, Join
from . import join_ways, loop_ways, move_ways, number_ways, reduction_ways, tile_ways
from .frame_layout import lay_out_frame
from .hardware_barriers import number_barriers
from .join_ways import is_arrival, reads_queue
from .loop_ways import Turns
from .move_ways import Move
from .number_ways import find_number_step, mark_bounds
from .parameter_space import require_parameter_space
from .place_checks import find_misplaced
from .product_ways import Product
from .role_facts import RoleFacts
from .runs import record_run
from .tile_ways import is_computed_in_fours
from .ways import CHOICE, NUMBER, SCOPE, Decide, NoWay, Selection, Ways, choose

COMMON = (
    move_ways.WAYS,
    loop_ways.WAYS,
    tile_ways.WAYS,
    reduction_ways.WAYS,
    join_ways.WAYS,
    number_ways.WAYS,
)  # behind the ways of a target
PRODUCT_STEPS = {None: "multiply", PRODUCTS: "multiply asynchronously", QUEUE: "multiply into tensor memory"}  # by a product's group
PARTS = {"choose": CHOICE, "order": SCOPE, "divide": NUMBER, "logarithm or root": NUMBER}  # of steps that are no operation's only one
Subject = tuple[str, tuple[object, ...]]  # the name of a step, and the arguments of its ways


class HasWays(Protocol):
    """A target, whose `lineage` begins with it and ends with the oldest target that it extends.

    `printer` and `text` return the code of a primitive as a statement and in an expression, None if there is none.
    """

    @property
    def ways(self) -> Ways: ...

    def printer(self, name: str) -> object: ...

    def text(self, name: str) -> object: ...

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
    """Record a way on each operation that has several, and the numbers of hardware barriers.

    Raises: CuirError L001 to L006 for what the target cannot do.
    """
    ways: dict[str, list[tuple[str, Decide]]] = {}

    def record(op: Operation, subject: Subject) -> None:
        step, arguments = subject
        if step not in ways:
            ways[step] = list_ways(target, step)
        if ways[step]:
            _choose(kernel, op, ways[step], arguments).record(op, PARTS.get(step, ""))

    values = Facts(kernel)
    for op in every(kernel):
        _check(kernel, op, target)
        mark_bounds(op, values)
        if (step := find_number_step(op)) is not None:
            record(op, (step, (op, values)))
    for facts in _list_roles(kernel, values):
        if isinstance(facts.role, ops.Role):
            record(facts.role, ("run a role", (facts,)))
        for op in every(facts.role):
            for find in SUBJECTS:
                if (found := find(op, facts)) is not None:
                    record(op, found)
            record_run(op)
    for op in kernel.body.block.ops:
        if (found := _find_sync(op, kernel)) is not None:
            record(op, found)
    limits = TARGETS[kernel.arch.data]
    if (beyond := number_barriers(kernel, limits.named_barriers)) is not None:
        message = (
            f"the kernel needs more than the {limits.named_barriers - 1} hardware barriers that a CTA has for named barriers "
            "and joins of workers"
        )
        raise CuirError.of("L004", message, kernel.find_span(beyond), "use fewer named barriers or stages")
    if (total := lay_out_frame(kernel).nbytes) > limits.shared_bytes:
        message = f"arrays and barriers take {total} bytes of shared memory, a CTA has {limits.shared_bytes}"
        raise CuirError.of("L005", message, kernel.find_span(kernel), "use fewer stages or smaller tiles")
    require_parameter_space(kernel, limits.parameter_bytes)


def _choose(kernel: ops.Kernel, op: Operation, ways: Sequence[tuple[str, Decide]], subject: Sequence[object]) -> Selection:
    """Return the first way that fits. Raises CuirError with the verdict on the last way if none does."""
    try:
        return choose(ways, *subject)
    except NoWay as error:
        if error.verdict is None:
            raise
        _, because, code, hint = error.verdict
        raise _refuse(kernel, op, because, hint) if code == "L002" else CuirError.of(code, because, kernel.find_span(op), hint) from None


def _check(kernel: ops.Kernel, op: Operation, target: HasWays) -> None:
    """Raise CuirError L001 for a primitive without code, and L002 for a place that cannot be addressed."""
    if isinstance(op, ops.Perform) and target.printer(op.op) is None:
        raise CuirError.of("L001", f"the lowering has no meaning for `{op.entry.written}` as a statement", kernel.find_span(op))
    if isinstance(op, ops.Apply) and not op.kind.index_of and target.text(op.op) is None and target.printer(op.op) is None:
        raise CuirError.of("L001", f"the lowering has no meaning for `{op.entry.written}` here", kernel.find_span(op))
    if (misplaced := find_misplaced(op)) is not None:
        raise _refuse(kernel, misplaced.op, misplaced.because, misplaced.hint)


def _refuse(kernel: ops.Kernel, op: Operation, because: str, hint: str) -> CuirError:
    return CuirError.of("L002", f"the lowering cannot do this yet: {because}", kernel.find_span(op), hint or None)


def _list_roles(kernel: ops.Kernel, values: Facts) -> Iterator[RoleFacts]:
    for op in kernel.body.block.ops:
        if isinstance(op, (ops.Role, machine.Queue)):
            yield RoleFacts(kernel, op, values)


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
        return "store by the engine", (op, role)
    if effects.group == PRODUCTS:
        return "load from tensor memory", (op, role)
    return ("copy by the engine", (op, role)) if effects.completes and effects.accesses else None


def _find_tile(op: Operation, role: RoleFacts) -> Subject | None:
    return ("tile", (op,)) if is_computed_in_fours(op) else None


def _find_choice(op: Operation, role: RoleFacts) -> Subject | None:
    """Return a choice for each element: those of scalars, and of one number a row, are all done alike."""
    t = op.result.type if isinstance(op, ops.Apply) and op.kind.chooses else None
    return ("choose", (op,)) if isinstance(t, TileT) and t.layout.varies_by_column else None


def _find_reduction(op: Operation, role: RoleFacts) -> Subject | None:
    if isinstance(op, GiveColumns):
        return "reduce columns", (op, role)
    if not isinstance(op, ops.Apply) or not (op.kind.reduction or op.kind.column_reduction):
        return None
    return "reduce rows" if op.kind.reduction else "reduce columns", (op, role)


def _find_interleaving(op: Operation, role: RoleFacts) -> Subject | None:
    return ("interleave", (op,)) if isinstance(op, (ops.Apply, ops.Perform)) and op.kind.interleaves else None


def _find_join(op: Operation, role: RoleFacts) -> Subject | None:
    """Return a join, or what a warp does for which its lanes join: an arrival, a take of a work item."""
    if isinstance(op, Join):
        return "join", (op, role)
    if reads_queue(op):
        return "take a work item", (op, role)
    return ("arrive", (op, role)) if is_arrival(op) else None


def _find_sync(op: Operation, kernel: ops.Kernel) -> Subject | None:
    """Return a sync of a CTA or a join of lanes outside of the roles."""
    if isinstance(op, CtaSync):
        return "meet", (op, kernel)
    return ("join", (op, None)) if isinstance(op, Join) else None


def _find_scope(op: Operation, role: RoleFacts) -> Subject | None:
    """Return an arrival at an mbarrier, or a wait, that may order what other CTAs do to tensors."""
    if not isinstance(op, ops.Perform) or op.kind.hardware or not (op.entry.effects.releases or op.entry.effects.waits):
        return None
    return ("order", (op, role)) if role.cluster_barriers else None


SUBJECTS: tuple[Callable[[Operation, RoleFacts], Subject | None], ...] = (
    _find_loop,
    _find_gather,
    _find_move,
    _find_engine_work,
    _find_tile,
    _find_choice,
    _find_reduction,
    _find_interleaving,
    _find_join,
    _find_scope,
)

"""Numbers of hardware barriers: those of the program's named barriers, and those at which warps of a worker join."""

from __future__ import annotations

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Operation, SSAValue

from ..ir import ops
from ..ir.ir_walk import every
from ..ir.synchronisation import Join

NUMBER = "hardware_barrier"  # attribute of a named barrier, and of a role: the first of its stages, or of its workers
FIRST = 1  # 0 is the CTA's
LANES = 32


def number_barriers(kernel: ops.Kernel, limit: int) -> ops.Barrier | ops.Role | None:
    """Number the hardware barriers in the order of their use, and record the numbers.

    Returns: The first named barrier or role that needs more than the `limit` barriers of a CTA, or None.
    """
    following, beyond = FIRST, None
    for user in (*kernel.collect(ops.Barrier).values(), *kernel.roles):
        user.attributes.pop(NUMBER, None)
    for role in sorted(kernel.roles, key=lambda r: r.warpgroup.data):  # the order of the printed text
        for op in every(role):
            named = _find_user(op, role)
            if named is None or NUMBER in named.attributes:
                continue
            named.attributes[NUMBER] = IntAttr(following)
            following += named.stages if isinstance(named, ops.Barrier) else named.workers.data
            if beyond is None and following > limit:
                beyond = named
    return beyond


def _find_user(op: Operation, role: ops.Role) -> ops.Barrier | ops.Role | None:
    """Return the named barrier, or the role, whose hardware barriers an operation needs."""
    if isinstance(op, Join) and op.lanes.data == "worker" and role.threads.data > LANES:
        return role
    return find_barrier(op.arg("bar")) if isinstance(op, ops.Perform) and op.kind.hardware and "bar" in op.args else None


def find_barrier(value: SSAValue) -> ops.Barrier:
    """Return the barrier, or the ring of barriers, that a value refers to."""
    owner = value.owner
    while isinstance(owner, ops.At):
        owner = owner.array.owner
    assert isinstance(owner, ops.Barrier)
    return owner


def get_number(op: ops.Barrier | ops.Role) -> int:
    """Return the first hardware barrier of a named barrier or a role.

    Raises: LookupError if it has none: the IR has not been through `select_instructions`.
    """
    number = op.attributes.get(NUMBER)
    if not isinstance(number, IntAttr):
        raise LookupError(f"no hardware barrier is recorded for `{op.symbol.data}`")
    return number.data

"""Emitted code of a role's loop over work items, which counts or reads a queue in shared memory.

See ir/machine.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...syntax.types import BOOL, F32
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_types import dtype_of
from .role_scope import RoleScope


def ctype(queue: machine.Queue) -> str:
    """Return the template arguments of a queue's types."""
    return f"<{queue.slots.data}, {queue.words.data}>"


def strides(ctas: int) -> tuple[str, str]:
    """Return C++ expressions for the rank of a CTA (or its cluster) in the grid, and for the grid's size."""
    return ("int(blockIdx.x)", "int(gridDim.x)") if ctas == 1 else (f"int(blockIdx.x) / {ctas}", f"int(gridDim.x) / {ctas}")


def next_item(queue: machine.Queue, t: str) -> str:
    """Return the C++ expression for the work item after `t`.

    With dynamic scheduling it draws from an atomic counter, which the last draw of the launch resets to 0; otherwise it
    adds the stride between a CTA's items.
    """
    if queue.dynamic is not None:
        return "int(gridDim.x + atomicInc(counter, tile_count - 1))"
    return f"{t} + {strides(queue.ctas.data)[1]}"


@contextmanager
def emit_unit_loop(role: RoleScope, op: ops.ForUnits) -> Iterator[None]:
    """Emit the head and the tail of a role's loop over the work items; the body is emitted inside."""
    out, queue, t = role.out, machine.queue_of(op), role.name(op.turn)
    first, step = strides(role.kernel.checked.cluster)
    lines: list[str] = []
    if queue is None:
        head = f"for (int {t} = {first}; {t} < tile_count; {t} += {step})"
    else:
        name, unit = out.temp("queue"), out.temp("unit")
        out.line(f"cuir::TileQueue{ctype(queue)} {name}(slots);\nint {unit}[{queue.words.data}];")
        ahead = "take_ahead" if queue.ahead.data else "take_single"
        take = f"{name}.{ahead}({unit})" if role.single else f"{name}.take({unit}, lane)"
        if queue.spare.data < 0 and op is queue.loops[0]:
            head = "while (true)"
            lines = [*_emit_posting(role, queue), f"const int {t} = {take};", f"if ({t} >= tile_count) break;"]
        else:
            head = f"for (int {t} = {take}; {t} < tile_count; {t} = {take})"
        lines += _declare_words(role, op, unit)
    with out.block(head):
        for line in lines:
            out.line(line)
        yield


def _declare_words(role: RoleScope, op: ops.ForUnits, unit: str) -> list[str]:
    """Return the declarations of values broadcast with a work item, as a role reads them.

    Args:
        unit: C++ name of the item's slot.
    """
    lines = []
    for word, value in op.reads:
        place = f"{unit}[{word.index}]"
        if word.copies > 1:  # one for each worker, in a row
            index = role.name(role.worker)
            last = word.copies - 1
            choice = "".join(f"{index} == {i} ? {unit}[{word.index + i}] : " for i in range(last))
            lines.append(f"{place} = {choice}{unit}[{word.index + last}];")
        if word.uniform:
            lines.append(f"{place} = __shfl_sync(~0u, {place}, 0);  // uniform")
        dtype, s = dtype_of(value), role.storage(value)
        text = f"__int_as_float({place})" if dtype == F32 else f"{place} != 0" if dtype == BOOL else place
        lines.append(f"const {s.ctype} {s.name} = {text};")
    return lines


def _emit_posting(role: RoleScope, queue: machine.Queue) -> list[str]:
    """Emit the declarations of a role that hands out, and return the lines that post the next item."""
    out, r = role.out, role.role
    assert isinstance(r, ops.Role)
    tickets, unit = out.temp("tickets"), out.temp("next")
    out.line(f"cuir::TileQueue{ctype(queue)} {tickets}(slots);\nint {unit} = int(blockIdx.x);")
    tests = [] if role.single and r.workers.data == 1 else [f"warpgroup == {r.warpgroup.data} && warp == {r.warp.data}"]
    tests += [] if role.single else ["lane == 0"]
    lines = [
        f"int unit_[{queue.words.data}] = {{{unit}}};",
        f"{tickets}.reserve();",
        f"{tickets}.post(unit_);",
        f"if ({unit} < tile_count) {unit} = {next_item(queue, unit)};",
    ]
    return [f"if ({' && '.join(tests)}) {{" if tests else "{", *(f"  {x}" for x in lines), "}"]

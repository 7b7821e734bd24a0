"""Emitted code of a queue of work items around the roles: its memory, and the warp that hands out.

See ir/machine.py.
"""

from __future__ import annotations

import functools

from xdsl.ir import SSAValue

from ...syntax.types import F32
from ..ir import machine_ops as machine
from ..ir.ir_types import dtype_of
from ..ir.ir_walk import is_inlined
from .context import WARPS, KernelContext, PreparedScalars
from .operator_text import strip
from .role import RolePrinter, ctype, next_item, strides


def declare(kernel: KernelContext, queue: machine.Queue, offset: int) -> list[str]:
    """Emit the queue at an offset of shared memory, and return the initialisation of its barriers."""
    kernel.out.line(f"auto* const slots = reinterpret_cast<cuir::Slots{ctype(queue)}*>(smem + {offset});")
    count, init = queue.slots.data, functools.partial(kernel.target.format_phrase, "init mbarrier")
    inits = [f"for (int i = 0; i < {count}; ++i) {{ {init('&slots->full[i]', 1)} {init('&slots->empty[i]', queue.readers.data)} }}"]
    if queue.ahead.data:
        inits.append(init("&slots->ahead", queue.ahead.data))
    if queue.drawn_for_others:
        kernel.out.line("auto* const mail = reinterpret_cast<cuir::Mail*>(slots + 1);")
        inits.append(f"{init('&mail->full', 1)} {init('&mail->empty', queue.ctas.data - 1)}")
    return inits


def prepare(kernel: KernelContext, queue: machine.Queue) -> None:
    """Emit the numbers that handing out derives from lengths, computed by the spare warp before it waits.

    They stand behind a branch, so that no compiler moves them behind the wait.
    """
    declared, lines = kernel.prepared
    if not declared:
        return
    out, spare = kernel.out, queue.spare.data
    for variable in declared:
        out.line(f"{variable} = 0;")
    with out.block(f"if (warpgroup == {spare // WARPS} && warp == {spare % WARPS})"):
        for text, span in lines:
            out.span = span
            out.line(text)
    out.span = None


def _take_scalars(role: RolePrinter, queue: machine.Queue) -> PreparedScalars:
    """Take the lines that compute the queue's scalars out of the text.

    Returns: Declarations of the scalars, to be emitted with the lines, and the lines.
    """
    block, begin = queue.body.block, len(role.out.lines)
    local_ops = [op for op in block.ops if not isinstance(op, machine.HandOut)]
    defined = [
        (op, role.storages.declare_elsewhere(r))
        for op in local_ops
        for r in op.results
        if not is_inlined(r) and role.storage_or_none(r) is not None
    ]
    for op in local_ops:
        role.declared.pop(op, None)
    role.emit_block(block)
    declared = [f"{'unsigned' if isinstance(op, machine.Inverse) else s.ctype} {s.name}" for op, s in defined]
    return declared, role.out.take(begin)


def hand_out(role: RolePrinter, queue: machine.Queue) -> None:
    """Emit the code of the spare warp, on one lane."""
    out, hand = role.out, queue.hand_out
    name, unit = out.temp("queue"), out.temp("unit")
    out.line(f"cuir::TileQueue{ctype(queue)} {name}(slots);")
    role.kernel.prepared = _take_scalars(role, queue)
    t = role.name(hand.unit)
    first, step = strides(queue.ctas.data)
    after = next_item(queue, t)
    if queue.drawn_for_others:
        tickets = out.temp("tickets")
        out.line(f"cuir::Tickets<{queue.ctas.data}> {tickets}(mail, counter);")
        after = f"{tickets}.next({step}, tile_count)"
    with out.block(f"for (int {t} = {first};; {t} = {after})"):
        out.line(f"int {unit}[{queue.words.data}] = {{{t}}};")
        if hand.words:
            with out.block(f"if ({t} < tile_count)"):
                role.emit_block(hand.body.block)
                for i, word in enumerate(hand.words, 1):
                    out.line(f"{unit}[{i}] = {_make_word(role, word)};")
        out.span = None
        reserve = "reserve_ahead" if queue.ahead.data else "reserve"
        out.line(f"{name}.post({unit});\nif ({t} >= tile_count) break;\n{name}.{reserve}();")


def _make_word(role: RolePrinter, value: SSAValue) -> str:
    """Return the C++ expression that encodes a scalar as a 32-bit integer of a queue's slot."""
    text = strip(role.elements.scalar(value))
    return f"__float_as_int({text})" if dtype_of(value) == F32 else text

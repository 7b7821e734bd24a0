"""The text of how the warps of a CTA learn their next unit of work: a plain loop, or a queue in shared memory (see ir/machine.py)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ...syntax.types import BOOL, F32
from ..ir import machine, ops
from ..ir.types import dtype_of
from .operators import strip

if TYPE_CHECKING:
    from .frame import KernelPrinter
    from .role import RolePrinter

WARPS = 4  # of a warpgroup


def ctype(queue: machine.Queue) -> str:
    return f"<{queue.slots.data}, {queue.words.data}>"


def arrivals(queue: machine.Queue) -> int:
    return queue.readers.data


def declare(kernel: KernelPrinter, queue: machine.Queue, offset: int) -> list[str]:
    """Declares the queue at an offset of shared memory; returns what makes its barriers."""
    kernel.out.line(f"auto* const slots = reinterpret_cast<cuir::Slots{ctype(queue)}*>(smem + {offset});")
    count, init = queue.slots.data, functools.partial(kernel.target.say, "init mbarrier")
    inits = [f"for (int i = 0; i < {count}; ++i) {{ {init('&slots->full[i]', 1)} {init('&slots->empty[i]', arrivals(queue))} }}"]
    if queue.ahead.data:
        inits.append(init("&slots->ahead", queue.ahead.data))
    if queue.drawn_for_others:
        kernel.out.line("auto* const mail = reinterpret_cast<cuir::Mail*>(slots + 1);")
        inits.append(f"{init('&mail->full', 1)} {init('&mail->empty', queue.ctas.data - 1)}")
    return inits


def strides(ctas: int) -> tuple[str, str]:
    """The number of the CTA, or of its cluster, and how many there are."""
    return ("int(blockIdx.x)", "int(gridDim.x)") if ctas == 1 else (f"int(blockIdx.x) / {ctas}", f"int(gridDim.x) / {ctas}")


def _next(queue: machine.Queue, t: str) -> str:
    """The unit after t; the counter wraps to 0 with the last unit of the launch."""
    if queue.dynamic is not None:
        return "int(gridDim.x + atomicInc(counter, tile_count - 1))"
    return f"{t} + {strides(queue.ctas.data)[1]}"


def hand_out(role: RolePrinter, queue: machine.Queue) -> None:
    """The text of the spare warp, on one lane."""
    out, hand = role.out, queue.hand_out
    name, unit = out.temp("queue"), out.temp("unit")
    out.line(f"cuir::TileQueue{ctype(queue)} {name}(slots);")
    role.block(queue.body.block)
    t = role.name(hand.unit)
    first, step = strides(queue.ctas.data)
    following = _next(queue, t)
    if queue.drawn_for_others:
        tickets = out.temp("tickets")
        out.line(f"cuir::Tickets<{queue.ctas.data}> {tickets}(mail, counter);")
        following = f"{tickets}.next({step}, tile_count)"
    with out.block(f"for (int {t} = {first};; {t} = {following})"):
        out.line(f"int {unit}[{queue.words.data}] = {{{t}}};")
        if hand.words:
            with out.block(f"if ({t} < tile_count)"):
                role.block(hand.body.block)
                for i, word in enumerate(hand.words, 1):
                    out.line(f"{unit}[{i}] = {_bits(role, word)};")
        out.span = None
        reserve = "reserve_ahead" if queue.ahead.data else "reserve"
        out.line(f"{name}.post({unit});\nif ({t} >= tile_count) break;\n{name}.{reserve}();")


def _bits(role: RolePrinter, value: SSAValue) -> str:
    text = strip(role.elements.scalar(value))
    return f"__float_as_int({text})" if dtype_of(value) == F32 else text


@contextmanager
def units(role: RolePrinter, op: ops.ForUnits) -> Iterator[None]:
    """The head and tail of a role's loop over the units; the body is printed inside."""
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
            lines = [*_posting(role, queue), f"const int {t} = {take};", f"if ({t} >= tile_count) break;"]
        else:
            head = f"for (int {t} = {take}; {t} < tile_count; {t} = {take})"
        lines += _words(role, op, unit)
    with out.block(head):
        for line in lines:
            out.line(line)
        yield


def _words(role: RolePrinter, op: ops.ForUnits, unit: str) -> list[str]:
    """What the words of a unit are called in the role."""
    lines = []
    for word, value in op.reads:
        place = f"{unit}[{word.index}]"
        if word.copies > 1:  # each worker's own, which follow each other
            index = role.name(role.body_block.args[0])
            last = word.copies - 1
            choice = "".join(f"{index} == {i} ? {unit}[{word.index + i}] : " for i in range(last))
            lines.append(f"{place} = {choice}{unit}[{word.index + last}];")
        if word.uniform:
            lines.append(f"{place} = __shfl_sync(~0u, {place}, 0);  // uniform")
        dtype, s = dtype_of(value), role.storage(value)
        text = f"__int_as_float({place})" if dtype == F32 else f"{place} != 0" if dtype == BOOL else place
        lines.append(f"const {s.ctype} {s.name} = {text};")
    return lines


def _posting(role: RolePrinter, queue: machine.Queue) -> list[str]:
    """A role's own step of handing out: one lane posts the next unit. The lines after the declarations, which are written."""
    out, r = role.out, role.role
    assert isinstance(r, ops.Role)
    tickets, following = out.temp("tickets"), out.temp("next")
    out.line(f"cuir::TileQueue{ctype(queue)} {tickets}(slots);\nint {following} = int(blockIdx.x);")
    tests = [] if role.single and r.workers.data == 1 else [f"warpgroup == {r.warpgroup.data} && warp == {r.warp.data}"]
    tests += [] if role.single else ["lane == 0"]
    lines = [
        f"int unit_[{queue.words.data}] = {{{following}}};",
        f"{tickets}.reserve();",
        f"{tickets}.post(unit_);",
        f"if ({following} < tile_count) {following} = {_next(queue, following)};",
    ]
    return [f"if ({' && '.join(tests)}) {{" if tests else "{", *(f"  {x}" for x in lines), "}"]

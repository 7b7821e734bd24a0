"""How the warps of a CTA learn their next unit of work: a plain loop, or a queue in shared memory. Owns that choice and the text of both.

With a queue one warp hands out the units. If the roles leave a warp spare, that one does, and works out the values that follow from a unit alone (see
`unit_values`) beside its number; else a warp of the first role does, and each role works them out itself. In a cluster each CTA has its queue, and
the spare warp of the first one draws the numbers for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..checking.checked import Checked, Role
from ..syntax.nodes import Assign, Expr, For, Subscript
from ..syntax.types import BOOL, F32, DType
from .flat import single_lane
from .values import CTYPE, Scalars, strip
from .work_item_values import BroadcastPlan, Value, tile_loops, travelling
from .writer import identifier

if TYPE_CHECKING:
    from .emission import KernelEmitter
    from .role import RoleEmitter

WARPS = 4  # of a warpgroup


@dataclass(frozen=True)
class Queue:
    """A ring of `slots` units of work in shared memory, of `words` words of 4 bytes each: the unit's number, and the values that travel with it."""

    slots: int
    words: int
    dynamic: bool
    spare: int | None  # the warp of the CTA that hands out, on one lane; None: a warp of the first role that reads does it beside its work
    readers: tuple[Role, ...]
    travel: BroadcastPlan | None
    ctas: int  # of a cluster
    ahead: int = 0  # workers that run ahead of others on one lane, whose taking a dynamic unit has the next one drawn

    @property
    def drawn_for_others(self) -> bool:
        """Whether numbers are sent from the first CTA of a cluster to the others: static ones everybody knows."""
        return self.dynamic and self.ctas > 1

    @property
    def ctype(self) -> str:
        return f"<{self.slots}, {self.words}>"

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory, from a multiple of 16 on."""
        return self.slots * (16 + 4 * self.words) + 16 + 24 * self.drawn_for_others

    @property
    def arrivals(self) -> int:
        """Warps that read each unit."""
        return sum(r.workers * r.threads // 32 for r in self.readers)


def spare_warp(checked: Checked) -> int | None:
    """The first warp of the CTA that no role has and that stands in a warpgroup with one."""
    taken = {4 * r.warpgroup + r.warp + i for r in checked.roles for i in range(r.workers * r.threads // 32)}
    free = [w for w in range(checked.threads // 32) if w not in taken and any(w // WARPS == t // WARPS for t in taken)]
    return free[0] if free else None


def choose(kernel: KernelEmitter) -> Queue | None:
    """The queue of a kernel; None: each worker counts by itself."""
    checked, tiles = kernel.checked, kernel.checked.tiles
    readers = tuple(r for r in checked.roles if tile_loops(r.body))
    if tiles is None or not readers:
        return None
    plain = all(len(tile_loops(r.body)) == 1 and tile_loops(r.body)[0] in r.body for r in readers)
    spare = spare_warp(checked)
    alone = spare is None and sum(r.workers * r.threads // 32 for r in readers) < 2
    if checked.arch == "sm_80" or not plain or alone or (checked.cluster > 1 and spare is None):
        if tiles.dynamic:
            kernel.choice(
                "dynamic tiles are handed out statically: else they need sm_90a, two warps (one that no role has in a cluster), and one loop over them at the top of each role",
                tiles.span,
            )
        return None
    travel = travelling(checked, list(readers)) if spare is not None else None
    if not tiles.dynamic and (travel is None or not travel.costly):
        return None
    words = travel.nwords if travel else 1
    if travel and travel.values:
        listed = ", ".join(travel.anchors[v].targets[0] for v in travel.values)
        kernel.choice(f"a spare warp works out {listed} of each tile for all roles, which read them in shared memory", tiles.span)
    # Static units are known in advance; a dynamic one is drawn late, so that whoever is free takes it: when all have taken the one before, or, where
    # single lanes fetch for the others, when these have, as they wait for it.
    single = [r for r in readers if single_lane(checked, r)]
    ahead = sum(r.workers for r in single) if tiles.dynamic and spare is not None and len(single) < len(readers) else 0
    return Queue(
        2 if ahead else 1 if tiles.dynamic else 4, -(-words // 4) * 4, tiles.dynamic, spare, readers, travel, checked.cluster, ahead
    )


def declare(kernel: KernelEmitter, queue: Queue, offset: int) -> list[str]:
    """Declares the queue at an offset of shared memory; returns what makes its barriers."""
    kernel.out.line(f"auto* const slots = reinterpret_cast<cuir::Slots{queue.ctype}*>(smem + {offset});")
    inits = [
        f"for (int i = 0; i < {queue.slots}; ++i) {{ cuir::Bar::init(&slots->full[i], 1); cuir::Bar::init(&slots->empty[i], {queue.arrivals}); }}"
    ]
    if queue.ahead:
        inits.append(f"cuir::Bar::init(&slots->ahead, {queue.ahead});")
    if queue.drawn_for_others:
        kernel.out.line("auto* const mail = reinterpret_cast<cuir::Mail*>(slots + 1);")
        inits.append(f"cuir::Bar::init(&mail->full, 1); cuir::Bar::init(&mail->empty, {queue.ctas - 1});")
    return inits


# ---- the warp that hands out
def hand_out(kernel: KernelEmitter, queue: Queue) -> None:
    """The text of the spare warp, on one lane."""
    out, tiles, count = kernel.out, kernel.checked.tiles, kernel.tile_count
    assert tiles is not None
    name, t, unit = out.temp("queue"), out.temp("t"), out.temp("unit")
    out.line(f"cuir::TileQueue{queue.ctype} {name}(slots);")
    before, decoder = len(out.lines), _Decoder(kernel, queue.travel, t) if queue.travel else None
    first, step = _strides(queue.ctas)
    following = _next(queue, t, count)
    if queue.drawn_for_others:
        tickets = out.temp("tickets")
        out.line(f"cuir::Tickets<{queue.ctas}> {tickets}(mail, counter);")
        following = f"{tickets}.next({step}, {count})"
    with out.block(f"for (int {t} = {first};; {t} = {following})"):
        out.line(f"int {unit}[{queue.words}] = {{{t}}};")
        if queue.travel and decoder and queue.travel.values:
            with out.block(f"if ({t} < {count})"):
                for number in queue.travel.values:
                    value, word = queue.travel.table[number], queue.travel.words[number]
                    for decoder.worker in range(value.copies):
                        out.line(f"{unit}[{word + decoder.worker}] = {_bits(decoder.text(number), value.dtype)};")
        out.span = None
        out.line(f"{name}.post({unit});\nif ({t} >= {count}) break;\n{name}.{'reserve_ahead' if queue.ahead else 'reserve'}();")
    if decoder:
        out.insert(before, [f"const unsigned {inverse} = {text};" for text, inverse in decoder.inverses.items()])


def _strides(ctas: int) -> tuple[str, str]:
    """The number of the CTA, or of its cluster, and how many there are."""
    return ("int(blockIdx.x)", "int(gridDim.x)") if ctas == 1 else (f"int(blockIdx.x) / {ctas}", f"int(gridDim.x) / {ctas}")


def _next(queue: Queue, t: str, count: str) -> str:
    """The unit after t; the counter wraps to 0 with the last unit of the launch."""
    return f"int(gridDim.x + atomicInc(counter, {count} - 1))" if queue.dynamic else f"{t} + {_strides(queue.ctas)[1]}"


class _Decoder:
    """Texts of values of a unit, computed once each in the order that they need."""

    def __init__(self, kernel: KernelEmitter, travel: BroadcastPlan, unit: str):
        self.kernel, self.travel, self.unit = kernel, travel, unit
        self.worker = 0  # of a role, for values that depend on it
        self.made: dict[tuple[int, int], str] = {}  # number and worker -> name
        self.named: set[tuple[int, int]] = set()  # below which all that has a name is made
        self.inverses: dict[str, str] = {}  # text -> name of the inverse of a divisor that is the same for all units

    def _scalars(self, value: Value) -> Scalars:
        def inverse(expr: Expr) -> str | None:
            number = value.operands.get(id(expr))
            if number is None or self.travel.table[number].of_unit or not scalars.nonnegative(expr):
                return None
            return self.inverses.setdefault(f"cuir::inverse({strip(self._frame(number))})", self.kernel.out.temp("inverse"))

        scalars = Scalars(self.kernel, set(value.nonnegative), inverse)
        return scalars

    def _frame(self, number: int) -> str:
        """The text of a value that is the same for all units, without names of its own."""
        value = self.travel.table[number]
        scalars = Scalars(self.kernel, set(value.nonnegative))
        if value.expr is None:
            return str(self.worker)
        if not value.op or value.op == "element":
            return scalars.scalar(value.expr)
        return scalars.apply(value.op, list(value.args), value.expr, lambda e: self._frame(value.operands[id(e)]))

    def text(self, number: int) -> str:
        value = self.travel.table[number]
        if value.expr is None:
            return self.unit if value.of_unit else str(self.worker)
        scalars = self._scalars(value)
        if not value.op:
            return scalars.scalar(value.expr)
        key = number, self.worker if value.worker else 0
        if key in self.made:
            return self.made[key]
        for operand in sorted(value.below):
            self._named(operand)
        if value.op == "element":
            assert isinstance(value.expr, Subscript)
            text = scalars.element(value.expr, lambda e: self.text(value.operands[id(e)]))
        else:
            text = scalars.apply(value.op, list(value.args), value.expr, lambda e: self.text(value.operands[id(e)]))
        anchor = self.travel.anchors.get(number)
        if anchor is None:
            return text
        self.kernel.out.mark(anchor.span)
        self.made[key] = self.kernel.out.temp(anchor.targets[0])
        self.kernel.out.line(f"const {CTYPE[value.dtype]} {self.made[key]} = {strip(text)};")
        return self.made[key]

    def _named(self, number: int) -> None:
        """Makes what stands below a value and has a name, before the value's own text is written."""
        key = number, self.worker if self.travel.table[number].worker else 0
        if self.travel.table[number].op and key not in self.named:  # a value may stand below very many others
            self.named.add(key)
            for operand in sorted(self.travel.table[number].below):
                self._named(operand)
            if number in self.travel.anchors:
                self.text(number)


def _bits(text: str, dtype: DType) -> str:
    return f"__float_as_int({strip(text)})" if dtype == F32 else strip(text)


# ---- the roles
@contextmanager
def units(role: RoleEmitter, stmt: For) -> Iterator[None]:
    """The head and tail of a role's loop over the units; the body is written inside."""
    kernel, out = role.kernel, role.out
    queue, count = kernel.queue, kernel.tile_count
    own = not any(stmt.target in v for v in role.facts.declare_at.values())
    t = identifier(stmt.target) if own else out.temp(stmt.target)
    if queue is None:
        first, step = _strides(kernel.checked.cluster)
        head, first_lines = f"for (int {t} = {first}; {t} < {count}; {t} += {step})", []
    else:
        name, unit = out.temp("queue"), out.temp("unit")
        out.line(f"cuir::TileQueue{queue.ctype} {name}(slots);\nint {unit}[{queue.words}];")
        take = f"{name}.{'take_ahead' if queue.ahead else 'take_single'}({unit})" if role.single else f"{name}.take({unit}, lane)"
        if queue.spare is None and role.role == queue.readers[0]:
            head, first_lines = "while (true)", [*_posting(role, queue), f"const int {t} = {take};", f"if ({t} >= {count}) break;"]
        else:
            head, first_lines = f"for (int {t} = {take}; {t} < {count}; {t} = {take})", []
        role.unit = unit
        if queue.travel and (part := queue.travel.parts[role.role.name]):
            first_lines += [f"{unit}[{w}] = {_own(unit, w, copies, identifier(role.role.index or ''))};" for w, copies in part.own.items()]
            first_lines += [f"{unit}[{w}] = __shfl_sync(~0u, {unit}[{w}], 0);  // uniform" for w in part.uniform if not role.single]
    with out.block(head):
        for line in first_lines:
            out.line(line)
        if not own:
            out.line(f"{identifier(stmt.target)} = {t};")
        yield


def _own(unit: str, word: int, copies: int, worker: str) -> str:
    """The word of a worker among those of all, which follow each other."""
    return "".join(f"{worker} == {i} ? {unit}[{word + i}] : " for i in range(copies - 1)) + f"{unit}[{word + copies - 1}]"


def _posting(role: RoleEmitter, queue: Queue) -> list[str]:
    """A role's own step of handing out: one lane posts the next unit. The lines after the declarations, which are written."""
    out, count, r = role.out, role.kernel.tile_count, role.role
    tickets, following = out.temp("tickets"), out.temp("next")
    out.line(f"cuir::TileQueue{queue.ctype} {tickets}(slots);\nint {following} = int(blockIdx.x);")
    tests = [] if role.single and r.workers == 1 else [f"warpgroup == {r.warpgroup} && warp == {r.warp}"]
    tests += [] if role.single else ["lane == 0"]
    lines = [
        f"int unit_[{queue.words}] = {{{following}}};",
        f"{tickets}.reserve();",
        f"{tickets}.post(unit_);",
        f"if ({following} < {count}) {following} = {_next(queue, following, count)};",
    ]
    return [f"if ({' && '.join(tests)}) {{" if tests else "{", *(f"  {x}" for x in lines), "}"]


def carried(role: RoleEmitter, stmt: Assign) -> str | None:
    """The text of the value of an assignment that travels; "" if nobody reads the value; None: to be computed."""
    queue = role.kernel.queue
    part = queue.travel.parts.get(role.role.name) if queue and queue.travel else None
    if part is None:
        return None
    if id(stmt) in part.dead:
        return ""
    word = part.carried.get(id(stmt))
    if word is None:
        return None
    dtype = role.dtype(stmt.value)
    text = f"{role.unit}[{word}]"
    return f"__int_as_float({text})" if dtype == F32 else f"{text} != 0" if dtype == BOOL else text

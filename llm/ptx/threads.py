"""Values of registers in each thread, and the threads that reach each block: one fixed point of both.

Only what branches, guards and the requested operands depend on is computed. A register that several instructions write
is a variable: its values are collected until no new one comes, or until there are MANY, and then it may hold any other
value too. Data and parameters are unknown; a branch on them goes both ways. Asynchronous instructions have no meaning
here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from cuir.ptx.module import Address, Entry, Instruction, Operand

from .control_flow import flow_of
from .ptx_numbers import (
    ABSENT,
    CERTAIN,
    MOST,
    UNKNOWN,
    UNKNOWN_NUMBER,
    Ints,
    Number,
    align,
    apply,
    choose,
    compare,
    compute,
    extent,
    of,
    of_threads,
    wrap,
)
from .single_definition import names_in, reads, single, writes

MANY = 20  # values of a variable
ROUNDS = 400
SHARED, PARAMETERS = 1024, 1 << 40  # assumed addresses of shared memory and parameters
ALIGNED = 1024  # assumed alignment of dynamic shared memory
LEAST, MASK_BITS = (
    64,
    6,
)  # the remainder of an unknown number by a smaller divisor is each of its values; what is under a mask of few bits, too
Mask = NDArray[np.bool_]
QUOTIENT = ("mul.hi", "mul.wide", "shr", "add", "sub", "cvt", "bfe", "mov", "shf")


class Threads:
    """Analysis of one kernel.

    `shape` are threads of a CTA in x, y, z; `cluster` CTAs of a cluster in x, y, z, None if unknown.
    """

    def __init__(self, entry: Entry, shape: tuple[int, int, int], cluster: tuple[int, int, int] | None = None):
        self.entry, self.shape, self.count = entry, shape, shape[0] * shape[1] * shape[2]
        self.flow = flow_of(entry.instructions)
        ssa = single(entry.instructions, self.flow)
        self.instructions, self.choices, self.previous_names = ssa.instructions, ssa.choices, ssa.previous_names
        self.writer = {r: i for i, x in enumerate(self.instructions) for r in writes(x)}
        self.conditions = [self.flow.conditions(b) for b in range(len(self.flow.blocks))]
        self.symbols = self._symbols()
        self.special = self._special(cluster)
        self.numbers: dict[str, Number] = {}
        self.samples: dict[str, dict[bytes, tuple[Ints, NDArray[np.int8]]]] = defaultdict(dict)
        self.counters = self._counters()
        self.turns: dict[int, int] = dict.fromkeys((header for header, _, _, _ in self.counters.values()), 1)
        self.reach: Mask = np.zeros((len(self.flow.blocks), self.count), bool)
        self.reach[0] = True
        self.growths = [0] * len(self.flow.blocks)  # how often threads were added to a block
        self.sent: dict[tuple[int, int], tuple[int, Mask | None]] = {}  # what an edge has passed on: growths of its block, its condition
        self.allowed: dict[tuple[str, bool], tuple[Number, Mask]] = {}  # results of `may`, each for a number

    def _symbols(self) -> dict[str, Number]:
        """Return the addresses of shared arrays, static ones first, and of parameters, far from them."""
        at, symbols = SHARED, {}
        for name, (alignment, size) in sorted(self.entry.shared.items(), key=lambda item: item[1][1] is None):
            step = max(alignment, ALIGNED if size is None else 1)
            at = -(-at // step) * step
            symbols[name] = of(at)
            at += size or 0
        symbols |= {name: of(PARAMETERS + (i << 20)) for i, name in enumerate(self.entry.params)}
        return symbols

    def _special(self, cluster: tuple[int, int, int] | None) -> dict[str, Number]:
        """Return the value of each special register for all threads, by the register's name.

        Args:
            cluster: CTAs of a cluster in x, y, z; None leaves registers of the cluster out.
        """
        x, y, z = self.shape
        tid = np.arange(self.count)
        special = {
            "%tid.x": of_threads(tid % x),
            "%tid.y": of_threads(tid // x % y),
            "%tid.z": of_threads(tid // (x * y)),
            "%ntid.x": of(x),
            "%ntid.y": of(y),
            "%ntid.z": of(z),
            "%laneid": of_threads(tid % 32),
            "%warpid": of_threads(tid // 32),
            "WARP_SZ": of(32),
        }
        if cluster is not None:
            cx, cy, cz = cluster
            count = cx * cy * cz

            def of_ranks(values: Ints) -> Number:
                """Return a number that depends on the CTA's rank in its cluster."""
                return Number(("cluster",), values.reshape(-1, 1), np.full((count, 1), CERTAIN, np.int8)) if count > 1 else of(0)

            rank = np.arange(count)
            places = {"x": rank % cx, "y": rank // cx % cy, "z": rank // (cx * cy)}
            special |= {"%cluster_ctarank": of_ranks(rank), "%cluster_nctarank": of(count)}
            special |= {f"%cluster_ctaid.{side}": of_ranks(place) for side, place in places.items()}
            special |= {f"%cluster_nctaid.{side}": of(n) for side, n in zip("xyz", cluster)}
        return special

    # ---- values
    def value(self, operand: Operand) -> Number:
        """Return the value of an operand; of an address the address."""
        if isinstance(operand, int):
            return of(operand if -(1 << 63) <= operand < 1 << 63 else operand - (1 << 64))
        if isinstance(operand, Address):
            return apply(lambda b: b + operand.offset, self.value(operand.base))
        if not isinstance(operand, str):
            return UNKNOWN_NUMBER
        if operand[:1] == "!":
            return apply(lambda p: p == 0, self.value(operand[1:]))
        number = self.numbers.get(operand) or self.symbols.get(operand) or self.special.get(operand)
        if number is not None:
            return number
        return self._unwritten if operand in self.writer or operand in self.choices else UNKNOWN_NUMBER

    _unwritten = Number(("nothing",), np.zeros((0, 1), np.int64), np.zeros((0, 1), np.int8))  # not written yet

    def solve(self, operands: Iterable[Operand]) -> None:
        """Compute the values of these operands, and the threads that reach each block."""
        registers = self._list_needed_registers(operands)
        depends: dict[str, list[str]] = defaultdict(list)
        for r in registers:
            for name in self._sources(r):
                depends[name].append(r)
        variables = [r for r in registers if r in self.choices]
        singles = [r for r in registers if r in self.writer]
        register_set, changed = set(registers), set(registers)
        for _ in range(ROUNDS):
            for r in singles:
                if r in changed:
                    changed.discard(r)
                    number = self._compute_write(self.writer[r], r)
                    if not _same(self.numbers.get(r), number):
                        self.numbers[r] = number
                        changed.update(depends[r])
            if self._spread():
                changed.update(variables)
            for r in variables:
                if r in changed:
                    changed.discard(r)
                    if self._count(r) if r in self.counters else self._collect(r):
                        changed.update(depends[r])
                        changed.update(
                            c
                            for c in self.counters
                            if r in self.counters and self.counters[c][0] == self.counters[r][0] and c in register_set and c != r
                        )
            if not changed:
                return

    def _sources(self, r: str) -> list[str]:
        """Return the names that a register is computed from."""
        if r in self.choices:
            block, names = self.choices[r]
            ways = [guard[0] for p in names for to, guard in self.flow.blocks[p].out if guard and to == block]
            return [*names.values(), *ways, *(c for p in names for c, _ in self.conditions[p])]
        x = self.instructions[self.writer[r]]
        return [
            *([] if _opaque(x) else reads(x)),
            *([x.guard[0]] if x.guard else []),
            *([self.previous_names[r]] if r in self.previous_names else []),
        ]

    def _list_needed_registers(self, operands: Iterable[Operand]) -> list[str]:
        """Return the registers that the operands, branches and guards depend on, in dependency order."""
        roots = [name for o in operands for name in names_in(o)]
        roots += [guard[0] for b in self.flow.blocks for _, guard in b.out if guard]
        visited: set[str] = set()
        order: list[str] = []
        for root in roots:
            stack = [(root, False)]
            while stack:
                r, expanded = stack.pop()
                if expanded:
                    order.append(r)
                elif r not in visited and (r in self.writer or r in self.choices):
                    visited.add(r)
                    stack.append((r, True))
                    stack += [(d, False) for d in self._sources(r)]
        return order

    def _compute_write(self, i: int, r: str) -> Number:
        """Return the value that an instruction writes to a register."""
        x = self.instructions[i]
        result = self._compute_result(x, r)
        if x.guard is not None:
            guard = self.value(("" if x.guard[1] else "!") + x.guard[0])
            previous = (
                self.value(self.previous_names[r])
                if r in self.previous_names
                else Number(guard.axes, np.zeros_like(guard.data), np.full(guard.state.shape, ABSENT, np.int8))
            )
            return choose(guard, result, previous)
        return result

    def _compute_result(self, x: Instruction, r: str) -> Number:
        """Return the value that an instruction computes for a register, guard apart."""
        name, first = x.op.split(".")[0], x.operands[0]
        if _opaque(x):
            return UNKNOWN_NUMBER
        if name == "shfl":
            return self._compute_shuffle(x) if not (isinstance(first, tuple) and r == first[-1]) else UNKNOWN_NUMBER
        if name == "elect":
            return apply(lambda t: t % 32 == 0, of_threads(np.arange(self.count))) if r == first[-1] else UNKNOWN_NUMBER
        if name == "mov" and isinstance(first, tuple):
            whole, size = self.value(x.operands[1]), 64 // len(first)
            return compute(f"bfe.s{64}", [whole, of(size * first.index(r)), of(size)])
        if name == "mov" and isinstance(x.operands[1], tuple):
            parts = x.operands[1]
            if len(parts) != 2:
                return UNKNOWN_NUMBER
            return apply(lambda low, high: (low & 0xFFFFFFFF) | high << 32, *(self.value(p) for p in parts))
        operands = [self.value(o) for o in x.operands[1:]]
        if name == "setp":
            number = compare(x.op, *operands[:2])
            if isinstance(first, tuple) and r == first[1]:
                number = apply(lambda p: p == 0, number)
            if len(operands) == 3:
                number = compute(f"{x.op.split('.')[2]}.pred", [number, operands[2]])
            return number
        if name == "and" and ".pred" in x.op:
            return _compute_logical(operands[0], operands[1], 0)
        if name == "or" and ".pred" in x.op:
            return _compute_logical(operands[0], operands[1], 1)
        number = compute(x.op, operands)
        if number.data.size and not (number.state == CERTAIN).any() and (few := self._few(x)) is not None:
            values = np.array(few).reshape(-1, 1)
            return Number((f"{r} of {len(few)}",), values, np.full(values.shape, CERTAIN, np.int8))
        return number

    def _few(self, x: Instruction) -> list[int] | None:
        """Return the values that an unknown number can have, if they are few.

        That holds under a mask, or for a remainder, also one that is written as a product with a constant's inverse.
        """
        name = x.op.split(".")[0]
        if name == "and" and len(x.operands) == 3:
            for mask in (self._constant(o) for o in x.operands[1:]):
                if mask is not None and mask > 0 and mask.bit_count() <= MASK_BITS:
                    return sorted(_submasks(mask))
        if name == "rem" and ".u" in x.op and (divisor := self._constant(x.operands[2])) is not None and 1 < divisor <= LEAST:
            return list(range(divisor))
        if name == "sub":
            product = self._only_writer(x.operands[2])
            if product is not None and product.op.startswith("mul.lo"):
                divisor = self._constant(product.operands[2])
                if divisor is not None and 1 < divisor <= LEAST and self._is_quotient_of(product.operands[1], x.operands[1], 12):
                    return list(range(divisor))
        return None

    def _constant(self, operand: Operand) -> int | None:
        """Return the value of a known constant, else None."""
        number = self.value(operand)
        return int(number.data.flat[0]) if number.data.size == 1 and number.all_known else None

    def _only_writer(self, operand: Operand) -> Instruction | None:
        """Return the instruction that writes a register, None if there is no single one."""
        place = self.writer.get(operand) if isinstance(operand, str) else None
        return None if place is None else self.instructions[place]

    def _is_quotient_of(self, quotient: Operand, whole: Operand, depth: int) -> bool:
        """Return whether a quotient is computed from the whole and constants alone."""
        if quotient == whole or isinstance(quotient, int):
            return True
        x = self._only_writer(quotient)
        if x is None or not depth:
            return False
        if x.op.startswith("mov") and isinstance(x.operands[1], int):
            return True
        return x.op.startswith(QUOTIENT) and all(self._is_quotient_of(o, whole, depth - 1) for o in x.operands[1:])

    def _compute_shuffle(self, x: Instruction) -> Number:
        """Return the value that a shuffle takes from other lanes; in whole warps only."""
        value, lane, clamp = (self.value(o) for o in x.operands[1:4])
        if value.data.shape[-1] == 1 and not (value.state == ABSENT).any():
            return value
        if (
            lane.data.size != 1
            or not lane.all_known
            or not clamp.all_known
            or int(clamp.data.flat[0]) & 31 not in (0, 31)
            or self.count % 32
        ):
            return UNKNOWN_NUMBER
        tid, by = np.arange(self.count), int(lane.data.flat[0])
        match x.op.split(".")[2]:
            case "idx":
                source = tid - tid % 32 + by % 32
            case "bfly":
                source = tid ^ by
            case "down":
                source = np.where(tid % 32 + by < 32, tid + by, tid)
            case _:
                source = np.where(tid % 32 >= by, tid - by, tid)
        data, state = np.broadcast_arrays(value.data, value.state)
        if data.shape[-1] == 1:
            return value
        return Number(value.axes, data[..., source], state[..., source])

    # ---- counters: variables that a loop steps by a constant; all of a loop go by one axis, its turns
    def _counters(self) -> dict[str, tuple[int, int, str, int]]:
        """Return for each counter its loop's header, the latch, the name of its first value, and its step."""
        counters = {}
        for r, (header, names) in self.choices.items():
            body = self.flow.loops.get(header, frozenset())
            back, first = [p for p in names if p in body], [p for p in names if p not in body]
            if len(back) != 1 or len(first) != 1:
                continue
            x = self._only_writer(names[back[0]])
            if (
                x is not None
                and x.guard is None
                and x.op in ("add.s32", "add.u32", "add.s64", "add.u64")
                and x.operands[1] == r
                and isinstance(x.operands[2], int)
            ):
                counters[r] = header, back[0], names[first[0]], x.operands[2]
        return counters

    def _count(self, r: str) -> bool:
        """Compute a counter for the turns that its loop may take; return whether it has changed."""
        header, back, first, step = self.counters[r]
        start = self.value(first)
        if not start.data.size:
            return False
        present = self._present(header, back)
        turns = present.data.shape[present.axes.index(f"turn {header}")]
        if extent((start, present)) > MOST:
            del self.counters[r]
            return self._collect(r)
        by = Number((f"turn {header}",), np.arange(turns).reshape(-1, 1) * step, np.full((turns, 1), CERTAIN, np.int8))
        bits = 64 if self._only_writer(self.choices[r][1][back]).op.endswith("64") else 32  # type: ignore[union-attr]
        number = apply(lambda a, n, _: wrap(a + n, bits), start, by, present)
        changed = not _same(self.numbers.get(r), number)
        self.numbers[r] = number
        return changed

    def _present(self, header: int, back: int) -> Number:
        """Return the turns of a loop that may be taken.

        A turn may be if the one before may, and branches back. After MANY, an unknown turn stands for all others.
        """
        name, turns = f"turn {header}", self.turns[header]
        ways = [h for to, h in self.flow.blocks[back].out if to == header]
        conditions = [*self.conditions[back], *(h for h in ways if h)]
        state = np.full((turns, 1), CERTAIN, np.int8)
        if turns > MANY:
            state[-1] = UNKNOWN
        goes = self._under(Number((name,), np.zeros((turns, 1), np.int64), state), conditions)
        at = goes.axes.index(name)
        going = np.moveaxis(goes.state, at, 0)  # for the turns for which the conditions are worked out
        states = np.minimum.accumulate(np.concatenate([np.full((1, *going.shape[1:]), CERTAIN, np.int8), going]), axis=0)
        decided = all(self.value(c).data.size for c, _ in conditions)
        back_again = self.reach[back].any() and any(h is None or self.may(*h).any() for h in ways)
        if len(going) == turns <= MANY and decided and back_again and (states[-1] > ABSENT).any():
            turns += 1
            self.turns[header] = turns
        states = states[:turns]
        if len(states) > MANY:
            states[-1] = np.minimum(states[-1], UNKNOWN)
        states = np.moveaxis(states, 0, at)
        return Number(goes.axes, np.zeros(states.shape, np.int64), states.astype(np.int8))

    # ---- variables and threads
    def _collect(self, r: str) -> bool:
        """Add new values of a variable; return whether there were any."""
        samples, grown = self.samples[r], False
        block, names = self.choices[r]
        for before, name in names.items():
            for guard in [h for to, h in self.flow.blocks[before].out if to == block]:
                threads = self.reach[before] if guard is None else self.reach[before] & self.may(*guard)
                if len(samples) <= MANY and threads.any():
                    number = self._under(self.value(name), [*self.conditions[before], *([guard] if guard else [])])
                    grown |= _add_samples(samples, number, threads)
        if grown:
            self.numbers[r] = _variable(r, list(samples.values()))
        return grown

    def possible(self, i: int, number: Number) -> Number:
        """Remove from a number what the conditions at an instruction exclude."""
        guard = self.instructions[i].guard
        return self._under(number, [*self.conditions[self.flow.of[i]], *([guard] if guard else [])])

    def _under(self, number: Number, conditions: Sequence[tuple[str, bool]]) -> Number:
        """Remove from a number what conditions exclude."""
        for name, holds in conditions:
            if not number.axes:
                break
            condition = self.value(name)
            if not (set(condition.axes) & set(number.axes)) or extent((condition, number)) > MOST:
                continue
            axes, (c, d), (sc, sd) = align((condition, number))
            excluded = (sc == ABSENT) | ((sc == CERTAIN) & ((c != 0) != holds))
            shape = np.broadcast_shapes(d.shape, excluded.shape)
            number = Number(axes, np.broadcast_to(d, shape), np.where(excluded, ABSENT, sd).astype(np.int8))
        return number

    def _spread(self) -> bool:
        """Propagate threads from block to block; return whether any got further."""
        grown = False
        for b in self.flow.order:
            for edge, (to, guard) in enumerate(self.flow.blocks[b].out):
                mask = None if guard is None else self.may(*guard)
                growths, previous = self.sent.get((b, edge), (-1, None))
                if growths == self.growths[b] and mask is previous:
                    continue
                self.sent[b, edge] = self.growths[b], mask
                threads = self.reach[b] if mask is None else self.reach[b] & mask
                if (threads > self.reach[to]).any():
                    self.reach[to] |= threads
                    self.growths[to] += 1
                    grown = True
        return grown

    def may(self, name: str, holds: bool) -> Mask:
        """Return the threads in which a predicate may hold (or not)."""
        number = self.value(name)
        known = self.allowed.get((name, holds))
        if known is not None and known[0] is number:
            return known[1]
        data, state = number.rows
        mask: Mask = (((state == CERTAIN) & ((data != 0) == holds)) | (state == UNKNOWN)).any(0)
        mask = np.broadcast_to(mask, (self.count,))
        self.allowed[name, holds] = number, mask
        return mask

    def at(self, i: int) -> Mask:
        """Return the threads that may execute an instruction."""
        guard = self.instructions[i].guard
        reached = self.reach[self.flow.of[i]]
        return reached & self.may(*guard) if guard else reached

    def of_threads(self, i: int, operand: Operand) -> tuple[list[tuple[Ints, Mask]], bool]:
        """Return the values of an operand at an instruction with their threads.

        The flag says whether further values are possible.
        """
        number = self.possible(i, self.value(operand))
        data, state = number.rows
        threads = self.at(i)
        state = np.broadcast_to(state, (len(state), self.count))
        data = np.broadcast_to(data, (len(data), self.count))
        rows, columns = np.nonzero((state == CERTAIN) & threads)
        values, places = np.unique(data[rows, columns], return_inverse=True)
        masks: Mask = np.zeros((len(values), self.count), bool)
        masks[places, columns] = True
        return list(zip(values, masks)), bool(((state == UNKNOWN) & threads).any())


def _add_samples(samples: dict[bytes, tuple[Ints, NDArray[np.int8]]], number: Number, threads: Mask) -> bool:
    """Add the rows of a number, as the threads `here` have it; return whether there were new ones.

    After MANY, one row of unknowns stands for all others.
    """
    if extent((number,)) // number.data.shape[-1] * len(threads) > MOST:
        number = UNKNOWN_NUMBER
    data, state = number.rows
    state = np.where(threads, state, ABSENT).astype(np.int8)
    data = np.where(state == CERTAIN, data, 0)
    grown = False
    for row, of_row in zip(data, state):
        key = row.tobytes() + of_row.tobytes()
        if key in samples or not of_row.any():
            continue
        grown = True
        if len(samples) >= MANY:
            samples[b"others"] = np.zeros(len(threads), np.int64), np.where(threads, UNKNOWN, ABSENT).astype(np.int8)
            break
        samples[key] = (row, of_row)
    return grown


def _variable(r: str, rows: list[tuple[Ints, NDArray[np.int8]]]) -> Number:
    """Return the number of a variable from its samples."""
    data, state = np.stack([d for d, _ in rows]), np.stack([s for _, s in rows])
    present = state != ABSENT
    if (present == present[0]).all() and present[0].any():
        first = int(np.argmax(present[0]))
        if (np.where(present, data, data[:, first : first + 1]) == data[:, first : first + 1]).all() and (
            np.where(present, state, state[:, first : first + 1]) == state[:, first : first + 1]
        ).all():
            data, state = data[:, first : first + 1], state[:, first : first + 1]
    if len(rows) == 1:
        return Number((), data[0], state[0])
    return Number((r,), data, state)


def _compute_logical(a: Number, b: Number, decides: int) -> Number:
    """Compute `and`, `or` of predicates: a known side may decide, though the other is unknown."""
    if extent((a, b)) > MOST:
        return UNKNOWN_NUMBER
    axes, (x, y), (sx, sy) = align((a, b))
    decided = ((sx == CERTAIN) & ((x != 0) == decides)) | ((sy == CERTAIN) & ((y != 0) == decides))
    data = np.where(decided, decides, 1 - decides)
    state = np.where((sx == ABSENT) | (sy == ABSENT), ABSENT, np.where(decided, CERTAIN, np.minimum(sx, sy)))
    return Number(axes, np.broadcast_to(data, state.shape), state.astype(np.int8))


def _submasks(mask: int) -> list[int]:
    """Return all values under a mask."""
    values, part = [0], mask
    while part:
        values.append(part)
        part = (part - 1) & mask
    return values


def _opaque(x: Instruction) -> bool:
    """Return whether the result of an instruction is data, which cannot be known."""
    name = x.op.split(".")[0]
    return name in (
        "ld",
        "ldu",
        "atom",
        "ldmatrix",
        "mma",
        "wgmma",
        "mbarrier",
        "vote",
        "activemask",
        "match",
        "redux",
        "call",
        "tex",
        "movmatrix",
        "fma",
        "ex2",
        "lg2",
    )


def _same(a: Number | None, b: Number) -> bool:
    """Return whether two numbers are equal."""
    return (
        a is not None
        and a.axes == b.axes
        and a.data.shape == b.data.shape
        and np.array_equal(a.state, b.state)
        and np.array_equal(a.data, b.data)
    )

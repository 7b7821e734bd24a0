"""Instructions that compute lane by lane, and runs of them: those that compute alike are done as one.

The instructions of a run are put into levels, so that each comes behind those whose results it takes. Those of a level with
the same opcode are a bundle: one call on their operands, one behind another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..isa.instruction_table import DTYPES, Opcode, UnknownForm, find_meaning
from ..module import FloatNumber, Operand
from .groups import Group, PartRegisters
from .operands import Array, Fetch, Reader, Store, list_parts, make_constant

Step = Callable[[Group], None]
Uses = tuple[frozenset[int], frozenset[int]]  # registers that an instruction reads, and writes
LEAST = 4  # instructions of a bundle; fewer are faster one by one
WIDEST = 4096  # threads of a group beyond which instructions are faster one by one, since a bundle leaves the cache


class Source(NamedTuple):
    """Operand: a register that is as wide as the operand's type, or a number; fetch alone tells another one."""

    fetch: Fetch
    dtype: np.dtype
    register: int = -1
    number: Array | None = None


class LaneStep:
    """One instruction that computes lane by lane.

    Attributes:
        key: What it computes, with the types of its registers; None if it cannot be part of a bundle.
        target: The register of its result, and how that is stored.
    """

    def __init__(self, op: Opcode, compute: Callable[..., Array], sources: Sequence[Source], target: tuple[int, np.dtype], keep: Store):
        self.compute, self.sources, self.target, self.stored = compute, sources, *target
        plain = all(s.register >= 0 or s.number is not None for s in sources) and any(s.register >= 0 for s in sources)
        fits = plain and self.target >= 0 and op.name != "mov"  # a copy of a register copies no data
        self.key = (op.text, self.stored, tuple(s.register >= 0 for s in sources)) if fits else None
        self.run = self._make_run(keep)

    def __call__(self, g: Group) -> None:
        self.run(g)

    def _make_run(self, keep: Store) -> Step:
        compute, fetches = self.compute, [s.fetch for s in self.sources]
        if len(fetches) == 1:
            (a,) = fetches
            return lambda g: keep(g, compute(a(g)))
        if len(fetches) == 2:
            a, c = fetches
            return lambda g: keep(g, compute(a(g), c(g)))
        if len(fetches) == 3:
            a, c, d = fetches
            return lambda g: keep(g, compute(a(g), c(g), d(g)))
        return lambda g: keep(g, compute(*[f(g) for f in fetches]))


def make_source(reader: Reader, operand: Operand, type_name: str) -> Source:
    """Return an operand that is read as a type. Raises UnknownForm."""
    fetch, dtype = reader.fetch(operand, type_name), np.dtype(DTYPES[type_name])
    if isinstance(operand, (int, FloatNumber)):
        return Source(fetch, dtype, number=make_constant(operand, type_name))
    register = reader.find_register(operand) if isinstance(operand, str) else None
    return Source(fetch, dtype) if register is None or not reader.fits(register, dtype) else Source(fetch, dtype, register)


def bind_meaning(op: Opcode, operands: Sequence[Operand], reader: Reader) -> Step:
    """Bind an instruction that computes lane by lane. Raises UnknownForm."""
    meaning = find_meaning(op)
    first, *rest = operands
    destinations = list_parts(first) if len(meaning.results) > 1 else (first,)  # setp may leave the second one out
    sources = [make_source(reader, o, t) for o, t in zip(rest, meaning.operands)]
    if len(rest) < len(meaning.operands):
        raise UnknownForm(f"{len(rest)} operands of `{op.text}`")
    if meaning.reads_carry:
        sources.append(Source(reader.fetch("%carry", "pred"), np.dtype(np.bool_)))
    if len(destinations) == 1 and not meaning.writes_carry:
        compute: Callable[..., Array] = meaning.compute  # type: ignore[assignment]  # a tuple where there are several results
        whole = compute if len(meaning.results) == 1 else lambda *x: compute(*x)[0]
        return make_lane_step(op, whole, sources, (destinations[0], meaning.results[0]), reader)
    stores = [reader.store(d, t) for d, t in zip(destinations, meaning.results)]
    if meaning.writes_carry:
        stores.append(reader.store("%carry", "pred"))
    return _make_split(meaning.compute, sources, stores)  # type: ignore[arg-type]  # a tuple of results


def make_lane_step(
    op: Opcode, compute: Callable[..., Array], sources: Sequence[Source], target: tuple[Operand, str], reader: Reader
) -> LaneStep:
    """Make the step of an instruction with one result, of a type. Raises UnknownForm."""
    operand, type_name = target
    register = reader.find_register(operand) if isinstance(operand, str) else None
    fits = register is not None and reader.fits(register, np.dtype(DTYPES[type_name]))
    stored = np.dtype(reader.file.types[register]) if register is not None and fits else np.dtype(np.bool_)
    return LaneStep(op, compute, sources, (register if register is not None and fits else -1, stored), reader.store(operand, type_name))


def _make_split(compute: Callable[..., Sequence[Array]], sources: Sequence[Source], stores: Sequence[Store]) -> Step:
    """Make the step of an instruction with several results."""

    def run(g: Group) -> None:
        for store, value in zip(stores, compute(*[s.fetch(g) for s in sources])):
            store(g, value)

    return run


class Piece(NamedTuple):
    """Rows of an operand: those of a bundle from a first one on, or a register."""

    bundle: int
    first: int
    rows: int


@dataclass(eq=False)
class Bundle:
    """Instructions that compute alike, none of which needs another one's result.

    Attributes:
        columns: For each operand the rows of the instructions, or a number: one for all or one for each.
        kept: Rows of the result that are kept, and their registers.
    """

    steps: list[LaneStep]
    columns: list[list[Piece] | Array] = field(default_factory=list)
    kept: list[tuple[int, int]] = field(default_factory=list)


class LaneRun:
    """Instructions that are computed together; needed: the registers that others read."""

    def __init__(self, steps: Sequence[LaneStep], needed: frozenset[int], uses: Sequence[Uses]):
        self.steps = [s.run for s in steps]
        written: dict[int, int] = {}  # level behind that of a register's writer
        read: dict[int, int] = {}
        levels: dict[tuple[int, object], list[int]] = {}
        for i, step in enumerate(steps):
            reads, writes = uses[i]
            level = max([0, *(written.get(r, 0) for r in reads), *(max(written.get(r, 0), read.get(r, 0)) for r in writes)])
            written |= dict.fromkeys(writes, level + 1)
            for r in reads:
                read[r] = max(read.get(r, 0), level + 1)
            levels.setdefault((level, step.key or i), []).append(i)
        self.items: list[Step | Bundle] = []
        self.count = 0
        makers: dict[int, tuple[int, int]] = {}
        wanted = set(needed)
        for (_, key), members in sorted(levels.items(), key=lambda item: (item[0][0], item[1][0])):
            if len(members) < LEAST or isinstance(key, int):
                self.items += [steps[i].run for i in members]
                wanted |= {r for i in members for r in uses[i][0]}
                for i in members:
                    for r in uses[i][1]:
                        makers.pop(r, None)
                continue
            bundle = Bundle([steps[i] for i in members])
            bundle.columns = [
                _place_column([s.sources[j] for s in bundle.steps], makers, wanted) for j in range(len(bundle.steps[0].sources))
            ]
            makers |= {s.target: (self.count, row) for row, s in enumerate(bundle.steps)}
            self.items.append(bundle)
            self.count += 1
        for b in (b for b in self.items if isinstance(b, Bundle)):
            b.kept = [(row, s.target) for row, s in enumerate(b.steps) if s.target in wanted]

    def __call__(self, g: Group) -> None:
        n, regs = g.n, g.regs
        if n > WIDEST:
            for step in self.steps:
                step(g)
            return
        peek = regs.peek if isinstance(regs, PartRegisters) else regs.__getitem__
        results: list[Array] = []
        for item in self.items:
            if not isinstance(item, Bundle):
                item(g)
                continue
            first = item.steps[0]
            operands = []
            for source, column in zip(first.sources, item.columns):
                if isinstance(column, np.ndarray):
                    operands.append(np.repeat(column, n) if column.ndim else column)
                    continue
                parts = [results[p.bundle][p.first * n : (p.first + p.rows) * n] if p.bundle >= 0 else peek(p.first) for p in column]
                operands.append((parts[0] if len(parts) == 1 else np.concatenate(parts)).view(source.dtype))
            result = first.compute(*operands).view(first.stored)
            results.append(result)
            for row, register in item.kept:
                regs[register] = result[row * n : (row + 1) * n]


def _place_column(sources: Sequence[Source], makers: dict[int, tuple[int, int]], wanted: set[int]) -> list[Piece] | Array:
    """Return where an operand of a bundle's instructions comes from; registers that no bundle has made become wanted."""
    numbers = [s.number for s in sources if s.number is not None]
    if numbers:
        return numbers[0] if all(x.tobytes() == numbers[0].tobytes() for x in numbers) else np.stack(numbers)
    pieces: list[Piece] = []
    for s in sources:
        bundle, row = makers.get(s.register, (-1, s.register))
        last = pieces[-1] if pieces else Piece(-1, 0, 0)
        if bundle >= 0 and last.bundle == bundle and last.first + last.rows == row:
            pieces[-1] = Piece(bundle, last.first, last.rows + 1)
        else:
            pieces.append(Piece(bundle, row, 1))
        if bundle < 0:
            wanted.add(s.register)
    return pieces


def fuse_lane_steps(steps: Sequence[Step], uses: Sequence[Uses], needed: frozenset[int]) -> list[Step]:
    """Return the steps of a block, with runs of those that compute lane by lane as one step each; uses: the registers of each step."""
    result: list[Step] = []
    start = 0
    while start < len(steps):
        end = start
        while end < len(steps) and isinstance(steps[end], LaneStep):
            end += 1
        if end == start:
            result.append(steps[start])
            start += 1
            continue
        run = [s for s in steps[start:end] if isinstance(s, LaneStep)]
        others = (reads | writes for reads, writes in (*uses[:start], *uses[end:]))  # a predicate keeps old values
        fused = LaneRun(run, needed.union(*others), uses[start:end]) if len(run) >= LEAST else None
        result += [fused] if fused is not None and fused.count else [s.run for s in run]
        start = end
    return result

"""Products of warps (mma.sync) that stand near one another in a block, computed together.

They are put into levels, so that each comes behind those whose results it takes. Those of a level with the same A are one
product of matrices. A value that only products of the run read is not kept in its register.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..isa.instruction_table import Opcode
from ..isa.matrices import multiply_by_several
from .groups import Group
from .operands import Array, Fetch

Step = Callable[[Group], None]
Uses = tuple[frozenset[int], frozenset[int]]  # registers that an instruction reads, and writes


@dataclass(frozen=True, eq=False)
class WarpProduct:
    """One mma.sync.

    Attributes:
        sources: Fetches of the registers of A, B and C.
        registers: Numbers of these registers; -1 for a number.
        targets: Registers of D; -1 for none.
    """

    op: Opcode
    sources: tuple[tuple[Fetch, ...], tuple[Fetch, ...], tuple[Fetch, ...]]
    registers: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    targets: tuple[int, ...]

    def __call__(self, g: Group) -> None:
        a, b, c = (np.concatenate([g.as_warps(fetch(g)).reshape(1, -1) for fetch in part]) for part in self.sources)
        for target, value in zip(self.targets, multiply_by_several(self.op, a, b[None], c)):
            if target >= 0:
                g.keep(target, g.of_warps(value))


@dataclass(eq=False)
class Bundle:
    """Products with the same A, none of which needs another one's result.

    Attributes:
        before: The bundle whose results, in their order, are this one's C.
        kept: Rows of the results that are kept, and their registers.
    """

    products: list[WarpProduct]
    before: Bundle | None = None
    kept: list[tuple[int, int]] = field(default_factory=list)


class ProductRun:
    """Products that are computed together; needed: the registers that others read."""

    def __init__(self, products: Sequence[WarpProduct], needed: frozenset[int]):
        self.products = products
        self.bundles: list[Bundle] = []
        levels: dict[tuple[int, tuple[int, ...], int], Bundle] = {}
        written: dict[int, int] = {}  # level behind that of a register's writer
        read: dict[int, int] = {}
        for i, p in enumerate(products):
            sources = {r for part in p.registers for r in part if r >= 0}
            level = max([0, *(written.get(r, 0) for r in sources), *(max(written.get(r, 0), read.get(r, 0)) for r in p.targets)])
            written |= dict.fromkeys(p.targets, level + 1)
            for r in sources:
                read[r] = max(read.get(r, 0), level + 1)
            a = p.registers[0]
            levels.setdefault((level, a, i if -1 in a else -1), Bundle([])).products.append(p)
        self.bundles = [levels[key] for key in sorted(levels)]
        self._link(needed)

    def _link(self, needed: frozenset[int]) -> None:
        """Find for each bundle where its C comes from, and what of its results is kept."""
        makers: dict[int, tuple[Bundle, int]] = {}
        wanted = set(needed)
        for bundle in self.bundles:
            found = [makers.get(r) for p in bundle.products for r in p.registers[2]]
            before = found[0][0] if found[0] is not None else None
            if before is not None and found == [(before, i) for i in range(len(before.products) * len(before.products[0].targets))]:
                bundle.before = before
            else:
                wanted |= {r for p in bundle.products for r in p.registers[2]}
            wanted |= {r for p in bundle.products for part in p.registers[:2] for r in part}
            rows = [t for p in bundle.products for t in p.targets]
            makers |= {t: (bundle, i) for i, t in enumerate(rows)}
        for bundle in self.bundles:
            rows = [t for p in bundle.products for t in p.targets]
            bundle.kept = [(i, t) for i, t in enumerate(rows) if t >= 0 and t in wanted]

    def __call__(self, g: Group) -> None:
        if g.find_places_in_warps()[1] is not None:
            for p in self.products:
                p(g)
            return
        results: dict[int, Array] = {}
        for bundle in self.bundles:
            first = bundle.products[0]
            a = np.concatenate([g.spread(fetch(g)) for fetch in first.sources[0]]).reshape(-1, g.n)
            b = np.concatenate([g.spread(fetch(g)) for p in bundle.products for fetch in p.sources[1]]).reshape(
                len(bundle.products), -1, g.n
            )
            if bundle.before is not None:
                c = results[id(bundle.before)]
            else:
                c = np.concatenate([g.spread(fetch(g)) for p in bundle.products for fetch in p.sources[2]]).reshape(-1, g.n)
            rows = results[id(bundle)] = multiply_by_several(first.op, a, b, c)
            for i, target in bundle.kept:
                g.keep(target, rows[i])


def fuse_products(steps: list[Step], uses: Sequence[Uses], needed: frozenset[int]) -> tuple[list[Step], list[Uses]]:
    """Return the steps of a block with runs of products as one step each, and their registers; uses: those of each step.

    Steps between products that do not touch their registers are done before them.
    """
    result: list[Step] = []
    of_result: list[Uses] = []
    run: list[int] = []
    read: set[int] = set()
    written: set[int] = set()

    def close() -> None:
        if len(run) > 1:
            others = (uses[i][0] | uses[i][1] for i in range(len(steps)) if i not in run)  # a predicate keeps old values
            products = [p for i in run if isinstance(p := steps[i], WarpProduct)]
            result.append(ProductRun(products, needed.union(*others)))
            of_result.append((frozenset(read), frozenset(written)))
        else:
            result.extend(steps[i] for i in run)
            of_result.extend(uses[i] for i in run)
        run.clear()
        read.clear()
        written.clear()

    for i, step in enumerate(steps):
        reads, writes = uses[i]
        if isinstance(step, WarpProduct):
            first = steps[run[0]] if run else step
            if isinstance(first, WarpProduct) and first.op.text != step.op.text:
                close()
            run.append(i)
            read |= reads
            written |= writes
            continue
        if run and (reads & written or writes & (read | written)):
            close()
        result.append(step)
        of_result.append(uses[i])
    close()
    return result, of_result

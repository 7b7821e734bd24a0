"""The passes in order, each with its purpose.

Between any two of them the IR is valid and computes the same, up to the rounding that a pass declares (`ROUNDING`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import ModuleType

from ..ir import ops
from . import (
    affine_bias,
    affine_columns,
    affine_tiles,
    bit_words,
    block_indices,
    column_gathers,
    dead_code,
    dealt_columns,
    deferred_row_sums,
    divisions,
    early_reads,
    exact,
    finish_before_copy,
    fusion,
    last_columns,
    lazy_zeros,
    moved_tiles,
    pinned_waits,
    ring_indices,
    row_functions,
    shared_reciprocals,
    simplify,
    slope_products,
    value_numbering,
    warp_branches,
    widened_loads,
    work_item_values,
)


@dataclass(frozen=True)
class Pass:
    """A pass of the pipeline.

    `needed`: the IR cannot be printed without it, so that it cannot be left out.
    """

    module: ModuleType
    purpose: str
    needed: bool = False

    @property
    def name(self) -> str:
        """Name of the pass's module."""
        return self.module.__name__.rpartition(".")[2]

    @property
    def run(self) -> Callable[[ops.Kernel], None]:
        """The function that runs the pass on a kernel."""
        run: Callable[[ops.Kernel], None] = self.module.run
        return run

    @property
    def rounding(self) -> bool:
        """The pass may change results by roundings, as its docstring says."""
        return bool(getattr(self.module, "ROUNDING", False))


CLEAN = (
    Pass(simplify, "one form for equal expressions; constants folded", needed=True),
    Pass(value_numbering, "equal values computed once"),
    Pass(dead_code, "what nobody needs goes"),
)
PASSES: tuple[Pass, ...] = (
    *CLEAN,
    *CLEAN,
    Pass(exact, "marks operations that feed comparisons, step functions and casts: computed as written", needed=True),
    Pass(ring_indices, "stages and parities of rings carried along instead of divided out"),
    Pass(warp_branches, "choices by a vote of a warp become branches of the warp"),
    Pass(block_indices, "indices divided by the size of the block that a tile lies in"),
    Pass(affine_columns, "comparisons of indices become limits on columns"),
    Pass(bit_words, "words of bits read once a row, of which each element tests one"),
    Pass(last_columns, "limits that only the last block of columns reaches are asked there alone"),
    Pass(column_gathers, "what depends on the column alone is read once a warp"),
    Pass(affine_tiles, "tiles of indices become a number a row and a slope"),
    Pass(affine_bias, "what a bias adds alike along a row is kept apart"),
    *CLEAN,
    Pass(lazy_zeros, "accumulators that begin as zeros are not written"),
    Pass(deferred_row_sums, "sums of rows stay in parts as long as they are added to"),
    Pass(work_item_values, "what follows from a unit of work alone is computed once a CTA"),
    Pass(early_reads, "reads that a wait stands before are issued in front of it"),
    *CLEAN,
    Pass(divisions, "division by what never changes by its inverse"),
    Pass(shared_reciprocals, "four divisions by numbers of a known range share one reciprocal"),
    Pass(row_functions, "1/x and log2 of a number a row by one branch of the warp"),
    *CLEAN,
    Pass(slope_products, "slope times column: once where registers allow, else late"),
    Pass(dealt_columns, "sums of widened products keep their columns as lanes get them"),
    Pass(moved_tiles, "8-bit floats that are widened from array to array travel in chunks"),
    Pass(widened_loads, "8-bit floats that are widened are loaded as f16"),
    Pass(pinned_waits, "exponentials stay before the wait that the program puts behind them"),
    Pass(fusion, "what is worked out inside the expression that reads it", needed=True),
    Pass(finish_before_copy, "a product in flight is waited for before its registers are copied", needed=True),
)


def optional_passes() -> tuple[str, ...]:
    """Return the names of the passes that may be left out."""
    return tuple(dict.fromkeys(p.name for p in PASSES if not p.needed))


def select_passes(without: Collection[str] = ()) -> Iterator[tuple[int, Pass]]:
    """Yield the passes that run without those named, each with its number in the pipeline, from 1."""
    for number, p in enumerate(PASSES, 1):
        if p.needed or p.name not in without:
            yield number, p


def optimise(kernel: ops.Kernel, without: Collection[str] = ()) -> None:
    """Run the passes on a kernel, in place."""
    for _, p in select_passes(without):
        p.run(kernel)
    kernel.verify()

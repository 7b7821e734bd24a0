"""The passes in order, each with its purpose.

Between any two of them the IR is valid and computes the same, up to the rounding that a pass declares (`ROUNDING`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import ModuleType

from ...text.diagnostics import CuirError
from ..ir import ops
from ..ir.ir_text import State
from ..ir.ir_walk import every
from . import (
    assign_layouts,
    branch_on_warp_votes,
    branch_row_functions,
    carry_ring_indices,
    copy_fp8_in_chunks,
    decompose_affine_tiles,
    defer_row_sums,
    elide_zero_accumulators,
    eliminate_common_subexpressions,
    eliminate_dead_code,
    gather_per_column,
    hoist_block_indices,
    hoist_loads_above_waits,
    hoist_work_item_values,
    inline_elementwise,
    insert_synchronisation,
    limit_columns,
    load_fp8_as_f16,
    load_mask_words,
    mark_uniform_words,
    materialise_affine_products,
    multiply_by_inverses,
    peel_ragged_mask,
    pin_waits,
    select_instructions,
    share_reciprocals,
    simplify,
    split_exchanges,
    split_row_bias,
    wait_before_copy,
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


BUILD = "build"  # the name of the state before any pass
CLEAN = (
    Pass(simplify, "fold constants; give equivalent expressions one form", needed=True),
    Pass(eliminate_common_subexpressions, "compute equal values once"),
    Pass(eliminate_dead_code, "remove operations whose results nobody reads"),
)
INLINE = Pass(inline_elementwise, "compute elementwise values inside the expression that reads them", needed=True)
PASSES: tuple[Pass, ...] = (
    *CLEAN,
    Pass(hoist_work_item_values, "compute values of a unit of work once per CTA"),
    *CLEAN,
    Pass(carry_ring_indices, "carry the stage and parity of a ring of buffers through loops instead of dividing counters"),
    Pass(branch_on_warp_votes, "turn selects (`where`) by a warp's vote into branches of the warp"),
    Pass(hoist_block_indices, "divide indices once per tile if the tile lies within one block"),
    Pass(limit_columns, "turn comparisons of row and column indices into limits on the column"),
    Pass(load_mask_words, "load the mask bits of a row 32 at a time, not one by one"),
    Pass(peel_ragged_mask, "test a limit only in the last block of columns if no other block reaches it"),
    Pass(gather_per_column, "load values that depend only on the column once per warp"),
    Pass(decompose_affine_tiles, "keep tiles rows[r] + slope * column as their rows and slope"),
    Pass(split_row_bias, "split off the part of a bias that is the same along a row"),
    *CLEAN,
    Pass(elide_zero_accumulators, "begin products without writing zeros to their accumulators"),
    Pass(defer_row_sums, "keep row sums as partial sums while a loop adds to them"),
    Pass(mark_uniform_words, "mark values of a unit of work that steer a role"),
    Pass(hoist_loads_above_waits, "move loads above the waits that precede them"),
    *CLEAN,
    Pass(multiply_by_inverses, "replace division by a launch constant with multiplication by its inverse"),
    Pass(share_reciprocals, "compute four quotients, by divisors of a known range, from one reciprocal"),
    Pass(branch_row_functions, "compute 1/x and log2 of row values by short code, with a branch to long code for rare values"),
    *CLEAN,
    INLINE,
    Pass(materialise_affine_products, "compute slope times column once if registers allow, else at each use"),
    Pass(assign_layouts, "give tiles the layouts in which lanes load operands of products"),
    Pass(copy_fp8_in_chunks, "copy and widen 8-bit floats between shared arrays in chunks of 16 bytes"),
    Pass(load_fp8_as_f16, "load 8-bit floats as f16 if the program widens these to f16"),
    Pass(pin_waits, "keep exponentials ahead of the wait that follows"),
    INLINE,
    Pass(wait_before_copy, "wait for a product in flight before its registers are copied"),
    Pass(split_exchanges, "split what warps exchange into steps, between which lanes meet", needed=True),
    Pass(insert_synchronisation, "insert joins of lanes, proxy fences and syncs around roles"),
    Pass(select_instructions, "select how the target does loads, stores, products and loops", needed=True),
)


def optional_passes() -> tuple[str, ...]:
    """Return the names of the passes that may be left out."""
    return tuple(dict.fromkeys(p.name for p in PASSES if not p.needed))


def select_passes(without: Collection[str] = (), after: int = 0) -> Iterator[tuple[int, Pass]]:
    """Yield the passes that run without those named, behind number `after`, each with its number in the pipeline, from 1."""
    for number, p in enumerate(PASSES[after:], after + 1):
        if p.needed or p.name not in without:
            yield number, p


def optimise(kernel: ops.Kernel, without: Collection[str] = (), after: int = 0) -> None:
    """Run the passes on a kernel, in place: those behind number `after`. `validate` verifies the IR behind each."""
    for _, p in select_passes(without, after):
        p.run(kernel)
    for op in every(kernel):
        op.check()  # type: ignore[attr-defined]


def continue_passes(kernel: ops.Kernel, state: State, without: Collection[str] = ()) -> None:
    """Run the passes that follow the state of a kernel, in place.

    Raises: CuirError L014 for a state of another pipeline than this one.
    """
    names = [BUILD, *(p.name for p in PASSES)]
    if not 0 <= state.number < len(names) or names[state.number] != state.name:
        raise CuirError.of(
            "L014",
            f"expected one of the {len(PASSES)} passes after {BUILD}, found {state.number}, `{state.name}`, as the last one that ran",
            state.span,
            "`cuir lower PROGRAM --stages FOLDER` of this version writes it anew; `cuir lower --passes` lists the passes",
        )
    optimise(kernel, {*state.without, *without}, state.number)

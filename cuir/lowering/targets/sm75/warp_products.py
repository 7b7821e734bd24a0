"""Products of single warps (mma.sync) whose operands ldmatrix loads, in steps of 32 bytes of the inner dim.

A target that extends sm_75 chooses its own instruction for a step, and those of operands that lanes load otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....syntax.types import DType
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.ir_types import SharedT, TileT
from ...select.ways import way_of
from .warp_ways import HALF_STEPS

if TYPE_CHECKING:
    from ...cuda.primitives.memory import SharedLoad, SharedStore
    from ...cuda.role import RolePrinter

PRINTERS = Printers()
Step = Callable[["RolePrinter", str, DType, list[str]], None]
STEP_BYTES = 32  # of the inner dim


@PRINTERS.prints("mma")
def mma(role: RolePrinter, op: ops.Perform) -> None:
    """Emit mma.sync: each warp multiplies 16 rows of each slab."""
    result, target = op.results[0].type, role.storage(op.results[0])
    assert isinstance(result, TileT)
    if "c" in op.args:
        c = op.arg("c")
        if role.storage_or_none(c) is not target:
            role.elements.assign(target, c)
    else:
        role.elements.emit_loop(result, lambda at: f"{target.name}[{at.i}] = 0.f;")
    role.target.code("multiply", way_of(op))(role, op, target.name)


@dataclass(frozen=True)
class _Blocks:
    """Operands of a product in blocks that ldmatrix loads, and the code that loads them.

    Attributes:
        groups: Groups of 8 columns of the result; two are loaded at a time.
        steps: Steps of the inner dim, of `step_rows` rows of the right operand.
        load: The device function that loads blocks of the right operand.
        right: C++ expression of the address of the right blocks of step k_ and of groups from j_ on.
        left: Expressions of the addresses of the left blocks of step k_, one for each slab; none for a tile in registers.
        load_left: The device function that loads them.
    """

    role: RolePrinter
    groups: int
    steps: int
    step_rows: int
    load: str
    right: str
    left: tuple[str, ...]
    load_left: str

    @property
    def pairs(self) -> int:
        """Number of loads of the right operand in a step."""
        return -(-self.groups // 2)

    def emit_left(self, targets: list[str], k: str) -> None:
        """Emit loads of the left blocks of step k."""
        for target, place in zip(targets, self.left, strict=True):
            self.role.out.line(f"cuir::{self.load_left}({_substitute(place, k_=k)}, {_list_elements(target)});")

    def emit_right(self, target: str, k: str, j: str) -> None:
        """Emit a load of the right blocks of step k and of groups j and j + 1."""
        self.role.out.line(f"cuir::{self.load}({_substitute(self.right, k_=k, j_=j)}, {_list_elements(target)});")

    def describe_columns(self) -> str:
        """Return the head of the loop over pairs of groups; nvcc does not unroll the steps around a loop of one turn."""
        return f"#pragma unroll\nfor (int j_ = 0; j_ < {self.groups}; j_ += 2)" if self.pairs > 1 else "if (const int j_ = 0; true)"

    def describe_right(self) -> str:
        """Return a comment on what a load of the right operand gives."""
        return f"columns 8 j .. 8 j + 15, rows {self.step_rows} k .. {self.step_rows} k + {self.step_rows - 1} of b"


def _substitute(text: str, **names: str) -> str:
    """Replace names in a C++ expression."""
    return re.sub(r"\b[kj]_\b", lambda m: names.get(m[0], m[0]), text)


def _list_elements(name: str) -> str:
    return ", ".join(f"{name}[{i}]" for i in range(4))


Multiply = Callable[[str, list[str]], None]  # emits the products of loaded blocks: the right ones, and the left ones of each slab


def multiply_blocks(role: RolePrinter, op: ops.Perform, target: str, emit_step: Step, ahead: bool = False) -> None:
    """Emit `target += a @ b` of operands whose blocks ldmatrix loads.

    Args:
        role: The role.
        op: The product.
        target: Name of the accumulator.
        emit_step: Emits the instructions of a step, 32 bytes of the inner dim.
        ahead: Load blocks one step before they are multiplied; the result's columns are a multiple of 16.
    """
    a, b, out, t = op.arg("a"), op.arg("b"), role.out, op.results[0].type
    assert isinstance(a.type, (TileT, SharedT)) and isinstance(t, TileT)
    frag, element = role.fragment(t), a.type.element
    register_a = role.elements.array(a) if isinstance(a.type, TileT) else None
    b_view, a_view = role.places.shared(b), None if register_a else role.places.shared(a)
    fragments, base_b = out.temp("b"), out.temp("base")
    per_slab = frag.groups * 4
    inner = a.type.shape[1] if isinstance(a.type, TileT) else int(a.type.sizes[1])
    left: tuple[str, ...] = ()
    load_left = "load_matrix_T" if a_view is not None and a_view.transposed else "load_matrix"
    if a_view is not None:
        base_a = out.temp("base")
        if a_view.transposed:  # memory columns are rows of a
            first = f"(lane & 7) + 8 * (lane >> 4), {'32 * warp + ' if role.threads == 128 else ''}16 * (lane >> 3 & 1){a_view.inside}"
            steps = [f"16 * k_, {2 * s * frag.slab}" for s in range(frag.slabs)]
        else:
            first = f"{'16 * warp + ' if role.threads == 128 else ''}(lane & 15), 16 * (lane >> 4){a_view.inside}"
            steps = [f"{s * frag.slab}, 32 * k_" for s in range(frag.slabs)]
        out.line(f"const uint32_t {base_a} = cuir::at<{a_view.alloc.rows}>({a_view.address}, {first});")
        left = tuple(f"cuir::beyond<{a_view.alloc.rows}>({base_a}, {step})" for step in steps)
    odd = frag.groups % 2 == 1
    rows = b_view.alloc.rows
    if b_view.transposed:  # memory rows are columns of b
        first, step, load = "(lane & 7) + 8 * (lane >> 4), 16 * (lane >> 3 & 1)", "8 * j_, 32 * k_", "load_matrix"
    else:
        first, step, load = "(lane & 15), 16 * (lane >> 4)", "16 * k_, 16 * j_", "load_matrix_T"
    first += b_view.inside
    out.line(f"const uint32_t {base_b} = cuir::at<{rows}>({b_view.address}, {first});")
    place = base_b
    if odd:  # the last pair's second block of columns does not exist: it reads the first again
        last_b = out.temp("last")
        out.line(f"const uint32_t {last_b} = cuir::at<{rows}>({b_view.address}, {first.replace('(lane >> 4)', '0')});")
        place = f"j_ + 1 < {frag.groups} ? {base_b} : {last_b}"
    step_rows = STEP_BYTES // element.itemsize
    blocks = _Blocks(role, frag.groups, inner // step_rows, step_rows, load, f"cuir::beyond<{rows}>({place}, {step})", left, load_left)

    def emit_products(right_fragments: str, left_fragments: list[str]) -> None:
        for s in range(frag.slabs):
            offset = s * inner // 4
            left_fragment = (
                [f"{left_fragments[s]}[{i}]" for i in range(4)] if left else [f"{register_a}[{offset} + 4 * k_ + {i}]" for i in range(4)]
            )
            for half in range(2):
                i0 = f"{s * per_slab} + 4 * j_ + {4 * half}"
                d = [f"{target}[{i0} + {e}]" for e in range(4)]
                right_fragment = [f"{right_fragments}[{2 * half}]", f"{right_fragments}[{2 * half + 1}]"]
                guard = f"if (j_ + 1 < {frag.groups}) " if half and odd else ""
                emit_step(role, guard, element, [*d, *left_fragment, *right_fragment])

    (_emit_loaded_ahead if ahead else _emit_in_turn)(blocks, fragments, emit_products)


def _emit_in_turn(blocks: _Blocks, fragments: str, emit_products: Multiply) -> None:
    """Emit a product whose blocks are loaded right before they are multiplied."""
    out, left = blocks.role.out, [f"a{s}_" for s in range(len(blocks.left))]
    with out.block(f"#pragma unroll\nfor (int k_ = 0; k_ < {blocks.steps}; ++k_)"):
        for name, place in zip(left, blocks.left, strict=True):
            out.line(f"uint32_t {name}[4];")
            out.line(f"cuir::{blocks.load_left}({place}, {_list_elements(name)});")
        with out.block(blocks.describe_columns()):
            out.line(f"uint32_t {fragments}[4];  // {blocks.describe_right()}")
            blocks.emit_right(fragments, "k_", "j_")
            emit_products(fragments, left)


def _emit_loaded_ahead(blocks: _Blocks, fragments: str, emit_products: Multiply) -> None:
    """Emit a product whose left blocks are loaded a step ahead, and whose right blocks two groups of columns ahead."""
    out, slabs, pairs = blocks.role.out, len(blocks.left), blocks.pairs
    left = out.temp("a") if slabs else ""
    out.line(f"uint32_t {fragments}[2][4];  // {blocks.describe_right()}; those that come next are loaded")
    if slabs:
        out.line(f"uint32_t {left}[2][{slabs}][4];")
        blocks.emit_left([f"{left}[0][{s}]" for s in range(slabs)], "0")
    blocks.emit_right(f"{fragments}[0]", "0", "0")
    with out.block(f"#pragma unroll\nfor (int k_ = 0; k_ < {blocks.steps}; ++k_)"):
        if slabs:
            with out.block(f"if (k_ + 1 < {blocks.steps})"):
                blocks.emit_left([f"{left}[(k_ + 1) % 2][{s}]" for s in range(slabs)], "(k_ + 1)")
        with out.block(blocks.describe_columns()):
            out.line(f"const int n_ = {pairs} * k_ + j_ / 2, next_ = n_ + 1;")
            with out.block(f"if (next_ < {blocks.steps * pairs})"):
                blocks.emit_right(f"{fragments}[next_ % 2]", f"(next_ / {pairs})", f"(2 * (next_ % {pairs}))")
            emit_products(f"{fragments}[n_ % 2]", [f"{left}[k_ % 2][{s}]" for s in range(slabs)])


@PRINTERS.code_of("multiply", HALF_STEPS)
def multiply_half_steps(role: RolePrinter, op: ops.Perform, target: str) -> None:
    """Emit a product of halves by two of m16n8k8 a step."""
    multiply_blocks(role, op, target, _emit_step)


def _emit_step(role: RolePrinter, guard: str, element: DType, operands: list[str]) -> None:
    """Emit `d += a @ b` of 16 x 8 x 16 halves; operands: registers of d, a and b."""
    role.out.line(f"{guard}cuir::mma_16x8x16({', '.join(operands)});")


@PRINTERS.code_of("load", "ldmatrix")
def load_blocks(role: RolePrinter, load: SharedLoad) -> None:
    """Emit the load of a packed tile whose columns are a multiple of 16."""
    ref, base = load.ref, load.base
    frag = role.fragment(load.t)
    first, rows = role.out.temp("first"), ref.alloc.rows
    row = f"{'16 * warp + ' if role.threads == 128 else ''}(lane & 15)"
    role.out.line(f"const uint32_t {first} = cuir::at<{rows}>({base}, {row}, 16 * (lane >> 4));")
    with role.out.block(f"#pragma unroll\nfor (int p_ = 0; p_ < {frag.count // 2}; p_ += 4)"):
        per_slab = frag.groups * 2
        j = f"p_ % {per_slab} / 4" if frag.slabs > 1 else "p_ / 4"
        slab = f"{frag.slab} * (p_ / {per_slab})" if frag.slabs > 1 else "0"
        location = f"cuir::beyond<{rows}>({first}, {slab}, 32 * ({j}))"
        name = load.target.name
        role.out.line(f"cuir::load_matrix({location}, {name}[p_], {name}[p_ + 1], {name}[p_ + 2], {name}[p_ + 3]);")


@PRINTERS.code_of("store", "pairs of halves")
def store_pairs(role: RolePrinter, store: SharedStore) -> None:
    """Emit the store of a packed tile whose columns are a multiple of 16, two neighbours at a time."""
    frag, base, rows = role.fragment(store.t), role.out.temp("first"), store.ref.alloc.rows
    role.out.line(f"const uint32_t {base} = cuir::at<{rows}>({store.base}, row, 4 * (lane % 4){store.ref.inside});")
    with role.out.block(f"#pragma unroll\nfor (int p_ = 0; p_ < {frag.count // 2}; ++p_)"):
        per_slab = frag.groups * 2
        group = f"p_ % {per_slab} / 2" if frag.slabs > 1 else "p_ / 2"
        slab = f"{frag.slab} * (p_ / {per_slab}) + " if frag.slabs > 1 else ""
        half = f"({group} & 1) << 4"
        location = f"(cuir::beyond<{rows}>({base}, {slab}8 * (p_ & 1), 32 * ({group} / 2)) ^ ({half}))"
        role.out.line(f"cuir::put<uint32_t>({location}, {store.value}[p_]);")

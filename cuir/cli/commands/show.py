"""Command `show`: a program in canonical form, its difference to another, or the layouts of its tiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from ..completion import complete_program
from ..options import Consts, File, Json, KernelName, not_beside, only_with
from ..output import print_json, stdout

if TYPE_CHECKING:
    from ...lowering.ir.ir_types import TileT
    from ...lowering.ir.ops import Kernel


def show(
    context: typer.Context,
    file: File,
    diff: Annotated[
        str | None,
        typer.Option(
            "--diff", metavar="FILE", help="another program: show what differs", autocompletion=complete_program, show_default=False
        ),
    ] = None,
    layouts: Annotated[
        bool, typer.Option("--layouts", help="show the compiled kernel's tiles and arrays: who holds an element, who meets in banks")
    ] = False,
    kernel: KernelName = None,
    const: Consts = None,
    as_json: Json = False,
) -> None:
    """Print a program in canonical form, its difference to another, or the layouts of its tiles.

    Examples:
        cuir show flash_fwd_sm90
        cuir show mine.cuir --diff gemm
        cuir show gemm --layouts -c BM=128
    """
    from ...syntax.printer import show as print_program
    from ..command_inputs import read_program
    from ..tables import compute_unified_diff, print_code, print_diff

    not_beside(context, "layouts", "shows a kernel's layouts", "diff")
    only_with(context, "layouts", "kernel", "const")
    if layouts:
        _show_layouts(_lower(file, kernel, const or ()), as_json)
        return
    text = print_program(read_program(file))
    if diff is None:
        if as_json:
            print_json({"ok": True, "diagnostics": [], "text": text})
        else:
            print_code(text)
        return
    lines = compute_unified_diff(text, print_program(read_program(diff)), file, diff)
    if as_json:
        print_json({"ok": True, "diagnostics": [], "diff": "\n".join(lines), "equal": not lines})
    elif lines:
        print_diff(lines)
    else:
        stdout().print("the programs are equal")


# ---- layouts
def _lower(file: str, kernel: str | None, const: Iterable[str]) -> Kernel:
    """Return the IR of a kernel after all passes."""
    from ...checking.checker import check
    from ...lowering.ir.build_ir import build
    from ...lowering.passes.pipeline import optimise
    from ..command_inputs import read_program, read_program_consts

    program = read_program(file)
    picked, consts = read_program_consts(program, file, kernel, const)
    result = build(check(program, picked.name, consts))
    optimise(result)
    return result


def _show_layouts(kernel: Kernel, as_json: bool) -> None:
    """Print tables of tiles and of moves to shared memory, and a picture of each layout."""
    from ...lowering.kernel_layouts import (
        collect_conversions,
        collect_moves,
        collect_tiles,
        count_copies,
        describe_layout,
        draw_banks,
        draw_layout,
    )
    from ..tables import print_table

    tiles, moves, conversions = collect_tiles(kernel), collect_moves(kernel), collect_conversions(kernel)
    if as_json:
        rows = [
            {
                "role": use.role,
                "layout": use.layout.name,
                "dtype": use.type.dtype.data,
                "shape": list(use.type.shape),
                "registers": use.registers,
                "bits": describe_layout(use.layout.of(use.type.shape, use.threads)),
                "tiles": list(use.names),
            }
            for use in tiles
        ]
        accesses = [
            {
                "role": m.role,
                "array": m.array,
                "layout": m.tile.name,
                "swizzle": m.swizzle,
                "way": m.way,
                "bytes": m.access.bytes,
                "instructions": m.access.instructions,
                "wavefronts": m.access.wavefronts,
                "least": m.access.ideal,
                "banks": list(m.access.banks),
            }
            for m in moves
        ]
        converted = [
            {
                "role": c.role,
                "dtype": c.type.dtype.data,
                "shape": list(c.type.shape),
                "from": c.source.name,
                "to": c.type.layout.name,
                "way": c.plan.way,
                "instructions": c.plan.instructions,
            }
            for c in conversions
        ]
        print_json({"ok": True, "diagnostics": [], "layouts": rows, "moves": accesses, "conversions": converted})
        return
    print_table(
        "tiles in registers",
        ("role", "layout", "tile", "registers", "values"),
        [(u.role, u.layout.name, _describe(u.type), u.registers, ", ".join(u.names)) for u in tiles],
    )
    if moves:
        print_table(
            "moves between registers and shared memory, of a warp; the words that the first lanes want of each bank",
            ("role", "array", "swizzle", "layout", "moved as", "bytes", "wavefronts", "least", "banks"),
            [
                (m.role, m.array, m.swizzle, m.tile.name, m.way, m.access.bytes, m.access.wavefronts, m.access.ideal, draw_banks(m.access))
                for m in moves
            ],
        )
    if conversions:
        print_table(
            "conversions, and instructions of a thread",
            ("role", "tile", "from", "to", "way", "shuffles", "selects"),
            [
                (c.role, _describe(c.type), c.source.name, c.type.layout.name, c.plan.way, c.plan.shuffles, c.plan.selects)
                for c in conversions
            ],
        )
    for use in {(u.layout.name, u.threads): u for u in reversed(tiles)}.values():
        layout, console = use.layout.of(use.type.shape, use.threads), stdout()
        console.print(f"{use.layout.name}: {use.layout.meaning}", style="bold", soft_wrap=True, highlight=False)
        copies = count_copies(layout)
        held = f"; {copies} lanes hold each" if copies > 1 else ""
        head = f"{use.type.shape[0]} x {use.type.shape[1]} over {use.threads} threads: {describe_layout(layout)}{held}"
        for line in (head, "cells: lane.register", *draw_layout(layout)):
            console.print(line.rstrip(), soft_wrap=True, highlight=False, markup=False)
        console.print()


def _describe(t: TileT) -> str:
    return f"{t.dtype.data} {t.shape[0]} x {t.shape[1]}"

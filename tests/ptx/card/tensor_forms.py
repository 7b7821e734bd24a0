"""Forms of bulk copies of boxes: each swizzle, at the edges of tensors, by steps, sums, into and out of shared memory."""

from __future__ import annotations

from itertools import product

import numpy as np

from .bulk_forms import INIT, ISSUE, START, STORED, WAIT, write_output
from .forms import SPECIALS, Array, Box, Form, draw_bytes, draw_operand, to_bytes
from .warp_forms import dump_shared, fill_shared

KEPT = 256  # elements of a tensor that are recorded
SIZES = {"u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "f16": 2, "bf16": 2, "f32": 4}


def make_tensor(t: str, sizes: tuple[int, ...], box: tuple[int, ...], swizzle: int, steps: tuple[int, ...], gap: int = 16) -> Box:
    """Return a tensor whose rows have a gap behind them, and a box of it."""
    size, strides = SIZES[t], []
    step = -(-(sizes[0] * size) // 16) * 16 + gap
    for n in sizes[1:]:
        strides.append(step)
        step = step * n + gap
    return Box(t, sizes, tuple(strides), box, steps, swizzle)


def count_bytes(tensor: Box) -> int:
    """Return the bytes that a tensor spans."""
    return SIZES[tensor.type] * tensor.sizes[0] + sum((n - 1) * s for n, s in zip(tensor.sizes[1:], tensor.strides))


def make_load(tensor: Box, start: tuple[int, ...], remark: str) -> Form:
    """Make the form of a load of a box, over bytes that were there."""
    rank = len(tensor.sizes)
    nbytes = SIZES[tensor.type] * int(np.prod([-(-n // s) for n, s in zip(tensor.box, tensor.steps)]))
    tile = -(-nbytes // 1024) * 1024
    whole = -(-count_bytes(tensor) // 16) * 16
    opcode = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    coordinates = "{" + ", ".join(str(c) for c in start) + "}"
    body = (
        f"mov.b64 %x10, box; cvta.param.u64 %x10, %x10;\nadd.u64 %x11, %x0, {whole};\n{fill_shared(tile, 32, '%x11', True)}\n{START}{INIT}"
    )
    body += f"mbarrier.arrive.expect_tx.shared.b64 %x8, [%i6], {nbytes};\n"
    body += f"{opcode} [%i1], [%x10, {coordinates}], [%i6];\n{WAIT}{dump_shared(tile, 32)}"
    name = f"cp.async.bulk.tensor.{rank}d load {tensor.type} {remark}"
    return Form(name, "cp.async.bulk.tensor load", body, lambda: draw_bytes(name, whole + tile), tile, box=tensor, kept=KEPT)


def make_store(tensor: Box, start: tuple[int, ...], remark: str, reduces: bool = False) -> Form:
    """Make the form of a store, or of a sum, of a box into a tensor in the output."""
    rank, t = len(tensor.sizes), tensor.type
    tensor = Box(t, tensor.sizes, tensor.strides, tensor.box, tensor.steps, tensor.swizzle, written=True)
    nbytes = SIZES[t] * int(np.prod(tensor.box))
    tile = -(-nbytes // 1024) * 1024
    whole = -(-count_bytes(tensor) // 512) * 512
    opcode = f"cp.{'reduce.' if reduces else ''}async.bulk.tensor.{rank}d.global.shared::cta{'.add' if reduces else ''}.tile.bulk_group"
    coordinates = "{" + ", ".join(str(c) for c in start) + "}"
    fill = fill_shared(tile, 32, "%x11", True)
    body = f"mov.b64 %x10, box; cvta.param.u64 %x10, %x10;\nadd.u64 %x11, %x0, {2 * whole};\n{write_output(whole)}\n{fill}\n"
    body += f"{START}{ISSUE}{opcode} [%x10, {coordinates}], [%i1];\n{STORED}"
    name = f"cp.{'reduce.' if reduces else ''}async.bulk.tensor.{rank}d store {t} {remark}"

    def draw() -> Array:
        if not reduces:
            return draw_bytes(name, 2 * whole + tile)
        counts = (2 * whole // SIZES[t], tile // SIZES[t])
        kind = "" if t in SPECIALS else "bits"
        return np.concatenate([to_bytes(draw_operand(t, kind, f"{name}/{i}", n, (i, 2)), t) for i, n in enumerate(counts)])

    return Form(name, "cp.async.bulk.tensor store", body, draw, whole, t, box=tensor, kept=KEPT)


def align(t: str, elements: int) -> int:
    """Return a number of elements, made a multiple of 16 bytes: at others the engine faults."""
    unit = 16 // SIZES[t]
    return elements // unit * unit


def list_forms() -> list[Form]:
    """Return the forms of the family."""
    forms = []
    for swizzle, t in product((0, 32, 64, 128), ("u8", "u16", "f32", "u64")):
        inner = (swizzle or 64) // SIZES[t]
        tensor = make_tensor(t, (inner + 24, 40), (inner, 16), swizzle, (1, 1))
        forms.append(make_load(tensor, (align(t, 16), 3), f"swizzle {swizzle}"))
        forms.append(make_store(tensor, (align(t, 16), 3), f"swizzle {swizzle}"))
    for swizzle in (0, 32, 64, 128):
        inner = (swizzle or 48) // 2
        tensor = make_tensor("f16", (inner + 13, 21), (inner, 12), swizzle, (1, 1))
        for remark, start in (("low", (-8, -5)), ("high", (16, 14)), ("both", (-8, 15)), ("outside", (0, 30))):
            forms.append(make_load(tensor, start, f"{remark} edge, swizzle {swizzle}"))
            forms.append(make_store(tensor, start, f"{remark} edge, swizzle {swizzle}"))
        forms.append(make_load(tensor, (-inner, 0), f"left edge, swizzle {swizzle}"))
    shapes = {1: ((100,), (64,)), 3: ((40, 9, 5), (16, 4, 3)), 4: ((24, 5, 4, 3), (8, 3, 2, 2)), 5: ((16, 4, 3, 3, 2), (8, 3, 2, 2, 2))}
    for rank, (sizes, box) in shapes.items():
        tensor = make_tensor("f32", sizes, box, {1: 0, 3: 64}.get(rank, 32), (1,) * rank)
        for remark, start in (("inside", (4,) + (1,) * (rank - 1)), ("edge", (sizes[0] - 4, *(n - 1 for n in sizes[1:])))):
            forms.append(make_load(tensor, start, remark))
            forms.append(make_store(tensor, start, remark))
    for steps in ((1, 2), (1, 3), (1, 8)):
        tensor = make_tensor("f16", (64, 60), (32, 24), 64, steps)
        forms.append(make_load(tensor, (8, 3), f"steps {steps[1]}"))
        forms.append(make_load(tensor, (8, 50), f"steps {steps[1]} edge"))
    for t in ("u32", "s32", "u64", "f16", "bf16", "f32"):
        inner, unit = 64 // SIZES[t], 16 // SIZES[t]
        tensor = make_tensor(t, (inner + 12, 20), (inner, 8), 64, (1, 1))
        forms.append(make_store(tensor, (unit, 4), "added", True))
        forms.append(make_store(tensor, (align(t, 12 + unit), 16), "added edge", True))
    return forms

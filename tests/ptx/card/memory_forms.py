"""Forms on memory: loads and stores, atomics in each space, asynchronous copies, and mbarriers."""

from __future__ import annotations

from itertools import product

import numpy as np

from .forms import BYTES, Array, Form, draw_bytes, draw_operand, draw_words, make_lanes, to_bytes
from .warp_forms import dump_shared, fill_shared

WIDTH = {t: f"b{8 * n}" for t, n in BYTES.items()}


# ---- loads and stores
def list_moves() -> list[Form]:
    """Return forms of loads and stores: widths, signs, vectors."""
    forms = []
    for space in ("global", "shared"):
        fill = fill_shared(512, 32) if space == "shared" else "mov.u64 %x3, %x0;"
        base = "%i1" if space == "shared" else "%x3"
        wide, add = ("u32", "mad.lo.u32") if space == "shared" else ("u64", "mad.wide.u32")
        for t in ("u8", "s8", "u16", "s16", "b32", "b64"):
            size = 1 if t in ("u8", "s8") else BYTES[t]
            place = ".reg .b32 %at;" if wide == "u32" else ".reg .b64 %at;"
            target = "b64" if t == "b64" else "b32"
            body = f".reg .{target} %d0;\n{fill}\n{place}\n{add} %at, %i0, {size}, {base};\nld.{space}.{t} %d0, [%at];"
            body += f"\nmad.wide.u32 %x5, %i0, {int(target[1:]) // 8}, %x1;\nst.global.{target} [%x5], %d0;"
            name = f"ld.{space}.{t}"
            forms.append(Form(name, "ld", body, lambda k=name: draw_bytes(k, 512), 32 * int(target[1:]) // 8, target))
        for count, t in ((2, "b16"), (4, "b16"), (2, "b32"), (4, "b32"), (2, "b64")):
            size = count * BYTES[t]
            place = ".reg .b32 %at;" if wide == "u32" else ".reg .b64 %at;"
            vector = "{" + ", ".join(f"%d{i}" for i in range(count)) + "}"
            body = f".reg .{t} %d<{count}>;\n{fill}\n{place}\n{add} %at, %i0, {size}, {base};\nld.{space}.v{count}.{t} {vector}, [%at];"
            body += f"\nmad.wide.u32 %x5, %i0, {size}, %x1;\nst.global.v{count}.{t} [%x5], {vector};"
            name = f"ld.{space}.v{count}.{t}"
            forms.append(Form(name, "ld", body, lambda k=name: draw_bytes(k, 512), 32 * size))
    for t in ("u8", "b16", "b32"):
        size = 1 if t == "u8" else BYTES[t]
        body = f".reg .b32 %a0;\nmad.wide.u32 %x2, %i0, 4, %x0;\nld.global.b32 %a0, [%x2];\nmad.wide.u32 %x5, %i0, {size}, %x1;\n"
        register = "%h" if t == "b16" else "%a0"
        body += (".reg .b16 %h, %g; mov.b32 {%h, %g}, %a0;\n" if t == "b16" else "") + f"st.global.{t} [%x5], {register};"
        name = f"st.global.{t}"
        forms.append(Form(name, "st", body, lambda k=name: draw_bytes(k, 128), 32 * size, "u8" if t == "u8" else t))
    return forms


# ---- atomics
OPERATIONS = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    **dict.fromkeys(("and", "or", "xor", "exch"), ("b32", "b64")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    "cas": ("b16", "b32", "b64"),
}
ORDER_FREE = ("add", "min", "max", "and", "or", "xor")


def make_atomic(space: str, name: str, t: str, returns: bool) -> Form:
    """Make the form of an atomic, or of a reduction, of each lane on an element of its own: the old value, then the new one."""
    size, lanes = BYTES[t], 128
    noftz = ".noftz" if t in ("f16", "bf16", "f16x2", "bf16x2") else ""
    opcode = f"{'atom' if returns else 'red'}.{space}.{name}{noftz}.{t}"
    b = WIDTH[t]
    lines = [f".reg .{b} %a0, %a1, %a2, %d0, %d1; mad.wide.u32 %x2, %i0, {size}, %x0; mad.wide.u32 %x3, %i0, {size}, %x1;"]
    lines += [f"ld.global.{b} %a{i}, [%x2+{i * size * lanes}];" for i in range(3)]
    lines.append("mov.b16 %d0, 0;" if b == "b16" else f"mov.{b} %d0, 0;")
    if space == "shared":
        lines += [f".shared .align 16 .b8 cell[{size * lanes}]; mov.u32 %i1, cell; mad.lo.u32 %i1, %i0, {size}, %i1;"]
        at = "[%i1]"
    else:
        at = f"[%x3+{size * lanes}]"
    lines.append(f"st.{space}.{b} {at}, %a0;")
    operands = "%a1, %a2" if name == "cas" else "%a1"
    lines.append(f"{opcode} {'%d0, ' if returns else ''}{at}, {operands};")
    lines += [f"ld.{space}.{b} %d1, {at};", f"st.global.{b} [%x3], %d0; st.global.{b} [%x3+{size * lanes}], %d1;"]
    full = f"{opcode} alone"

    def draw() -> Array:
        own, other, new = (draw_operand(t, "", f"{full}/{i}", lanes, (i, 2)) for i in (0, 1, 0))
        if name == "cas":
            other = np.where(draw_words(f"{full}/same", lanes) & np.uint64(1), own, other)
            new = draw_operand(t, "bits", f"{full}/new", lanes, (0, 1))
        return np.concatenate([to_bytes(x, t) for x in (own, other, new)])

    return Form(full, "atom" if returns else "red", "\n".join(lines), draw, 2 * size * lanes, t, lanes)


def make_crowded(space: str, name: str, t: str) -> Form:
    """Make the form of a reduction of all lanes on eight elements, in an order that changes nothing."""
    size, lanes = BYTES[t], 64
    b = WIDTH[t]
    opcode = f"red.{space}.{name}.{t}"
    lines = [f".reg .{b} %a0, %d0; mad.wide.u32 %x2, %i0, {size}, %x0; ld.global.{b} %a0, [%x2]; and.b32 %i4, %i0, 7;"]
    lines.append(f"mad.wide.u32 %x3, %i4, {size}, %x1; mad.wide.u32 %x4, %i0, {size}, %x1;")
    at = "[%x3]"
    if space == "shared":
        lines.append(f".shared .align 16 .b8 cell[{size * 8}]; mov.u32 %i1, cell; mad.lo.u32 %i5, %i4, {size}, %i1;")
        at = "[%i5]"
    lines.append(f".reg .pred %first; setp.lt.u32 %first, %i0, 8; @%first st.{space}.{b} {at}, %a0; bar.sync 0;")
    lines.append(f"{opcode} {at}, %a0; bar.sync 0;")
    lines.append(f"ld.{space}.{b} %d0, {at}; @%first st.global.{b} [%x4], %d0;" if space == "shared" else "")
    return Form(f"{opcode} crowded", "red", "\n".join(lines), lambda: draw_bytes(f"{opcode} crowded", size * lanes), size * 8, t, lanes)


def make_vector_reduction(count: int, t: str) -> Form:
    """Make the form of a reduction of vectors in global memory."""
    size, lanes = BYTES[t], 32
    b, vector = WIDTH[t], "{" + ", ".join(f"%a{i}" for i in range(count)) + "}"
    noftz = "" if t == "f32" else ".noftz"
    opcode = f"red.global.add{noftz}.v{count}.{t}"
    lines = [f".reg .{b} %a<{count}>; mad.wide.u32 %x2, %i0, {size * count}, %x0; mad.wide.u32 %x3, %i0, {size * count}, %x1;"]
    for offset in (0, size * count * lanes):
        lines += [f"ld.global.{b} %a{i}, [%x2+{offset + size * i}];" for i in range(count)]
        lines += [f"st.global.{b} [%x3+{size * i}], %a{i};" for i in range(count)] if offset == 0 else [f"{opcode} [%x3], {vector};"]

    def draw() -> Array:
        n = count * lanes
        return np.concatenate([to_bytes(draw_operand(t, "", f"{opcode}/{i}", n, (i, 2)), t) for i in range(2)])

    return Form(opcode, "red", "\n".join(lines), draw, size * count * lanes, t)


def list_atomics() -> list[Form]:
    """Return forms of atom and red."""
    forms = []
    for space, (name, types) in product(("global", "shared"), OPERATIONS.items()):
        for t in types:
            forms.append(make_atomic(space, name, t, True))
            if name not in ("exch", "cas"):
                forms.append(make_atomic(space, name, t, False))
            if name in ORDER_FREE and t[0] != "f" and not t.startswith("bf"):
                forms.append(make_crowded(space, name, t))
    vectors = (
        (2, "f32"),
        (4, "f32"),
        (2, "f16x2"),
        (4, "f16x2"),
        (2, "bf16x2"),
        (4, "bf16x2"),
        (2, "f16"),
        (4, "f16"),
        (8, "f16"),
        (8, "bf16"),
    )
    return forms + [make_vector_reduction(n, t) for n, t in vectors]


# ---- copies by threads
def list_thread_copies() -> list[Form]:
    """Return forms of cp.async: each size, with fewer bytes that are taken, and zeros behind them."""
    forms = []
    for cache, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        for fewer in (False, True):
            opcode = f"cp.async.{cache}.shared.global"
            name = f"{opcode} {size}{' of fewer' if fewer else ''}"
            taken = f"mad.wide.u32 %x4, %i0, 4, %x0; ld.global.b32 %i5, [%x4+{32 * size}];" if fewer else ""
            lines = [fill_shared(32 * size, 32), taken, f"mad.wide.u32 %x3, %i0, {size}, %x0; xor.b32 %i4, %i0, 5;"]
            lines += [f"mad.lo.u32 %i4, %i4, {size}, %i1;", f"{opcode} [%i4], [%x3], {size}{', %i5' if fewer else ''};"]
            lines += ["cp.async.commit_group; cp.async.wait_group 0;", dump_shared(32 * size, 32)]

            def draw(name: str = name, size: int = size) -> Array:
                taken = (draw_words(f"{name}/taken", 32) % np.uint64(size + 1)).astype(np.uint32)
                return np.concatenate([draw_bytes(name, 32 * size), taken.view(np.uint8)])

            forms.append(Form(name, "cp.async", "\n".join(lines), draw, 32 * size))
    return forms


# ---- mbarriers: which tests of a sequence hold
BARRIER = """.shared .align 8 .b64 bar; .reg .b64 %s<8>; .reg .b32 %n; .reg .pred %p;
mov.u32 %i1, bar; mov.u32 %n, 0; setp.ne.u32 %p, %i0, 0; @%p bra OVER;
"""
NOTE = " selp.u32 %i2, 1, 0, %p; shl.b32 %n, %n, 1; or.b32 %n, %n, %i2;\n"
TEST = "mbarrier.test_wait.shared.b64 %p, [%i1], {};" + NOTE
PARITY = "mbarrier.test_wait.parity.shared.b64 %p, [%i1], {};" + NOTE
BOTH = PARITY.format(0) + PARITY.format(1)
SEQUENCES = {
    "one arrival": "mbarrier.init.shared.b64 [%i1], 1;" + BOTH + "mbarrier.arrive.shared.b64 %s0, [%i1];" + TEST.format("%s0") + BOTH,
    "three arrivals": "mbarrier.init.shared.b64 [%i1], 3;"
    + "".join(f"mbarrier.arrive.shared.b64 %s{i}, [%i1];" + BOTH + TEST.format("%s0") for i in range(4))
    + TEST.format("%s3"),
    "arrivals by a count": "mbarrier.init.shared.b64 [%i1], 5; mbarrier.arrive.shared.b64 %s0, [%i1], 2;"
    + TEST.format("%s0")
    + "mbarrier.arrive.shared.b64 %s1, [%i1], 3;"
    + TEST.format("%s0")
    + TEST.format("%s1")
    + BOTH
    + "mbarrier.arrive.shared.b64 %s2, [%i1];"
    + TEST.format("%s2")
    + TEST.format("%s0"),
    "three phases": "mbarrier.init.shared.b64 [%i1], 1;"
    + "".join(f"mbarrier.arrive.shared.b64 %s{i}, [%i1];" + BOTH for i in range(3))
    + TEST.format("%s2"),
    "bytes": "mbarrier.init.shared.b64 [%i1], 1; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%i1], 48;"
    + "mbarrier.arrive.shared.b64 %s0, [%i1];"
    + TEST.format("%s0")
    + "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%i1], 16;"
    + TEST.format("%s0")
    + "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%i1], 32;"
    + TEST.format("%s0")
    + BOTH,
    "an arrival with bytes": "mbarrier.init.shared.b64 [%i1], 2; mbarrier.arrive.expect_tx.shared.b64 %s0, [%i1], 64;"
    + TEST.format("%s0")
    + "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%i1], 64;"
    + TEST.format("%s0")
    + "mbarrier.arrive.expect_tx.shared.b64 %s1, [%i1], 0;"
    + TEST.format("%s0")
    + TEST.format("%s1")
    + BOTH,
    "bytes that come first": "mbarrier.init.shared.b64 [%i1], 1; mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%i1], 32;"
    + BOTH
    + "mbarrier.arrive.expect_tx.shared.b64 %s0, [%i1], 32;"
    + TEST.format("%s0")
    + BOTH,
    "a thread that drops out": "mbarrier.init.shared.b64 [%i1], 2; mbarrier.arrive_drop.shared.b64 %s0, [%i1];"
    + TEST.format("%s0")
    + "mbarrier.arrive.shared.b64 %s1, [%i1];"
    + TEST.format("%s0")
    + BOTH
    + "mbarrier.arrive.shared.b64 %s2, [%i1];"
    + TEST.format("%s2")
    + BOTH,
    "another life": "mbarrier.init.shared.b64 [%i1], 1; mbarrier.arrive.shared.b64 %s0, [%i1];"
    + BOTH
    + "mbarrier.inval.shared.b64 [%i1]; mbarrier.init.shared.b64 [%i1], 2; mbarrier.arrive.shared.b64 %s1, [%i1];"
    + BOTH
    + "mbarrier.arrive.shared.b64 %s2, [%i1];"
    + BOTH,
    "a wait that may sleep": "mbarrier.init.shared.b64 [%i1], 1; mbarrier.arrive.shared.b64 %s0, [%i1];"
    + "mbarrier.try_wait.shared.b64 %p, [%i1], %s0;"
    + NOTE
    + "mbarrier.try_wait.parity.shared.b64 %p, [%i1], 0;"
    + NOTE
    + "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p, [%i1], 1, 100;"
    + NOTE,
}


def list_barriers() -> list[Form]:
    """Return forms of mbarriers: a word of the tests of a sequence."""
    forms = []
    for name, code in SEQUENCES.items():
        body = f"{BARRIER}{code}st.global.b32 [%x1], %n;\nOVER:"
        forms.append(Form(f"mbarrier {name}", "mbarrier", body, lambda: np.zeros(16, np.uint8), 4))
    for reduction, t in (("popc", "u32"), ("and", "pred"), ("or", "pred")):
        code = f"barrier.cta.red.{reduction}.aligned.{t} %d0, 0, %a0;"
        forms.append(make_lanes(f"barrier.cta.red.{reduction}.aligned.{t}", "pred", t, code, threads=128))
    return forms


def list_forms() -> list[Form]:
    """Return the forms of the family."""
    return [*list_moves(), *list_atomics(), *list_thread_copies(), *list_barriers()]

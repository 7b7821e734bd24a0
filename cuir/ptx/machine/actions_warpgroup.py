"""Actions of warpgroups: wgmma, its fence, groups and waits."""

from __future__ import annotations

import numpy as np

from ..isa.instruction_table import Opcode, UnknownForm
from ..isa.warpgroup_matrices import CHUNK, ROWS, Form, accumulate, arrange, decode_descriptor, find_chunks, gather_operand, read_form
from .copy_engines import EngineRead
from .findings import describe_thread, make_span
from .groups import Group
from .lane_machine import Machine
from .operands import Array, list_parts
from .products import Product
from .program import SHARED_BASE, Binding, Step, action


@action("wgmma")
def make_warpgroup_instruction(b: Binding) -> Step:
    op, place = b.op, b.place
    if b.instruction.guard is not None:
        raise UnknownForm(f"a predicate at `{op.text}`")
    if op.has("fence"):
        op.allow("fence", "sync", "aligned")
        return lambda g: g.machine.products.fence(g.slots)
    if op.has("commit_group"):
        op.allow("commit_group", "sync", "aligned")
        return lambda g: g.machine.products.commit(g.slots)
    if op.has("wait_group"):
        op.allow("wait_group", "sync", "aligned")
        keep = int(b.get(0))
        return lambda g: g.machine.products.wait(g.slots, keep, place)
    if op.has("mma_async") and not op.has("sp"):
        return make_warpgroup_product(b, read_form(op))
    raise UnknownForm(f"the instruction `{op.text}`")


def read_flags(op: Opcode, flags: list[object], in_registers: bool) -> tuple[int, int, bool, bool]:
    """Return the factors of A and B, and whether each is transposed."""
    halves = op.types[1] in ("f16", "bf16")
    count = 0 if op.types[1] in ("s8", "u8") else 4 - in_registers if halves else 2
    if len(flags) != count or any(not isinstance(f, int) or f not in (-1, 0, 1) for f in flags):
        raise UnknownForm(f"the last operands of `{op.text}`")
    numbers = [int(f) for f in flags if isinstance(f, int)]
    first, second = (numbers[0], numbers[1]) if count else (1, 1)
    if abs(first) != 1 or abs(second) != 1:
        raise UnknownForm(f"the factors of `{op.text}`")
    transposed = [bool(f) for f in numbers[2:]]
    if in_registers:
        transposed = [False, *transposed]
    return first, second, *(transposed if len(transposed) == 2 else (False, False))


def make_warpgroup_product(b: Binding, form: Form) -> Step:
    """Make the step of a product."""
    op, place = b.op, b.place
    results = list_parts(b.get(0))
    count = form.columns // (4 if form.result == "f16" else 2)
    if len(results) != count:
        raise UnknownForm(f"{len(results)} registers of the result of `{op.text}`")
    targets = tuple(n for n in (b.reader.find_register(r) for r in results) if n is not None)
    in_registers = isinstance(b.get(1), tuple)
    fragments = [b.reader.fetch(o, "b32") for o in list_parts(b.get(1))] if in_registers else []
    sources = tuple(n for n in (b.reader.find_register(o) for o in list_parts(b.get(1))) if n is not None) if in_registers else ()
    if in_registers and len(fragments) != 4:
        raise UnknownForm(f"{len(fragments)} registers of `{op.text}`")
    first = None if in_registers else b.fetch(1, "b64")
    second, keeps = b.fetch(2, "b64"), b.fetch(3, "pred")
    for r in results:  # noted as read, so that they are kept; the product writes them itself, here or at the wait
        b.reader.fetch(r, "b32")
    factor_a, factor_b, first_transposed, second_transposed = read_flags(op, list(b.instruction.operands[4:]), in_registers)
    factor = factor_a * factor_b

    def issue(g: Group) -> None:
        m: Machine = g.machine
        descriptors = [None if d is None else g.spread(d(g)) for d in (first, second)]
        scale = g.spread(keeps(g))
        groups = g.slots // m.width * (m.width // 128 + 1) + g.slots % m.width // 128
        for which in np.unique(groups).tolist():
            mine = np.flatnonzero(groups == which)
            slots = g.slots[mine]
            if len(mine) != 128:
                refuse(m, int(slots[0]), place, f"multiplies with {len(mine)} threads of its warpgroup, and all 128 must")
            places = []
            for d, rows, transposed in ((descriptors[0], ROWS, first_transposed), (descriptors[1], form.columns, second_transposed)):
                if d is None:
                    continue
                if (d[mine] != d[mine[0]]).any():
                    refuse(m, int(slots[0]), place, "multiplies with a descriptor that is not the same in all threads of its warpgroup")
                places.append(find_matrix(m, int(slots[0]), int(d[mine[0]]), (rows, form.inner), transposed, place))
            registers = [g.spread(f(g))[mine] for f in fragments]
            adds = bool(scale[mine[0]])
            m.products.check_fence(slots, targets if adds else (), sources, place)
            started = m.next_tick(place)
            read = check_operands(m, slots, places, None if in_registers else first_transposed, place)

            def compute(slots: Array = slots, places: list[Array] = places, registers: list[Array] = registers, adds: bool = adds) -> None:
                rows = m.shared.bytes.reshape(-1, CHUNK)
                a = (
                    gather_operand(registers, form.first)
                    if in_registers
                    else arrange(rows[places[0] // CHUNK], form.first, first_transposed)
                )
                c = arrange(rows[places[-1] // CHUNK], form.second, second_transposed)
                product = a @ c.T
                old = [m.regs[t][slots].view(np.uint32) for t in targets] if adds else None
                for t, value in zip(targets, accumulate(form, product if factor > 0 else -product, old, op.has("satfinite"))):
                    m.set_register(t, slots, value)

            m.products.issue(Product(slots, place, targets, frozenset(sources), compute, read, m.products.commits.get(which, 0), started))

    return issue


def check_operands(m: Machine, slots: Array, places: list[Array], first_transposed: bool | None, place: int) -> EngineRead | None:
    """Check what a product reads of shared memory, and record it. A warp needs its 16 rows of A alone, and all of B.

    All threads of the warpgroup start the product together, so what each wrote and fenced before needs no barrier.

    first_transposed: of A; None if it lies in registers.
    """
    shadow = m.shared.shadow
    assert shadow is not None
    if first_transposed is not None:
        for warp, rows in enumerate(np.split(places[0], 4, axis=1 if first_transposed else 0)):
            m.engines.check(
                m.shared, slots[32 * warp : 32 * warp + 1], shadow.find_entries(rows.reshape(-1), CHUNK).reshape(-1), "read", place, slots
            )
    m.engines.check(m.shared, slots[::32], shadow.find_entries(places[-1].reshape(-1), CHUNK).reshape(-1), "read", place, slots)
    if not m.launch.detect:
        return None
    whole = shadow.find_entries(np.concatenate([p.reshape(-1) for p in places]), CHUNK).reshape(-1)
    return m.engines.enter_read(slots, whole, place)


def refuse(m: Machine, slot: int, place: int, message: str) -> None:
    """End the run at a product that the hardware does not define."""
    raise m.findings.stop("M402", f"{describe_thread(m, slot + m.knowledge.first)} {message}", make_span(m, place))


def find_matrix(m: Machine, slot: int, value: int, shape: tuple[int, int], transposed: bool, place: int) -> Array:
    """Return the byte places of the chunks that a descriptor describes. Raises CuirError for what lies outside."""
    try:
        descriptor = decode_descriptor(value)
    except UnknownForm as reason:
        raise m.findings.stop("O123", f"the machine does not know {reason}", make_span(m, place)) from None
    offsets = find_chunks(descriptor, *shape, transposed) - SHARED_BASE
    low, high = int(offsets.min()), int(offsets.max()) + CHUNK
    if low < 0 or high > m.shared.size:
        who = describe_thread(m, slot + m.knowledge.first)
        raise m.findings.stop(
            "M409", f"{who} multiplies bytes {low} to {high} of shared memory, which has {m.shared.size:,} bytes", make_span(m, place)
        )
    return offsets + slot // m.width * m.shared.stride

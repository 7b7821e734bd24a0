"""Actions of warpgroups: wgmma, its fence, groups and waits."""

from __future__ import annotations

from ..isa.instruction_table import Opcode, UnknownForm
from ..isa.warpgroup_matrices import CHUNK, ROWS, Form, decode_descriptor, find_chunks, gather_operand, read_form
from .copy_engines import EngineRead
from .findings import describe_thread, make_span
from .groups import Group, list_distinct
from .lane_machine import Machine
from .operands import Array, list_parts
from .products import Matrix, Operand, Product
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
    factor, operands, saturates = factor_a * factor_b, frozenset(sources), op.has("satfinite")
    held = operands.union(targets)

    shapes = Operand(form.first, ROWS, form.inner, first_transposed), Operand(form.second, form.columns, form.inner, second_transposed)

    def issue(g: Group) -> None:
        m: Machine = g.machine
        descriptors = [None if d is None else g.spread(d(g)) for d in (first, second)]
        scale, fetched = g.spread(keeps(g)), [g.spread(f(g)) for f in fragments]
        for start in find_warpgroups(g, place):
            mine = slice(start, start + 128)
            slots = g.slots[mine]
            which = int(m.warpgroups[slots[0]])
            matrices: list[Matrix | None] = []
            for d, shape in zip(descriptors, shapes):
                if d is not None and (d[mine] != d[start]).any():
                    refuse(m, int(slots[0]), place, "multiplies with a descriptor that is not the same in all threads of its warpgroup")
                matrices.append(None if d is None else find_matrix(m, int(slots[0]), int(d[start]), shape, place))
            a, c = matrices
            assert c is not None
            registers = [r[mine] for r in fetched]
            adds = bool(scale[start])
            m.products.check_fence(slots, targets if adds else (), sources, place)
            started = m.next_tick(place)
            read = check_operands(m, slots, a, c, place) if m.launch.detect else None

            def multiply(a: Matrix | None = a, c: Matrix = c, registers: list[Array] = registers) -> Array:
                tick = m.tick if m.launch.detect else None
                left = a.read(m.shared, tick) if a is not None else gather_operand(registers, form.first)
                product = left @ c.read(m.shared, tick).T
                return product if factor > 0 else -product

            commits = m.products.commits.get(which, 0)
            product = Product(slots, place, form, targets, operands, multiply, adds, saturates, read, commits, started, which, held)
            m.products.issue(product)

    return issue


def find_warpgroups(g: Group, place: int) -> range:
    """Return where the threads of each warpgroup begin in a group. Raises CuirError for one that is not whole."""
    m: Machine = g.machine
    firsts = g.slots[::128]
    whole = g.n % 128 == 0 and not (firsts % m.width % 128).any() and (g.slots[127::128] - firsts == 127).all()
    if not whole:
        groups = m.warpgroups[g.slots]
        for which in list_distinct(groups):
            slots = g.slots[groups == which]
            if len(slots) != 128:
                refuse(m, int(slots[0]), place, f"multiplies with {len(slots)} threads of its warpgroup, and all 128 must")
    return range(0, g.n, 128)


def check_operands(m: Machine, slots: Array, a: Matrix | None, c: Matrix, place: int) -> EngineRead:
    """Check what a product reads of shared memory, and record it. A warp needs its 16 rows of A alone, and all of B.

    All threads of the warpgroup start the product together, so what each wrote and fenced before needs no barrier.
    """
    first = slots[::32]
    if a is not None and not has_landed(m, a, first):
        for warp, entries in enumerate(a.split()):
            m.engines.check(m.shared, first[warp : warp + 1], entries, "read", place, slots)
    if not has_landed(m, c, first):
        m.engines.check(m.shared, first, c.entries, "read", place, slots)
    return m.engines.enter_read(slots, [c.entries] if a is None else [a.entries, c.entries], place)


def has_landed(m: Machine, matrix: Matrix, warps: Array) -> bool:
    """Return whether bulk copies wrote all of a matrix, and warps, by their first threads, know that they landed."""
    shadow = m.shared.shadow
    assert shadow is not None
    newest = matrix.find_newest(shadow, m.tick)
    if matrix.landings[1] != newest:
        entries = matrix.entries[:1] if matrix.span[0] == newest else matrix.entries  # by one copy
        matrix.landings = m.engines.find_landings(m.shared, entries), newest
    return m.engines.knows_landings(warps, matrix.landings[0])


def refuse(m: Machine, slot: int, place: int, message: str) -> None:
    """End the run at a product that the hardware does not define."""
    raise m.findings.stop("M402", f"{describe_thread(m, slot + m.knowledge.first)} {message}", make_span(m, place))


def find_matrix(m: Machine, slot: int, value: int, form: Operand, place: int) -> Matrix:
    """Return the matrix that a descriptor describes. Raises CuirError for what lies outside of shared memory."""
    shadow = m.shared.shadow
    assert shadow is not None
    key = value, form, slot // m.width, shadow.shift
    found = m.products.matrices.get(key)
    if found is None:
        kept, whole = m.program.matrix_places, (*key, m.shared.stride, m.shared.size)
        if whole not in kept:
            kept[whole] = _place_matrix(m, slot, value, form, place)
        found = m.products.matrices[key] = Matrix(form, *kept[whole])
    return found


def _place_matrix(m: Machine, slot: int, value: int, form: Operand, place: int) -> tuple[Array, Array]:
    """Return the chunks of the matrix that a descriptor describes, and the entries of the shadow."""
    try:
        descriptor = decode_descriptor(value)
    except UnknownForm as reason:
        raise m.findings.stop("O123", f"the machine does not know {reason}", make_span(m, place)) from None
    offsets = find_chunks(descriptor, form.rows, form.inner, form.transposed) - SHARED_BASE
    low, high = int(offsets.min()), int(offsets.max()) + CHUNK
    if low < 0 or high > m.shared.size:
        who = describe_thread(m, slot + m.knowledge.first)
        raise m.findings.stop(
            "M409", f"{who} multiplies bytes {low} to {high} of shared memory, which has {m.shared.size:,} bytes", make_span(m, place)
        )
    places = offsets + slot // m.width * m.shared.stride
    shadow = m.shared.shadow
    assert shadow is not None
    return places // CHUNK, shadow.find_entries(places.reshape(-1), CHUNK).reshape(-1)

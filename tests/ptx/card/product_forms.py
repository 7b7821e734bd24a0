"""Forms of matrix products: mma.sync and wgmma in every shape, with operands of small whole numbers, and of any numbers.

Sums of small whole numbers are exact, so that the places of elements are compared bit by bit. Other sums the hardware
rounds as it likes: a bound holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from .forms import Array, Bound, Form, draw_kind, draw_words
from .sums import NARROW, WIDE, Sums
from .warp_forms import fill_shared

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}
SHAPES = {
    **dict.fromkeys(("f16", "bf16"), ("m16n8k8", "m16n8k16")),
    "tf32": ("m16n8k4", "m16n8k8"),
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    **dict.fromkeys(("s8", "u8"), ("m8n8k16", "m16n8k16", "m16n8k32")),
    **dict.fromkeys(("e4m3", "e5m2"), ("m16n8k16", "m16n8k32")),
}
SMALLEST = {"e4m3": 7, "e5m2": 15}  # biases


def draw_whole(name: str, key: str, count: int) -> Array:
    """Return the bytes of small whole numbers of a type; of any for integers."""
    words = draw_words(key, count)
    if name in ("s8", "u8"):
        return words.astype(np.uint8)
    if name == "s32":
        return words.astype(np.uint32).view(np.uint8)
    most = 2 if name == "e5m2" else 8
    numbers = (words % np.uint64(2 * most + 1)).astype(np.int64) - most
    if name in ("e4m3", "e5m2"):
        return encode_small(numbers.astype(np.float64), name)
    return encode_number(numbers.astype(np.float64), name)


def encode_number(numbers: Array, name: str) -> Array:
    """Return the bytes of numbers that a type holds."""
    if name == "bf16":
        return (numbers.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8)
    return numbers.astype({"f16": np.float16, "f64": np.float64}.get(name, np.float32)).view(np.uint8)


def encode_small(numbers: Array, name: str) -> Array:
    """Return the bytes of numbers that e4m3 or e5m2 holds as normal ones."""
    mantissa = 3 if name == "e4m3" else 2
    fraction, exponent = np.frexp(np.abs(numbers))
    bits = ((exponent - 1 + SMALLEST[name]).astype(np.int64) << mantissa) + ((2 * fraction - 1) * (1 << mantissa)).astype(np.int64)
    return (np.where(numbers == 0, 0, bits) | np.where(numbers < 0, 0x80, 0)).astype(np.uint8)


def draw_any(name: str, key: str, count: int) -> Array:
    """Return the bytes of numbers of a type with magnitudes from 1/16 to 2."""
    if name in ("e4m3", "e5m2"):
        words, mantissa = draw_words(key, count), 3 if name == "e4m3" else 2
        exponent = np.uint64(SMALLEST[name] - 4) + (words >> np.uint64(20)) % np.uint64(5)
        return (words & np.uint64((1 << mantissa) - 1) | exponent << np.uint64(mantissa) | words & np.uint64(0x80)).astype(np.uint8)
    return draw_kind(name, "range:-4:0", key, count).astype(f"u{BITS.get(name, 32) // 8}").view(np.uint8)


def draw_matrix(name: str, kind: str, key: str, count: int) -> Array:
    """Return the bytes of a matrix's elements: whole, any, or any with infinities and NaN among them."""
    if kind == "whole" or name in ("s8", "u8", "s32"):
        return draw_whole(name, key, count)
    data = draw_any(name, key, count)
    if kind == "special" and name in SPECIAL:
        cells = data.view(f"u{BITS.get(name, 32) // 8}")
        at = (draw_words(f"{key}/at", 6) % np.uint64(count)).astype(np.int64)
        cells[at] = np.array(SPECIAL[name], np.uint64)[draw_words(f"{key}/of", 6).astype(np.int64) % len(SPECIAL[name])].astype(cells.dtype)
    return data


SPECIAL = {
    "f16": (0x7C00, 0xFC00, 0x7E01, 1, 0x8001),
    "bf16": (0x7F80, 0xFF80, 0x7FC1, 1, 0x8001),
    **dict.fromkeys(("tf32", "f32"), (0x7F800000, 0xFF800000, 0x7FC02000, 0x2000, 0x80002000)),
    "f64": (0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000001, 1),
    "e4m3": (0x7F, 0xFF, 1, 0x81),
    "e5m2": (0x7C, 0xFC, 0x7F, 1, 0x81),
}


def find_bound(result: str, how: Sums, inner: int, steps: int = 1) -> Bound | None:
    """Return the bound of sums of products of `any` numbers, which are below 2; the sums of integers and of f64 have none."""
    if result in ("s32", "f64"):
        return None
    largest = 1 if steps == 1 else 32  # power of two of the largest addend
    lost = steps * (inner + 1) * largest * 2.0**-how.aligned
    rounding = 2.0**-10 if result == "f16" else 2.0**-how.kept + 2.0**-24
    return Bound(rounding, lost, "sums.py, from an H200's results: each addend is cut off, and the sum")


class Operands(NamedTuple):
    """Sizes of the matrices A, B and C of a form, in elements, and how they are drawn."""

    types: tuple[str, str, str]
    counts: tuple[int, int, int]
    kind: str

    def draw(self, key: str) -> Array:
        """Return the bytes of the three."""
        return np.concatenate([draw_matrix(t, self.kind, f"{key}/{i}", n) for i, (t, n) in enumerate(zip(self.types, self.counts))])


# ---- mma.sync
def make_warp_product(shape: str, types: tuple[str, str, str, str], kind: str, suffix: str = "") -> Form:
    """Make the form of mma.sync on fragments that lanes load as they are."""
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    target, first, second, added = types
    name = f"mma.sync.aligned.{shape}.row.col{suffix}.{'.'.join(types)}"
    operands = Operands((first, second, added), (m * k, k * n, m * n), kind)
    lines, offset, lists = [], 0, []
    for letter, t, count in zip("abc", operands.types, operands.counts):
        width = {"f64": 8}.get(t, 4)
        nbytes = count * BITS.get(t, 32) // 8
        registers = nbytes // (32 * width)
        lines.append(f".reg .b{8 * width} %{letter}<{registers}>; mad.wide.u32 %x2, %i0, {width * registers}, %x0;")
        lines += [f"ld.global.b{8 * width} %{letter}{i}, [%x2+{offset + width * i}];" for i in range(registers)]
        lists.append("{" + ", ".join(f"%{letter}{i}" for i in range(registers)) + "}")
        offset += nbytes
    width = 8 if target == "f64" else 4
    nbytes = m * n * {"f16": 2, "f64": 8}.get(target, 4)
    registers = nbytes // (32 * width)
    lines.append(f".reg .b{8 * width} %d<{registers}>; mad.wide.u32 %x2, %i0, {width * registers}, %x1;")
    lines.append(f"{name} {{{', '.join(f'%d{i}' for i in range(registers))}}}, {', '.join(lists)};")
    lines += [f"st.global.b{8 * width} [%x2+{width * i}], %d{i};" for i in range(registers)]
    full = f"{name} {kind}"
    bound = None if kind == "whole" else find_bound(target, WIDE, k)
    if bound is not None and target == "f16" and first in SMALLEST:
        bound = Bound(bound.relative, 2 * 8 * 2.0**-11, "sums.py: two sums below 8 are rounded to f16 before the accumulator comes in")
    unit = {"f16": "f16", "f64": "f64", "s32": "b32"}.get(target, "f32")
    return Form(full, f"mma {first}", "\n".join(lines), lambda: operands.draw(full), nbytes, unit, bound=bound)


def list_warp_products() -> list[Form]:
    """Return forms of mma.sync."""
    forms = []
    for first, shapes in SHAPES.items():
        for shape in shapes:
            if first in ("s8", "u8"):
                for second, saturates in product(("s8", "u8"), ("", ".satfinite")):
                    forms.append(make_warp_product(shape, ("s32", first, second, "s32"), "whole", saturates))
                continue
            results = ("f64",) if first == "f64" else ("f32", "f16") if first in ("f16", "e4m3", "e5m2") else ("f32",)
            seconds = ("e4m3", "e5m2") if first in ("e4m3", "e5m2") else (first,)
            for result, second, kind in product(results, seconds, ("whole", "any", "special")):
                forms.append(make_warp_product(shape, (result, first, second, result), kind))
    return forms


# ---- wgmma
class Layout(NamedTuple):
    """Places of a matrix in shared memory, as a descriptor says them.

    Attributes:
        start: Byte of the tile at which it begins.
        transposed: Whether its rows are contiguous.
    """

    start: int
    leading: int
    stride: int
    swizzle: int
    transposed: bool = False

    @property
    def word(self) -> int:
        """The descriptor without its address."""
        return (self.leading >> 4) << 16 | (self.stride >> 4) << 32 | {0: 0, 128: 1, 64: 2, 32: 3}[self.swizzle] << 62


def find_layout(rows: int, start: int, swizzle: int, transposed: bool) -> tuple[Layout, int]:
    """Return a dense layout of an operand, and its bytes."""
    if not transposed:
        stride = 8 * swizzle if swizzle else 256
        return Layout(start, 128, stride, swizzle), rows // 8 * stride
    width = swizzle or 16  # bytes of 16-bit elements along the rows
    blocks = -(-2 * rows // width)
    if not swizzle:
        return Layout(start, 128 * blocks, 128, swizzle, True), 256 * blocks
    return Layout(start, 16 * width, 8 * width, swizzle, True), 16 * width * blocks


class Product(NamedTuple):
    """A product of a warpgroup.

    Attributes:
        a: Layout of A; None if it lies in registers.
        signs: Factors of A and B.
        adds: Whether the accumulator is added; False if its first value is ignored.
        steps: Products, one behind the other, each into the accumulator of the one before.
    """

    types: tuple[str, str, str]
    columns: int
    a: Layout | None
    b: Layout
    nbytes: int
    kind: str
    signs: tuple[int, int] = (1, 1)
    adds: bool = True
    steps: int = 1
    suffix: str = ""


def make_warpgroup_product(p: Product, remark: str) -> Form:
    """Make the form of wgmma on a tile of shared memory that is full of numbers, so that any layout finds some."""
    result, first, second = p.types
    inner = 256 // BITS[first]
    opcode = f"wgmma.mma_async.sync.aligned.m64n{p.columns}k{inner}.{result}.{first}.{second}{p.suffix}"
    name = f"{opcode} {remark} {p.kind}"
    registers = p.columns // (4 if result == "f16" else 2)
    pitch = -(-registers // 4) * 16  # bytes of a thread, so that vectors are aligned
    fragments = 0 if p.a is not None else 4
    lines = [fill_shared(p.nbytes, 128, proxy=True), f".reg .b32 %d<{registers}>; .reg .b32 %f<4>; .reg .pred %adds;"]
    lines.append(f"setp.ne.u32 %adds, {int(p.adds)}, 0; mad.wide.u32 %x3, %i0, {pitch}, %x0;")
    lines += [move_vector("ld", f"%x3+{p.nbytes + 16 * i}", registers, i) for i in range(-(-registers // 4))]
    if fragments:
        lines.append("mad.wide.u32 %x4, %i0, 16, %x0;")
        lines.append(f"ld.global.v4.b32 {{%f0, %f1, %f2, %f3}}, [%x4+{p.nbytes + 128 * pitch}];")
    for i, layout in enumerate((p.a, p.b)):
        if layout is not None:
            lines.append(f"add.u32 %i4, %i1, {layout.start}; shr.u32 %i4, %i4, 4; cvt.u64.u32 %x{6 + i}, %i4;")
            lines.append(f"or.b64 %x{6 + i}, %x{6 + i}, {layout.word:#x};")
    lines.append("wgmma.fence.sync.aligned;")
    flags = [] if first in ("s8", "u8") else [str(s) for s in p.signs]
    if first in ("f16", "bf16"):
        flags += [str(int(layout.transposed)) for layout in (p.a, p.b) if layout is not None]
    source = "%x6" if p.a is not None else "{%f0, %f1, %f2, %f3}"
    accumulator = "{" + ", ".join(f"%d{i}" for i in range(registers)) + "}"
    lines += [f"{opcode} {accumulator}, {', '.join([source, '%x7', '%adds', *flags])};"] * p.steps
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;", f"mad.wide.u32 %x5, %i0, {pitch}, %x1;"]
    lines += [move_vector("st", f"%x5+{16 * i}", registers, i) for i in range(-(-registers // 4))]
    tile = p.nbytes * 8 // BITS[first]
    half = (p.b.start if p.a is not None else 0) * 8 // BITS[first]

    def draw() -> Array:
        parts = [draw_matrix(first, p.kind, f"{name}/a", half), draw_matrix(second, p.kind, f"{name}/b", tile - half)]
        parts.append(draw_matrix(result, "whole" if p.kind == "whole" else "any", f"{name}/c", 32 * pitch * (2 if result == "f16" else 1)))
        return np.concatenate([*parts, draw_matrix(first, p.kind, f"{name}/f", 128 * 16 * 8 // BITS[first])])

    unit = {"f16": "f16", "s32": "b32"}.get(result, "f32")
    bound = None if p.kind == "whole" else find_bound(result, NARROW if first in SMALLEST else WIDE, inner, p.steps)
    return Form(name, f"wgmma {first} {remark.split()[0]}", "\n".join(lines), draw, 128 * pitch, unit, 128, bound, 256)


def move_vector(name: str, address: str, registers: int, i: int) -> str:
    """Return a load or store of up to four registers."""
    part = [f"%d{j}" for j in range(4 * i, min(4 * i + 4, registers))]
    vector = f".v{len(part)}" if len(part) > 1 else ""
    listed = "{" + ", ".join(part) + "}" if vector else part[0]
    return f"ld.global{vector}.b32 {listed}, [{address}];" if name == "ld" else f"st.global{vector}.b32 [{address}], {listed};"


def lay_out(
    first: str, columns: int, swizzles: tuple[int, int], transposed: tuple[bool, bool] = (False, False)
) -> tuple[Layout, Layout, int]:
    """Return dense layouts of A and B, each at a multiple of 1024 bytes, and the bytes of both."""
    a, size = find_layout(64, 0, swizzles[0], transposed[0])
    start = -(-size // 1024) * 1024
    b, size = find_layout(columns, start, swizzles[1], transposed[1])
    return a, b, -(-(start + size) // 1024) * 1024


EIGHTS = tuple(range(8, 257, 8))
BYTE_COLUMNS = (8, 16, 24, *range(32, 257, 16))
WIDTHS = {"f16": EIGHTS, "bf16": EIGHTS, "tf32": EIGHTS, "e4m3": EIGHTS, "e5m2": EIGHTS, "s8": BYTE_COLUMNS, "u8": BYTE_COLUMNS}
SWIZZLES = (0, 32, 64, 128)


def list_widths() -> list[Form]:
    """Return a form for each number of columns and type."""
    forms = []
    for i, (first, widths) in enumerate(WIDTHS.items()):
        result = "s32" if first in ("s8", "u8") else "f32"
        for columns in widths if first in ("f16", "s8") else widths[i % 3 :: 3]:
            a, b, nbytes = lay_out(first, columns, (128, 128))
            forms.append(make_warpgroup_product(Product((result, first, first), columns, a, b, nbytes, "whole"), "columns"))
    for first, columns in product(("f16", "e4m3", "e5m2"), (8, 64, 136, 256)):
        a, b, nbytes = lay_out(first, columns, (64, 128))
        forms.append(make_warpgroup_product(Product(("f16", first, first), columns, a, b, nbytes, "whole"), "columns"))
    return forms


def list_layouts() -> list[Form]:
    """Return forms of swizzles and transpositions, of a start inside of a pattern, and of A in registers."""
    forms = []
    for first, transposed, swizzle in product(("f16", "bf16"), product((False, True), repeat=2), SWIZZLES):
        a, b, nbytes = lay_out(first, 96, (swizzle, swizzle), transposed)
        remark = f"layouts {swizzle} {'t' if transposed[0] else 'n'}{'t' if transposed[1] else 'n'}"
        forms.append(make_warpgroup_product(Product(("f32", first, first), 96, a, b, nbytes, "whole"), remark))
    for first, swizzle in product(("tf32", "e4m3", "s8"), SWIZZLES):
        result = "s32" if first == "s8" else "f32"
        a, b, nbytes = lay_out(first, 48, (swizzle, swizzle))
        forms.append(make_warpgroup_product(Product((result, first, first), 48, a, b, nbytes, "whole"), f"layouts {swizzle}"))
    for swizzles in ((0, 128), (128, 0), (32, 64), (64, 32)):
        a, b, nbytes = lay_out("f16", 64, swizzles)
        remark = f"layouts {swizzles[0]} and {swizzles[1]}"
        forms.append(make_warpgroup_product(Product(("f32", "f16", "f16"), 64, a, b, nbytes, "whole"), remark))
    for swizzle, shift in ((128, 32), (128, 64), (128, 96), (64, 32)):  # the next steps along the inner dim
        a, b, nbytes = lay_out("f16", 64, (swizzle, swizzle))
        moved = a._replace(start=a.start + shift), b._replace(start=b.start + shift)
        forms.append(make_warpgroup_product(Product(("f32", "f16", "f16"), 64, *moved, nbytes, "whole"), f"layouts {swizzle} at {shift}"))
    for swizzle in (128, 64):  # rows further on in a transposed block
        a, b, nbytes = lay_out("f16", 128, (swizzle, swizzle), (True, True))
        b = b._replace(start=b.start + 16 * swizzle)
        forms.append(make_warpgroup_product(Product(("f32", "f16", "f16"), 64, a, b, nbytes, "whole"), f"layouts {swizzle} tt further"))
    for first, transposed, swizzle in (
        *product(("f16", "bf16"), (False, True), (0, 128)),
        *product(("tf32", "e4m3", "e5m2", "s8", "u8"), (False,), (32, 128)),
    ):
        result = "s32" if first in ("s8", "u8") else "f32"
        _, b, nbytes = lay_out(first, 40 if result == "f32" else 48, (128, swizzle), (False, transposed))
        columns = 40 if result == "f32" else 48
        remark = f"registers {swizzle} {'t' if transposed else 'n'}"
        forms.append(make_warpgroup_product(Product((result, first, first), columns, None, b, nbytes, "whole"), remark))
    return forms


def list_modes() -> list[Form]:
    """Return forms of signs, of ignored accumulators, of mixed types, of saturation and of several steps."""
    forms = []
    for first, signs in product(("f16", "bf16", "tf32", "e4m3"), ((-1, 1), (1, -1), (-1, -1))):
        a, b, nbytes = lay_out(first, 16, (128, 128))
        p = Product(("f32", first, first), 16, a, b, nbytes, "whole", signs)
        forms.append(make_warpgroup_product(p, f"modes {signs[0]} {signs[1]}"))
    for first, result in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("tf32", "f32"), ("e5m2", "f32"), ("s8", "s32")):
        a, b, nbytes = lay_out(first, 24, (32, 32))
        forms.append(make_warpgroup_product(Product((result, first, first), 24, a, b, nbytes, "whole", adds=False), "modes from zero"))
        forms.append(make_warpgroup_product(Product((result, first, first), 24, a, b, nbytes, "whole", steps=3), "modes three steps"))
    mixed = [("f32", "e4m3", "e5m2"), ("f32", "e5m2", "e4m3"), ("f16", "e4m3", "e5m2"), ("s32", "s8", "u8"), ("s32", "u8", "s8")]
    for types in mixed:
        a, b, nbytes = lay_out(types[1], 32, (128, 64))
        forms.append(make_warpgroup_product(Product(types, 32, a, b, nbytes, "whole"), "modes mixed"))
    for first, second in product(("s8", "u8"), repeat=2):
        a, b, nbytes = lay_out(first, 32, (128, 128))
        p = Product(("s32", first, second), 32, a, b, nbytes, "whole", suffix=".satfinite")
        forms.append(make_warpgroup_product(p, "modes saturates"))
    return forms


def list_roundings() -> list[Form]:
    """Return forms of sums that are not exact, and with infinities and NaN."""
    forms = []
    for (first, result), kind in product(
        (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("tf32", "f32"), ("e4m3", "f32"), ("e5m2", "f32"), ("e4m3", "f16")),
        ("any", "special"),
    ):
        a, b, nbytes = lay_out(first, 64, (128, 128))
        forms.append(make_warpgroup_product(Product((result, first, first), 64, a, b, nbytes, kind), "sums"))
        forms.append(make_warpgroup_product(Product((result, first, first), 64, a, b, nbytes, kind, adds=False), "sums from zero"))
    a, b, nbytes = lay_out("f16", 64, (128, 128))
    forms.append(make_warpgroup_product(Product(("f32", "f16", "f16"), 64, a, b, nbytes, "any", steps=4), "sums four steps"))
    return forms


def list_forms() -> Sequence[Form]:
    """Return the forms of the family."""
    return [*list_warp_products(), *list_widths(), *list_layouts(), *list_modes(), *list_roundings()]

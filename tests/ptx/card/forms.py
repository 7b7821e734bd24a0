"""Forms of instructions: each a kernel in PTX with inputs, which runs on a card and in the machine, and what is compared.

A kernel reads one buffer and writes another; with a box it takes a tensor map too.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
KEPT = 128  # results of lanes that are recorded, of each form
HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"
SIZES = {"pred": 4, "b8": 1, "b16": 2, "b32": 4, "b64": 8}
BYTES = {
    **{"pred": 4, "s8": 2, "u8": 2, "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "tf32": 4, "f16x2": 4, "bf16x2": 4, "s16x2": 4, "u16x2": 4},
    **{"e4m3x2": 2, "e5m2x2": 2},
    **{f"{kind}{n}": n // 8 for kind in "sub" for n in (16, 32, 64)},
}


@dataclass(frozen=True)
class Bound:
    """How far results may lie from the machine's, which are exact ones rounded.

    Attributes:
        relative, absolute: Their sum bounds the distance.
        source: Who says so.
    """

    relative: float
    absolute: float
    source: str


@dataclass(frozen=True)
class Box:
    """A tensor in one of the buffers, and a box of it; the innermost dim comes first.

    Attributes:
        strides: Bytes from one index to the next, for the dims behind the first.
        steps: Distances of a box's elements in the tensor.
        offset: Byte of the buffer at which the tensor begins.
        written: Whether it lies in the buffer that the kernel writes.
    """

    type: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    offset: int = 0
    written: bool = False


@dataclass(frozen=True)
class Form:
    """A kernel, its inputs, and how its results are compared.

    Attributes:
        name: Its name, unique in a family; the entry of the kernel is made from it.
        group: Forms that are tested together.
        body: The kernel's text between its braces.
        draw: Function that returns the bytes of the buffer that is read.
        nbytes: Bytes of the buffer that is written, zeros before.
        unit: Type of its elements.
        kept: Elements that are recorded, drawn among all; None for all.
    """

    name: str
    group: str
    body: str
    draw: Callable[[], Array]
    nbytes: int
    unit: str = "b32"
    threads: int = 32
    bound: Bound | None = None
    kept: int | None = None
    box: Box | None = None

    @property
    def entry(self) -> str:
        """Name of the kernel."""
        return re.sub(r"\W", "_", self.name)

    @property
    def text(self) -> str:
        """The kernel."""
        tensor = ", .param .align 128 .b8 box[128]" if self.box is not None else ""
        head = f".visible .entry {self.entry}(.param .u64 input, .param .u64 output{tensor})\n.maxntid {self.threads}, 1, 1\n"
        start = (
            ".reg .b64 %x<16>;\n.reg .b32 %i<16>;\nld.param.u64 %x0, [input];\nld.param.u64 %x1, [output];\n"
            "cvta.to.global.u64 %x0, %x0;\ncvta.to.global.u64 %x1, %x1;\nmov.u32 %i0, %tid.x;\n"
        )
        return f"{head}{{\n{start}{self.body}\nret;\n}}\n"

    def find_kept(self) -> Array:
        """Return which elements of the results are recorded."""
        count = self.nbytes // np.dtype(get_dtype(self.unit)).itemsize
        if self.kept is None or self.kept >= count:
            return np.arange(count)
        return np.sort(np.argsort(draw_words(self.name, count), kind="stable")[: self.kept])

    def choose(self, output: Array) -> Array:
        """Return the elements of results that are recorded."""
        return output.view(get_dtype(self.unit))[self.find_kept()]


def get_dtype(unit: str) -> str:
    """Return the unsigned NumPy type of a unit's bits."""
    return f"u{BYTES[unit]}" if unit not in ("b8", "s8", "u8") else "u1"


def write_module(forms: Sequence[Form]) -> str:
    """Return the text of a module with the kernels of forms."""
    names = [f.entry for f in forms]
    assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)
    return HEADER + "\n".join(f.text for f in forms)


# ---- inputs: bits of a generator whose stream NumPy keeps, so that they need not be recorded
def draw_words(key: str, count: int) -> Array:
    """Draw 64-bit words for a key."""
    return np.random.PCG64(zlib.crc32(key.encode())).random_raw(count)


def draw_bytes(key: str, count: int) -> Array:
    """Draw bytes for a key."""
    return draw_words(key, -(-count // 8)).view(np.uint8)[:count].copy()


# Zero, the least and the largest subnormal number, the least normal one, 1 and its successor, the largest, infinity, NaN.
SPECIALS = {
    "f16": (0, 1, 0x3FF, 0x400, 0x3C00, 0x3C01, 0x7BFF, 0x7C00, 0x7E01),
    "bf16": (0, 1, 0x7F, 0x80, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0x7FC1),
    "f32": (0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7FC12345),
    "f64": (0, 1, (1 << 52) - 1, 1 << 52, 0x3FF << 52, (0x3FF << 52) + 1, 0x7FEFFFFFFFFFFFFF, 0x7FF << 52, 0x7FF8000000012345),
}
MANTISSAS = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
EXPONENTS = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11}
FLOATS = {"tf32": "f32"} | {t: t for t in SPECIALS}


def list_specials(name: str) -> Array:
    """Return special bits of a type."""
    if name in FLOATS:
        width = 8 * BYTES[name]
        values = np.array(SPECIALS[FLOATS[name]], np.uint64)
        return np.concatenate([values, values | np.uint64(1 << width - 1)])
    if name == "pred":
        return np.array([0, 1], np.uint64)
    width = 8 if name in ("s8", "u8") else 8 * BYTES[name]
    top = 1 << width
    return np.array([0, 1, 2, 7, top - 1, top - 2, top // 2, top // 2 - 1, top // 2 + 1, 0x5555555555555555 % top], np.uint64)


def draw_near(name: str, words: Array, low: int, high: int) -> Array:
    """Return numbers of either sign whose exponents lie in a range around that of 1."""
    m, bits = MANTISSAS[FLOATS[name]], EXPONENTS[FLOATS[name]]
    one = (1 << bits - 1) - 1
    exponent = np.uint64(one + low) + (words >> np.uint64(53)) % np.uint64(high - low + 1)
    sign = (words >> np.uint64(52) & np.uint64(1)) << np.uint64(m + bits)
    return sign | exponent << np.uint64(m) | words & np.uint64((1 << m) - 1)


def draw_kind(name: str, kind: str, key: str, count: int) -> Array:
    """Return bits of a type, drawn as a kind says: any bits, or those that an instruction takes.

    Kinds: bits; near (to 1); range:LOW:HIGH (numbers of either sign with exponents in a range); below:N (integers).
    """
    words = draw_words(key, count)
    if kind.startswith("range"):
        _, low, high = kind.split(":")
        return draw_near(name, words, int(low), int(high))
    if kind.startswith("below"):
        return words % np.uint64(int(kind.split(":")[1]))
    if kind == "near":
        return draw_near(name, words, -2, 2)
    return words & np.uint64((1 << 8 * min(8, BYTES[name])) - 1)


def draw_operand(name: str, kind: str, key: str, count: int, place: tuple[int, int]) -> Array:
    """Return an operand's bits: special ones met with those of the others, then numbers near 1, then any.

    place: which operand of how many.
    """
    if name.endswith("x2") and name[0] in "fb":
        halves = [draw_operand(name[:-2], kind, f"{key}/{i}", count, place) for i in range(2)]
        return halves[0] | np.roll(halves[1], 5 * place[0] + 3) << np.uint64(16)
    if kind not in ("", "bits"):
        return draw_kind(name, kind, key, count)
    specials = list_specials(name)
    n = len(specials)
    which, of = place
    met = min(count // 2, n ** min(of, 2))
    index = np.arange(met)
    order = {0: index % n, 1: index // n % n}.get(which, draw_words(f"{key}/order", met) % np.uint64(n)).astype(np.int64)
    if of > 2:
        order = (draw_words(f"{key}/order", met) % np.uint64(n)).astype(np.int64)
    elif of == 2 and n * n > met:
        pairs = np.argsort(draw_words(f"{key.split('/')[0]}/pairs", n * n), kind="stable")[:met]
        order = pairs % n if which == 0 else pairs // n
    rest = count - met
    middle = rest // 2 if name in FLOATS else 0
    parts = [specials[order], draw_kind(name, "near", f"{key}/near", middle)] if middle else [specials[order]]
    return np.concatenate([*parts, draw_kind(name, "bits", f"{key}/bits", rest - middle)])


def to_bytes(values: Array, name: str) -> Array:
    """Return the bytes of drawn bits."""
    return values.astype(f"u{BYTES[name]}").view(np.uint8)


# ---- forms that compute lane by lane
def make_lanes(
    name: str, operands: str, results: str, code: str = "", kinds: Sequence[str] = (), bound: Bound | None = None, threads: int = 256
) -> Form:
    """Make the form of an instruction, or of several, that each lane computes alone.

    Args:
        name: The opcode, perhaps with a remark behind a space.
        operands: Types of the registers %a0, %a1, ... that hold inputs.
        results: Types of the registers %d0, %d1, ... whose values are results.
        code: Instructions; the one of that name if left out.
        kinds: Kinds of the inputs.
    """
    sources, targets = operands.split(), results.split()
    opcode = name.split()[0]
    code = code or f"{opcode} {', '.join([f'%d{i}' for i in range(len(targets))] + [f'%a{i}' for i in range(len(sources))])};"
    kinds = [*kinds, *[""] * (len(sources) - len(kinds))]
    lines, offset = [], 0
    for i, t in enumerate(sources):
        size = BYTES[t]
        lines.append(f".reg .{'pred' if t == 'pred' else f'b{8 * size}'} %a{i};")
        lines.append(f"mad.wide.u32 %x2, %i0, {size}, %x0;")
        if t == "pred":
            lines += [f"ld.global.b32 %i1, [%x2+{offset}];", f"setp.ne.u32 %a{i}, %i1, 0;"]
        else:
            lines.append(f"ld.global.b{8 * size} %a{i}, [%x2+{offset}];")
        offset += size * threads
    lines += [f".reg .{'pred' if t == 'pred' else f'b{8 * BYTES[t]}'} %d{i};" for i, t in enumerate(targets)]
    lines.append(code)
    end = 0
    for i, t in enumerate(targets):
        size = BYTES[t]
        lines.append(f"mad.wide.u32 %x2, %i0, {size}, %x1;")
        if t == "pred":
            lines += [f"selp.u32 %i1, 1, 0, %d{i};", f"st.global.b32 [%x2+{end}], %i1;"]
        else:
            lines.append(f"st.global.b{8 * size} [%x2+{end}], %d{i};")
        end += size * threads

    def draw() -> Array:
        drawn = [draw_operand(t, kinds[i], f"{name}/{i}", threads, (i, len(sources))) for i, t in enumerate(sources)]
        if (
            opcode.startswith("fma") and len(sources) == 3 and sources[0] in ("f32", "f64")
        ):  # sums that cancel, but for what a rounded product loses
            a, b, c = (x.astype(f"u{BYTES[sources[0]]}").view(sources[0].replace("f", "float")) for x in drawn)
            with np.errstate(all="ignore"):
                c[threads // 2 : threads * 5 // 8] = -(a * b)[threads // 2 : threads * 5 // 8]
            drawn[2] = c.view(f"u{BYTES[sources[0]]}").astype(np.uint64)
        return np.concatenate([to_bytes(x, t) for x, t in zip(drawn, sources)])

    unit = targets[0] if len({BYTES[t] for t in targets}) == 1 else "b32"
    return Form(name, opcode.split(".")[0], "\n".join(lines), draw, end, unit, threads, bound, KEPT)

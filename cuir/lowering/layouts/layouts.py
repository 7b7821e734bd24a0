"""Layouts of tiles of any size: a linear atom, repeated; layouts of instructions' fragments and of tensor memory.

A tile whose sides are no powers of two repeats an atom whose sides are: 192 rows of an accumulator are three times the
64 rows of a warpgroup, 96 columns twelve times 8, or three times 32. Repeats by two belong to the atom, so that equal
layouts are equal objects.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from .linear_maps import LinearMap, join, read_map, split

LANES = 32  # of a warp


@dataclass(frozen=True)
class Layout:
    """The element of a tile that a register of a lane of a warp holds, or a cell of memory.

    atom: the layout of the first elements, with inputs `register`, `lane`, `warp`, or `cell`. repeats: how often it
    repeats along an output, the first one fastest. Each repeat takes further registers (or cells); with `turns`, that
    many warps take repeats in turn.
    """

    atom: LinearMap
    repeats: tuple[tuple[str, int], ...] = ()
    turns: int = 1

    def extent(self, name: str) -> int:
        """Return the size along an output."""
        result = 1 << dict(self.atom.outputs).get(name, 0)
        for n, count in self.repeats:
            result *= count if n == name else 1
        return result

    @property
    def count(self) -> int:
        """Number of registers of a thread, or of cells."""
        result = 1 << self.atom.inputs[0][1]
        for _, count in self.repeats:
            result *= count
        return result // self.turns

    def place(self, first: int, lane: int = 0, warp: int = 0) -> dict[str, int]:
        """Return the coordinates of the element that a register (or cell) holds."""
        name, bits = self.atom.inputs[0]
        repeat = (first >> bits) * self.turns + (warp % self.turns)
        inputs = {name: first & (1 << bits) - 1, "lane": lane, "warp": warp // self.turns}
        result = self.atom.at(**{n: inputs[n] for n, _ in self.atom.inputs})
        done = dict[str, int]()
        for n, count in self.repeats:
            result[n] += (repeat % count) * (done.get(n, 1) << dict(self.atom.outputs)[n])
            done[n] = done.get(n, 1) * count
            repeat //= count
        return result

    def find(self, **coordinates: int) -> tuple[int, int, int]:
        """Return register (or cell), lane and warp of an element; of several the first."""
        outputs, repeat, radix, within = dict(self.atom.outputs), 0, 1, dict(coordinates)
        for n, count in self.repeats:
            size = 1 << outputs[n]
            repeat += within[n] // size % count * radix
            radix *= count
            within[n] = within[n] % size + within[n] // size // count * size
        inputs = split(self.atom.inputs, self.inverse.apply(join(self.atom.outputs, within)))
        name, bits = self.atom.inputs[0]
        return inputs[name] | repeat // self.turns << bits, inputs.get("lane", 0), inputs.get("warp", 0) * self.turns + repeat % self.turns

    @functools.cached_property
    def inverse(self) -> LinearMap:
        """The atom's inverse."""
        return self.atom.invert()

    @property
    def is_bijective(self) -> bool:
        """Every element is held once."""
        return self.atom.is_surjective and self.atom.is_injective

    def iterate(self, warps: int = 1) -> Iterator[tuple[int, int, int]]:
        """Yield register, lane and warp of everything that holds an element."""
        lanes = 1 << dict(self.atom.inputs).get("lane", 0)
        return ((first, lane, warp) for warp in range(warps) for lane in range(lanes) for first in range(self.count))


def repeat(atom: LinearMap, *repeats: tuple[str, int], turns: int = 1) -> Layout:
    """Repeat an atom along outputs, the first one fastest; what repeats by two becomes part of the atom."""
    left = [(name, count) for name, count in repeats if count > 1]
    atom = atom.with_outputs(*(name for name, _ in left))
    while left:
        name, count = left[0]
        into = "warp" if turns > 1 else atom.inputs[0][0]
        if count % 2 or (turns % 2 and turns > 1):
            break
        atom = atom.extend(into, {name: 1 << dict(atom.outputs)[name]})
        turns = turns // 2 if turns > 1 else 1
        left = [(name, count // 2), *left[1:]] if count > 2 else left[1:]
    return Layout(atom, tuple(left), turns)


# ---- fragments of instructions: rows and columns of the matrix; lanes l have l / 4 and l % 4 in the PTX ISA
QUADS = "lane: c1 c2 r0 r1 r2"  # four lanes share a row, two neighbours each
WARPGROUP = "warp: r4 r5"
ACCUMULATOR = f"register: c0 r3 | {QUADS}"  # matrix D of m16n8
FRAGMENTS = {
    "mma m16n8 D": ACCUMULATOR,
    "mma m16n8k8 tf32 A": "register: r3 c2 | lane: c0 c1 r0 r1 r2",
    "mma m16n8k8 tf32 B": "register: r2 | lane: r0 r1 c0 c1 c2",
    "mma m16n8k8 A": ACCUMULATOR,
    "mma m16n8k8 B": "register: r0 | lane: r1 r2 c0 c1 c2",
    "mma m16n8k16 A": f"register: c0 r3 c3 | {QUADS}",
    "mma m16n8k16 B": "register: r0 r3 | lane: r1 r2 c0 c1 c2",
    "mma m16n8k32 A": "register: c0 c1 r3 c4 | lane: c2 c3 r0 r1 r2",
    "mma m16n8k32 B": "register: r0 r1 r4 | lane: r2 r3 c0 c1 c2",
    "wgmma m64n8 D": f"{ACCUMULATOR} | {WARPGROUP}",
    "wgmma m64k8 A": f"register: r3 c2 | lane: c0 c1 r0 r1 r2 | {WARPGROUP}",
    "wgmma m64k16 A": f"register: c0 r3 c3 | {QUADS} | {WARPGROUP}",
    "wgmma m64k32 A": f"register: c0 c1 r3 c4 | lane: c2 c3 r0 r1 r2 | {WARPGROUP}",
    # blocks of 8 x 8 numbers of 16 bits, p of four; the rows whose addresses lanes give
    "ldmatrix x4": f"register: c0 p0 p1 | {QUADS}",
    "ldmatrix x4 trans": "register: r0 p0 p1 | lane: r1 r2 c0 c1 c2",
    "ldmatrix x4 rows": "register: | lane: r0 r1 r2 p0 p1",
    # tcgen05.ld from tensor memory: its lanes are rows, its columns of 32 bits are columns
    "tcgen05 32x32b": "register: | lane: r0 r1 r2 r3 r4",
    "tcgen05 16x64b": "register: | lane: r3 c0 r0 r1 r2",
    "tcgen05 16x128b": "register: r3 | lane: c0 c1 r0 r1 r2",
    "tcgen05 16x256b": ACCUMULATOR,
}


def fragment_map(name: str) -> LinearMap:
    """Return the map of an instruction's fragment, a key of `FRAGMENTS`."""
    return read_map(FRAGMENTS[name])


def read_tensor_memory(columns: int) -> Layout:
    """Return the registers of a warpgroup that a tcgen05.ld.32x32b of 128 lanes and these columns fills.

    A warp reads the 32 lanes of its number.
    """
    return repeat(read_map(f"{FRAGMENTS['tcgen05 32x32b']} | warp: r5 r6"), ("column", columns))

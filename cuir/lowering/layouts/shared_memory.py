"""Arrays in shared memory: the cell that holds an element, swizzles as XOR, the banks in which lanes meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .layouts import Layout, repeat
from .linear_maps import LinearMap

SWIZZLES = (0, 32, 64, 128)  # bytes of a row within which chunks are permuted
CHUNK = 16  # bytes
BANKS, BANK_BYTES = 32, 4
ROWS = 8  # of a swizzle's period


def swizzle_address(address: int, swizzle: int) -> int:
    """Return an address as the copy engine and descriptors of wgmma permute it.

    Bits from 4 on are xored with bits from 7 on: three of them within 128 bytes, two within 64, one within 32.
    """
    return address ^ (address >> 7 & max(swizzle // CHUNK - 1, 0)) << 4


def lay_out_array(rows: int, columns: int, itemsize: int, swizzle: int = 128) -> Layout:
    """Return the element in each cell of an array of panels, parts of rows of `swizzle` bytes one behind another.

    A cell has one element. Without a swizzle (0) rows are whole and follow each other.

    Raises: ValueError for rows that are no whole panels, or panels of which no group of 8 rows is whole.
    """
    assert swizzle in SWIZZLES, swizzle
    if not swizzle:
        atom = LinearMap((("cell", 0),), (("row", 0), ("column", 0)), ())
        return repeat(atom, ("column", columns), ("row", rows))
    width = swizzle // itemsize
    if columns % width or rows % ROWS:
        raise ValueError(f"{rows} x {columns} elements of {itemsize} bytes have no whole panels of {swizzle} bytes")
    offsets = _map_panel(width, itemsize, swizzle)
    return repeat(offsets.invert(), ("row", rows // ROWS), ("column", columns // width))


def _map_panel(width: int, itemsize: int, swizzle: int) -> LinearMap:
    """Return the cell of each element of 8 rows of a panel."""
    outputs = (("row", ROWS.bit_length() - 1), ("column", width.bit_length() - 1))
    rows = [1 << i for i in range(outputs[0][1])]
    cells = [swizzle_address(r * swizzle, swizzle) // itemsize for r in rows]
    cells += [swizzle_address((1 << i) * itemsize, swizzle) // itemsize for i in range(outputs[1][1])]
    return LinearMap(outputs, (("cell", len(cells)),), tuple(cells))


@dataclass(frozen=True)
class Access:
    """How a warp reads or writes its part of an array: instructions of a thread, the bytes of one, its wavefronts.

    A wavefront moves at most a word of each bank; `ideal` would do if no lanes met in a bank.
    """

    instructions: int
    bytes: int
    wavefronts: int
    ideal: int

    @property
    def conflicts(self) -> int:
        """Wavefronts that only conflicts of banks take, of all instructions."""
        return self.wavefronts - self.ideal


def count_wavefronts(addresses: Sequence[int], size: int) -> tuple[int, int]:
    """Return the wavefronts of an access of `size` bytes by each lane, and those that its different words need at least.

    Lanes go together as far as 128 bytes do: all 32 of 4 bytes, 16 of 8, 8 of 16.
    """
    group = min(len(addresses), BANKS * BANK_BYTES // max(size, BANK_BYTES))
    taken, ideal = 0, 0
    for first in range(0, len(addresses), group):
        words = {a // BANK_BYTES + i for a in addresses[first : first + group] for i in range(-(-size // BANK_BYTES))}
        banks = [0] * BANKS
        for word in words:
            banks[word % BANKS] += 1
        taken, ideal = taken + max(banks), ideal + -(-len(words) // BANKS)
    return taken, ideal


def find_access(registers: Layout, array: Layout, itemsize: int, warp: int = 0) -> Access:
    """Return how a warp moves a tile between registers and an array, as many bytes at once as lie side by side.

    Registers that are moved at once need not follow each other: which of them holds what is a matter of names.
    """

    def cell(first: int, lane: int) -> int:
        place = registers.place(first, lane, warp)
        return array.find(row=place.get("row", 0), column=place.get("column", 0))[0]

    bits = range((registers.count & -registers.count).bit_length() - 1)  # of a register's number, and of a lane's
    images = {1 << i: cell(1 << i, 0) ^ cell(0, 0) for i in bits}
    others = [cell(0, 1 << i) ^ cell(0, 0) for i in range(5)]
    together = list[int]()  # the bits of registers that are moved at once
    while 2 << len(together) <= CHUNK // itemsize:
        width = 2 << len(together)
        following = next((bit for bit, image in images.items() if image == width // 2 and bit not in together), None)
        if following is None or any(
            image % width for bit, image in [*images.items(), *enumerate(others, -5)] if bit not in (*together, following)
        ):
            break
        together.append(following)
    size, taken, ideal = itemsize << len(together), 0, 0
    firsts = [first for first in range(registers.count) if not first & sum(together)]
    for first in firsts:
        a, b = count_wavefronts([cell(first, lane) * itemsize for lane in range(32)], size)
        taken, ideal = taken + a, ideal + b
    return Access(len(firsts), size, taken, ideal)

"""Arrays in shared memory: the cell that holds an element, swizzles as XOR, the banks in which lanes meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .layouts import LANES, Layout, fragment_map, repeat
from .linear_maps import LinearMap, join

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
    """Accesses of a warp to its part of an array: instructions of a thread, bytes of one, wavefronts.

    A wavefront moves at most a word of each bank; `ideal` would do if no lanes met in a bank. banks: the words of each
    bank that the first lanes move together.
    """

    instructions: int
    bytes: int
    wavefronts: int
    ideal: int
    banks: tuple[int, ...] = ()

    @property
    def conflicts(self) -> int:
        """Wavefronts that only conflicts of banks take, of all instructions."""
        return self.wavefronts - self.ideal


def count_bank_words(addresses: Sequence[int], size: int) -> list[list[int]]:
    """Return the different words of each bank that lanes access which go together.

    Lanes that access `size` bytes each go together as far as 128 bytes do: all 32 of 4 bytes, 16 of 8, 8 of 16.
    """
    together, groups = BANKS * BANK_BYTES // max(size, BANK_BYTES), list[list[int]]()
    for first in range(0, len(addresses), together):
        banks = [0] * BANKS
        for word in {a // BANK_BYTES + i for a in addresses[first : first + together] for i in range(-(-size // BANK_BYTES))}:
            banks[word % BANKS] += 1
        groups.append(banks)
    return groups


def count_wavefronts(addresses: Sequence[int], size: int) -> tuple[int, int]:
    """Return the wavefronts of an access of `size` bytes by each lane, and those that its different words need at least."""
    groups = count_bank_words(addresses, size)
    return sum(map(max, groups)), sum(-(-sum(banks) // BANKS) for banks in groups)


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
    firsts = [first for first in range(registers.count) if not first & sum(together)]
    return _count_access([[cell(first, lane) * itemsize for lane in range(LANES)] for first in firsts], itemsize << len(together))


def find_block_access(registers: Layout, array: Layout) -> Access:
    """Return how a warp moves an accumulator's halves by ldmatrix or stmatrix, four blocks of 8 x 8 at a time.

    Lanes give the addresses of the 16 bytes of a row of a block, and eight go together.
    """
    block, step = Layout(fragment_map("ldmatrix x4")), Layout(fragment_map("ldmatrix x4 rows"))
    addresses = list[list[int]]()
    for first in range(0, registers.count, block.count):
        of_instruction = list[int]()
        for lane in range(LANES):
            row = step.place(0, lane)
            held, of_lane, _ = block.find(**row, column=0)
            place = registers.place(first + held, of_lane)
            of_instruction.append(2 * array.find(row=place["row"], column=place["column"])[0])
        addresses.append(of_instruction)
    return _count_access(addresses, CHUNK)


def _count_access(instructions: Sequence[Sequence[int]], size: int) -> Access:
    taken, ideal = (sum(x) for x in zip(*(count_wavefronts(addresses, size) for addresses in instructions), strict=True))
    return Access(len(instructions), size, taken, ideal, tuple(count_bank_words(instructions[0], size)[0]))


def swap_odd_rows(layout: Layout) -> Layout:
    """Return an accumulator's layout whose odd rows have their panels' halves exchanged: the order of moves in pairs.

    So lanes of four rows meet in no bank (`accumulator_pairs` of `include/accumulators.cuh`).
    """
    first_row = layout.atom.columns.index(join(layout.atom.outputs, {"row": 1}))
    half = join(layout.atom.outputs, {"column": 16})
    columns = tuple(c ^ half if i == first_row else c for i, c in enumerate(layout.atom.columns))
    return Layout(LinearMap(layout.atom.inputs, layout.atom.outputs, columns), layout.repeats, layout.turns)

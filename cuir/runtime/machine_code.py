"""Facts of a cubin without a disassembler: instruction counts, in all and of loops with products.

The count of a loop is that of its shortest turn. The few encodings (sm_90) that this takes are here.

Facts of the machine code by a disassembler: exponentials between waits, lines of instructions.

Needs nvdisasm or cuobjdump; without one it is silent.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path

TEXT = b".text."
SIZE = 16  # bytes of an instruction
# the lowest 12 bits of an instruction
NOP, BRANCH, EXIT, RETURN = 0x918, 0x947, 0x94D, 0x950
PRODUCTS = (0x9F0, 0xDF0, 0x5F0, 0x23C)  # HGMMA with operands in registers or in shared memory, HMMA
ALWAYS = 7  # the predicate that is true


@dataclass(frozen=True)
class Function:
    """A function of a cubin: the compiler's name, instructions as two words of 64 bits each, and 75 for sm_75."""

    name: str
    words: tuple[tuple[int, int], ...]
    architecture: int = 90

    @property
    def instructions(self) -> int:
        """Number of instructions, without the padding at the end."""
        return sum(low & 0xFFF != NOP for low, _ in self.words)

    @property
    def shortest_turns(self) -> tuple[int, ...]:
        """Instructions of the shortest way from a tensor-core product back to it, of each loop, by size.

        This is the cost of a turn that takes no branch to a longer way. A count of all instructions does not
        distinguish a way around an exchange that is nearly always taken from one that is never.
        """
        return tuple(sorted({len(turn) for turn in self._list_turns()} - {0}))

    @property
    def largest_turn(self) -> tuple[int, ...]:
        """Name of each instruction (its lowest nine bits, whatever its operands are) of the longest of these ways."""
        return tuple(self.words[i][0] & 0x1FF for i in max(self._list_turns(), key=len, default=()))

    def _list_turns(self) -> list[tuple[int, ...]]:
        after = [self._list_successors(i, low, high) for i, (low, high) in enumerate(self.words)]
        return [_find_turn(i, after) for i, (low, _) in enumerate(self.words) if low & 0xFFF in PRODUCTS]

    def _list_successors(self, i: int, low: int, high: int) -> tuple[int, ...]:
        count = len(self.words)
        kind, conditional = low & 0xFFF, (low >> 12) & 0xF != ALWAYS
        following = (i + 1,) if i + 1 < count else ()
        if kind == BRANCH:
            words = ((high << 64 | low) >> 34) & (1 << 48) - 1  # offset in words of four bytes from the next instruction
            words = words - (1 << 48) if words >> 47 else words
            if self.architecture >= 90:
                words = words << 8 | (low >> 16) & 0xFF
            target = i + 1 + words * 4 // SIZE
            jump = (target,) if 0 <= target < count else ()
            may_fall_through = conditional or (high >> 23) & 0x1F != ALWAYS  # a second predicate, or diverged lanes only
            return (*jump, *following) if may_fall_through else jump
        return following if kind not in (EXIT, RETURN) or conditional else ()


def parse_functions(cubin: bytes) -> list[Function]:
    """Return the functions of a cubin in their order.

    Raises ValueError for what is no cubin (a fatbin holds several).
    """
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("not a cubin: no ELF file of 64 bits")
    (offset, flags) = struct.unpack_from("<QI", cubin, 0x28)
    architecture = flags & 0xFF if (flags & 0xFF) >= 50 else flags >> 8 & 0xFF  # until CUDA 12, and since CUDA 13
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, offset + i * size) for i in range(count)]
    parsed = []
    for name, _, _, _, start, length in sections:
        at = sections[names][4] + name
        if cubin.startswith(TEXT, at):
            words = tuple(struct.unpack_from("<QQ", cubin, i) for i in range(start, start + length, SIZE))
            parsed.append(Function(cubin[at + len(TEXT) : cubin.index(0, at)].decode(), words, architecture))
    return parsed


def _find_turn(start: int, after: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the instructions of the shortest way back; empty if there is none."""
    before, todo = {start: start}, deque([start])
    while todo:
        at = todo.popleft()
        for n in after[at]:
            if n == start:
                turn = [at]
                while at != start:
                    at = before[at]
                    turn.append(at)
                return tuple(reversed(turn))
            if n not in before:
                before[n] = at
                todo.append(n)
    return ()


def find_disassembler() -> list[str] | None:
    """Return the command that prints the machine code of a cubin, if there is one.

    It is of a CUDA toolkit, or pip's nvidia-cuda-nvdisasm.
    """
    for folder in [None, *(str(Path(p) / "nvidia" / cu / "bin") for p in sys.path for cu in ("cu13", "cuda_nvdisasm"))]:
        for name, options in (("nvdisasm", ["-c"]), ("cuobjdump", ["-sass"])):
            path = shutil.which(name, path=folder)
            if path:
                return [path, *options]
    return None


def disassemble(cubin: bytes) -> list[str]:
    """Return the instructions of a cubin in order, without addresses; empty without a disassembler."""
    command = find_disassembler()
    if command is None:
        return []
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([*command, file.name], capture_output=True, text=True, check=False).stdout
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?(.*?);", text)


def count_exponentials_around_waits(cubin: bytes) -> tuple[int, ...]:
    """Count MUFU.EX2 instructions before, between and after the waits for products."""
    return count_exponentials(disassemble(cubin))


def count_exponentials(instructions: list[str]) -> tuple[int, ...]:
    counts = [0]
    for text in instructions:
        if text.startswith("WARPGROUP.DEPBAR"):
            counts.append(0)
        elif text.startswith("MUFU.EX2"):
            counts[-1] += 1
    return tuple(counts) if len(counts) > 1 else ()


@dataclass(frozen=True)
class Instruction:
    """An instruction of a cubin, with the lines of the CUDA text that it comes from, innermost call first."""

    offset: int
    text: str
    lines: tuple[int, ...]


def read_lines_of_cubin(cubin: bytes) -> dict[int, tuple[int, ...]]:
    """Map offsets of instructions to the lines of the CUDA text they come from, innermost call first.

    Empty without nvdisasm, or for a fatbin. Lines in headers are left out: the line of the text that calls them
    counts.
    """
    return {i.offset: i.lines for i in list_instructions(cubin)}


def list_instructions(cubin: bytes) -> list[Instruction]:
    """Return the instructions of a cubin with their lines; empty without nvdisasm, or for a fatbin."""
    command = find_disassembler()
    if command is None or not command[0].endswith("nvdisasm"):
        return []
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([command[0], "-c", "-gi", file.name], capture_output=True, text=True, check=False).stdout
    return parse_listing(text)


def parse_listing(listing: str) -> list[Instruction]:
    """Parse a listing of `nvdisasm -c -gi`.

    Its form: `//## File "F", line N inlined at "G", line L`, then instructions `/*OFFSET*/ ...;`.
    """
    instructions: list[Instruction] = []
    chain: list[int] = []
    fresh = True
    for line in listing.splitlines():
        if "//## File" in line:
            chain = [] if fresh else chain
            fresh = False
            head = line.partition(" inlined at ")[0]
            at = re.search(r'File "[^"]*\.cu", line (\d+)', head)
            if at and int(at[1]) not in chain:
                chain.append(int(at[1]))
        elif instruction := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*(?:;|$)", line):
            fresh = True
            instructions.append(Instruction(int(instruction[1], 16), instruction[2], tuple(chain)))
    return instructions

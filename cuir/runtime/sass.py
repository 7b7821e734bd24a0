"""Facts of the machine code by a disassembler: exponentials between waits, lines of instructions.

Needs nvdisasm or cuobjdump; without one it is silent.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


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

"""What the machine code shows of a promise of the text: exponentials between waits. Needs nvdisasm or cuobjdump; without one it is silent."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def disassembler() -> list[str] | None:
    """The command that prints the machine code of a cubin, if there is one (of a CUDA toolkit, or pip's nvidia-cuda-nvdisasm)."""
    for folder in [None, *(str(Path(p) / "nvidia" / cu / "bin") for p in sys.path for cu in ("cu13", "cuda_nvdisasm"))]:
        for name, options in (("nvdisasm", ["-c"]), ("cuobjdump", ["-sass"])):
            found = shutil.which(name, path=folder)
            if found:
                return [found, *options]
    return None


def disassemble(cubin: bytes) -> list[str]:
    """The instructions of a cubin in order, without addresses; empty without a disassembler."""
    command = disassembler()
    if command is None:
        return []
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([*command, file.name], capture_output=True, text=True, check=False).stdout
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?(.*?);", text)


def exponentials_around_waits(cubin: bytes) -> tuple[int, ...]:
    """MUFU.EX2 instructions before the first wait for products, between each two, and after the last."""
    return count_exponentials(disassemble(cubin))


def count_exponentials(instructions: list[str]) -> tuple[int, ...]:
    counts = [0]
    for text in instructions:
        if text.startswith("WARPGROUP.DEPBAR"):
            counts.append(0)
        elif text.startswith("MUFU.EX2"):
            counts[-1] += 1
    return tuple(counts) if len(counts) > 1 else ()

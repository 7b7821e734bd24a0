"""Bounds of the sm_75 kernels on cards that nobody measured: cycles of a turn by the counts of nvcc's instructions.

    python -m benchmarks.turing_roofline

For each kernel and head dim: registers, spilled bytes, instructions, those of the shortest turn of the loop with products by pipe,
and the TFLOP/s at which the busiest pipe of a multiprocessor is full. Needs nvcc, no GPU. Rates of compute capability 7.5 (CUDA
Programming Guide, "Arithmetic Instructions", and the peak of the tensor cores), a sub-core (a quarter of a multiprocessor) each.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuir.checking.checker import check
from cuir.cli.command_inputs import read_program
from cuir.lowering import lower
from cuir.lowering.lowered import Cuda
from cuir.runtime.machine_code import parse_functions
from cuir.runtime.nvcc import FLAGS, Resources, compile_cuda, find_nvcc, include_dir

CARDS = {"T4": (40, 1.59), "RTX 8000": (72, 1.77)}  # multiprocessors, boost clock in GHz: peaks of 65 and 130 TFLOP/s
KERNELS = (
    ("flash_fwd_sm75", "flash_fwd", {"D": 64}),
    ("flash_fwd_sm75", "flash_fwd", {"D": 128}),
    ("flash_fwd_sm75", "flash_fwd", {"D": 192, "DV": 128}),
    ("flash_fwd_varlen_sm75", "flash_fwd_varlen", {"D": 64}),
    ("flash_fwd_varlen_sm75", "flash_fwd_varlen", {"D": 128}),
    ("flash_bwd_sm75", "flash_bwd", {"D": 64}),
    ("flash_bwd_dq_sm75", "flash_bwd_dq", {"D": 64}),
    ("decode_cache_sm75", "flash_decode", {"D": 64}),
    ("decode_cache_sm75", "flash_decode", {"D": 128}),
)
FLOPS = 2 * 16 * 8 * 8  # of HMMA.1688 by a warp
# HMMA; MUFU; LDSM, LDS, STS; SHFL
PIPES = {0x03C: "tensor", 0x108: "special", 0x03B: "shared", 0x184: "shared", 0x188: "shared", 0x189: "shuffle"}
# Cycles of a sub-core for an instruction of a warp. The four share 128 bytes of shared memory a cycle: 16 bytes a lane take each 16 cycles, a shuffle 4.
CYCLES = {"tensor": {"tensor": 8}, "special": {"special": 8}, "shared": {"shared": 16, "shuffle": 4}, "issue": {"issue": 1}}


@dataclass(frozen=True)
class Turn:
    """Instructions of a warp in the longest loop with products, by pipe, and what ptxas said of the kernel."""

    kernel: str
    head_dim: int
    resources: Resources
    instructions: int
    pipes: Counter[str]

    @property
    def cycles(self) -> dict[str, int]:
        """Cycles that each pipe of a sub-core is busy for."""
        return {pipe: sum(self.pipes[name] * n for name, n in cycles.items()) for pipe, cycles in CYCLES.items()}

    def find_bounds(self, multiprocessors: int, gigahertz: float) -> tuple[float, float]:
        """Return TFLOP/s if pipes work at once (the busiest decides), and if products and all else take turns."""
        cycles = self.cycles
        work = self.pipes["tensor"] * FLOPS * 4 * multiprocessors * gigahertz / 1e3
        return work / max(cycles.values()), work / (cycles["tensor"] + max(n for pipe, n in cycles.items() if pipe != "tensor"))


def read_turn(program: str, kernel: str, consts: dict[str, int]) -> Turn:
    """Compile a kernel for sm_75 and count the instructions of its longest loop with products."""
    lowered = lower(check(read_program(program), kernel, consts))
    function = parse_functions(compile_for_turing(lowered))[0]
    turn = function.largest_turn
    pipes = Counter(PIPES.get(name, "other") for name in turn)
    pipes["issue"] = len(turn)
    return Turn(f"{program}.{kernel}", consts["D"], compile_cuda(lowered).resources, function.instructions, pipes)


def compile_for_turing(lowered: Cuda) -> bytes:
    """Compile to one cubin, where `compile_cuda` makes code for several cards."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        source.write_text(lowered.source, encoding="utf-8")
        command = [find_nvcc(), "-cubin", "-arch=sm_75", *FLAGS, "-I", include_dir(), "-o", str(out), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        return out.read_bytes()


def format_table(turns: Sequence[Turn]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    bounds = [f"{card}: at once, in turns" for card in CARDS]
    yield f"| kernel | d | registers, spilled bytes | instructions | of a turn | products | special | shared | {' | '.join(bounds)} |"
    yield "|---" * (8 + len(CARDS)) + "|"
    for turn in turns:
        of, pipes = turn.resources, turn.pipes
        peaks = [", ".join(f"{x:.0f}" for x in turn.find_bounds(*card)) for card in CARDS.values()]
        spilled = of.spill_stores + of.spill_loads
        yield (
            f"| {turn.kernel} | {turn.head_dim} | {of.registers}, {spilled} | {turn.instructions} | {pipes['issue']} "
            f"| {pipes['tensor']} | {pipes['special']} | {pipes['shared']} | {' | '.join(peaks)} |"
        )


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("\n".join(format_table([read_turn(*kernel) for kernel in KERNELS])))


if __name__ == "__main__":
    main()

"""Expert kernels of others in the machine for PTX: results, findings, seconds. `python -m benchmarks.ptx_experts FOLDER [NAME...]`.

FOLDER holds the repositories, unpacked: learn-cuda, flash-attention, cutlass, FlashMLA. A host program of benchmarks/experts
makes each launch, as the repository's own does; experts/capture.cpp stands for the runtime and writes launches down.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from cuir.cuda import LoadedModule, Report, Struct
from cuir.ptx.module import read_module

HERE = Path(__file__).parent / "experts"
FLAGS = ("-O3", "-std=c++17", "-lineinfo", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-DNDEBUG", "-w", "-diag-suppress=780")
MARK = 0x5EED0000  # upper half of a pointer that stands for a tensor: experts/tensors.h


@dataclass(frozen=True)
class Case:
    """Arguments of a host program, the tensors behind its pointers, and the expected results."""

    arguments: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...]
    results: Callable[[], list[tuple[torch.Tensor, torch.Tensor]]]


@dataclass(frozen=True)
class Expert:
    """A kernel of others.

    Attributes:
        include: Folders of headers, in FOLDER.
        cases: What it is run on.
    """

    name: str
    source: str
    arch: str
    include: tuple[str, ...]
    cases: tuple[Callable[[], Case], ...]
    defines: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class CapturedLaunch:
    """A launch that a host program made."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared: int
    arguments: tuple[bytes, ...]

    def run(self, module: LoadedModule, tensors: Sequence[torch.Tensor], schedule: str, detect: bool = True) -> Report:
        arguments = [_point(data, tensors) for data in self.arguments]
        return module[self.name](
            self.grid, self.block, *arguments, shared=self.shared, cluster=self.cluster, schedule=schedule, detect=detect, raises=False
        )


def _point(data: bytes, tensors: Sequence[torch.Tensor]) -> Struct:
    """Return a struct whose marked words point into tensors."""
    plain, pointers = bytearray(data), []
    for offset in range(0, len(data) - 7, 8):
        upper = int.from_bytes(data[offset + 4 : offset + 8], "little")
        if MARK <= upper < MARK + len(tensors):
            plain[offset + 4 : offset + 8] = bytes(4)
            pointers.append((offset, tensors[upper - MARK]))
    return Struct(bytes(plain), tuple(pointers))


def build(expert: Expert, folder: Path, out: Path) -> tuple[LoadedModule, Path]:
    """Return the kernels of an expert, and the host program that launches them."""
    program = out / expert.name
    if not program.exists():
        kept = out / f"{expert.name}.keep"
        kept.mkdir(parents=True, exist_ok=True)
        torch_headers = Path(torch.__file__).parent / "include"
        include = [HERE, *(folder / i for i in expert.include), torch_headers]
        defines = [f"-D{n}={v}" for n, v in expert.defines.items()]
        code = f"arch=compute_{expert.arch},code=compute_{expert.arch}"
        sources = [str(HERE / expert.source), str(HERE / "capture.cpp")]
        flags = [*FLAGS, *defines, *(x for i in include for x in ("-I", str(i)))]
        command = ["nvcc", "-gencode", code, "--keep", "--keep-dir", str(kept), "-cudart", "none", *flags, *sources, "-o", str(program)]
        subprocess.run(command, check=True)
    (text,) = (out / f"{expert.name}.keep").glob(f"{Path(expert.source).stem}*.ptx")
    return LoadedModule(read_module(text.read_text(encoding="utf-8")), text), program


def capture(module: LoadedModule, program: Path, arguments: Sequence[int]) -> list[CapturedLaunch]:
    """Return the launches that a host program makes."""
    entries = [f for f in module.module.functions.values() if f.is_entry]
    sizes = ";".join(f"{f.name}:{','.join(str(v.size) for v in f.parameters)}" for f in entries)
    with tempfile.TemporaryDirectory() as place:
        written = Path(place) / "launches"
        subprocess.run([program, *map(str, arguments)], check=True, env={**os.environ, "LAUNCHES": str(written), "SIZES": sizes})
        lines = written.read_text(encoding="utf-8").splitlines()

    def read(line: str) -> CapturedLaunch:
        name, grid, block, cluster, shared, *data = line.split()
        x, y, z = (tuple(int(n) for n in t.split(",")) for t in (grid, block, cluster))
        return CapturedLaunch(name, x, y, z, int(shared), tuple(bytes.fromhex(d) for d in data))

    return [read(line) for line in lines]


# ---- cases
def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def make_attention(b: int, h: int, hk: int, m: int, n: int, d: int, causal: bool) -> Callable[[], Case]:
    """Return the case of FlashAttention's layout."""

    def make() -> Case:
        q, k, v = draw(b, m, h, d), draw(b, n, hk, d, seed=1), draw(b, n, hk, d, seed=2)
        o, lse, count = torch.zeros_like(q), torch.zeros(b, h, m), torch.zeros(1, dtype=torch.int32)

        def results() -> list[tuple[torch.Tensor, torch.Tensor]]:
            keys, values = (t.float().repeat_interleave(h // hk, 2) for t in (k, v))
            scores = torch.einsum("bmhd,bnhd->bhmn", q.float(), keys) / math.sqrt(d)
            kept = torch.arange(n)[None] <= torch.arange(m)[:, None] + (n - m if causal else n)
            scores = scores.masked_fill(~kept, -math.inf)
            expected = torch.einsum("bhmn,bnhd->bmhd", scores.softmax(-1), values).nan_to_num()  # 0 in rows without keys
            rows = kept.any(1)
            return [(o.float(), expected), (lse[..., rows], scores.logsumexp(-1)[..., rows])]

        return Case((b, h, hk, m, n), (q, k, v, o, lse, count), results)

    return make


def make_learn_cuda(b: int, m: int, n: int) -> Callable[[], Case]:
    def make() -> Case:
        q, k, v = (draw(b, s, 128, seed=i, dtype=torch.bfloat16) for i, s in enumerate((m, n, n)))
        o = torch.zeros_like(q)

        def results() -> list[tuple[torch.Tensor, torch.Tensor]]:
            return [(o.float(), torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float()))]

        return Case((b, m, n), (q, k, v, o), results)

    return make


def make_gemm(m: int, n: int, k: int) -> Callable[[], Case]:
    def make() -> Case:
        a, b, d = draw(m, k), draw(n, k, seed=1), torch.zeros(m, n).half()
        return Case((m, n, k), (a, b, d), lambda: [(d.float(), a.float() @ b.float().T)])

    return make


def make_mla(lengths: Sequence[int], heads: int) -> Callable[[], Case]:
    """Return the case of FlashMLA: one part of the schedule for each sequence."""

    def make() -> Case:
        b, width = len(lengths), max(-(-n // 64) for n in lengths)
        table = torch.randperm(b * width, generator=torch.Generator().manual_seed(0)).int().reshape(b, width)
        q, cache = draw(b, 1, heads, 576), draw(b * width, 64, 1, 576, seed=1) / 4
        o, lse = torch.zeros(b, 1, heads, 512).half(), torch.zeros(b, 1, heads)
        schedule = torch.tensor([[i, i, 0, -(-n // 64), 0, 0, 0, 0] for i, n in enumerate(lengths)], dtype=torch.int32)
        splits = torch.arange(b + 1, dtype=torch.int32)
        rest = torch.zeros(2 * b, heads), torch.zeros(2 * b, heads, 512)

        def results() -> list[tuple[torch.Tensor, torch.Tensor]]:
            found = []
            for i, n in enumerate(lengths):
                keys = cache[table[i].long()].reshape(-1, 576)[:n].float()
                scores = q[i, 0].float() @ keys.T / math.sqrt(576)
                found += [(o[i, 0].float(), scores.softmax(-1) @ keys[:, :512]), (lse[i, 0], scores.logsumexp(-1))]
            return found

        tensors = (q, cache, o, lse, table, torch.tensor(lengths, dtype=torch.int32), schedule, splits, *rest)
        return Case((b, heads, b * width, width, b), tensors, results)

    return make


FA2 = ("flash-attention/csrc/flash_attn/src", "cutlass/include")
FA3 = ("flash-attention/hopper", "cutlass/include")
GEMM = ("cutlass/include", "cutlass/tools/util/include")
PINGPONG = {"TILE_M": 64, "CLUSTER": 1, "SCHEDULE": "KernelTmaWarpSpecializedPingpong", "EPILOGUE": "TmaWarpSpecialized"}
COOPERATIVE = {"TILE_M": 128, "CLUSTER": 2, "SCHEDULE": "KernelTmaWarpSpecializedCooperative", "EPILOGUE": "TmaWarpSpecializedCooperative"}


def list_experts() -> list[Expert]:
    """Return the kernels, small ones first."""
    experts = [
        Expert("learn_cuda_v5", "learn_cuda.cu", "80", ("learn-cuda/07_attention",), (make_learn_cuda(2, 128, 192),)),
    ]
    for d in (64, 128):
        for causal in (True, False):
            cases = make_attention(1, 2, 1, 200, 300, d, causal), make_attention(1, 1, 1, 64, 77, d, causal)
            name = f"d{d}_{'causal' if causal else 'full'}"
            defines: dict[str, object] = {"HEAD_DIM": d, "IS_CAUSAL": str(causal).lower()}
            experts.append(Expert(f"flash_attention_2_{name}", "flash_attention_2.cu", "80", FA2, cases, defines))
            three = (make_attention(1, 2, 1, 200, 300, d, causal), make_attention(2, 1, 1, 150, 77, d, causal))
            experts.append(Expert(f"flash_attention_3_{name}", "flash_attention_3.cu", "90a", FA3, three, {**defines, "CLUSTER": 1}))
    clustered = {"HEAD_DIM": 128, "IS_CAUSAL": "false", "CLUSTER": 2}
    experts.append(
        Expert("flash_attention_3_cluster", "flash_attention_3.cu", "90a", FA3, (make_attention(1, 2, 1, 200, 300, 128, False),), clustered)
    )
    gemms = make_gemm(256, 256, 256), make_gemm(136, 200, 72)
    experts.append(Expert("cutlass_pingpong", "cutlass_gemm.cu", "90a", GEMM, gemms, dict(PINGPONG)))
    experts.append(Expert("cutlass_cooperative", "cutlass_gemm.cu", "90a", GEMM, gemms, dict(COOPERATIVE)))
    folders = ("FlashMLA/csrc", "FlashMLA/csrc/kerutils/include", "cutlass/include")
    experts.append(Expert("flash_mla", "flash_mla.cu", "90a", folders, (make_mla((130, 64, 200), 64),)))
    return experts


def _measure(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference, relative where numbers are above 1."""
    return float(((found - expected) / expected.abs().clamp(min=1)).nan_to_num(nan=9e9, posinf=9e9, neginf=9e9).abs().max())


def check(expert: Expert, module: LoadedModule, program: Path, schedules: Sequence[str]) -> None:
    """Run the cases of an expert under schedules, and print a line for each."""
    for make in expert.cases:
        for schedule in schedules:
            case = make()
            launches = capture(module, program, case.arguments)
            start = time.process_time()
            reports = [launch.run(module, case.tensors, schedule) for launch in launches]
            seconds = time.process_time() - start
            error = max(_measure(found, expected) for found, expected in case.results())
            lanes, findings = sum(r.lane_instructions for r in reports), [d for r in reports for d in r.findings]
            rate = lanes / seconds / 1e6
            told = f"{expert.name} {case.arguments} {schedule}: relative error {error:.1e}, {len(findings)} findings, {lanes / 1e6:.1f} M lane instructions"
            print(f"{told} in {seconds:.1f} s ({rate:.1f} M/s), {reports[0].coverage:.0%} of the code", flush=True)
            for d in findings[:3]:
                print(d, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="parts of names; all without")
    parser.add_argument("--schedules", default="together,first,last", help="as cuir.cuda takes them, with commas between")
    options = parser.parse_args()
    for expert in list_experts():
        if not options.names or any(n in expert.name for n in options.names):
            module, program = build(expert, options.folder, options.folder / "built")
            check(expert, module, program, options.schedules.split(","))


if __name__ == "__main__":
    main()

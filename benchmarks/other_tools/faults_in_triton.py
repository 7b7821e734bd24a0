"""Reports of Triton's interpreter on faults that can be written in Triton. It runs on a CPU.

    pip install triton==3.9.0 torch==2.13.0 numpy
    python -m benchmarks.other_tools.faults_in_triton --cuir .venv/bin/cuir > benchmarks/other_tools/faults_in_triton.md

Roles, stages, barriers and asynchronous copies are made by Triton's compiler, so classes 1 to 9, 13 and 15 of
docs/verification.md cannot be written. Each fault has a separate process, since some end it, and a twin in CuIR.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version

if "--compile" not in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined

import torch
import triton
import triton.language as tl

from .twins import CORPUS, Changes, answer, with_changes

D, M, N = 64, 100, 150
BEYOND = 4096  # foreign elements behind each tensor


@triton.jit
def attention(
    Q: tl.tensor,
    K: tl.tensor,
    V: tl.tensor,
    O: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    scale: tl.tensor,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    FAULT: tl.constexpr,
) -> None:
    q, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    rows = tl.load(Q + q[:, None] * D + d[None, :], mask=q[:, None] < M, other=0.0)
    top, total = tl.full([BM], float("-inf"), tl.float32), tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for first in range(0, N, BN):
        k = first + tl.arange(0, BN)
        step = D * 100000 if FAULT == "stride" else D
        at = k[:, None] * step + d[None, :]
        if FAULT == "unmasked loads":
            keys, values = tl.load(K + at), tl.load(V + at)
        elif FAULT == "no other":
            keys, values = tl.load(K + at, mask=k[:, None] < N), tl.load(V + at, mask=k[:, None] < N)
        else:
            keys, values = tl.load(K + at, mask=k[:, None] < N, other=0.0), tl.load(V + at, mask=k[:, None] < N, other=0.0)
        s = tl.dot(rows, tl.trans(keys)) * (scale * 1.4426950408889634)
        if FAULT == "one key too many":
            s = tl.where(k[None, :] <= N, s, float("-inf"))
        elif FAULT != "no mask":
            s = tl.where(k[None, :] < N, s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p, alpha, top = tl.exp2(s - new[:, None]), tl.exp2(top - new), new
        total = total * alpha + tl.sum(p, 1)
        if FAULT != "not rescaled":
            acc = acc * alpha[:, None]
        acc = tl.dot(p.to(values.dtype), values, acc)
    if FAULT == "unmasked store":
        tl.store(O + q[:, None] * D + d[None, :], acc / total[:, None])
    else:
        tl.store(O + q[:, None] * D + d[None, :], acc / total[:, None], mask=q[:, None] < M)


@triton.jit
def sums(X: tl.tensor, Y: tl.tensor, PARTS: tl.tensor, D: tl.constexpr, BM: tl.constexpr, FAULT: tl.constexpr) -> None:
    program, d = tl.program_id(0), tl.arange(0, D)
    part = tl.sum(tl.load(X + (program * BM + tl.arange(0, BM))[:, None] * D + d[None, :]), 0)
    if FAULT == "not atomic":
        tl.store(Y + d, tl.load(Y + d) + part)
    elif FAULT == "last one sums":
        tl.store(PARTS + program * D + d, part)
        if program == tl.num_programs(0) - 1:
            for i in range(tl.num_programs(0)):
                tl.store(Y + d, tl.load(Y + d) + tl.load(PARTS + i * D + d))
    else:
        tl.atomic_add(Y + d, part)


FULL = (
    ("    return k <= q + (N - M)\n", "    return True\n"),
    ("    n = max(0, min(cdiv(N, BN), cdiv((m + 1) * BM + N - M, BN)))\n", "    n = cdiv(N, BN)\n"),
    ("    full = min(N // BN, max(0, m * BM + N - M + 1) // BN)\n", "    full = N // BN\n"),
)
SUMS_TWIN = """@kernel(arch="sm_90a")
def sums(X: Global[f32, M, 64], Y: Global[f32, 64, 64], PARTS: Global[f32, L, 64, 64]):
    work = tiles(cdiv(M, 64))

    with role("add", warpgroups=1, registers=240):
        for t in work:
            part = load(X[t * 64 : t * 64 + 64, :])
            store(Y[rows(64), cols(64)], part, add=True)
"""
ADD = "            store(Y[rows(64), cols(64)], part, add=True)\n"
NOT_ATOMIC = "            store(Y[rows(64), cols(64)], load(Y[0:64, :]) + part)\n"
LAST_ONE_SUMS = """            store(PARTS[t, rows(64), cols(64)], part)
            if t == cdiv(M, 64) - 1:
                for i in range(t + 1):
                    store(Y[rows(64), cols(64)], load(PARTS[i]), add=True)
"""
SUMS = """def reference(x, PARTS):
    tiles = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % 64)).reshape(-1, 64, 64)
    return {"Y": tiles.sum(0)}


def sizes(drawn):
    return {**drawn, "L": -(-drawn["M"] // 64)}
"""


@dataclass(frozen=True)
class Case:
    """Fault of class `number` of docs/verification.md.

    `beyond` is the value behind the tensors; `twin` are changes of a CuIR program, or why it cannot be written.
    """

    number: int | None
    kernel: str
    fault: str
    text: str
    twin: Changes | str
    beyond: float = 1.0
    block: int = 64


CASES = [
    Case(None, "attention", "", "none: ragged ends of queries and keys", ()),
    Case(None, "sums", "", "none: programs add to the same elements", ()),
    Case(10, "sums", "not atomic", "programs load, add and store the same elements", ((ADD, NOT_ATOMIC),)),
    Case(10, "sums", "last one sums", "the last program sums what the others have stored", ((ADD, LAST_ONE_SUMS),)),
    Case(11, "attention", "no mask", "keys behind the last one count", (("(k < N)", "(k < N + BN)"),)),
    Case(11, "attention", "one key too many", "one key too many counts", (("(k < N)", "(k <= N)"),)),
    Case(11, "attention", "not rescaled", "what was accumulated is not rescaled", (("acc = acc * alpha\n", "acc = acc * 1.0\n"),)),
    Case(12, "attention", "unmasked loads", "keys are loaded without a mask, numbers lie behind", "cannot be said: a box reads 0 outside"),
    Case(12, "attention", "unmasked loads", "keys are loaded without a mask, NaN lies behind", "cannot be said: a box reads 0 outside", float("nan")),
    Case(12, "attention", "no other", "a masked load says no value for the rest", "cannot be said: a box reads 0 outside"),
    Case(12, "attention", "stride", "a wrong stride leads far outside", "cannot be said: a box reads 0 outside"),
    Case(12, "attention", "unmasked store", "the output is stored without a mask", "cannot be said: a box writes nothing outside"),
    Case(12, "attention", "a program short", "the last tile of queries is never stored", (("tiles(cdiv(M, BM) * H * B)", "tiles((cdiv(M, BM) - 1) * H * B)"),)),
    Case(14, "attention", "", "blocks of 2048 keys", (("BN: const = 128", "BN: const = 2048"),), 1.0, 2048),
]  # fmt: skip


def observe(case: Case) -> None:
    """Print a line of JSON: the result, and whether memory behind the output was written."""
    torch.manual_seed(0)

    def tensor(rows: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        """Return random rows at the front of more memory."""
        memory = torch.full((rows * D + BEYOND,), case.beyond, dtype=dtype)
        memory[: rows * D] = torch.randn(rows * D)
        return memory

    if case.kernel == "sums":
        x, y, parts = torch.randint(-9, 9, (4 * D, D)).float(), torch.zeros(D), torch.zeros(4, D)
        sums[(4,)](x, y, parts, D, D, case.fault)
        right, outside = torch.equal(y, x.sum(0)), False
    else:
        q, k, v, o = tensor(M), tensor(N), tensor(N), torch.full((M * D + BEYOND,), torch.nan, dtype=torch.float16)
        programs = triton.cdiv(M, 64) - (case.fault == "a program short")
        attention[(programs,)](q, k, v, o, M, N, D**-0.5, D, 64, case.block, case.fault)
        a, b, c = (t[: rows * D].reshape(1, rows, D).double() for t, rows in ((q, M), (k, N), (v, N)))
        reference = torch.nn.functional.scaled_dot_product_attention(a, b, c)[0]
        right = torch.allclose(o[: M * D].reshape(M, D).double(), reference, atol=2e-3)
        outside = not bool(o[M * D :].isnan().all())
    print(json.dumps({"right": right, "outside": outside}), flush=True)


def compile_all() -> None:
    """Compile every case for sm_90a, which needs no GPU, and print its shared memory."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for case in CASES:
        if case.kernel == "sums":
            source = ASTSource(sums, dict.fromkeys(("X", "Y", "PARTS"), "*fp32"), {"D": D, "BM": D, "FAULT": case.fault})
        else:
            signature = dict.fromkeys("QKVO", "*fp16") | {"M": "i32", "N": "i32", "scale": "fp32"}
            source = ASTSource(attention, signature, {"D": D, "BM": 64, "BN": case.block, "FAULT": case.fault})
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        print(f"{case.kernel}, {case.text}: {compiled.metadata.shared} bytes of shared memory", flush=True)


def watch(index: int) -> str:
    """Describe what a separate process observes of a case."""
    process = subprocess.run([sys.executable, "-m", __spec__.name, "--case", str(index)], capture_output=True, text=True, check=False)
    if process.returncode < 0:
        return f"the process ends by signal {-process.returncode}"
    if process.returncode:
        return f"error: {process.stderr.strip().splitlines()[-1]}"
    result = json.loads(process.stdout.splitlines()[-1])
    warned = [line.split("Warning: ")[1] for line in process.stderr.splitlines() if "Warning: " in line and "FP_FUSION" not in line]
    words = [f"warns: {warned[0]}" if warned else "silent", "result right" if result["right"] else "result wrong"]
    return ", ".join(words + ["memory behind the output overwritten"] * result["outside"])


def table(cuir: str) -> None:
    """Print the table, each line as soon as it is known."""
    print(f"triton {version('triton')}, torch {version('torch')}, {datetime.date.today()}\n")
    print("| class | kernel | fault | `TRITON_INTERPRET=1` | `cuir verify` of the twin |\n|---|---|---|---|---|")
    for index, case in enumerate(CASES):
        twin = case.twin
        if not isinstance(twin, str) and case.kernel == "sums":
            twin = answer(cuir, with_changes(SUMS_TWIN, twin), SUMS)
        elif not isinstance(twin, str):
            text = with_changes((CORPUS / "programs/flash_fwd.cuir").read_text(encoding="utf-8"), FULL + twin)
            twin = answer(cuir, text, "full", "--head-dim", str(D))
        print(f"| {case.number or ''} | {case.kernel} | {case.text} | {watch(index)} | {twin} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuir", default="cuir", help="the command that verifies the twins")
    parser.add_argument("--case", type=int, help="observe one case alone, in this process")
    parser.add_argument("--compile", action="store_true", help="compile every case for sm_90a, and print the shared memory that it takes")
    chosen = parser.parse_args()
    if chosen.compile:
        compile_all()
    elif chosen.case is not None:
        observe(CASES[chosen.case])
    else:
        table(chosen.cuir)

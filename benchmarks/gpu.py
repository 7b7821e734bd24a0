"""Kernels on a Hopper GPU: built, checked against float64, timed beside PyTorch's. Run with `python -m benchmarks.gpu`.

    python -m benchmarks.gpu [build] [check] [bench] [--variants full,causal,...] [--configs d128w2,d128w3,...] [--seqs 1024,8192] [--bf16] [--out DIR]
                             [--reference DIR] [--rounds 2] [--limit SECONDS]

Without a step: all three. --reference names a folder with a kernel of your own to time beside ours (see `Reference`). Writes gpu.json to --out.
"""

from __future__ import annotations

import argparse
import concurrent.futures as futures
import importlib.util
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import corpus
from cuir.api import CompiledKernel
from cuir.bind import TORCH
from cuir.checked import Const
from cuir.diagnostics import CuirError
from cuir.spec import Specification, lengths_of
from cuir.transfer import TransferResult, transfer
from cuir.types import BF16, F16

VARIANTS = ("full", "causal", "sliding_window", "prefix_lm", "softcap", "alibi")
CONFIGS: dict[str, dict[str, int]] = {
    "d128w2": {"D": 128, "BM": 128, "BN": 128},
    "d128w3": {"D": 128, "BM": 192, "BN": 80},
    "d64w2": {"D": 64, "BM": 128, "BN": 128},
    "d64w3": {"D": 64, "BM": 192, "BN": 128},
}
TOKENS = 16384  # batch x sequence of a timed problem
HEADS = {64: 32, 128: 32}  # llama2-7b
Row = dict[str, Any]


# ---- building
def program(variant: str) -> TransferResult:
    """The expert kernel, changed to a variant of the corpus."""
    from cuir.parser import parse

    text = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
    return transfer(parse(text, "flash_fwd_sm90.cuir"), corpus.variant(variant)())


def build(variant: str, config: str, dtype: str = "f16") -> tuple[CompiledKernel, TransferResult]:
    """A kernel from the cache, or compiled now. Masks: tiles dynamically, longest first in large groups of heads; else statically, head by head."""
    from cuir.api import compile

    transferred = program(variant)
    masked = transferred.spec.mask_mod is not None
    consts: dict[str, Const] = {"T": F16 if dtype == "f16" else BF16, **CONFIGS[config], "DYNAMIC": masked}
    return compile(transferred.program, consts=consts), transferred


def _build(job: tuple[str, str, str]) -> tuple[tuple[str, str, str], str]:
    try:
        return job, build(*job)[0].compiled.resources.as_text()
    except CuirError as error:
        return job, f"FAILED {error}"


def build_all(jobs: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Compiles in parallel processes; prints resources; returns the jobs that have a kernel."""
    good = []
    start = time.time()
    with futures.ProcessPoolExecutor(min(os.cpu_count() or 1, len(jobs)), mp_context=multiprocessing.get_context("spawn")) as pool:
        for job, text in pool.map(_build, jobs):
            lines = [line for line in text.splitlines() if "choice" not in line]
            print(
                f"build {' '.join(job):32s} {lines[0]}" + "".join(f"\n      {line}" for line in lines[1:] if "compiled in" not in line),
                flush=True,
            )
            if not text.startswith("FAILED"):
                good.append(job)
    print(f"built {len(good)} of {len(jobs)} in {time.time() - start:.0f} s", flush=True)
    return good


# ---- checking
CASES = [  # B, H, HK, M, N, note
    (1, 2, 2, 128, 128, "one tile"), (2, 4, 4, 1024, 1024, "aligned"), (1, 4, 2, 1000, 1000, "ragged, GQA"), (1, 4, 1, 700, 1500, "M < N, MQA"),
    (1, 2, 2, 1, 1, "one of each"), (1, 2, 2, 1, 777, "one query"), (1, 2, 2, 77, 5, "few keys"), (1, 2, 2, 600, 300, "M > N"), (1, 2, 1, 77, 77, "77, MQA"),
    (2, 4, 4, 1024, 1024, "outer strides swapped"), (1, 4, 4, 1024, 1024, "growing maxima"), (1, 4, 4, 1024, 1024, "falling maxima"), (1, 2, 2, 100, 0, "no keys"),
    (2, 40, 8, 2048, 2048, "many tiles"), (3, 50, 50, 200, 333, "many short tiles"), (1, 2, 2, 4096, 4096, "long"), (1, 1, 1, 8192, 8192, "longest"),
]  # fmt: skip
FACTOR, SLACK = 1.2, 2e-5  # the error may be this much more than PyTorch's own in half precision


def tensors(
    B: int, H: int, HK: int, M: int, N: int, D: int, dtype: torch.dtype, note: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(H * 1000003 + M * 1009 + N)

    def random(heads: int, length: int) -> torch.Tensor:
        if "strides" in note:
            return torch.randn(B, length, heads, D, device="cuda", generator=generator).to(dtype).transpose(1, 2)
        return torch.randn(B, heads, length, D, device="cuda", generator=generator).to(dtype)

    q, k, v = random(H, M), random(HK, N), random(HK, N)
    if "maxima" in note:
        ramp = torch.linspace(6, 0.1, N, device="cuda") if "growing" in note else torch.linspace(0.1, 6, N, device="cuda")
        k = (k * ramp[:, None]).to(dtype)
    return q, k, v


def check_case(
    launch: Callable[..., Any], transferred: TransferResult, case: tuple[int, int, int, int, int, str], dtype: torch.dtype, dim: int
) -> tuple[bool, str]:
    """One launch with poisoned outputs, three repeats, against float64; whether it is right, and the figures."""
    B, H, HK, M, N, note = case
    specification = transferred.spec
    q, k, v = tensors(B, H, HK, M, N, dim, dtype, note)
    o = torch.full_like(q, math.nan)
    lse = torch.full(q.shape[:-1], math.nan, device="cuda")
    scale = dim**-0.5
    arguments = {"Q": q, "K": k, "V": v, "O": o, "LSE": lse, "scale": scale, **transferred.arguments(lengths_of(q, k), "cuda")}
    launch(**arguments)
    torch.cuda.synchronize()
    first, same = (o.clone(), lse.clone()), True
    for _ in range(3):
        o.fill_(math.nan)
        lse.fill_(math.nan)
        launch(**arguments)
        torch.cuda.synchronize()
        same &= torch.equal(o, first[0]) and torch.equal(lse, first[1])
    error, own, lse_error, dead_ok = 0.0, 0.0, 0.0, True
    for heads in _portions(q, k):
        wanted, wanted_lse = _on(specification.reference, specification, q, k, v, scale, heads)
        half, _ = _on(specification.half, specification, q, k, v, scale, heads)
        got, got_lse = o[:, heads].double(), lse[:, heads].double()
        size = max(wanted.norm().item(), 1e-30)
        error = max(error, (got - wanted).norm().item() / size if wanted.norm() > 0 else got.abs().max().item() if got.numel() else 0.0)
        own = max(own, (half.double() - wanted).nan_to_num().norm().item() / size)
        live = torch.isfinite(wanted_lse)
        lse_error = max(lse_error, (got_lse - wanted_lse)[live].abs().max().item() if live.any() else 0.0)
        dead_ok &= bool((got_lse[~live] == -math.inf).all()) and bool((got[~live] == 0).all())
    ok = error <= FACTOR * own + SLACK and lse_error < 2e-3 and same and dead_ok and math.isfinite(error)
    return (
        ok,
        f"error {error:.2e} (PyTorch {own:.2e}) lse {lse_error:.1e} repeatable {same} dead rows {dead_ok}  B{B} H{H}/{HK} M{M} N{N} {note}",
    )


def _portions(q: torch.Tensor, k: torch.Tensor) -> list[slice]:
    """All heads at once if float64 scores fit, else the first and the last group of heads alone."""
    B, H, M, N = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    group = H // k.shape[1]
    return [slice(0, H)] if B * H * M * max(N, 1) <= 1 << 26 else [slice(0, group), slice(H - group, H)]


def _on(
    function: Callable[..., Any],
    specification: Specification,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    heads: slice,
) -> Any:
    """A reference on some heads: what the mods see of heads and lengths is the whole problem's."""
    if heads == slice(0, q.shape[1]):
        return function(q, k, v, scale)
    group = q.shape[1] // k.shape[1]
    mine = slice(heads.start // group, -(-heads.stop // group))
    whole = lengths_of(q, k)
    part = q[:, heads], k[:, mine], v[:, mine]

    def shifted(mod: Callable[..., Any] | None, position: int) -> Callable[..., Any] | None:
        if mod is None:
            return None
        if position == 1:
            return lambda b, h, i, j: mod(b, h + heads.start, i, j)
        return lambda s, b, h, i, j: mod(s, b, h + heads.start, i, j)

    mask_mod, score_mod = specification.mods(whole, "cuda")
    narrow = Specification(specification.name, shifted(mask_mod, 1), shifted(score_mod, 2))
    return getattr(narrow, function.__name__)(*part, scale)


def check_worker(job: tuple[str, str, str]) -> int:
    variant, config, dtype = job
    kernel, transferred = build(variant, config, dtype)
    bad = 0
    for case in CASES:
        ok, text = check_case(kernel, transferred, case, TORCH[kernel.checked.consts["T"]], CONFIGS[config]["D"])  # type: ignore[index]
        bad += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {text}", flush=True)
    return bad


def check_all(jobs: Sequence[tuple[str, str, str]], out: Path, seconds: int = 100) -> tuple[list[tuple[str, str, str]], dict[str, Any]]:
    """Each kernel in its own process, so that a hang or a fault ends one alone. Returns the right ones, and a record."""
    good, record = [], {}

    def one(job: tuple[str, str, str]) -> tuple[str, str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu", "worker", *job], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            text, _ = process.communicate(timeout=seconds)
            return ("right" if process.returncode == 0 else "WRONG" if process.returncode == 1 else f"FAULT {process.returncode}"), text
        except subprocess.TimeoutExpired:
            process.kill()
            text, _ = process.communicate()
            return "HANGS", text

    with futures.ThreadPoolExecutor(4) as pool:
        for job, (verdict, text) in zip(jobs, pool.map(one, jobs), strict=True):
            (out / f"check_{'_'.join(job)}.log").write_text(text, encoding="utf-8")
            right = text.count("ok   ")
            record[" ".join(job)] = {"verdict": verdict, "right": right, "cases": len(CASES)}
            print(f"check {' '.join(job):32s} {verdict} {right} of {len(CASES)}", flush=True)
            if verdict == "right":
                good.append(job)
            else:
                wrong = [line for line in text.splitlines() if not line.startswith("ok")]
                print("\n".join("      " + line for line in wrong[:6] + wrong[-6:] if line)[:2500], flush=True)
    return good, record


# ---- timing
def median_ms(call: Callable[[], Any], milliseconds: float = 100.0) -> float:
    """Median time of a call with a cold L2 cache: the protocol of triton.testing.do_bench."""
    flush = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call()
    torch.cuda.synchronize()
    start.record()
    for _ in range(5):
        flush.zero_()
        call()
    stop.record()
    torch.cuda.synchronize()
    estimate = start.elapsed_time(stop) / 5
    for _ in range(max(1, int(50 / estimate))):
        call()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(max(3, int(milliseconds / estimate)))
    ]
    for first, last in events:
        flush.zero_()
        first.record()
        call()
        last.record()
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(last) for first, last in events)


class Reference:
    """A kernel from outside, timed beside ours: a folder with `bench_ref.py`, whose `SETS["golden"]` maps names to configurations (D, CAUSAL, ...)
    and whose `Kernel(configuration).prepare(q, k, v, o, lse)` gives a function that launches it."""

    def __init__(self, folder: str):
        spec = importlib.util.spec_from_file_location("bench_ref", os.path.join(folder, "bench_ref.py"))
        assert spec and spec.loader
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.golden: Mapping[str, Mapping[str, int]] = self.module.SETS["golden"]

    def contenders(
        self, variant: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor
    ) -> dict[str, Callable[[], Any]]:
        found = {}
        for name, config in self.golden.items():
            if config.get("D") == q.shape[-1] and variant == ("causal" if config.get("CAUSAL") else "full") and "x0" not in name:
                found[f"reference {name}"] = self.module.Kernel(config).prepare(q, k, v, o, lse)
        return found


def peers(transferred: TransferResult, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """cuDNN and FlashAttention through scaled_dot_product_attention where its flags say the variant, else compiled FlexAttention."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    name = transferred.spec.name
    if name in ("full", "causal"):

        def with_backend(backend: Any) -> Callable[[], Any]:
            def call() -> Any:
                with sdpa_kernel(backend):
                    return sdpa(q, k, v, is_causal=name == "causal", enable_gqa=q.shape[1] != k.shape[1])

            return call

        return {"cudnn": with_backend(SDPBackend.CUDNN_ATTENTION), "flash (sdpa)": with_backend(SDPBackend.FLASH_ATTENTION)}
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask_mod, score_mod = transferred.spec.mods(lengths_of(q, k), "cuda")
    blocks = create_block_mask(mask_mod, None, None, q.shape[2], k.shape[2], device="cuda") if mask_mod else None
    flex = torch.compile(flex_attention)
    return {"FlexAttention": lambda: flex(q, k, v, score_mod=score_mod, block_mask=blocks)}


def kept_pairs(specification: Specification, q: torch.Tensor, k: torch.Tensor) -> int:
    """Pairs that the mask keeps, of all heads and batches (masks of the corpus are the same for all heads)."""
    B, H, M, N = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    mask_mod, _ = specification.mods(lengths_of(q, k), "cuda")
    if mask_mod is None:
        return B * H * M * N
    i, j = torch.arange(M, device="cuda")[:, None], torch.arange(N, device="cuda")[None]
    zero = torch.zeros((), dtype=torch.int64, device="cuda")
    return B * H * int(torch.as_tensor(mask_mod(zero, zero, i, j)).expand(M, N).sum(dtype=torch.int64))


def bench_cell(
    variant: str,
    dim: int,
    seq: int,
    jobs: Sequence[tuple[str, str, str]],
    reference: Reference | None,
    rounds: int,
    heads: tuple[int, int] | None = None,
) -> Row:
    """All contenders of one problem in turns, `rounds` times: the card runs at its power limit and drifts."""
    H, HK = heads or (HEADS[dim], HEADS[dim])
    B = max(1, TOKENS // seq)
    q, k, v = (torch.randn(B, h, seq, dim, device="cuda").half() for h in (H, HK, HK))
    o, lse = torch.empty_like(q), torch.empty(B, H, seq, device="cuda")
    calls: dict[str, Callable[[], Any]] = {}
    transferred = program(variant)
    for job in jobs:
        kernel, transferred = build(*job)
        arguments = {"Q": q, "K": k, "V": v, "O": o, "LSE": lse, "scale": dim**-0.5, **transferred.arguments(lengths_of(q, k), "cuda")}
        calls[f"cuir {job[1]}"] = lambda kernel=kernel, arguments=arguments: kernel(**arguments)  # type: ignore[misc]
    if reference is not None:
        calls |= reference.contenders(variant, q, k, v, o, lse)
    calls |= peers(transferred, q, k, v)
    flops = 4.0 * dim * kept_pairs(transferred.spec, q, k)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            try:
                times[name].append(median_ms(call))
            except RuntimeError as error:
                print(f"      {name}: {str(error).splitlines()[0]}", flush=True)
    tflops = {name: round(flops / statistics.mean(t) / 1e9, 1) for name, t in times.items() if t}
    return {"variant": variant, "dim": dim, "seq": seq, "batch": B, "heads": [H, HK], "tflops": tflops}


def show(row: Row) -> str:
    def best(prefix: str) -> float:
        return max((v for n, v in row["tflops"].items() if n.startswith(prefix)), default=0.0)

    ours, theirs = best("cuir"), max([v for n, v in row["tflops"].items() if not n.startswith(("cuir", "reference"))], default=0.0)
    ratios = f"{ours / theirs:.2f} x peers" if theirs else ""
    if best("reference"):
        ratios += f", {ours / best('reference'):.2f} x reference"
    return f"{row['variant']:15s} d{row['dim']:<4d}{row['seq']:6d} {ratios:32s} " + "  ".join(f"{n} {v}" for n, v in row["tflops"].items())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", default=[])
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--configs", default=",".join(CONFIGS))
    parser.add_argument("--seqs", default="1024,4096,8192")
    parser.add_argument("--bf16", action="store_true", help="build and check the bf16 kernels of full and causal, too")
    parser.add_argument("--reference", help="folder of a kernel to time beside ours")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=520.0, help="seconds after which no further cell is timed")
    parser.add_argument("--out", default=os.environ.get("OUT", "out"))
    options = parser.parse_args(argv)
    started = time.time()
    steps = options.steps or ["build", "check", "bench"]
    if steps[0] == "worker":
        return 1 if check_worker((steps[1], steps[2], steps[3])) else 0
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    logs = Path("build") / "gpu_logs"
    logs.mkdir(parents=True, exist_ok=True)
    jobs = [(v, c, "f16") for v in options.variants.split(",") for c in options.configs.split(",")]
    if options.bf16:
        jobs += [(v, c, "bf16") for v in ("full", "causal") for c in options.configs.split(",")]
    record: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None}
    if "build" in steps:
        jobs = build_all(jobs)
        record["resources"] = {" ".join(j): build(*j)[0].compiled.resources.as_json() for j in jobs}
    if not torch.cuda.is_available():
        print("no CUDA device: checked and timed nothing")
        return 0
    if "check" in steps:
        jobs, record["checks"] = check_all(jobs, logs)
    rows: list[Row] = []
    if "bench" in steps:
        reference = Reference(options.reference) if options.reference else None
        cells = [(v, d, s) for s in map(int, options.seqs.split(",")) for v in options.variants.split(",") for d in (128, 64)]
        cells.sort(key=lambda cell: (cell[0] not in ("full", "causal"), cell[1] != 128, -cell[2]))  # the marks first
        for variant, dim, seq in cells:
            mine = [j for j in jobs if j[0] == variant and CONFIGS[j[1]]["D"] == dim and j[2] == "f16"]
            if not mine or time.time() - started > options.limit:
                continue
            rows.append(bench_cell(variant, dim, seq, mine, reference, options.rounds))
            print(show(rows[-1]), flush=True)
    record["rows"] = rows
    (out / "gpu.json").write_text(json.dumps(record, indent=1, default=str), encoding="utf-8")
    if rows:
        print("\nTFLOP/s of unmasked pairs\n" + "\n".join(map(show, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The expert CUDA sources against float64: `test_cuda_sources.py` runs each in a process of its own. Cases, bounds and data are the generated kernels'."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

import corpus
import llm
from cuir.nodes import Program
from cuir.parser import parse
from cuir.printer import show
from cuir.types import DTYPES
from llm.beside_source import beside_source
from llm.expert_source import ExpertSource, SourceKernel, read_expert_source
from llm.transcript import read_transcript
from tests.gpu.attention_cases import CASES, FACTOR, LSE_BOUND, REPEATS, SLACK, Case, expected, portions, tensors

TRANSCRIPTS = Path(llm.__file__).parent / "transcripts"


def right(name: str, dim: int) -> list[int]:
    """How many cases are right, and how many there are."""
    source = read_expert_source(corpus.launch_of(name))
    kernel = SourceKernel(source, dim)
    good = 0
    for case in CASES:
        ok, text = check(kernel, source, case, dim)
        good += ok
        print("ok  " if ok else "FAIL", text, flush=True)
    assert good == len(CASES), f"{len(CASES) - good} of {len(CASES)} are wrong"
    return [good, len(CASES)]


def check(kernel: SourceKernel, source: ExpertSource, case: Case, dim: int) -> tuple[bool, str]:
    """Launches with poisoned outputs, the same bits each time, against float64; whether all is right, and the figures."""
    B, H, HK, M, N, note = case
    spec = corpus.variant(source.spec)()
    q, k, v = tensors(case, dim, torch.float16)
    o, lse, scale = torch.full_like(q, math.nan), torch.full(q.shape[:-1], math.nan, device=q.device), dim**-0.5
    runs = []
    for _ in range(REPEATS):
        o.fill_(math.nan)
        lse.fill_(math.nan)
        kernel(q, k, v, o, lse, scale)
        torch.cuda.synchronize()
        runs.append((o.clone(), lse.clone()))
    same = all(torch.equal(a, b) for run in runs for a, b in zip(run, runs[0], strict=True))
    error, own, lse_error, dead_ok = 0.0, 0.0, 0.0, True
    for heads in portions(q, k):
        wanted, wanted_lse, half = expected(spec, q, k, v, scale, heads)
        got, got_lse = o[:, heads].double(), lse[:, heads].double()
        size = max(wanted.norm().item(), 1e-30)
        error = max(error, (got - wanted).norm().item() / size if wanted.norm() > 0 else got.abs().max().item() if got.numel() else 0.0)
        own = max(own, (half.double() - wanted).nan_to_num().norm().item() / size)
        live = torch.isfinite(wanted_lse)
        lse_error = max(lse_error, (got_lse - wanted_lse)[live].abs().max().item() if live.any() else 0.0)
        dead_ok &= bool((got_lse[~live] == -math.inf).all()) and bool((got[~live] == 0).all())
    ok = error <= FACTOR * own + SLACK and lse_error < LSE_BOUND and same and dead_ok and math.isfinite(error)
    figures = f"error {error:.2e} (PyTorch {own:.2e}) lse {lse_error:.1e} repeatable {same} dead rows {dead_ok}"
    return ok, f"{figures}  B{B} H{H}/{HK} M{M} N{N} {note}"


def fast(name: str, dim: int) -> float:
    """Effective TFLOP/s at 8k (B 2, 32 heads): that a source is an expert's and not a toy is seen in its speed."""
    kernel = SourceKernel(read_expert_source(corpus.launch_of(name)), dim)
    q, k, v = tensors((2, 32, 32, 8192, 8192, ""), dim, torch.float16)
    o, lse = torch.empty_like(q), torch.empty(q.shape[:-1], device=q.device)
    for _ in range(3):
        kernel(q, k, v, o, lse, dim**-0.5)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(10):
        kernel(q, k, v, o, lse, dim**-0.5)
    stop.record()
    torch.cuda.synchronize()
    speed = 4 * dim * (8192 * 8193 / 2) * 32 * 2 / (start.elapsed_time(stop) / 10) / 1e9
    print(f"{name} D {dim}: {speed:.0f} TFLOP/s", flush=True)
    return speed


def lifted_program(name: str) -> Program:
    """What a model lifted from the source, out of the transcript of it."""
    transcript = read_transcript(next(p for p in TRANSCRIPTS.glob("lift*.jsonl") if p.stem.endswith(name)))
    return parse(transcript.exchanges[-1].verdict["text"], f"{name}.cuir")


def beside(name: str) -> dict[str, Any]:
    """The lifted kernel and its source on the same inputs: every problem agrees. Returns their speeds."""
    source = read_expert_source(corpus.launch_of(name))
    found = beside_source(lifted_program(name), {"T": DTYPES["f16"], "D": 128}, source, corpus.variant(source.spec)())
    print(found["summary"], found["cases"], flush=True)
    assert not found["diagnostics"], found["diagnostics"]
    return {"speed": found["speed"]}


def told_apart(name: str) -> int:
    """How many problems differ if the program's factor of the scores is off by a hundredth: none would mean that nothing is compared."""
    source = read_expert_source(corpus.launch_of(name))
    text = show(lifted_program(name)).replace("scale * LOG2E", "scale * LOG2E * 1.01")
    found = beside_source(parse(text, "wrong.cuir"), {"T": DTYPES["f16"], "D": 128}, source, corpus.variant(source.spec)())
    return len(found["diagnostics"])

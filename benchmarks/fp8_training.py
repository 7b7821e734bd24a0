"""Attention in 8 bits with gradients beside attention in bfloat16: errors on any machine, times on a Hopper GPU.

    python -m benchmarks.fp8_training --errors                   # in the interpreter, on a machine without a GPU
    python -m benchmarks.fp8_training                            # both passes at 4k, 8k, 16k; head dims 64 and 128, full and causal
    python -m benchmarks.fp8_training --dims 128 --length 8192 --settings LATER=False STAGES=1 --out rows.jsonl

Errors are relative, in the norm of O and of each gradient, against float64 of the bfloat16 inputs: standard normal numbers,
rows of unlike size, and gradients that are all 1. Sustained times: contenders take turns of 100 ms each
(cuir/performance/timing/timing_protocol.py). A backward pass in 8 bits quantises dO; `kernel` is its kernel of gradients alone.
TFLOP/s count 4 D operations forward, 10 D backward for each unmasked pair.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import cuir
from benchmarks.old_and_new import as_they_come
from cuir import create_block_mask, flex_attention, fp8_attention
from cuir.attn.splicing.backward import transfer_backward

TOKENS = 16384
HEADS = 16
OUTPUTS = ("O", "dQ", "dK", "dV")
KINDS = ("normal", "unlike rows", "gradients of 1")
OFF = 0.1  # error at which no time is given
Call = Callable[..., torch.Tensor]


def draw(kind: str, heads: int, length: int, dim: int, device: str) -> list[torch.Tensor]:
    """Return queries, keys, values and dO of one batch entry, in bfloat16."""
    g = torch.Generator(device).manual_seed(1)
    tensors = [torch.randn(1, heads, length, dim, device=device, generator=g) for _ in range(4)]
    if kind == "unlike rows":
        tensors = [x * torch.exp2(torch.randn(1, heads, length, 1, device=device, generator=g)) for x in tensors]
    if kind == "gradients of 1":
        tensors[3] = torch.ones_like(tensors[3])
    return [x.bfloat16() for x in tensors]


def differentiate(call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor) -> list[torch.Tensor]:
    """Return O, dQ, dK and dV."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    o = call(*leaves)
    return [o.detach(), *torch.autograd.grad(o, leaves, do.to(o.dtype))]


def attend_exactly(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Compute O in float64, differentiably."""
    q, k, v = (x.double() for x in (q, k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -torch.inf)
    return scores.softmax(-1) @ v


def compute_errors(kind: str, length: int, dim: int, causal: bool, device: str) -> dict[str, dict[str, float]]:
    """Return the relative error of each output, in 8 bits and in bfloat16."""
    inputs = draw(kind, 1, length, dim, device)
    expected = differentiate(partial(attend_exactly, causal=causal), *inputs)
    mask = create_block_mask(lambda b, h, i, j: j <= i, None, None, length, length, device=device) if causal else None
    options: dict[str, Any] = {"block_mask": mask, "backend": "auto" if device == "cuda" else "interpret", "verify": "off"}
    return {
        name: {
            n: float((x.double() - y).norm() / y.norm().clamp(min=1e-30))
            for n, x, y in zip(OUTPUTS, differentiate(partial(call, **options), *inputs), expected, strict=True)
        }
        for name, call in (("8 bits", fp8_attention), ("bfloat16", flex_attention))
    }


def launch_kernel(q: torch.Tensor, causal: bool, settings: Mapping[str, Any]) -> Callable[[], object]:
    """Return a launch of the kernel of gradients alone, with other settings than a call's; its scales are 1."""
    import corpus
    from cuir.runtime.compiled import compile
    from cuir.spec.gradients import pad_rows

    B, H, M, D = q.shape
    spec = corpus.variant("causal")() if causal else cuir.Specification("full")
    text = corpus.kernels()["flash_bwd_f8_sm90"].read_text(encoding="utf-8")
    program = transfer_backward(cuir.parse(text, "flash_bwd_f8_sm90.cuir"), spec).program
    kernel = compile(program, kernel="flash_bwd", consts={"D": D, "SLOPES": False, **settings})
    eighths = {n: q.to(torch.float8_e4m3fn) for n in ("Q", "K", "V", "dO")}
    scales = {n: torch.ones(B, H, device=q.device) for n in ("QSCALE", "KSCALE", "VSCALE", "DOSCALE")}
    rows = {n: torch.zeros(B, H, pad_rows(M), device=q.device) for n in ("L", "DL")}
    sums = {n: torch.zeros(B, H, M, D, device=q.device) for n in ("dQ", "dV")}
    return partial(kernel, **eighths, **scales, **rows, **sums, QH=q, KH=q, dK=torch.empty_like(q), scale=D**-0.5)


def measure(length: int, dim: int, causal: bool, rounds: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row: TFLOP/s of both passes in 8 bits and in bfloat16, and of the kernel of gradients."""
    from cuir.performance.timing.timing_protocol import median_ms, time_in_turns

    batch = max(1, TOKENS // length)
    q, k, v, do = (torch.randn(batch, HEADS, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    mask = create_block_mask(lambda b, h, i, j: j <= i, None, None, length, length, device="cuda") if causal else None
    calls: dict[str, Callable[[], Any]] = {}
    attentions: dict[str, Call] = {"8 bits": fp8_attention, "bfloat16": flex_attention}
    for name, call in attentions.items():
        o = call(*leaves, block_mask=mask)
        calls[f"{name} forward"] = torch.no_grad()(partial(call, *leaves, block_mask=mask))
        calls[f"{name} backward"] = partial(torch.autograd.grad, o, leaves, do, retain_graph=True)
    calls["kernel"] = launch_kernel(q.detach(), causal, settings)
    short = min(length, 2048)
    errors = compute_errors("normal", short, dim, causal, "cuda")["8 bits"]
    assert max(errors.values()) < OFF, errors
    times, failed = time_in_turns(calls, rounds, partial(median_ms, milliseconds=100.0))
    pairs = length * (length + 1) // 2 if causal else length * length
    operations = {name: batch * HEADS * pairs * dim * (4 if name.endswith("forward") else 10) for name in calls}
    speed = {name: operations[name] / median(x) / 1e9 for name, x in times.items() if x}
    row = {"dim": dim, "length": length, "causal": causal, "settings": dict(settings), "TFLOP/s": speed, "errors": errors, "failed": failed}
    if not failed:
        row |= {f"{p} ratio": speed[f"8 bits {p}"] / speed[f"bfloat16 {p}"] for p in ("forward", "backward")}
    return row


def main() -> None:
    """Print a row for each problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--errors", action="store_true", help="errors alone")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--length", type=int, nargs="+", help="by default 512 for errors, else 4096, 8192 and 16384")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settings", nargs="*", default=["LATER=True"], help="consts of the kernel alone, NAME=VALUE")
    parser.add_argument("--out", type=Path, help="lines of JSON, as they come")
    options = parser.parse_args()
    settings = {n: json.loads(x.lower()) for n, _, x in (s.partition("=") for s in options.settings)}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for dim in options.dims:
        for length in options.length or ([512] if options.errors else [4096, 8192, 16384]):
            for causal in (False, True):
                if options.errors:
                    problem = {"dim": dim, "length": length, "causal": causal}
                    rows = [{**problem, "inputs": kind, **compute_errors(kind, length, dim, causal, device)} for kind in KINDS]
                else:
                    rows = [measure(length, dim, causal, options.rounds, settings)]
                as_they_come(rows, options.out)


if __name__ == "__main__":
    main()

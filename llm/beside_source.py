"""A lifted kernel beside the expert source that it came from, on a GPU: the same inputs, the same numbers within half precision, and both speeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from cuir.checking.checked import Const
from cuir.runtime.compiled import compile
from cuir.spec.specification import Specification
from cuir.syntax.nodes import Program
from cuir.text.diagnostics import Diagnostic

from .expert_source import ExpertSource, SourceKernel

Shape = tuple[int, int, int, int, int]
Runs = Callable[..., Any]  # a kernel: called with Q, K, V, O, LSE and scale by name, it writes O and LSE
SHAPES: tuple[Shape, ...] = (
    (1, 2, 2, 128, 128),
    (2, 4, 2, 333, 500),
    (1, 4, 1, 700, 300),
    (1, 2, 2, 100, 0),
    (1, 2, 2, 1, 777),
    (2, 16, 16, 2048, 2048),
)
FACTOR, SLACK, LSE_SLACK = 2.4, 4e-5, 4e-3  # twice what each may be off float64
TIMED: Shape = (2, 32, 32, 8192, 8192)


def beside_source(
    program: Program, consts: Mapping[str, Const], expert: ExpertSource, spec: Specification, shapes: tuple[Shape, ...] = SHAPES
) -> dict[str, Any]:
    """Runs both on B, H, HK, M, N of `shapes`. `diagnostics`: O112 for each that differs; `cases`, `speed`: what was seen; `summary`: a line.

    Differences are measured against the error of PyTorch in half precision, as in verification. Needs a GPU; consts: f16 and a head dim.
    """
    dim = cast(int, consts["D"])
    lifted, source = compile(program, consts=consts), SourceKernel(expert, dim)
    cases, wrong = [], list[Diagnostic]()
    for shape in shapes:
        case = one(lifted, source, spec, shape, dim)
        cases.append(case)
        if not case["ok"]:
            wrong.append(Diagnostic("O112", f"for B, H, HK, M, N = {shape} the lifted kernel must give what the source gives, found O {case['o']:.2e} apart "
                                            f"(allowed {case['allowed']:.2e}) and LSE {case['lse']:.2e}"))  # fmt: skip
    speed = {name: round(_tflops(run, dim), 1) for name, run in (("lifted", lifted), ("source", source))}
    summary = f"{len(cases) - len(wrong)} of {len(cases)} problems agree; causal 8k: {speed['lifted']} TFLOP/s lifted, {speed['source']} the source"
    return {"cases": cases, "speed": speed, "summary": summary, "diagnostics": [d.as_json() for d in wrong]}


def one(lifted: Runs, source: Runs, spec: Specification, shape: Shape, dim: int, device: str = "cuda") -> dict[str, Any]:
    """One problem: how far apart the outputs are, relative to float64's norm, and what is allowed."""
    (q, k, v), scale = _tensors(shape, dim, device), dim**-0.5
    outputs = []
    for run in (lifted, source):
        o, lse = torch.full_like(q, math.nan), torch.full(q.shape[:-1], math.nan, device=q.device)
        run(Q=q, K=k, V=v, O=o, LSE=lse, scale=scale)
        if device == "cuda":
            torch.cuda.synchronize()
        outputs.append((o.double(), lse.double()))
    (o, lse), (other, other_lse) = outputs
    wanted, _ = spec.reference(q, k, v, scale)
    size = max(wanted.norm().item(), 1e-30)
    own = (spec.half(q, k, v, scale)[0].double() - wanted).nan_to_num().norm().item() / size
    live = torch.isfinite(other_lse)
    apart = (o - other).norm().item() / size if wanted.norm() > 0 else o.abs().max().item() if o.numel() else 0.0
    lse_apart = (lse - other_lse)[live].abs().max().item() if live.any() else 0.0
    dead = bool((lse[~live] == other_lse[~live]).all())
    allowed = FACTOR * own + SLACK
    return {
        "shape": list(shape),
        "o": apart,
        "lse": lse_apart,
        "allowed": allowed,
        "ok": bool(apart <= allowed and lse_apart <= LSE_SLACK and dead),
    }


def _tensors(shape: Shape, dim: int, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    B, H, HK, M, N = shape
    generator = torch.Generator(device).manual_seed(M * 1009 + N)
    q, k, v = (torch.randn(B, h, n, dim, device=device, generator=generator).half() for h, n in ((H, M), (HK, N), (HK, N)))
    return q, k, v


def _tflops(run: Runs, dim: int) -> float:
    B, H, _, M, _ = TIMED
    q, k, v = _tensors(TIMED, dim)
    o, lse = torch.empty_like(q), torch.empty(q.shape[:-1], device="cuda")
    times = []
    for _ in range(12):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run(Q=q, K=k, V=v, O=o, LSE=lse, scale=dim**-0.5)
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return 4 * dim * (M * (M + 1) / 2) * H * B / sorted(times)[len(times) // 2] / 1e9

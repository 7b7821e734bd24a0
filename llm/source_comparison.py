"""Comparison on a GPU of a lifted kernel with its expert source: outputs and speeds."""

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
Runs = Callable[..., Any]  # a kernel, called with Q, K, V, O, LSE and scale by name; writes O and LSE
SHAPES: tuple[Shape, ...] = (
    (1, 2, 2, 128, 128),
    (2, 4, 2, 333, 500),
    (1, 4, 1, 700, 300),
    (1, 2, 2, 100, 0),
    (1, 2, 2, 1, 777),
    (2, 16, 16, 2048, 2048),
)
FACTOR, SLACK, LSE_SLACK = 2.4, 4e-5, 4e-3  # twice the error that each may have against float64
TIMED: Shape = (2, 32, 32, 8192, 8192)


def beside_source(
    program: Program, consts: Mapping[str, Const], expert: ExpertSource, spec: Specification, shapes: tuple[Shape, ...] = SHAPES
) -> dict[str, Any]:
    """Run both kernels on the problems B, H, HK, M, N of `shapes` and compare their outputs.

    Differences are measured against the error of PyTorch in half precision, as in verification. Needs a GPU; consts:
    f16 and a head dim.

    Returns:
        `cases`: measurements of each problem; `speed`: TFLOP/s of both; `diagnostics`: O112 for each problem that
            differs; `summary`: a line.
    """
    dim = cast(int, consts["D"])
    lifted, source = compile(program, consts=consts), SourceKernel(expert, dim)
    cases, wrong = [], list[Diagnostic]()
    for shape in shapes:
        case = compare_problem(lifted, source, spec, shape, dim)
        cases.append(case)
        if not case["ok"]:
            wrong.append(
                Diagnostic(
                    "O112",
                    f"for B, H, HK, M, N = {shape} the lifted kernel must give what the source gives, found O {case['o']:.2e} apart "
                    f"(allowed {case['allowed']:.2e}) and LSE {case['lse']:.2e}",
                )
            )
    speed = {name: round(_tflops(run, dim), 1) for name, run in (("lifted", lifted), ("source", source))}
    summary = f"{len(cases) - len(wrong)} of {len(cases)} problems agree; causal 8k: {speed['lifted']} TFLOP/s lifted, {speed['source']} the source"
    return {"cases": cases, "speed": speed, "summary": summary, "diagnostics": [d.as_json() for d in wrong]}


def compare_problem(lifted: Runs, source: Runs, spec: Specification, shape: Shape, dim: int, device: str = "cuda") -> dict[str, Any]:
    """Compare the outputs for one problem.

    Returns the distances of O (relative to the norm of the float64 result) and LSE, what is allowed, and whether they
    agree.
    """
    (q, k, v), scale = _tensors(shape, dim, device), dim**-0.5
    outputs = []
    for run in (lifted, source):
        o, lse = torch.full_like(q, math.nan), torch.full(q.shape[:-1], math.nan, device=q.device)
        run(Q=q, K=k, V=v, O=o, LSE=lse, scale=scale)
        if device == "cuda":
            torch.cuda.synchronize()
        outputs.append((o.double(), lse.double()))
    (o, lse), (source_o, source_lse) = outputs
    expected, _ = spec.reference(q, k, v, scale)
    size = max(expected.norm().item(), 1e-30)
    half_error = (spec.half(q, k, v, scale)[0].double() - expected).nan_to_num().norm().item() / size
    finite = torch.isfinite(source_lse)
    o_error = (o - source_o).norm().item() / size if expected.norm() > 0 else o.abs().max().item() if o.numel() else 0.0
    lse_error = (lse - source_lse)[finite].abs().max().item() if finite.any() else 0.0
    infinities_agree = bool((lse[~finite] == source_lse[~finite]).all())
    allowed = FACTOR * half_error + SLACK
    return {
        "shape": list(shape),
        "o": o_error,
        "lse": lse_error,
        "allowed": allowed,
        "ok": bool(o_error <= allowed and lse_error <= LSE_SLACK and infinities_agree),
    }


def _tensors(shape: Shape, dim: int, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return random Q, K, V in f16 for a problem, the same for equal lengths."""
    B, H, HK, M, N = shape
    generator = torch.Generator(device).manual_seed(M * 1009 + N)
    q, k, v = (torch.randn(B, h, n, dim, device=device, generator=generator).half() for h, n in ((H, M), (HK, N), (HK, N)))
    return q, k, v


def _tflops(run: Runs, dim: int) -> float:
    """Measure the TFLOP/s of a causal kernel on TIMED, by the median time."""
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

"""A compiled attention kernel on a GPU: first its numbers against float64, then its time beside PyTorch's kernels in the same run.

Owns the protocol: medians of CUDA events with a cold L2 cache, all kernels in turn; FLOPs count unmasked pairs only (4 D a pair: two products of 2 D).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .bind import TORCH
from .checked import Checked
from .diagnostics import CuirError

if TYPE_CHECKING:
    from .spec import Specification
    from .transfer import TransferResult

BATCH, HEADS, LENGTH = 2, 32, 8192  # Llama2-7B with 16k tokens: 32 heads, 8k keys
ROUNDS, REPEATS, WARM_UP = 5, 40, 20


def no_gpu() -> str:
    """Why kernels cannot run here; empty if they can."""
    if not torch.cuda.is_available():
        return "no CUDA device (torch.cuda.is_available() is False)"
    major, minor = torch.cuda.get_device_capability()
    return "" if major == 9 else f"kernels are for Hopper (compute capability 9.0), this device has {major}.{minor}"


def need_gpu() -> None:
    """Raises CuirError U501 if there is no GPU that runs sm_90a code."""
    reason = no_gpu()
    if reason:
        raise CuirError.of(
            "U501",
            f"a GPU was demanded: {reason}",
            hint="leave out --run (--on gpu) to do everything else; on a GPU machine: pip install cubridge[gpu]",
        )


def compare(checked: Checked, transferred: TransferResult) -> dict[str, Any]:
    """Compiles the kernel, checks it against float64 and times it beside scaled_dot_product_attention and FlexAttention.

    Returns rows of kernel, milliseconds (median) and TFLOP/s of unmasked pairs. Raises CuirError V401 if the numbers are wrong.
    """
    from .api import compile

    launch, specification = compile(checked), transferred.spec
    error, yardstick = _check(checked, transferred, launch)
    dim, dtype = checked.consts["D"], TORCH[checked.consts["T"]]  # type: ignore[index]
    problem = _problem(BATCH, HEADS, LENGTH, int(dim), dtype)  # type: ignore[arg-type]
    lengths = _lengths(problem)
    flops = 4.0 * int(dim) * int(specification.mask(lengths, "cuda").sum(dtype=torch.int64))  # type: ignore[arg-type]
    arguments = _arguments(problem, transferred)
    rows = _timed({"this kernel": lambda: launch(**arguments), **_peers(problem, specification)}, flops)
    best = min((r["milliseconds"] for r in rows[1:] if r["milliseconds"]), default=None)
    beside = f", {best / rows[0]['milliseconds']:.2f} x the best of PyTorch's" if best else ""
    return {
        "device": torch.cuda.get_device_name(),
        "problem": f"{BATCH} x {HEADS} heads x {LENGTH} x {dim}, {str(dtype).removeprefix('torch.')}",
        "rows": rows,
        "error": error,
        "yardstick": yardstick,
        "summary": f"right (error {error:.2e}, PyTorch's own {yardstick:.2e}); {rows[0]['tflops']:.0f} TFLOP/s{beside}",
    }


def _problem(batch: int, heads: int, length: int, dim: int, dtype: torch.dtype, device: str = "cuda") -> dict[str, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    return {name: torch.randn(batch, heads, length, dim, generator=generator, device=device).to(dtype) for name in "QKV"}


def _lengths(problem: Mapping[str, torch.Tensor]) -> Any:
    from .spec import lengths_of

    return lengths_of(problem["Q"], problem["K"])


def _arguments(problem: Mapping[str, torch.Tensor], transferred: TransferResult) -> dict[str, Any]:
    q = problem["Q"]
    lse = torch.full(q.shape[:-1], math.nan, device=q.device)
    return {
        **problem,
        "O": torch.full_like(q, math.nan),
        "LSE": lse,
        "scale": q.shape[-1] ** -0.5,
        **transferred.arguments(_lengths(problem), q.device),
    }


def _check(checked: Checked, transferred: TransferResult, launch: Callable[..., Any], device: str = "cuda") -> tuple[float, float]:
    """Relative errors of the kernel and of PyTorch in half precision, both against float64, on a ragged problem."""
    problem = _problem(1, 4, 1000, int(checked.consts["D"]), TORCH[checked.consts["T"]], device)  # type: ignore[arg-type, index]
    specification, arguments = transferred.spec, _arguments(problem, transferred)
    launch(**arguments)
    q, k, v = (problem[n] for n in "QKV")
    wanted, _ = specification.reference(q, k, v, arguments["scale"])
    half, _ = specification.half(q, k, v, arguments["scale"])
    size = wanted.norm().item()
    error, yardstick = (arguments["O"].double() - wanted).norm().item() / size, (half.double() - wanted).norm().item() / size
    if not error <= 1.5 * yardstick + 1e-6:
        raise CuirError.of("V401", f"on the GPU the error against float64 is at most 1.5 x that of PyTorch in half precision ({yardstick:.2e}), found {error:.2e}",
                           checked.origin.span, "the interpreter agrees with float64, so this is a fault of the lowering: please report it with the .cu file")  # fmt: skip
    return error, yardstick


def _peers(problem: Mapping[str, torch.Tensor], specification: Specification) -> dict[str, Callable[[], Any]]:
    """PyTorch's kernels for the same problem: with a dense mask where they have no flag for it."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    q, k, v = (problem[n] for n in "QKV")
    lengths = _lengths(problem)
    mask_mod, score_mod = specification.mods(lengths, q.device)
    peers: dict[str, Callable[[], Any]] = {}
    block_mask = None
    if mask_mod is not None:
        mask = specification.mask(lengths, q.device)
        batch, heads = (n if stride else None for n, stride in zip(mask.shape[:2], mask.stride()[:2]))  # None: the same for all
        mask = mask[: batch or 1, : heads or 1]
        block_mask = create_block_mask(mask_mod, batch, heads, lengths.M, lengths.N, device=str(q.device))
    if score_mod is None and mask_mod is None:
        peers["scaled_dot_product_attention"] = lambda: sdpa(q, k, v)
    elif score_mod is None and bool((mask == torch.ones_like(mask).tril()).all()):
        peers["scaled_dot_product_attention (is_causal)"] = lambda: sdpa(q, k, v, is_causal=True)
    elif score_mod is None:
        dense = mask.contiguous()
        peers["scaled_dot_product_attention (dense mask)"] = lambda: sdpa(q, k, v, attn_mask=dense)
    compiled = torch.compile(flex_attention)
    peers["FlexAttention (compiled)"] = lambda: compiled(q, k, v, score_mod=score_mod, block_mask=block_mask)
    return peers


def _timed(calls: Mapping[str, Callable[[], Any]], flops: float) -> list[dict[str, Any]]:
    """A row for each call. All take turns for ROUNDS rounds: the card is as warm, and as near its power limit, for one as for another."""
    flush = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            try:
                if name not in failed:
                    times.setdefault(name, []).extend(_round(call, flush))
            except (
                RuntimeError
            ) as error:  # out of memory, or torch.compile lacks a compiler: a peer that cannot run is no fault of the kernel
                if not times.get(name) and name == next(iter(calls)):
                    raise
                failed[name] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    rows = []
    for name in calls:
        milliseconds = None if name in failed else statistics.median(times[name])
        row = {"what": name, "milliseconds": milliseconds, "tflops": flops / milliseconds / 1e9 if milliseconds else None}
        rows.append(row | ({"why": failed[name]} if name in failed else {}))
    return rows


def _round(call: Callable[[], Any], flush: torch.Tensor) -> list[float]:
    """Milliseconds of REPEATS calls in a row, each after the L2 cache was overwritten; the host never waits in between, so the card stays busy."""
    for _ in range(WARM_UP):
        call()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)]
    for start, stop in events:
        flush.zero_()
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) for start, stop in events]

"""Backward pass beside FlashAttention-3's and cuDNN's at head dim 128, f16, on a Hopper GPU.

It has the cells of `cuir bench backward`, full and causal.

    python -m benchmarks.backward_fa3 --out rows.jsonl              # all lengths; --length 4096 16384 for some, --seconds 120 for as many as fit
    cuir bench backward --show --out rows.jsonl                     # no GPU: the table of what was measured

FlashAttention-3's backward pass comes with the package flash-attn3-jax, whose kernels JAX launches on a separate
stream, invisible to events of torch. So a round of a contender is wall time: calls in flight one after another for 100
ms, until the last has ended, with a warm L2 cache. Contenders take turns, results are compared with float64.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.recorded import as_row, command, record
from cuir.cli.command_inputs import read_variant
from cuir.performance.suites.backward_suite import gradients_of, ours
from cuir.performance.suites.cell_benchmark import Timing
from cuir.performance.suites.contest import contest
from cuir.performance.suites.peers import contenders
from cuir.performance.suites.suites import suite
from cuir.performance.timing.gradient_problem import compute_expected_gradients
from cuir.performance.timing.problem import count_kept_pairs, make_tensors
from cuir.performance.timing.timing_protocol import Call

MILLISECONDS, DIM = 100.0, 128


class FlashAttention3:
    """Kernels of flash-attn3-jax, called as the package's functions call them."""

    def __init__(self) -> None:
        import jax
        from flash_attn3_jax_lib import flash_api

        self.jax = jax
        jax.devices("gpu")
        for name, target in flash_api.get_ffi_registrations().items():
            jax.ffi.register_ffi_target(name, target, platform="CUDA")

    def gradients(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool, scale: float) -> Call:
        """Return a call that computes dQ, dK and dV as arrays of JAX [B, M, H, D].

        q, k, v and do are [B, H, M, D].
        """
        jax, shape = self.jax, self.jax.ShapeDtypeStruct
        arrays = [jax.dlpack.from_dlpack(x.transpose(1, 2).contiguous()) for x in (q, k, v, do)]
        torch.cuda.synchronize()
        (B, M, H, _), N = arrays[0].shape, arrays[1].shape[1]
        no_ints, empty, f32 = jax.numpy.zeros((0,), "int32"), jax.numpy.zeros((0,), arrays[0].dtype), jax.numpy.zeros((0,), "float32")
        options = {
            "softmax_scale_val": scale,
            "softmax_scale_has_value": True,
            "is_causal": causal,
            "window_size_left": -1,
            "window_size_right": -1,
            "softcap": 0.0,
            "sm_margin": 0,
        }

        def forward(q: Any, k: Any, v: Any) -> Any:
            outs = [shape(q.shape, q.dtype), shape((B, H, M), "float32"), shape((1, 1, 1, 1), "float32"), shape((1, 1, 1), "float32")]
            more = (empty, empty, empty, *[no_ints] * 8, empty, empty, no_ints, f32, f32, f32, no_ints)
            call = jax.ffi.ffi_call("flash_mha_fwd", outs)
            return call(
                q,
                k,
                v,
                *more,
                max_seqlen_q=M,
                max_seqlen_q_has_value=True,
                max_seqlen_k=N,
                max_seqlen_k_has_value=True,
                pack_gqa_val=False,
                pack_gqa_has_value=False,
                attention_chunk=0,
                is_rotary_interleaved=False,
                num_splits=1,
                **options,
            )[:2]

        def backward(do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any) -> Any:
            # buffers for queries have whole tiles: 64 with a causal mask, rounded up to 128, else 80
            whole = 128 if causal else 80
            rows = shape((B, H, math.ceil(M / whole) * whole), "float32")
            outs = [*(shape(x.shape, x.dtype) for x in (q, k, v)), rows, rows]
            call = jax.ffi.ffi_call("flash_mha_bwd", outs)
            return call(
                do,
                q,
                k,
                v,
                o,
                lse,
                *[no_ints] * 4,
                max_seqlen_q_val=M,
                max_seqlen_q_has_value=True,
                max_seqlen_k_val=N,
                max_seqlen_k_has_value=True,
                deterministic=False,
                **options,
            )[:3]

        o, lse = jax.block_until_ready(jax.jit(forward)(*arrays[:3]))
        compiled = jax.jit(backward)
        q, k, v, do = arrays
        return lambda: compiled(do, q, k, v, o, lse)


def wait_for(result: Any) -> Any:
    """Wait for a call's result, and return it."""
    for x in result:
        if not isinstance(x, torch.Tensor):
            x.block_until_ready()
    torch.cuda.synchronize()
    return result


def in_flight_ms(call: Call) -> float:
    """Return the milliseconds of a call, of as many as take MILLISECONDS, launched without waiting."""
    wait_for(call())
    began = time.perf_counter()
    wait_for([call() for _ in range(3)][-1])
    count = max(3, round(MILLISECONDS * 3e-3 / (time.perf_counter() - began)))
    began, last = time.perf_counter(), None
    for _ in range(count):
        last = call()
    wait_for(last)
    return (time.perf_counter() - began) * 1e3 / count


def as_torch(grads: Any) -> tuple[torch.Tensor, ...]:
    """Return dQ, dK and dV [B, H, M, D] of a contender's result."""
    return tuple(g if isinstance(g, torch.Tensor) else torch.from_dlpack(g).transpose(1, 2) for g in wait_for(grads))


def row(cell: Any, fa3: FlashAttention3, rounds: int) -> dict[str, Any]:
    """Measure a cell."""
    spec = read_variant(cell.variant, cell.arguments)
    problem, scale = make_tensors(cell.shape, torch.float16, "cuda"), DIM**-0.5
    q, k, v = (problem[n] for n in "QKV")
    do = torch.randn_like(q)
    expected = compute_expected_gradients(spec, q, k, v, do, scale)
    leaves = {n: problem[n].detach().requires_grad_() for n in "QKV"}
    inputs = tuple(leaves.values())
    calls: dict[str, Call] = {
        "cuir": gradients_of(ours(spec, "f16", cell, leaves, "auto"), inputs, do, False),
        "cudnn": gradients_of(contenders(["cudnn"], spec, leaves, scale)["cudnn"], inputs, do, False),
        "fa3": fa3.gradients(q, k, v, do, cell.variant == "causal", scale),
    }
    flops = 10.0 * DIM * count_kept_pairs(spec, q, k)

    def judge(grads: Any) -> tuple[float, str]:
        gradients = as_torch(grads)
        return max(expected.errors(gradients)), expected.judge(gradients)

    rows = contest(calls, judge, lambda ms: {"tflops": round(flops / ms / 1e9, 2)}, Timing(rounds, measure=in_flight_ms))
    return as_row(cell, flops, max(expected.half_errors), max(expected.bounds), rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--length", type=int, nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no cell begins after them")
    options = parser.parse_args(arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs the memory, too
    fa3 = FlashAttention3()
    words = command("benchmarks.backward_fa3", sys.argv[1:] if arguments is None else arguments)
    head = {"suite": "backward", "pass": "backward", "command": words, "protocol": "calls in flight, wall time, warm L2 cache"}
    cells = [c for c in suite("backward").cells() if c.shape.D == DIM and c.shape.N in (options.length or (c.shape.N,))]
    record(options.out, head, cells, lambda cell: row(cell, fa3, options.rounds), options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())

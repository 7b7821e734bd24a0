"""Benchmark of a backward pass on a GPU: gradients checked against float64, contenders timed in turns.

A contender computes O once; its gradients of Q, K and V for one dO are timed. Ours is a call of `cuir.attention`, with
the setting that a call gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ...arguments.binding import TORCH
from ...spec.specification import Specification
from ...syntax.types import DTYPES
from ..timing.problem import compute_expected_gradients, count_kept_pairs, make_tensors
from ..timing.timing_protocol import AttentionCall
from .cell_benchmark import BUILD_SECONDS, OURS, Cell, Timing
from .contest import contest
from .peers import contenders
from .result_rows import Row

DETERMINISTIC = "deterministic"  # a contender: ours, with torch.use_deterministic_algorithms
SECONDS = 300.0  # until the first call of ours returns: it compiles

GradientCall = Callable[[], tuple[torch.Tensor, ...]]


def measure_backward(
    cell: Cell,
    spec: Specification,
    dtype: str,
    peers: Sequence[str],
    timing: Timing = Timing(),
    *,
    device: str = "cuda",
) -> Row:
    """Measure ours and the peers; return the cell's row, as `measure_cell`.

    tflops count 6 D + 4 DV for each unmasked pair (S, dQ, dK; dP, dV), error is the largest of the three gradients'.
    device: "cpu" runs ours in the interpreter. Raises RuntimeError when the CUDA context is lost.
    """
    problem, scale = make_tensors(cell.shape, TORCH[DTYPES[dtype]], device), cell.shape.D**-0.5
    timing.tell("", BUILD_SECONDS)
    q, k, v = (problem[n] for n in "QKV")
    do = torch.randn(*q.shape[:-1], cell.shape.DV, device=device, generator=torch.Generator(device).manual_seed(1)).to(q.dtype)
    expected = compute_expected_gradients(spec, q, k, v, do, scale)
    flops = (6.0 * cell.shape.D + 4.0 * cell.shape.DV) * count_kept_pairs(spec, q, k)
    leaves = {n: problem[n].detach().requires_grad_() for n in "QKV"}
    inputs = tuple(leaves.values())
    our_call = ours(spec, dtype, cell, leaves, "auto" if device == "cuda" else "interpret")
    peer_calls = contenders([p for p in peers if p != DETERMINISTIC], spec, leaves, scale)
    forwards: dict[str, tuple[AttentionCall, bool]] = {
        OURS: (our_call, False),
        **({DETERMINISTIC: (our_call, True)} if DETERMINISTIC in peers else {}),
    }
    forwards |= {name: (call, False) for name, call in peer_calls.items()}
    rows = contest(
        {name: prepare_gradients(forward, inputs, do, fixed) for name, (forward, fixed) in forwards.items()},
        lambda grads: (max(expected.errors(grads)), expected.judge(grads)),
        lambda ms: {"tflops": round(flops / ms / 1e9, 2)},
        timing,
        seconds=lambda name: SECONDS if name in (OURS, DETERMINISTIC) else BUILD_SECONDS,
    )
    return {
        **cell.as_json(),
        "dtype": dtype,
        "flops": flops,
        "own_error": max(expected.half_errors),
        "bound": max(expected.bounds),
        "contenders": rows,
    }


def prepare_gradients(forward: AttentionCall, inputs: tuple[torch.Tensor, ...], do: torch.Tensor, fixed: bool) -> GradientCall:
    """Return `gradients_of`, whose forward pass runs in the first call."""
    cached: list[GradientCall] = []

    def call() -> tuple[torch.Tensor, ...]:
        if not cached:
            cached.append(gradients_of(forward, inputs, do, fixed))
        return cached[0]()

    return call


def ours(spec: Specification, dtype: str, cell: Cell, leaves: Mapping[str, torch.Tensor], backend: str) -> AttentionCall:
    """Return a call of O by `cuir.attention`, with gradients of the leaves."""
    from ...attn.kernels.attention_kernel import attention

    function = attention(
        spec, dtype=TORCH[DTYPES[dtype]], head_dim=cell.shape.D, value_dim=cell.shape.DV, verify="off"
    )  # results are judged by this benchmark
    return lambda: function(*leaves.values(), backend=backend)


def gradients_of(forward: AttentionCall, inputs: tuple[torch.Tensor, ...], do: torch.Tensor, fixed: bool) -> GradientCall:
    """Run a forward pass; return a call that computes dQ, dK and dV.

    fixed: with the same bits every time.
    """
    import torch._functorch.config

    with torch.enable_grad(), torch._functorch.config.patch(donated_buffer=False):  # buffers are read again by the next call
        o = forward()
        o = o[0] if isinstance(o, tuple) else o
        do = torch.empty_like(o).copy_(do)  # in memory as O is, which is the layout of the contender's users

        def call() -> tuple[torch.Tensor, ...]:
            before = torch.are_deterministic_algorithms_enabled()
            torch.use_deterministic_algorithms(fixed)
            try:
                return torch.autograd.grad(o, inputs, do, retain_graph=True)
            finally:
                torch.use_deterministic_algorithms(before)

        call()  # compilers of the backward pass depend on the setting, too
    return call


__all__ = ["DETERMINISTIC", "gradients_of", "measure_backward", "ours", "prepare_gradients"]

"""FlashAttention-3's causal backward pass from the package flash-attn3-jax, which has head dim 128 only.

JAX launches its kernels on a separate stream, which events of torch do not see.
"""

from __future__ import annotations

import math
import os
from functools import cache
from typing import Any

import torch

from cuir.performance.timing.timing_protocol import Call

MODULE, PACKAGE = "flash_attn3_jax_lib", "flash-attn3-jax"
TILE = 128  # buffers for queries have whole tiles of this length, or of a half


@cache
def load_jax() -> Any:
    """Return JAX with the package's kernels registered."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs the memory, too
    import jax
    from flash_attn3_jax_lib import flash_api

    jax.devices("gpu")
    for name, target in flash_api.get_ffi_registrations().items():
        jax.ffi.register_ffi_target(name, target, platform="CUDA")
    return jax


def make_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, scale: float) -> Call:
    """Run the forward pass; return a call that computes dQ, dK and dV as arrays of JAX [B, M, H, D].

    q, k, v and do are [B, H, M, D].
    """
    jax = load_jax()
    shape = jax.ShapeDtypeStruct
    arrays = [jax.dlpack.from_dlpack(x.detach().transpose(1, 2).contiguous()) for x in (q, k, v, do)]
    torch.cuda.synchronize()
    (B, M, H, _), N = arrays[0].shape, arrays[1].shape[1]
    no_ints, empty, f32 = jax.numpy.zeros((0,), "int32"), jax.numpy.zeros((0,), arrays[0].dtype), jax.numpy.zeros((0,), "float32")
    options = {
        "softmax_scale_val": scale,
        "softmax_scale_has_value": True,
        "is_causal": True,
        "window_size_left": -1,
        "window_size_right": -1,
        "softcap": 0.0,
        "sm_margin": 0,
    }

    def forward(q: Any, k: Any, v: Any) -> Any:
        outs = [shape(q.shape, q.dtype), shape((B, H, M), "float32"), shape((1, 1, 1, 1), "float32"), shape((1, 1, 1), "float32")]
        more = (empty, empty, empty, *[no_ints] * 8, empty, empty, no_ints, f32, f32, f32, no_ints)
        return jax.ffi.ffi_call("flash_mha_fwd", outs)(
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
        rows = shape((B, H, math.ceil(M / TILE) * TILE), "float32")
        outs = [*(shape(x.shape, x.dtype) for x in (q, k, v)), rows, rows]
        return jax.ffi.ffi_call("flash_mha_bwd", outs)(
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


def wait_for(result: Any) -> None:
    """Wait until the arrays of JAX in a call's result are computed."""
    for x in result if isinstance(result, (tuple, list)) else ():
        if not isinstance(x, torch.Tensor):
            x.block_until_ready()


def to_torch(gradients: Any) -> tuple[torch.Tensor, ...]:
    """Return gradients as tensors [B, H, M, D], from arrays of JAX [B, M, H, D] or from tensors."""
    wait_for(gradients)
    return tuple(g if isinstance(g, torch.Tensor) else torch.from_dlpack(g).transpose(1, 2) for g in gradients)


__all__ = ["MODULE", "PACKAGE", "make_call", "to_torch", "wait_for"]

"""Checks of latent caches, which hold one vector a token, and of tokens selected from them.

The first columns of a vector are the value, all of them the key.
"""

from __future__ import annotations

import torch

from ..capture.call_inputs import LARGEST_HEAD_DIM, check_dense, check_device, word, wrong
from .fp8_cache import DTYPE as EIGHT_BITS
from .serving_requests import CacheInputs

LATENTS = (128, 256, 384, 512)  # columns of values: of two warpgroups, in whole panels


def check_latent(inputs: CacheInputs, latent: int | None) -> None:
    """Check the arguments of a call over a latent cache, beside those that all caches share.

    Raises CuirError U402, U109, U110, U413.
    """
    q, k_cache = inputs.q, inputs.k_cache
    if latent is None or inputs.v_cache is not None:
        missing = "`v_cache` is missing" if latent is None else "found `v_cache` and latent"
        wrong("U402", f"values lie in v_cache, or are the first columns of k_cache: {missing}", "v_cache=None, latent=512")
    if isinstance(latent, bool) or latent not in LATENTS:
        wrong("U413", f"latent must be {', '.join(map(str, LATENTS[:-1]))} or {LATENTS[-1]}, found {latent!r}")
    if inputs.v is not None:
        wrong("U402", "new tokens of a latent cache are `k` alone, found `v`")
    for name, x, more in (("q", q, ()), ("k_cache", k_cache, (EIGHT_BITS,))):
        if isinstance(x, torch.Tensor) and x.dtype not in (torch.float16, torch.bfloat16, *more):
            others = ", or float8_e4m3fn" if more else ""
            wrong(
                "U109",
                f"over a latent cache `{name}` must be float16 or bfloat16{others}, found {word(x.dtype)}",
                f"{name}.to(torch.bfloat16)",
            )
    if isinstance(q, torch.Tensor) and q.dim() > 0 and not latent <= q.shape[-1] <= LARGEST_HEAD_DIM:
        wrong("U110", f"over a latent cache the head dim of query and key must be from latent to {LARGEST_HEAD_DIM}, found {q.shape[-1]}")
    if inputs.v_scale is not None:
        wrong("U402", "the values of a latent cache are a part of its keys and have their scale: found `v_scale`", "k_scale alone")
    if inputs.cu_seqlens_q is not None:
        wrong("U413", "over a latent cache all sequences have queries of one number, q [B, M, H, D], found cu_seqlens_q")


def check_selected_tokens(inputs: CacheInputs, B: int, latent: int | None) -> None:
    """Check the lists of tokens of B sequences that are checked otherwise.

    Raises CuirError U402, U403, U404, U407, U408, U109.
    """
    tokens, q = inputs.selected_tokens, inputs.q
    if latent is None:
        wrong("U402", "selected_tokens are of a latent cache, found no latent", "cuir.selected_attention takes blocks of keys")
    if not isinstance(tokens, torch.Tensor):
        wrong("U403", f"`selected_tokens` must be a tensor of int32, found {type(tokens).__name__}")
    check_dense("selected_tokens", tokens)
    check_device("selected_tokens", tokens, q)
    if tokens.dtype not in (torch.int32, torch.int64):
        wrong("U404", f"`selected_tokens` must be int32, found {word(tokens.dtype)}", "selected_tokens.to(torch.int32)")
    if tokens.dim() != 3 or tokens.shape[:2] != (B, q.shape[1]):
        wrong("U408", f"`selected_tokens` must be [{B} sequences, {q.shape[1]} queries, n], found {tuple(tokens.shape)}", "-1 is no token")
    if inputs.k_cache.dtype == EIGHT_BITS:
        wrong("U109", "tokens are selected from a cache of the dtype of q, found float8_e4m3fn", "k_cache.to(q.dtype)")


def make_lists(selected_tokens: torch.Tensor) -> torch.Tensor:
    """Return lists as the kernel reads them, int32 [B, M, n]; an empty one has an entry that is no token."""
    if not selected_tokens.shape[2]:
        return selected_tokens.new_full((*selected_tokens.shape[:2], 1), -1, dtype=torch.int32)
    return selected_tokens.to(torch.int32).contiguous()


__all__ = ["LATENTS", "check_latent", "check_selected_tokens", "make_lists"]

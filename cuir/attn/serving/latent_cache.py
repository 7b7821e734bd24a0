"""Checks of latent caches, which hold one vector a token: its first columns are the value, all of them the key."""

from __future__ import annotations

import torch

from ..capture.call_inputs import word, wrong
from .fp8_cache import DTYPE as EIGHT_BITS
from .serving_requests import CacheInputs

LATENTS = (128, 256, 384, 512)  # columns of values: of two warpgroups, in whole panels
LARGEST_KEY = 576


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
    if isinstance(q, torch.Tensor) and q.dim() > 0 and not latent <= q.shape[-1] <= LARGEST_KEY:
        wrong("U110", f"over a latent cache the head dim of query and key must be from latent to {LARGEST_KEY}, found {q.shape[-1]}")
    if inputs.v_scale is not None:
        wrong("U402", "the values of a latent cache are a part of its keys and have their scale: found `v_scale`", "k_scale alone")
    if inputs.cu_seqlens_q is not None:
        wrong("U413", "over a latent cache all sequences have queries of one number, q [B, M, H, D], found cu_seqlens_q")


__all__ = ["LARGEST_KEY", "LATENTS", "check_latent"]

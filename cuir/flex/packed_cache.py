"""Packed queries over a cache: sequences with any number of queries each, as servers batch prompts, pieces of prompts and sequences that decode. It is `varlen_attention` with
keys in pages, on the same kernel. Owns that call."""

from __future__ import annotations

from typing import Any

import torch

from ..calls.requirements import COPY_ALIGNMENT
from ..spec.specification import Lengths
from .appending import append_packed
from .constants import constant
from .front import Form
from .kernels import Level
from .mods import identity
from .packing import packed, strides_fit
from .per_sequence import known_rule, launched, places, rule
from .serving_settings import SHORT


def attention_of_packed(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None, lengths: torch.Tensor, pages: torch.Tensor,
    chunk: int, cu_seqlens_q: torch.Tensor, max_seqlen_q: int | None, score_mod: Any, mask_mod: Any, causal: bool, scale: float | None,
    weights: tuple[Any, ...], backend: str, verify: Level,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """O [TQ, H, DV] and LSE [H, TQ], f32, of queries [TQ, H, D] over a cache [NP, HK, page size, D].

    lengths: int32 [B], of what the cache holds before new tokens k, v [TQ, HK, ...] are written behind it. chunk: tokens of a page that are fetched at a time.
    """
    starts, ends = places("cu_seqlens_q", cu_seqlens_q, q)
    TQ, H, D = q.shape
    DV, past = values.shape[3], lengths
    whole = rule(mask_mod, causal)
    who = identity(whole, score_mod, *weights)
    known = known_rule(whole, mask_mod, score_mod, who, Form(q.dtype, D, DV, "varlen", (("CHUNK", chunk),)), verify, weights)

    def append() -> None:
        if k is not None and v is not None:
            for new, cache in ((k, keys), (v, values)):
                append_packed(new, cache, past, pages, starts, ends)

    if k is not None:
        lengths = past + (ends - starts)
    longest = TQ if max_seqlen_q is None else min(max_seqlen_q, TQ)
    query = q.transpose(0, 1)
    if not (strides_fit(query) and query.data_ptr() % COPY_ALIGNMENT == 0):
        query = packed(query)
    o = torch.empty(TQ, H, DV, dtype=q.dtype, device=q.device)
    given = {
        "Q": query, "K": keys, "V": values, "PAGES": pages, "QSTART": starts, "QEND": ends, "O": o.transpose(0, 1), "LONGEST": longest,
        "KSTART": constant(torch.zeros, len(starts), dtype=torch.int32, device=q.device), "KEND": lengths, "scale": D**-0.5 if scale is None else float(scale),
    }  # fmt: skip
    at = Lengths(1, H, keys.shape[1], min(longest, SHORT + 1), 1)
    return o, launched(known.attention, known.data(who), at, len(starts), given, (H, TQ), backend, before=append)


__all__ = ["attention_of_packed"]

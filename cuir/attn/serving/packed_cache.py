"""Packed queries over a cache: sequences with any number of queries each.

Servers batch prompts, pieces of prompts and sequences that decode in this way. It is `varlen_attention` with keys in
pages, on the same kernel. For f32 it is the kernel of all calls over a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...arguments.requirements import COPY_ALIGNMENT
from ...spec.specification import Lengths
from ..api.front import Form
from ..capture.call_inputs import precision
from ..capture.constants import constant
from ..capture.mods import make_capture_key
from ..capture.packing import pack_rows, strides_fit
from ..kernels.kernels import Level
from ..kernels.serving_settings import longest_class
from .appending import append_packed
from .per_sequence import check_places, clear_strangers, launch_attention, lookup_rule_attention, places, rule


def attention_of_packed(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    lengths: torch.Tensor,
    pages: torch.Tensor,
    chunk: int,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int | None,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O [TQ, H, DV] and LSE [H, TQ], f32, of packed queries over a cache.

    Args:
        q: [TQ, H, D].
        keys: [NP, HK, page size, D].
        lengths: int32 [B], tokens in the cache before new tokens k, v [TQ, HK, ...] are written behind them.
        chunk: tokens of a page that one copy fetches.
        rest: as for `_over_pages`.
    """
    starts, ends = places("cu_seqlens_q", cu_seqlens_q, q)
    check_places("q", starts, ends, len(q), max_seqlen_q)

    def append() -> None:
        if k is not None and v is not None:
            for new, cache in ((k, keys), (v, values)):
                append_packed(new, cache, lengths, pages, starts, ends)

    count = lengths if k is None else lengths + (ends - starts)
    longest = len(q) if max_seqlen_q is None else min(max_seqlen_q, len(q))
    o, lse = _over_pages(q, keys, values, starts, ends, count, pages, chunk, longest, append, *rest)
    clear_strangers(o.transpose(0, 1), lse, starts, ends)
    return o, lse


def attention_of_equal(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    pages: torch.Tensor,
    chunk: int,
    append: Callable[[], object],
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O [B, M, H, DV] and LSE [B, H, M], f32, of M queries of each sequence, which are packed.

    Args:
        q: [B, M, H, D].
        lengths: with new tokens, which `append` writes.
        rest: as for `_over_pages`.
    """
    B, M, H, D = q.shape
    edges = (
        constant(torch.arange, 0, (B + 1) * M, M, dtype=torch.int32, device=q.device)
        if M
        else constant(torch.zeros, B + 1, dtype=torch.int32, device=q.device)
    )
    o, lse = _over_pages(q.reshape(B * M, H, D), keys, values, edges[:-1], edges[1:], lengths, pages, chunk, M, append, *rest)
    return o.view(B, M, H, -1), lse.view(H, B, M).transpose(0, 1).contiguous()


def _over_pages(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    lengths: torch.Tensor,
    pages: torch.Tensor,
    chunk: int,
    longest: int,
    append: Callable[[], object],
    score_mod: Any,
    mask_mod: Any,
    causal: bool,
    scale: float | None,
    weights: tuple[Any, ...],
    backend: str,
    verify: Level,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O [TQ, H, DV] and LSE [H, TQ].

    Args:
        starts, ends: bounds of each sequence's queries.
        longest: most queries of a sequence.
    """
    TQ, H, D = q.shape
    DV = values.shape[3]
    whole = rule(mask_mod, causal)
    capture_key = make_capture_key(whole, score_mod, *weights)
    form = Form(q.dtype, D, DV, "varlen", (("CHUNK", chunk), *precision(q.dtype)))
    attention = lookup_rule_attention(whole, mask_mod, score_mod, capture_key, form, verify, weights)
    query = q.transpose(0, 1)
    if not (strides_fit(query) and query.data_ptr() % COPY_ALIGNMENT == 0):
        query = pack_rows(query)
    o = torch.empty(TQ, H, DV, dtype=q.dtype, device=q.device)
    arguments = {
        "Q": query,
        "K": keys,
        "V": values,
        "PAGES": pages,
        "QSTART": starts,
        "QEND": ends,
        "O": o.transpose(0, 1),
        "LONGEST": longest,
        "KSTART": constant(torch.zeros, len(starts), dtype=torch.int32, device=q.device),
        "KEND": lengths,
        "scale": D**-0.5 if scale is None else float(scale),
    }
    at = Lengths(1, H, keys.shape[1], longest_class(longest, TQ), 1)
    return o, launch_attention(
        attention.attention, attention.data(capture_key), at, len(starts), arguments, (H, TQ), backend, before=append
    )


__all__ = ["attention_of_equal", "attention_of_packed"]

"""Packed queries over a cache: sequences with any number of queries each.

Servers batch prompts, pieces of prompts and sequences that decode in this way. It is `varlen_attention` with keys in
pages, on the same kernel. For f32 it is the kernel of all calls over a cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...arguments.requirements import COPY_ALIGNMENT
from ...spec.specification import Lengths
from ..capture.attention_request import Variant
from ..capture.call_inputs import precision
from ..capture.device_tensors import constant
from ..capture.kernel_operands import pack_rows, strides_fit
from ..kernels.card_kernels import choose_target
from ..kernels.experts import Form
from ..kernels.serving_settings import longest_class
from .cache_writes import append_packed
from .per_sequence import SequenceLaunch, check_places, clear_strangers, launch_attention, lookup_rule_attention, places, rule
from .serving_requests import Bounds, CacheInputs, CacheOptions, PagedCache


def attention_of_packed(
    inputs: CacheInputs, cache: PagedCache, variant: Variant, options: CacheOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O [TQ, H, DV] and LSE [H, TQ], f32, of packed queries over a cache.

    New tokens are written behind those of the cache.
    """
    q, k, v, most = inputs.q, inputs.k, inputs.v, inputs.max_seqlen_q
    bounds = places("cu_seqlens_q", inputs.cu_seqlens_q, q)
    check_places("q", bounds, len(q), most)
    lengths = cache.lengths

    def append() -> None:
        if k is not None and v is not None:
            for new, written in ((k, cache.keys), (v, cache.values)):
                append_packed(new, written, lengths, cache.pages, bounds)

    after = cache if k is None else cache._replace(lengths=lengths + (bounds.ends - bounds.starts))
    longest = len(q) if most is None else min(most, len(q))
    o, lse = _over_pages(q, bounds, longest, after, append, variant, options)
    clear_strangers(o.transpose(0, 1), lse, bounds)
    return o, lse


def attention_of_equal(
    q: torch.Tensor, cache: PagedCache, append: Callable[[], object], variant: Variant, options: CacheOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O [B, M, H, DV] and LSE [B, H, M], f32, of M queries of each sequence, which are packed.

    Args:
        q: [B, M, H, D].
        cache: its lengths are those with new tokens, which `append` writes.
    """
    B, M, H, D = q.shape
    edges = (
        constant(torch.arange, 0, (B + 1) * M, M, dtype=torch.int32, device=q.device)
        if M
        else constant(torch.zeros, B + 1, dtype=torch.int32, device=q.device)
    )
    o, lse = _over_pages(q.reshape(B * M, H, D), Bounds(edges[:-1], edges[1:]), M, cache, append, variant, options)
    return o.view(B, M, H, -1), lse.view(H, B, M).transpose(0, 1).contiguous()


def _over_pages(
    q: torch.Tensor,
    bounds: Bounds,
    longest: int,
    cache: PagedCache,
    append: Callable[[], object],
    variant: Variant,
    options: CacheOptions,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O [TQ, H, DV] and LSE [H, TQ].

    Args:
        bounds: of each sequence's queries.
        longest: most queries of a sequence.
        append: writes the new tokens that the lengths of the cache count.
    """
    TQ, H, D = q.shape
    DV, scale = cache.values.shape[3], options.scale
    whole = Variant(rule(variant.mask_mod, options.causal), variant.score_mod, variant.weighting)
    capture_key = whole.make_capture_key()
    form = Form(
        q.dtype,
        D,
        DV,
        "varlen",
        (("CHUNK", cache.chunk), *precision(q.dtype)),
        choose_target(q.device, options.backend),
        options.batch_invariant,
    )
    attention = lookup_rule_attention(whole, variant, capture_key, form, options.verify)
    query = q.transpose(0, 1)
    if not (strides_fit(query) and query.data_ptr() % COPY_ALIGNMENT == 0):
        query = pack_rows(query)
    o = torch.empty(TQ, H, DV, dtype=q.dtype, device=q.device)
    arguments = {
        "Q": query,
        "K": cache.keys,
        "V": cache.values,
        "PAGES": cache.pages,
        "QSTART": bounds.starts,
        "QEND": bounds.ends,
        "O": o.transpose(0, 1),
        "LONGEST": longest,
        "KSTART": constant(torch.zeros, len(bounds.starts), dtype=torch.int32, device=q.device),
        "KEND": cache.lengths,
        "scale": D**-0.5 if scale is None else float(scale),
    }
    at = Lengths(1, H, cache.keys.shape[1], longest_class(longest, TQ), 1)
    launch = SequenceLaunch(attention.attention, attention.data(capture_key), at, len(bounds.starts), arguments, (H, TQ), options.backend)
    return o, launch_attention(launch, before=append)


__all__ = ["attention_of_equal", "attention_of_packed"]

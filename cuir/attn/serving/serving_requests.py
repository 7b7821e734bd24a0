"""The requests of calls over a cache and of packed sequences, which travel to the launch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..capture.attention_request import Level


class Bounds(NamedTuple):
    """Starts and ends of sequences among packed tokens, int32 [B] each."""

    starts: torch.Tensor
    ends: torch.Tensor


class PackedInputs(NamedTuple):
    """The tensors and lengths of `varlen_attention`, in the order of its operator's schema."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    max_seqlen_q: int | None
    max_seqlen_k: int | None


class PackedTensors(NamedTuple):
    """Checked tokens of all sequences by heads, and the bounds of sequences.

    q is [H, TQ, D]; k and v are [HK, TK, ..].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    queries: Bounds
    keys: Bounds


class CacheInputs(NamedTuple):
    """The tensors and lengths of `attention_with_kv_cache`, in the order of its operator's schema."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor | None
    k: torch.Tensor | None
    v: torch.Tensor | None
    cache_seqlens: torch.Tensor | int
    page_table: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    cu_seqlens_q: torch.Tensor | None
    max_seqlen_q: int | None
    selected_tokens: torch.Tensor | None


class CacheOptions(NamedTuple):
    """The options of `attention_with_kv_cache`, in the order of its operator's schema."""

    causal: bool
    scale: float | None
    layout: str
    max_seqlen: int | None
    backend: str
    verify: Level
    latent: int | None
    batch_invariant: bool


class PagedCache(NamedTuple):
    """A cache of keys and values [NP, HK, page size, ..], and which of its pages sequences have.

    Attributes:
        pages: int32 [B, pages of a sequence].
        lengths: int32 [B], the tokens of sequences, without new ones.
        chunk: tokens of a page that one copy fetches.
    """

    keys: torch.Tensor
    values: torch.Tensor
    pages: torch.Tensor
    lengths: torch.Tensor
    chunk: int


__all__ = ["Bounds", "CacheInputs", "CacheOptions", "PackedInputs", "PackedTensors", "PagedCache"]

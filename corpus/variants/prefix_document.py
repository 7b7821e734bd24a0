"""PrefixLM within documents packed into one sequence."""

from __future__ import annotations

from typing import Any

import torch

from corpus.variants.document import packed
from cuir.spec import Lengths, Specification


def prefix_document(
    doc: torch.Tensor | None = None, opened: torch.Tensor | None = None, length: int = 192, prefix: int = 48, stagger: int = 64
) -> Specification:
    """keep = doc[b, q] = doc[b, k] and (opened[b, k] or k <= q): causal in each document, but for its first `prefix` keys, which are open to all of it.

    `doc`: i32 [B, max(M, N)], the document of each token; `opened`: bool of the same shape, whether it lies in its document's prefix: k - start[doc[k]] <
    prefix[doc[k]]. Without them, documents of `length` tokens, which begin `stagger` tokens earlier from batch to batch. `prefix_lm` (Raffel et al. 2020) for
    packed sequences, as the example of the FlexAttention tutorial puts it together; exactly `prefix` keys (`<`, not `<=`). Top-left aligned.
    """

    def opens(lengths: Lengths) -> torch.Tensor:
        if opened is not None:
            return opened
        place = torch.arange(max(lengths.M, lengths.N)) + torch.arange(lengths.B)[:, None] * stagger
        first = torch.arange(lengths.B)[:, None] * stagger  # the first document of a batch has begun before it
        return place - torch.maximum(place // length * length, first) < prefix

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, doc: Any, opened: Any) -> Any:
        return (doc[b, q_idx] == doc[b, kv_idx]) & (opened[b, kv_idx] | (kv_idx <= q_idx))

    captured = {"doc": packed(length, stagger) if doc is None else doc, "opened": opens}
    return Specification("prefix_document", mask_mod, captured=captured, doc=prefix_document.__doc__ or "")

"""Causal attention within documents packed into one sequence."""

from __future__ import annotations

from typing import Any

import torch

from corpus.variants.document import packed
from cuir.spec import Specification


def causal_document(doc: torch.Tensor | None = None, length: int = 192, stagger: int = 64) -> Specification:
    """keep = doc[b, q] = doc[b, k] and k <= q: sequence packing for language models.

    `doc`: i32 [B, max(M, N)], the document of each token, whose tokens stand together; without it, documents of `length` tokens, which begin `stagger` tokens earlier from
    batch to batch (0: alike). Top-left aligned.
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, doc: Any) -> Any:
        return (doc[b, q_idx] == doc[b, kv_idx]) & (kv_idx <= q_idx)

    return Specification(
        "causal_document", mask_mod, captured={"doc": packed(length, stagger) if doc is None else doc}, doc=causal_document.__doc__ or ""
    )

"""Attention within documents packed into one sequence."""

from __future__ import annotations

from typing import Any

import torch

from cuir.spec import Lengths, Specification


def document(doc: torch.Tensor | None = None, length: int = 192, stagger: int = 64) -> Specification:
    """keep = doc[b, q] = doc[b, k]: a token attends to the tokens of its own document, before and behind it.

    `doc`: i32 [B, max(M, N)], the document of each token, whose tokens stand together; without it, documents of `length` tokens, which begin `stagger` tokens earlier from
    batch to batch (0: alike). FlexAttention's `document_mask`.
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, doc: Any) -> Any:
        return doc[b, q_idx] == doc[b, kv_idx]

    return Specification(
        "document", mask_mod, captured={"doc": packed(length, stagger) if doc is None else doc}, doc=document.__doc__ or ""
    )


def packed(length: int, stagger: int) -> Any:
    """Documents of `length` tokens that begin `stagger` tokens earlier from batch to batch: Lengths -> i32 [B, max(M, N)]."""

    def make(lengths: Lengths) -> torch.Tensor:
        place = torch.arange(max(lengths.M, lengths.N))
        shift = torch.arange(lengths.B)[:, None] * stagger
        return ((place + shift) // length).to(torch.int32)

    return make

"""Causal attention within blocks; the last block attends to all."""

from __future__ import annotations

from typing import Any

import torch

from cuir.spec import Lengths, Specification


def causal_blockwise(block: torch.Tensor | None = None, length: int = 160) -> Specification:
    """keep = k <= q and (block[q] = block[k] or block[q] = last): in-context examples, the last block is the test.

    `block`: i32 [max(M, N)], ascending, the block of each token; without it, blocks of `length` tokens. `last` is its largest number.
    """

    def blocks(lengths: Lengths) -> torch.Tensor:
        return (torch.arange(max(lengths.M, lengths.N)) // length).to(torch.int32) if block is None else block

    def last(lengths: Lengths) -> torch.Tensor:
        return blocks(lengths).amax().view(1) if max(lengths.M, lengths.N) else torch.zeros(1, dtype=torch.int32)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, blocks: Any, last: Any) -> Any:
        return (kv_idx <= q_idx) & ((blocks[q_idx] == blocks[kv_idx]) | (blocks[q_idx] == last[0]))

    return Specification("causal_blockwise", mask_mod, captured={"blocks": blocks, "last": last}, doc=causal_blockwise.__doc__ or "")

"""FlashInfer over a paged cache, as a contender: its kernels on CUDA cores and on tensor cores.

Each is planned once, as a serving loop does for all its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ..timing.timing_protocol import AttentionCall

WORKSPACE = 256 << 20  # bytes, as its documentation demands


class _Plan(Protocol):
    """A planned kernel of the package."""

    def run(self, q: torch.Tensor, caches: tuple[torch.Tensor, ...]) -> torch.Tensor: ...


def flashinfer(q: torch.Tensor, caches: tuple[torch.Tensor, ...], table: torch.Tensor, counts: Sequence[int]) -> dict[str, AttentionCall]:
    """Return calls that compute O [B, H, M, D]. Nothing runs yet.

    Args:
        q: [B, H, M, D].
        caches: Keys and values, each [NP, page, HK, D].
        table: Page table [B, pages].
        counts: Tokens of the sequences.
    """
    ways = {"tensor_cores": True, "cuda_cores": False} if q.shape[2] == 1 else {"tensor_cores": True}
    return {f"flashinfer {way}": _call(q, caches, table, counts, tensor_cores) for way, tensor_cores in ways.items()}


def _call(
    q: torch.Tensor, caches: tuple[torch.Tensor, ...], table: torch.Tensor, counts: Sequence[int], tensor_cores: bool
) -> AttentionCall:
    """Return a call that plans at its first run."""
    B, H, M, D = q.shape
    page, HK = caches[0].shape[1:3]
    planned: list[_Plan] = []
    rows = q.transpose(1, 2).reshape(B * M, H, D)

    def plan() -> _Plan:
        """Plan the kernel for these lengths."""
        import flashinfer

        pages = [-(-n // page) for n in counts]
        first = torch.tensor([0, *pages]).cumsum(0).to(q.device, torch.int32)
        page_indices = torch.cat([table[b, :n] for b, n in enumerate(pages)])
        last = torch.tensor([(n - 1) % page + 1 for n in counts], dtype=torch.int32, device=q.device)
        room = torch.zeros(WORKSPACE, dtype=torch.uint8, device=q.device)
        types = {"q_data_type": q.dtype, "kv_data_type": caches[0].dtype}
        if M == 1:
            decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(room, "NHD", use_tensor_cores=tensor_cores)
            decode.plan(first, page_indices, last, H, HK, D, page, pos_encoding_mode="NONE", **types)
            return decode
        rows_of = torch.arange(0, B * M + 1, M, dtype=torch.int32, device=q.device)
        prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD")
        prefill.plan(rows_of, first, page_indices, last, H, HK, D, page, causal=False, **types)
        return prefill

    def call() -> torch.Tensor:
        if not planned:
            planned.append(plan())
        o: torch.Tensor = planned[0].run(rows, caches)
        return o.view(B, M, H, D).transpose(1, 2)

    return call


__all__ = ["flashinfer"]

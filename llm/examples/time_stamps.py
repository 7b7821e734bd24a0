"""Attention by time stamps: a mask out of data, whose blocks a search finds."""

from __future__ import annotations

from typing import Any

import torch

from cuir.spec import Lengths, Specification


def time_stamps(time: torch.Tensor | None = None) -> Specification:
    """keep = time[b, k] <= time[b, q], for events of which several may have one time.

    Each event attends to those that are not later.
    `time`: i32 [B, max(M, N)], it never falls from one token to the next; without it, bursts of 1 to 9 tokens.
    """

    def times(lengths: Lengths) -> torch.Tensor:
        if time is not None:
            return time
        place = torch.arange(max(lengths.M, lengths.N)) + 3 * torch.arange(lengths.B)[:, None]
        return (place // 10 * 2 + (place % 10 > place // 10 % 9)).to(torch.int32)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, time: Any) -> Any:
        return time[b, kv_idx] <= time[b, q_idx]

    return Specification("time_stamps", mask_mod, captured={"time": times}, doc=time_stamps.__doc__ or "")

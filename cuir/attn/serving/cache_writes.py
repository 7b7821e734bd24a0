"""Writes of new tokens into a cache of keys or values, by operations of PyTorch.

Tokens for which a sequence has no room fall on its last slot; no token before them is overwritten. Nothing synchronises
with the device.
"""

from __future__ import annotations

import torch

from ..capture.call_inputs import wrong
from .fp8_cache import DTYPE as EIGHT_BITS
from .fp8_cache import quantise
from .serving_requests import Bounds


def append(new: torch.Tensor, cache: torch.Tensor, scale: torch.Tensor | None, lengths: torch.Tensor, pages: torch.Tensor) -> None:
    """Append new tokens [B, N, HK, D] to the sequences in a paged cache [NP, HK, page size, D].

    Scales of the new tokens are written where the cache has one for each token. Raises CuirError U408.

    Args:
        lengths: tokens that the cache holds of each sequence.
        pages: page table.
    """
    page, row = find_slots(pages, lengths[:, None].long() + torch.arange(new.shape[1], device=new.device), cache)
    if cache.dtype != EIGHT_BITS:
        cache[page, :, row] = new
        return
    numbers, token_scales = quantise(new, scale)
    # PyTorch writes 8-bit floats in fewer ways than bytes
    cache.view(torch.uint8)[page, :, row] = numbers.view(torch.uint8)
    if token_scales is not None and scale is not None:
        scale[page, :, row] = token_scales


def append_packed(new: torch.Tensor, cache: torch.Tensor, lengths: torch.Tensor, pages: torch.Tensor, bounds: Bounds) -> None:
    """Append packed tokens [TQ, HK, D] to the sequences in a paged cache [NP, HK, page size, D].

    Sequence b has the tokens starts[b] .. ends[b] - 1; the cache has their dtype. Raises CuirError U408.

    Args:
        lengths: tokens that the cache holds of each sequence.
        pages: page table.
        bounds: starts and ends.
    """
    starts, ends = bounds
    if not len(starts) or not len(new):
        return
    t = torch.arange(len(new), dtype=torch.int32, device=new.device)
    in_sequence = (t >= starts[0]) & (t < ends[-1])
    some = ends[-1] > starts[0]
    # rows of no sequence repeat the write of the last token, ...
    t = torch.where(in_sequence, t, (ends[-1] - 1).clamp(0)).long()
    b = torch.searchsorted(ends.contiguous(), t, right=True).clamp(max=len(starts) - 1)
    at = lengths[b].long() + t - starts[b]
    page, row = find_slots(pages[b], at[:, None], cache, some)
    page, row = page[:, 0], row[:, 0]
    # ... or, without any token, write back what the cache holds
    cache[page, :, row] = torch.where(some, new[t], cache[page, :, row])


def find_slots(
    pages: torch.Tensor, at: torch.Tensor, cache: torch.Tensor, some: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the page and the row in it of each token `at` [S, N], of sequences with the pages [S, MP].

    Args:
        some: a bool tensor, false where there are no tokens, so that any slot will do.

    Raises CuirError U408 on a CPU.
    """
    size = cache.shape[2]
    at = at.clamp(0, pages.shape[1] * size - 1)
    page = pages.long().gather(1, at // size)
    if some is not None:
        page = torch.where(some, page, 0)
    if page.device.type == "cpu" and page.numel() and not 0 <= int(page.min()) <= int(page.max()) < len(cache):
        wrong(
            "U408",
            f"new tokens go to pages that page_table names, of {len(cache)}; found page {int(page.min() if page.min() < 0 else page.max())}",
        )
    return page, at % size


__all__ = ["append", "append_packed", "find_slots"]

"""New tokens of a call into a cache of keys or values, by PyTorch. Owns where they go.

What there is no room for falls on a sequence's last slot, none of the tokens before. Nothing waits for the device.
"""

from __future__ import annotations

import torch

from .eight_bit import DTYPE as EIGHT_BITS
from .eight_bit import quantised
from .inputs import wrong


def append(new: torch.Tensor, cache: torch.Tensor, scale: torch.Tensor | None, lengths: torch.Tensor, pages: torch.Tensor) -> None:
    """Writes new tokens [B, N, HK, D] behind those that a cache [NP, HK, page size, D] holds, and their scales where tokens have them. Raises CuirError U408."""
    page, row = _slots(pages, lengths[:, None].long() + torch.arange(new.shape[1], device=new.device), cache)
    if cache.dtype != EIGHT_BITS:
        cache[page, :, row] = new
        return
    numbers, own = quantised(new, scale)
    cache.view(torch.uint8)[page, :, row] = numbers.view(torch.uint8)  # PyTorch writes 8-bit floats in fewer ways than bytes
    if own is not None and scale is not None:
        scale[page, :, row] = own


def append_packed(
    new: torch.Tensor, cache: torch.Tensor, lengths: torch.Tensor, pages: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
) -> None:
    """Writes new tokens [TQ, HK, D], of which sequence b has starts[b] .. ends[b] - 1, behind those that a cache [NP, HK, page size, D] of their dtype holds. Raises CuirError U408."""
    if not len(starts) or not len(new):
        return
    t = torch.arange(len(new), dtype=torch.int32, device=new.device)
    somebodys = (t >= starts[0]) & (t < ends[-1])
    some = ends[-1] > starts[0]
    t = torch.where(somebodys, t, (ends[-1] - 1).clamp(0)).long()  # rows of no sequence write once more what the last one writes, ...
    b = torch.searchsorted(ends.contiguous(), t, right=True).clamp(max=len(starts) - 1)
    at = lengths[b].long() + t - starts[b]
    page, row = _slots(pages[b], at[:, None], cache, some)
    page, row = page[:, 0], row[:, 0]
    cache[page, :, row] = torch.where(some, new[t], cache[page, :, row])  # ... or, where there is none, what is there


def _slots(
    pages: torch.Tensor, at: torch.Tensor, cache: torch.Tensor, some: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages and rows of tokens `at` [S, N] of sequences whose pages are pages [S, MP]. some: a bool, false where there are no tokens, and any place will do."""
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


__all__ = ["append", "append_packed"]

"""Masks as runs of keys, from a specification, for peers that take no mask function."""

from __future__ import annotations

import torch

from ...spec.specification import Specification, indices, lengths_of
from ..timing.problem import split_rows

MOST = 8  # runs of a query's keys; a mask with more is not one of intervals


def find_kept_runs(spec: Specification, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """Return where each run of a query's keys begins and ends, int32 [batches, heads, M, runs, 2].

    Runs that a query lacks are (N, N). None if a query has more than MOST. batches and heads are 1 where the mask
    depends on neither. q [B, H, M, D], k [B, HK, N, D].
    """
    lengths = lengths_of(q, k)
    mask_mod, _ = spec.mods(lengths, q.device)
    if mask_mod is None:
        return torch.tensor([0, lengths.N], dtype=torch.int32, device=q.device).expand(1, 1, lengths.M, 1, 2)
    b, h, i, j = indices(lengths, q.device)
    alike = torch.as_tensor(mask_mod(b, h, i[:, :, :1], j)).expand(-1, -1, -1, lengths.N)
    pieces_of_runs = []
    for rows in split_rows(lengths.M, alike.numel()):
        mask = torch.as_tensor(mask_mod(b, h, i[:, :, rows], j), device=q.device)
        runs = _runs(mask.expand(torch.broadcast_shapes(mask.shape, (1, 1, i[:, :, rows].shape[2], lengths.N))))
        if runs is None:
            return None
        pieces_of_runs.append(runs)
    most = max(x.shape[3] for x in pieces_of_runs)
    return torch.cat([torch.nn.functional.pad(x, (0, 0, 0, most - x.shape[3]), value=lengths.N) for x in pieces_of_runs], 2)


def _runs(mask: torch.Tensor) -> torch.Tensor | None:
    """Return the runs of a mask [b, h, m, N]."""
    N = mask.shape[-1]
    edges = torch.nn.functional.pad(mask, (1, 1)).diff()  # of booleans: where two neighbours differ, by turns a run's begin and its end
    count = int(edges.sum(-1).max()) // 2 if edges.numel() else 0
    if count > MOST:
        return None
    at = torch.arange(N + 1, dtype=torch.int32, device=mask.device)
    places = torch.where(edges, at, N).sort(-1).values[..., : 2 * max(1, count)]
    places = torch.nn.functional.pad(places, (0, max(0, 2 - places.shape[-1])), value=N)
    return places.unflatten(-1, (-1, 2))


def as_functions(runs: torch.Tensor, batches: int) -> torch.Tensor:
    """Return runs as cuDNN's interval masks, int32 [heads, functions, batches * M].

    A query keeps the keys of [0, F0), [F1, F2), [F3, F4) and so on.
    """
    _, heads, M, count, _ = runs.shape
    flat = runs.expand(batches, *runs.shape[1:]).permute(1, 3, 4, 0, 2).reshape(heads, 2 * count, batches * M)
    begins, ends = flat[:, 0], flat[:, 1]
    if bool(((begins == 0) | (begins == ends)).all()):  # the first run of every query that has one begins with the first key
        first = torch.where(begins == ends, 0, ends)[:, None]
        return torch.cat([first, flat[:, 2:]], 1).contiguous()
    return torch.cat([torch.zeros_like(begins)[:, None], flat], 1).contiguous()


def window_of(runs: torch.Tensor, keys: int) -> tuple[int | None, int | None] | None:
    """Return how many keys before and after its position each query keeps, None for all of them.

    None for a mask that is no such window. Needs as many queries as keys.
    """
    if tuple(runs.shape[:4]) != (1, 1, keys, 1) or not keys:
        return None
    begins, ends = runs[0, 0, :, 0].unbind(-1)
    at = torch.arange(keys, dtype=torch.int32, device=runs.device)
    left = None if bool((begins == 0).all()) else keys - 1 - int(begins[-1])
    right = None if bool((ends == keys).all()) else int(ends[0]) - 1
    if left is not None and (left < 0 or not torch.equal(begins, (at - left).clamp(min=0))):
        return None
    if right is not None and (right < 0 or not torch.equal(ends, (at + right + 1).clamp(max=keys))):
        return None
    return left, right


__all__ = ["MOST", "as_functions", "find_kept_runs", "window_of"]

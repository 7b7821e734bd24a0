"""Packed sequences with gradients: the call as one long sequence in which a query sees the keys of its own sequence, on the kernels of `flex_attention`. Owns how rules of a sequence
become those of the long one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..spec.specification import LENGTHS, asked
from .front import flex_attention
from .kernels import Level
from .masks import create_block_mask

Mod = Callable[..., Any]


@dataclass(frozen=True)
class Tokens:
    """Of each token [T], int32: the sequence that it is of, `none` for those of no sequence, and its number in that."""

    sequence: torch.Tensor
    place: torch.Tensor


def differentiable_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: tuple[torch.Tensor, ...], ends: tuple[torch.Tensor, ...], mask_mod: Mod | None,
    score_mod: Mod | None, scale: float | None, weights: tuple[Any, ...], backend: str, verify: Level,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """O [H, TQ, DV] and LSE [H, TQ] of q [H, TQ, D], k and v [HK, TK, ..]. starts, ends: where sequences begin and end, of queries and of keys. Raises CuirError X109."""
    normalize, sink = weights[:2]
    queries, keys = (_tokens(s, e, x.shape[1], none) for s, e, x, none in zip(starts, ends, (q, k), (-1, -2)))
    # what no sequence has may be no number, and 0 times that is none either
    q, k, v = (torch.where(of.sequence[:, None] >= 0, x, 0.0) for x, of in ((q, queries), (k, keys), (v, keys)))
    known = {"B": len(starts[0]), "H": q.shape[0], "HK": k.shape[0]}
    counts = {n: _of_sequences(e - s, queries.sequence) for n, s, e in zip("MN", starts, ends)}

    def within(mod: Mod) -> Callable[..., Any]:
        """A mod of one sequence, called with places in the long one: what it sees, and the lengths that it asks for by name, are the sequence's."""
        names = tuple(p.name for p in asked(mod) if p.name in LENGTHS)

        def called(i: Any, j: Any, h: Any, *score: Any) -> Any:
            lengths = {n: counts[n][i] if n in counts else known[n] for n in names}
            return mod(*score, queries.sequence[i], h, queries.place[i], keys.place[j], **lengths)

        return called

    of_mask, of_score = (None if mod is None else within(mod) for mod in (mask_mod, score_mod))

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        same = queries.sequence[i] == keys.sequence[j]
        return same if of_mask is None else same & of_mask(i, j, h)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        assert of_score is not None
        return of_score(i, j, h, s)

    by_head = q.shape[0] if mask_mod is not None else None
    blocks = create_block_mask(mask, None, by_head, q.shape[1], k.shape[1], q.device)
    o, lse = flex_attention(
        q[None],
        k[None],
        v[None],
        None if score_mod is None else score,
        blocks,
        scale,
        True,
        True,
        backend=backend,
        verify=verify,
        normalize=normalize,
        sink=sink,
    )
    return torch.where(queries.sequence[:, None] >= 0, o[0], 0.0), lse[0]


def _tokens(starts: torch.Tensor, ends: torch.Tensor, count: int, none: int) -> Tokens:
    """Of `count` tokens. Where several sequences begin at one place, all but the last are empty."""
    tokens = torch.arange(count, dtype=torch.int32, device=starts.device)
    if not len(starts):
        return Tokens(torch.full_like(tokens, none), torch.zeros_like(tokens))
    found = (torch.searchsorted(starts.contiguous(), tokens, right=True) - 1).clamp(min=0)
    inside = (tokens >= starts[found]) & (tokens < ends[found])
    return Tokens(torch.where(inside, found, none).int(), torch.where(inside, tokens - starts[found], 0))


def _of_sequences(counts: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """What sequences have, for each token; 0 for those of none."""
    if not len(counts):
        return torch.zeros_like(sequence)
    return torch.where(sequence >= 0, counts[sequence.clamp(min=0).long()], 0).int()


__all__ = ["differentiable_attention"]

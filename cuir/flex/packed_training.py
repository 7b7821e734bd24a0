"""Packed sequences with gradients: the call as one long sequence in which a query sees the keys of its own sequence, on the kernels of `flex_attention`. Owns how rules of a sequence
become those of the long one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..spec.specification import lengths_asked
from ..variants.arguments import memory_of, state_of
from .front import flex_attention
from .inputs import Seeded, capturing
from .kernels import Level
from .masks import create_block_mask

Mod = Callable[..., Any]
KNOWN_PLACES = 8


@dataclass(frozen=True)
class Tokens:
    """Of each token [T], int32: the sequence that it is of, `none` for those of no sequence, and its number in that."""

    sequence: torch.Tensor
    place: torch.Tensor


@dataclass(frozen=True)
class Tables:
    """Of the tokens of all sequences: those of queries and of keys, and by the names M and N how many queries and keys each query's sequence has."""

    queries: Tokens
    keys: Tokens
    counts: dict[str, torch.Tensor]


# The layers of a model ask with the same places: the same tables are the same data to their masks, for which nothing is made anew or compared.
_KNOWN: OrderedDict[Any, tuple[Tables, tuple[object, ...]]] = OrderedDict()  # with the places' memory


def differentiable_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: tuple[torch.Tensor, ...], ends: tuple[torch.Tensor, ...], mask_mod: Mod | None,
    score_mod: Mod | None, scale: float | None, weights: tuple[Any, ...], backend: str, verify: Level, dropout: Seeded | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """O [H, TQ, DV] and LSE [H, TQ] of q [H, TQ, D], k and v [HK, TK, ..]. starts, ends: where sequences begin and end, of queries and of keys. Raises CuirError X109."""
    normalize, sink = weights[:2]
    tables = _tables(starts, ends, (q.shape[1], k.shape[1]))
    queries, keys, counts = tables.queries, tables.keys, tables.counts
    # what no sequence has may be no number, and 0 times that is none either
    q, k, v = (torch.where(of.sequence[:, None] >= 0, x, 0.0) for x, of in ((q, queries), (k, keys), (v, keys)))
    known = {"B": len(starts[0]), "H": q.shape[0], "HK": k.shape[0]}

    def within(mod: Mod) -> Callable[..., Any]:
        """A mod of one sequence, called with places in the long one: what it sees, and the lengths that it asks for by name, are the sequence's."""
        names = lengths_asked(mod)

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
        **({} if dropout is None else {"dropout_p": dropout[0], "dropout_seed": dropout[1]}),
    )
    return torch.where(queries.sequence[:, None] >= 0, o[0], 0.0), lse[0]


def _tables(starts: tuple[torch.Tensor, ...], ends: tuple[torch.Tensor, ...], tokens: tuple[int, int]) -> Tables:
    """Those of these places, made now or in an earlier call."""
    places = (*starts, *ends)
    states = tuple(state_of(x) for x in places)
    stream = torch.cuda.current_stream(places[0].device).cuda_stream if places[0].is_cuda else 0
    key = None if None in states else (states, tokens, stream)
    found = _KNOWN.get(key)
    if found is not None:
        return found[0]
    queries, keys = (_tokens(s, e, count, none) for s, e, count, none in zip(starts, ends, tokens, (-1, -2)))
    made = Tables(queries, keys, {n: _of_sequences(e - s, queries.sequence) for n, s, e in zip("MN", starts, ends)})
    if key is not None and not capturing():  # what a graph makes is there at its replays alone
        _KNOWN[key] = made, tuple(memory_of(x) for x in places)
        while len(_KNOWN) > KNOWN_PLACES:
            _KNOWN.popitem(last=False)
    return made


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

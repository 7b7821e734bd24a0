"""Packed sequences with gradients: the call as one long sequence in which a query sees the keys of its own sequence, on the kernels of `flex_attention`. Owns how rules of a sequence
become those of the long one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..spec.specification import requested_lengths
from ..variants.arguments import memory_of, state_of
from ..variants.pairs import Translate, translate_pairs
from .front import flex_attention
from .graph_errors import at_tracing
from .inputs import Seeded, capturing, check_differentiable
from .kernels import Level
from .masks import create_block_mask
from .operator import OPERATOR, UNKNOWN, Handled, handle_for, handled_of
from .per_sequence import rule
from .sizes import is_known

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

    def tensors(self) -> list[torch.Tensor]:
        """All of them, as arguments of an operator."""
        return [self.queries.sequence, self.queries.place, self.keys.sequence, self.keys.place, self.counts["M"], self.counts["N"]]

    def indices_of_sequence(self, pair: Mapping[str, int]) -> dict[str, int]:
        """Return b, h, q and k of a pair within its sequence, from its places in the long one. Waits for the device."""
        q, k = pair["q"], pair["k"]
        return {"b": int(self.queries.sequence[q]), "h": pair["h"], "q": int(self.queries.place[q]), "k": int(self.keys.place[k])}

    @staticmethod
    def of(tensors: list[torch.Tensor]) -> Tables:
        """The tables of what `tensors` gives."""
        queries, place, keys, key_place, counts, key_counts = tensors
        return Tables(Tokens(queries, place), Tokens(keys, key_place), {"M": counts, "N": key_counts})


TABLES = 6  # tensors of them

# The layers of a model ask with the same places: the same tables are the same data to their masks, for which nothing is made anew or compared.
_KNOWN: OrderedDict[Any, tuple[Tables, tuple[object, ...]]] = OrderedDict()  # with the places' memory


def differentiable_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: tuple[torch.Tensor, ...], ends: tuple[torch.Tensor, ...], mask_mod: Mod | None,
    score_mod: Mod | None, scale: float | None, weights: tuple[Any, ...], backend: str, verify: Level, dropout: Seeded | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """O [H, TQ, DV] and LSE [H, TQ] of q [H, TQ, D], k and v [HK, TK, ..]. starts, ends: where sequences begin and end, of queries and of keys. Raises CuirError X109."""
    normalize, sink = weights[:2]
    tables = _tables(starts, ends, (q.shape[1], k.shape[1]))
    known = {"B": len(starts[0]), "H": q.shape[0], "HK": k.shape[0]}
    mask, score = mods_of_long_sequence(mask_mod, score_mod, tables, known)
    by_head = q.shape[0] if mask_mod is not None else None
    blocks = create_block_mask(mask, None, by_head, q.shape[1], k.shape[1], q.device)
    q, k, v = (x[None] for x in _without_strangers(q, k, v, tables))
    drops: dict[str, Any] = {} if dropout is None else {"dropout_p": dropout[0], "dropout_seed": dropout[1]}
    with translate_pairs(tables.indices_of_sequence):
        o, lse = flex_attention(
            q, k, v, score, blocks, scale, True, True, backend=backend, verify=verify, normalize=normalize, sink=sink, **drops
        )
    return torch.where(tables.queries.sequence[:, None] >= 0, o[0], 0.0), lse[0]


def differentiable_in_graph(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: tuple[torch.Tensor, ...], ends: tuple[torch.Tensor, ...], captured: list[torch.Tensor],
    handle: str, causal: bool, scale: float | None, weights: tuple[Any, ...], backend: str, verify: Level, dropout: Seeded | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Run `differentiable_attention` by the operator of `flex_attention`, in a call that torch.compile traces.

    captured, handle: of the mods, and a sink. Raises CuirError X109.
    """
    normalize, sink = weights[:2]
    check_differentiable(q, k, v, normalize, captured)
    tables = _made_tables(starts, ends, (q.shape[1], k.shape[1]))
    sizes = {"B": starts[0].shape[0], "H": q.shape[0], "HK": k.shape[0]}
    named = (int(sizes[n]) if n in lengths_named(handle) else None for n in ("B", "H", "HK"))
    long_handle = handle_of_long_sequence(handle, causal, 0.0 if dropout is None else dropout[0], *named)
    mods = len(captured) - (sink is not None)
    held = [*captured[:mods], *tables.tensors(), *captured[mods:], *([] if dropout is None else [dropout[1]])]
    scale = q.shape[2] ** -0.5 if scale is None else float(scale)
    q, k, v = (x[None] for x in _without_strangers(q, k, v, tables))
    o, lse = OPERATOR(q, k, v, held, long_handle, scale, True, backend, verify)
    return torch.where(tables.queries.sequence[:, None] >= 0, o[0], 0.0), lse[0]


def _without_strangers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tables: Tables) -> tuple[torch.Tensor, ...]:
    """Zeros for tokens of no sequence, which may be no numbers, and 0 times that is none either."""
    return tuple(torch.where(of.sequence[:, None] >= 0, x, 0.0) for x, of in ((q, tables.queries), (k, tables.keys), (v, tables.keys)))


def mods_of_long_sequence(
    mask_mod: Mod | None, score_mod: Mod | None, tables: Tables, known: Mapping[str, int | None]
) -> tuple[Mod, Mod | None]:
    """The mods of one long sequence in which a query sees the keys of its own sequence. known: B, H and HK, by which mods may ask for them."""
    queries, keys, counts = tables.queries, tables.keys, tables.counts

    def within(mod: Mod) -> Callable[..., Any]:
        """A mod of one sequence, called with places in the long one: what it sees, and the lengths that it asks for by name, are the sequence's."""
        names = requested_lengths(mod)

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

    return mask, None if of_score is None else score


@dataclass
class _LongSequence(Handled):
    """Mods of packed sequences as a graph knows them; behind the tensors of `of_one`, the mods of one sequence, come those of the tables."""

    of_one: Handled = None  # type: ignore[assignment]
    causal: bool = False
    known: Mapping[str, int | None] = field(default_factory=dict)

    def with_tensors(self, captured: list[torch.Tensor]) -> tuple[Mod | None, Mod | None]:
        mask_mod, score_mod = self.of_one.with_tensors(captured[: len(self.of_one.stand_ins)])
        return mods_of_long_sequence(rule(mask_mod, self.causal), score_mod, self._tables(captured), self.known)

    def indices_of_user(self, captured: list[torch.Tensor]) -> Translate | None:
        return self._tables(captured).indices_of_sequence

    def _tables(self, captured: list[torch.Tensor]) -> Tables:
        count = len(self.of_one.stand_ins)
        return Tables.of(captured[count : count + TABLES])


@at_tracing
def lengths_named(handle: str) -> tuple[str, ...]:
    """The names of the lengths for which the mods of a handle ask."""
    if handle == UNKNOWN:
        return ()
    spec = handled_of(handle).spec
    return tuple(n for mod in (spec.mask_mod, spec.score_mod) if mod is not None for n in requested_lengths(mod))


@at_tracing
def handle_of_long_sequence(handle: str, causal: bool, dropout_p: float, B: int | None, H: int | None, HK: int | None) -> str:
    """The handle of the mods of packed sequences, from that of the mods of one. B, H, HK: the sizes that these ask for."""
    if handle == UNKNOWN:
        return UNKNOWN
    one = handled_of(handle)

    def make() -> Handled:
        known = {"B": B, "H": H, "HK": HK}
        return _LongSequence(
            one.spec, one.stand_ins, one.normalize, one.sink, one.max_scores, dropout_p, of_one=one, causal=causal, known=known
        )

    return handle_for((handle, causal, dropout_p, B, H, HK), make)


def _made_tables(starts: tuple[torch.Tensor, ...], ends: tuple[torch.Tensor, ...], tokens: tuple[int, int]) -> Tables:
    """Select the tokens at these places."""
    queries, keys = (_tokens(s, e, count, none) for s, e, count, none in zip(starts, ends, tokens, (-1, -2)))
    return Tables(queries, keys, {n: _of_sequences(e - s, queries.sequence) for n, s, e in zip("MN", starts, ends)})


def _tables(starts: tuple[torch.Tensor, ...], ends: tuple[torch.Tensor, ...], tokens: tuple[int, int]) -> Tables:
    """Those of these places, made now or in an earlier call."""
    places = (*starts, *ends)
    states = tuple(state_of(x) for x in places)
    stream = torch.cuda.current_stream(places[0].device).cuda_stream if places[0].is_cuda else 0
    key = None if None in states else (states, tokens, stream)
    found = _KNOWN.get(key)
    if found is not None:
        return found[0]
    made = _made_tables(starts, ends, tokens)
    if key is not None and not capturing():  # what a graph makes is there at its replays alone
        _KNOWN[key] = made, tuple(memory_of(x) for x in places)
        while len(_KNOWN) > KNOWN_PLACES:
            _KNOWN.popitem(last=False)
    return made


def _tokens(starts: torch.Tensor, ends: torch.Tensor, count: int, none: int) -> Tokens:
    """Of `count` tokens. Where several sequences begin at one place, all but the last are empty."""
    tokens = torch.arange(count, dtype=torch.int32, device=starts.device)
    if is_known(starts.shape[0] == 0):
        return Tokens(torch.full_like(tokens, none), torch.zeros_like(tokens))
    found = (torch.searchsorted(starts.contiguous(), tokens, right=True) - 1).clamp(min=0)
    inside = (tokens >= starts[found]) & (tokens < ends[found])
    return Tokens(torch.where(inside, found, none).int(), torch.where(inside, tokens - starts[found], 0))


def _of_sequences(counts: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """What sequences have, for each token; 0 for those of none."""
    if is_known(counts.shape[0] == 0):
        return torch.zeros_like(sequence)
    return torch.where(sequence >= 0, counts[sequence.clamp(min=0).long()], 0).int()


__all__ = ["differentiable_attention", "differentiable_in_graph"]

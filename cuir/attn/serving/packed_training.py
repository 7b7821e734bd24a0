"""Packed sequences with gradients: one long sequence on the kernels of `flex_attention`.

A query sees the keys of its own sequence; the mods of a sequence become those of the long one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import torch

from ...caching import Memo
from ...spec.specification import list_requested_lengths
from ..api.block_masks import create_block_mask
from ..api.dense_calls import run
from ..api.operator import OPERATOR, UNKNOWN, GraphMods, Handled, get_handled, handle_for
from ..capture.attention_request import AttentionRequest, Mod, Options, Variant, Weighting
from ..capture.call_inputs import Seeded, capturing, check_differentiable
from ..capture.device_tensors import Counting
from ..capture.graph_errors import at_tracing
from ..capture.symbolic_sizes import is_known
from ..splicing.captured_arguments import memory_of, state_of
from ..tracing.refusal import Translate, translate_pairs
from .per_sequence import is_causal, rule
from .serving_requests import Bounds, PackedTensors


@dataclass(frozen=True)
class Tokens:
    """The sequence of each token [T], int32, and the token's index in it.

    Tokens of no sequence have a number `absent` for the sequence.
    """

    sequence: torch.Tensor
    place: torch.Tensor


@dataclass(frozen=True)
class Ranges:
    """The keys that each query sees of the long sequence, [M], int32 each.

    Without a mask these are `first` to `end` - 1, and `first` to `last` with the causal one. Queries of no sequence see
    none.
    """

    first: torch.Tensor
    end: torch.Tensor
    last: torch.Tensor


class Strangers:
    """Tokens of no sequence: the host learns whether there are any without waiting for the device."""

    def __init__(self, tables: Tables):
        sequences = torch.cat([tables.queries.sequence, tables.keys.sequence])
        self.counting: Counting | None = Counting((sequences < 0).sum())
        self.is_empty = False

    def is_known_empty(self) -> bool:
        """Return True once the device has reported that every token belongs to a sequence."""
        if not self.is_empty and self.counting is not None and not capturing() and self.counting.has_arrived():
            self.is_empty, self.counting = self.counting.value() == 0, None
        return self.is_empty


@dataclass(frozen=True)
class Tables:
    """The tokens of all sequences, queries and keys.

    `counts` has by the names M and N the numbers of queries and keys of each query's sequence.
    """

    queries: Tokens
    keys: Tokens
    counts: dict[str, torch.Tensor]
    ranges: Ranges

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors, as arguments of an operator."""
        tokens = [self.queries.sequence, self.queries.place, self.keys.sequence, self.keys.place]
        return [*tokens, self.counts["M"], self.counts["N"], self.ranges.first, self.ranges.end, self.ranges.last]

    def indices_of_sequence(self, pair: Mapping[str, int]) -> dict[str, int]:
        """Return b, h, q and k of a pair within its sequence, from its indices in the long one.

        Waits for the device.
        """
        q, k = pair["q"], pair["k"]
        return {"b": int(self.queries.sequence[q]), "h": pair["h"], "q": int(self.queries.place[q]), "k": int(self.keys.place[k])}

    @staticmethod
    def of(tensors: list[torch.Tensor]) -> Tables:
        """Return the tables of the tensors that `tensors` returns."""
        queries, place, keys, key_place, counts, key_counts, *ranges = tensors
        return Tables(Tokens(queries, place), Tokens(keys, key_place), {"M": counts, "N": key_counts}, Ranges(*ranges))


Index = torch.Tensor  # of a batch, a head or a token
TABLES = 9  # number of tensors

# The layers of a model share bounds, and with the same tables as captured data their masks hit every cache.
# An entry holds the bounds' memory, so that no other tensor gets its address.
_TABLES: Memo[Hashable, tuple[Tables, Strangers, tuple[object, ...]]] = Memo(
    "flex.packed_tables", key="states of the bounds' tensors, counts of tokens, stream", invalidation="a write to the bounds", limit=8
)


def differentiable_attention(
    tensors: PackedTensors, variant: Variant, options: Options, dropout: Seeded | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O [H, TQ, DV] and LSE [H, TQ]. Raises CuirError X109."""
    q, k, v, queries, keys = tensors
    tables, strangers = _tables(queries, keys, (q.shape[1], k.shape[1]))
    clean = strangers is not None and strangers.is_known_empty()
    sizes = {"B": len(queries.starts), "H": q.shape[0], "HK": k.shape[0]}
    mask, score = mods_of_long_sequence(variant.mask_mod, variant.score_mod, tables, sizes)
    by_head = q.shape[0] if variant.mask_mod is not None else None
    blocks = create_block_mask(mask, None, by_head, q.shape[1], k.shape[1], q.device)
    q, k, v = (x[None] for x in ((q, k, v) if clean else _without_strangers(q, k, v, tables)))
    weighting = variant.weighting if dropout is None else variant.weighting._replace(dropout=True)
    with translate_pairs(tables.indices_of_sequence):
        o, lse = run(AttentionRequest(q, k, v, score, blocks, options.scale, True, options.backend, options.verify, weighting, dropout))
    o, lse = o.squeeze(0), lse.squeeze(0)  # x[0] would fill and copy a tensor in the backward pass
    return (o if clean else torch.where(tables.queries.sequence[:, None] >= 0, o, 0.0)), lse


def differentiable_in_graph(
    tensors: PackedTensors, mods: GraphMods, causal: bool, options: Options, weighting: Weighting, dropout: Seeded | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `differentiable_attention` by the operator of `flex_attention`, under torch.compile.

    Raises CuirError X109.
    """
    q, k, v, queries, keys = tensors
    captured, handle = mods
    check_differentiable(q, k, v, weighting.normalize, captured)
    tables = make_tables(queries, keys, (q.shape[1], k.shape[1]))
    sizes = {"B": queries.starts.shape[0], "H": q.shape[0], "HK": k.shape[0]}
    named = (int(sizes[n]) if n in lengths_named(handle) else None for n in ("B", "H", "HK"))
    long_handle = handle_of_long_sequence(handle, causal, 0.0 if dropout is None else dropout.p, *named)
    count = len(captured) - (weighting.sink is not None)
    arguments = [*captured[:count], *tables.tensors(), *captured[count:], *([] if dropout is None else [dropout.seed])]
    scale = q.shape[2] ** -0.5 if options.scale is None else float(options.scale)
    q, k, v = (x[None] for x in _without_strangers(q, k, v, tables))
    o, lse = OPERATOR(q, k, v, arguments, long_handle, scale, True, options.backend, options.verify)
    return torch.where(tables.queries.sequence[:, None] >= 0, o.squeeze(0), 0.0), lse.squeeze(0)


def _without_strangers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tables: Tables) -> tuple[torch.Tensor, ...]:
    """Zero the tokens of no sequence: they may be NaN, and 0 times NaN is NaN."""
    return tuple(torch.where(of.sequence[:, None] >= 0, x, 0.0) for x, of in ((q, tables.queries), (k, tables.keys), (v, tables.keys)))


def mods_of_long_sequence(
    mask_mod: Mod | None, score_mod: Mod | None, tables: Tables, lengths_known: Mapping[str, int | None]
) -> tuple[Mod, Mod | None]:
    """Return the mods of one long sequence in which a query sees the keys of its own sequence.

    `lengths_known` has B, H and HK, for mods that take them by keyword.
    """
    # names of captured values become those of the kernel's parameters
    queries, keys, counts = tables.queries, tables.keys, tables.counts

    def within(mod: Mod) -> Mod:
        """Wrap a mod of one sequence, for calls with indices in the long one.

        The indices and the lengths that the mod gets are those of the sequence.
        """
        names = list_requested_lengths(mod)

        def call_mod(i: Index, j: Index, h: Index, *score: torch.Tensor) -> torch.Tensor:
            lengths = {n: counts[n][i] if n in counts else lengths_known[n] for n in names}
            return mod(*score, queries.sequence[i], h, queries.place[i], keys.place[j], **lengths)

        return call_mod

    of_mask, of_score = (None if mod is None else within(mod) for mod in (mask_mod, score_mod))
    first, end, last = tables.ranges.first, tables.ranges.end, tables.ranges.last

    def in_sequence(b: Index, h: Index, i: Index, j: Index) -> torch.Tensor:
        return (j >= first[i]) & (j < end[i])

    def in_causal_sequence(b: Index, h: Index, i: Index, j: Index) -> torch.Tensor:
        return (j >= first[i]) & (j <= last[i])

    def in_mask(b: Index, h: Index, i: Index, j: Index) -> torch.Tensor:
        assert of_mask is not None
        return (queries.sequence[i] == keys.sequence[j]) & of_mask(i, j, h)

    mask = in_sequence if mask_mod is None else in_causal_sequence if is_causal(mask_mod) else in_mask

    def score(s: torch.Tensor, b: Index, h: Index, i: Index, j: Index) -> torch.Tensor:
        assert of_score is not None
        return of_score(i, j, h, s)

    return mask, None if of_score is None else score


@dataclass
class _LongSequence(Handled):
    """Mods of packed sequences under a handle.

    Behind the tensors of `of_one`, the mods of one sequence, the graph passes those of the tables.
    """

    of_one: Handled = None  # type: ignore[assignment]
    causal: bool = False
    sizes: Mapping[str, int | None] = field(default_factory=dict)

    def with_tensors(self, captured: list[torch.Tensor]) -> tuple[Mod | None, Mod | None]:
        mask_mod, score_mod = self.of_one.with_tensors(captured[: len(self.of_one.stand_ins)])
        return mods_of_long_sequence(rule(mask_mod, self.causal), score_mod, self._tables(captured), self.sizes)

    def indices_of_user(self, captured: list[torch.Tensor]) -> Translate | None:
        return self._tables(captured).indices_of_sequence

    def _tables(self, captured: list[torch.Tensor]) -> Tables:
        count = len(self.of_one.stand_ins)
        return Tables.of(captured[count : count + TABLES])


@at_tracing
def lengths_named(handle: str) -> tuple[str, ...]:
    """Return the names of the lengths that the mods of a handle take by keyword."""
    if handle == UNKNOWN:
        return ()
    spec = get_handled(handle).spec
    return tuple(n for mod in (spec.mask_mod, spec.score_mod) if mod is not None for n in list_requested_lengths(mod))


@at_tracing
def handle_of_long_sequence(handle: str, causal: bool, dropout_p: float, B: int | None, H: int | None, HK: int | None) -> str:
    """Return the handle of mods for packed sequences, made from the handle of mods for a single sequence.

    B, H and HK are the sizes that the mods for a single sequence take.
    """
    if handle == UNKNOWN:
        return UNKNOWN
    handled = get_handled(handle)

    def make() -> Handled:
        sizes = {"B": B, "H": H, "HK": HK}
        return _LongSequence(
            handled.spec,
            handled.stand_ins,
            handled.normalize,
            handled.sink,
            handled.outputs,
            dropout_p,
            of_one=handled,
            causal=causal,
            sizes=sizes,
        )

    return handle_for((handle, causal, dropout_p, B, H, HK), make)


def make_tables(queries: Bounds, keys: Bounds, tokens: tuple[int, int]) -> Tables:
    """Build the tables of the tokens within these bounds."""
    of_queries, of_keys = _tokens(queries, tokens[0], -1), _tokens(keys, tokens[1], -2)
    counts = {n: _of_sequences(of.ends - of.starts, of_queries.sequence) for n, of in (("M", queries), ("N", keys))}
    first, end = (_of_sequences(x, of_queries.sequence) for x in keys)
    last_keys = first + of_queries.place + counts["N"] - counts["M"]  # the causal mask's last key
    return Tables(of_queries, of_keys, counts, Ranges(first, end, torch.where(of_queries.sequence >= 0, last_keys, -1).int()))


def _tables(queries: Bounds, keys: Bounds, tokens: tuple[int, int]) -> tuple[Tables, Strangers | None]:
    """Return the tables for these bounds, cached or new, and their tokens of no sequence if cached."""
    places = (*queries, *keys)
    states = tuple(state_of(x) for x in places)
    stream = torch.cuda.current_stream(places[0].device).cuda_stream if places[0].is_cuda else 0
    key = None if None in states else (states, tokens, stream)
    entry = _TABLES.get(key)
    if entry is not None:
        return entry[:2]
    tables = make_tables(queries, keys, tokens)
    if key is not None and not capturing():  # tensors made in a capture have data in replays only
        _TABLES[key] = tables, Strangers(tables), tuple(memory_of(x) for x in places)
        return _TABLES[key][:2]
    return tables, None


def _tokens(bounds: Bounds, count: int, absent: int) -> Tokens:
    """Locate `count` tokens.

    Where several sequences begin at one token, all but the last are empty.
    """
    starts, ends = bounds
    tokens = torch.arange(count, dtype=torch.int32, device=starts.device)
    if is_known(starts.shape[0] == 0):
        return Tokens(torch.full_like(tokens, absent), torch.zeros_like(tokens))
    sequence = (torch.searchsorted(starts.contiguous(), tokens, right=True) - 1).clamp(min=0)
    inside = (tokens >= starts[sequence]) & (tokens < ends[sequence])
    return Tokens(torch.where(inside, sequence, absent).int(), torch.where(inside, tokens - starts[sequence], 0))


def _of_sequences(counts: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """Return the number that each token's sequence has in `counts`; 0 for tokens of no sequence."""
    if is_known(counts.shape[0] == 0):
        return torch.zeros_like(sequence)
    return torch.where(sequence >= 0, counts[sequence.clamp(min=0).long()], 0).int()


__all__ = ["differentiable_attention", "differentiable_in_graph", "make_tables", "mods_of_long_sequence"]

"""Attention of a rank's queries in rounds, each over keys that it holds or receives, merged by LSE.

The backward pass computes each round's gradients from the merged O and LSE, so that no round's own output is kept.
Keys travel again in the backward pass where there are several rounds; their gradients return to the rank that holds
them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from ..attn.api.prepared_calls import find_prepared, prepare
from ..attn.capture.attention_request import SOFTMAX, AttentionRequest, Level, Mod, Weighting
from ..attn.capture.capture_keys import make_capture_key
from ..attn.capture.double_backward import differentiate_once
from ..attn.kernels.attention_kernel import Ready
from ..attn.kernels.autograd import BackwardInputs, backward, check_unwritten, versions_of
from ..spec.specification import Lengths, list_requested_lengths
from .agreement import Group
from .rank_exchanges import PendingPieces, Shapes, send_pieces, take_spans
from .shards import Shards, Span, join_spans, merge_spans, pick_spans, place_spans, unite_spans

Places = dict[int, tuple[Span, ...]]  # by rank
MOST_PARTS = 8  # of a rank: more would cost more launches than looking up the numbers of tokens costs


class Piece(NamedTuple):
    """Neighbouring keys of a round, from `start` to `stop - 1` among those that come from a rank."""

    rank: int
    start: int
    stop: int


class Part(NamedTuple):
    """Queries of a rank and keys of a round whose attention is one launch.

    A mask of neighbouring tokens keeps its closed form, shifted by where they begin.

    Attributes:
        queries: the place among the rank's queries.
        keys: the place among the round's keys.
        query_spans, key_spans: which tokens of the sequence these are; None if all ranks hold the whole sequence.
    """

    queries: Span
    keys: Span
    query_spans: tuple[Span, ...] | None
    key_spans: tuple[Span, ...] | None


class Round(NamedTuple):
    """An exchange of keys and values, and the keys that the rank then attends to.

    Attributes:
        sends: where this rank holds the keys that other ranks need.
        receives: where the other ranks, or this one, hold the keys that this rank needs.
        pieces: the received keys, in the order of the sequence.
        keys: the spans of the sequence that these are.
        parts: what is computed.
    """

    sends: Places
    receives: Places
    pieces: tuple[Piece, ...]
    keys: tuple[Span, ...]
    parts: tuple[Part, ...] = ()


class Rounds(NamedTuple):
    """The rounds of a rank, and the places of its queries that parts have: each query is in one of them."""

    places: tuple[Span, ...]
    steps: tuple[Round, ...]


NeededKeys = tuple[tuple[tuple[Span, ...], ...], ...]  # by rank and span of its queries


def list_rounds(needed: NeededKeys, queries: Shards, keys: Shards, rank: int, single: bool) -> Rounds:
    """List the rounds of a rank: its own keys first, then those of the ranks before it; or all in a single one."""
    wanted = [unite_spans(span for spans in of for span in spans) for of in needed]

    def exchange(sources: list[int], receivers: list[int]) -> Round:
        receives = {s: p for s in sources if (p := keys.locate(s, wanted[rank]))}
        sends = {r: p for r in receivers if r != rank and (p := keys.locate(rank, wanted[r]))}
        pieces = list[tuple[Span, Piece]]()
        for source, places in receives.items():
            before = 0
            for span in pick_spans(places, keys.spans[source]):
                pieces.append((span, Piece(source, before, before := before + span.stop - span.start)))
        pieces.sort()
        return Round(sends, receives, tuple(p for _, p in pieces), merge_spans(span for span, _ in pieces))

    if single:
        steps = [exchange(list(range(keys.ranks)), list(range(keys.ranks)))]
    else:
        steps = [exchange([(rank - i) % keys.ranks], [(rank + i) % keys.ranks]) for i in range(keys.ranks)]
    own = queries.spans[rank]
    whole = (Span(0, queries.lengths[rank]),)
    parts = [_list_parts(own, step.keys, needed[rank]) for step in steps]
    places = place_spans(own)
    if keys.ranks == 1 and own == whole:
        parts = [tuple(map(_keep_numbers, of)) for of in parts]
    elif sum(map(len, parts)) > MOST_PARTS * len(steps):
        places = whole
        parts = [(Part(whole[0], Span(0, _count(step.keys)), own, step.keys),) if step.keys else () for step in steps]
    return Rounds(places, tuple(step._replace(parts=of) for step, of in zip(steps, parts, strict=True)))


def _list_parts(queries: tuple[Span, ...], keys: tuple[Span, ...], needed: tuple[tuple[Span, ...], ...]) -> tuple[Part, ...]:
    """List each span of queries with what it needs of each span of keys, if anything."""
    parts = list[Part]()
    for own, place, wanted in zip(queries, place_spans(queries), needed, strict=True):
        for span, held in zip(keys, place_spans(keys), strict=True):
            common = [Span(max(span.start, w.start), min(span.stop, w.stop)) for w in wanted if w.start < span.stop and span.start < w.stop]
            if common:
                start, stop = min(c.start for c in common), max(c.stop for c in common)
                at = held.start + start - span.start
                parts.append(Part(place, Span(at, at + stop - start), (own,), (Span(start, stop),)))
    return tuple(parts)


def _keep_numbers(part: Part) -> Part:
    """Return a part of the first queries such that its mods are the call's own, where its keys are the first ones too."""
    return part._replace(query_spans=None, key_spans=None) if part.key_spans and part.key_spans[0].start == 0 else part


def _count(spans: tuple[Span, ...]) -> int:
    return sum(stop - start for start, stop in spans)


class Arrived(NamedTuple):
    """Keys and values of a round."""

    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True)
class RoundsCall:
    """A call of a rank whose keys arrive in rounds.

    Attributes:
        mask_mod: of numbers of tokens in the sequence, and of heads in the whole call.
        shifted: the mods of parts, from earlier calls of the plan.
        sizes: lengths of the whole call.
        first_head: the first query head of this rank.
        sink: the logits of this rank's heads.
    """

    group: Group
    places: tuple[Span, ...]
    rounds: tuple[Round, ...]
    mask_mod: Mod | None
    score_mod: Mod | None
    shifted: ShiftedMods
    sizes: Lengths
    first_head: int
    sink: torch.Tensor | float | None
    options: tuple[float | None, bool, str, Level]

    def prepare(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, part: Part, first: bool) -> Ready:
        """Prepare the attention of a part; the first one of its queries has the sink."""
        mask_mod, score_mod = (
            None if mod is None else self.shifted.get(mod, scored, self.sizes, self.first_head, part, q.device)
            for mod, scored in ((self.mask_mod, False), (self.score_mod, True))
        )
        weighting = Weighting(sink=self.sink) if first and self.sink is not None else SOFTMAX
        request = AttentionRequest(q, k, v, score_mod, None, *self.options, weighting)
        return find_prepared(request, mask_mod) or prepare(request, mask_mod)

    def list_learned(self) -> list[torch.Tensor]:
        """List the captured tensors that require gradients."""
        sink = self.sink if isinstance(self.sink, torch.Tensor) else None
        tensors = [*make_capture_key(self.mask_mod, self.score_mod).tensors, *([] if sink is None else [sink])]
        return [t for t in tensors if t.requires_grad and t.is_floating_point()]

    def receive(self, k: torch.Tensor, v: torch.Tensor) -> Iterator[Arrived | None]:
        """Yield the keys and values of each round, None where the rank needs none; the next ones are under way then.

        All ranks go through all rounds, so that the messages of each pair of ranks have one order.
        """
        pending = self._begin(0, k, v)
        for i, step in enumerate(self.rounds):
            pieces = pending.wait()
            if i + 1 < len(self.rounds):
                pending = self._begin(i + 1, k, v)
            own = self.group.rank
            by_rank = {
                rank: Arrived(take_spans(k, places), take_spans(v, places)) if rank == own else Arrived(*pieces[rank])
                for rank, places in step.receives.items()
            }
            if not by_rank:
                yield None
                continue
            yield Arrived(*(_join([_take(by_rank[p.rank][n], Span(p.start, p.stop)) for p in step.pieces]) for n in (0, 1)))

    def without_keys(self, q: torch.Tensor, v: torch.Tensor) -> _Merged:
        """Return O and LSE of queries that need no keys."""
        lse = torch.full(q.shape[:3], -torch.inf, dtype=torch.float32, device=q.device)
        if self.sink is not None:
            sink = torch.as_tensor(self.sink, dtype=torch.float32, device=q.device).detach()
            lse = sink.reshape(-1, 1).expand(*q.shape[:3]).contiguous()
        return _Merged(q.new_zeros((*q.shape[:3], v.shape[3])), lse)

    def _begin(self, i: int, k: torch.Tensor, v: torch.Tensor) -> PendingPieces:
        step, own = self.rounds[i], self.group.rank
        pieces = {rank: [take_spans(k, p), take_spans(v, p)] for rank, p in step.sends.items()}
        return send_pieces(self.group, pieces, _shapes({r: p for r, p in step.receives.items() if r != own}, k, v), k)

    def return_gradients(self, i: int, dk: torch.Tensor, dv: torch.Tensor, sums: tuple[_Sum, _Sum]) -> PendingPieces:
        """Begin to send the gradients of a round's keys to the ranks that hold them, and add up this rank's own."""
        step, own = self.rounds[i], self.group.rank
        of_keys, of_values = (_split_by_rank(step, g) for g in (dk, dv))
        if own in step.receives:
            for total, g in zip(sums, (of_keys.pop(own), of_values.pop(own)), strict=True):
                total.add_places(step.receives[own], g)
        pieces = {rank: [g, of_values[rank]] for rank, g in of_keys.items()}
        return send_pieces(self.group, pieces, _shapes(step.sends, sums[0].like, sums[1].like), dk)


def _split_by_rank(step: Round, x: torch.Tensor) -> dict[int, torch.Tensor]:
    """Return the keys of a round by the rank that holds them, in its order."""
    parts = zip(step.pieces, x.split([p.stop - p.start for p in step.pieces], 2), strict=True) if step.pieces else ()
    ordered = sorted(parts, key=lambda part: part[0])
    return {rank: _join([part for piece, part in ordered if piece.rank == rank]) for rank in step.receives}


def _shapes(places: Places, k: torch.Tensor, v: torch.Tensor) -> Shapes:
    """Return the shapes of keys and values at places of each rank."""
    counts = {rank: sum(stop - start for start, stop in spans) for rank, spans in places.items()}
    return {rank: [torch.Size((*x.shape[:2], n, x.shape[3])) for x in (k, v)] for rank, n in counts.items()}


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def bind_lengths(mod: Mod, sizes: Lengths) -> Mod:
    """Return a mod with the lengths of the whole call, where it takes them by keyword."""
    lengths = {name: getattr(sizes, name) for name in list_requested_lengths(mod)}
    return functools.partial(mod, **lengths) if lengths else mod


class ShiftedMods:
    """The mods of parts: those of the last mask_mod and score_mod are kept, so that calls find what they prepared."""

    def __init__(self) -> None:
        self._mods: dict[bool, Mod] = {}
        self._shifted: dict[tuple[object, ...], Mod] = {}

    def get(self, mod: Mod, scored: bool, sizes: Lengths, first_head: int, part: Part, device: torch.device) -> Mod:
        """Return the mod of a part's indices, made now or in an earlier call."""
        if self._mods.get(scored) is not mod:
            self._shifted = {key: value for key, value in self._shifted.items() if key[0] is not scored}
            self._mods[scored] = mod
        key = scored, sizes, first_head, part.query_spans, part.key_spans, device
        shifted = self._shifted.get(key)
        if shifted is None:
            bound = bind_lengths(mod, sizes)
            shifted = self._shifted[key] = shift_mod(bound, scored, first_head, part.query_spans, part.key_spans, device)
        return shifted


def shift_mod(
    mod: Mod,
    scored: bool,
    first_head: int,
    queries: tuple[Span, ...] | None,
    keys: tuple[Span, ...] | None,
    device: torch.device | str,
) -> Mod:
    """Return a mod of a rank's own indices, which asks the mod of the whole call.

    Offsets are tensors without dims, so that all parts share a kernel; tokens of several spans look up their numbers.
    """
    head = torch.tensor(first_head, dtype=torch.int32)
    if queries is None or keys is None:
        if scored:
            return lambda score, b, h, q_idx, kv_idx: mod(score, b, h + head, q_idx, kv_idx)
        return lambda b, h, q_idx, kv_idx: mod(b, h + head, q_idx, kv_idx)
    q_of, k_of = _number(queries, device), _number(keys, device)
    if scored:
        return lambda score, b, h, q_idx, kv_idx: mod(score, b, h + head, q_of(q_idx), k_of(kv_idx))
    return lambda b, h, q_idx, kv_idx: mod(b, h + head, q_of(q_idx), k_of(kv_idx))


def _number(spans: tuple[Span, ...], device: torch.device | str) -> Mod:
    """Return the function from a rank's index to the number in the sequence."""
    if len(spans) < 2:
        offset = torch.tensor(spans[0].start if spans else 0, dtype=torch.int32)
        return lambda i: i + offset
    numbers = join_spans(spans, device)
    return lambda i: numbers[i]


def _take(x: torch.Tensor, place: Span) -> torch.Tensor:
    """Return the tokens at a place: the tensor itself if these are all."""
    return x if place == (0, x.shape[2]) else x.narrow(2, place.start, place.stop - place.start)


@dataclass
class _Merged:
    """O and LSE of the keys so far."""

    o: torch.Tensor
    lse: torch.Tensor

    def add(self, o: torch.Tensor, lse: torch.Tensor) -> None:
        total = torch.logaddexp(self.lse, lse)
        weights = [torch.where(total > -torch.inf, torch.exp(part - total), 0.0).unsqueeze(-1) for part in (self.lse, lse)]
        self.o = self.o * weights[0] + o * weights[1]
        self.lse = total


class _Sum:
    """The sum of gradients of some tokens each, rounded once: in float32 where more than two are added."""

    def __init__(self, like: torch.Tensor) -> None:
        self.like = like
        self._addends: list[tuple[Span, torch.Tensor]] = []
        self._total: torch.Tensor | None = None

    def add(self, place: Span, g: torch.Tensor) -> None:
        """Add a gradient of the tokens at a place; the tensor may be written to later."""
        if self._total is None and len(self._addends) == 2:
            self._fold()
        if self._total is None:
            self._addends.append((place, g))
        else:
            _take(self._total, place).add_(g)

    def add_places(self, places: tuple[Span, ...], g: torch.Tensor) -> None:
        """Add a gradient of the tokens at these places, one behind the other."""
        before = 0
        for place in places:
            n = place.stop - place.start
            self.add(place, _take(g, Span(before, before + n)))
            before += n

    def compute(self) -> torch.Tensor:
        """Return the sum, of the shape and dtype of the tensor."""
        if self._total is None:
            length = self.like.shape[2]
            addends = sorted(self._addends, key=lambda addend: addend[0])
            if _tile([place for place, _ in addends], length):
                return _join([g for _, g in addends])
            whole = next((n for n, (place, _) in enumerate(addends) if place == (0, length)), None)
            if whole is not None:
                total = addends.pop(whole)[1]
                for place, g in addends:
                    _take(total, place).add_(g)
                return total
            self._fold()
        assert self._total is not None
        return self._total.to(self.like.dtype)

    def _fold(self) -> None:
        self._total = torch.zeros_like(self.like, dtype=torch.float32)
        for place, g in self._addends:
            _take(self._total, place).add_(g)
        self._addends = []


def _tile(places: list[Span], length: int) -> bool:
    """Return True if ordered places hold each token once."""
    return bool(places) and merge_spans(places) == ((0, length),)


class _Rounds(torch.autograd.Function):
    """O and LSE of a `RoundsCall`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, call: RoundsCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *learned: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        saved, learned = (q, k, v), tuple(learned)
        q, k, v = (x.detach() for x in saved)
        merged = dict[Span, _Merged]()
        dtype, readies = q.dtype, dict[tuple[int, int], Ready]()
        kept: tuple[torch.Tensor, ...] = ()
        for i, arrived in enumerate(call.receive(k, v)):
            if len(call.rounds) == 1 and arrived is not None:
                kept = arrived  # with several rounds keys travel again, instead of staying in memory
            if arrived is None or not q.shape[2]:
                continue
            for n, part in enumerate(call.rounds[i].parts):
                own, tensors = _take(q, part.queries), [_take(x, part.keys) for x in arrived]
                ready = readies[i, n] = call.prepare(own, tensors[0], tensors[1], part, part.queries not in merged)
                o_n, lse_n = ready.outputs(own, tensors[0], tensors[1])[:2]
                if part.queries in merged:
                    merged[part.queries].add(o_n.float(), lse_n)
                else:
                    merged[part.queries] = _Merged(o_n, lse_n)
        found = [merged[p] if p in merged else call.without_keys(_take(q, p), v) for p in call.places or (Span(0, 0),)]
        o, lse = _join([m.o.to(dtype) for m in found]), _join([m.lse for m in found])
        ctx.save_for_backward(*saved, o, lse, *kept)
        ctx.set_materialize_grads(False)
        versions = {i: versions_of(ready) for i, ready in readies.items()}
        ctx.call, ctx.readies, ctx.learned, ctx.versions = call, readies, learned, versions  # type: ignore[attr-defined]
        return o, lse

    @staticmethod
    def backward(ctx: FunctionCtx, do: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        call, learned = ctx.call, ctx.learned  # type: ignore[attr-defined]
        q, k, v, o, lse, *kept = ctx.saved_tensors  # type: ignore[attr-defined]
        for i, ready in ctx.readies.items():  # type: ignore[attr-defined]
            check_unwritten(ready, ctx.versions[i])  # type: ignore[attr-defined]
        needed = ctx.needs_input_grad[1:]  # type: ignore[attr-defined]

        def first() -> tuple[torch.Tensor | None, ...]:
            do_or_zeros = torch.zeros_like(o) if do is None else do
            inputs = BackwardInputs(q.detach(), k.detach(), v.detach(), o, lse, do_or_zeros, dlse)
            arrivals = call.receive(inputs.k, inputs.v) if len(call.rounds) > 1 else iter([Arrived(*kept) if kept else None])
            return _differentiate(_Backward(call, ctx.readies, inputs, arrivals, tuple(needed), learned))  # type: ignore[attr-defined]

        return None, *differentiate_once(first, (q, k, v, do, dlse, *learned))


@dataclass(frozen=True)
class _Backward:
    """Tensors and options that a backward pass reads."""

    call: RoundsCall
    readies: dict[tuple[int, int], Ready]
    inputs: BackwardInputs
    arrivals: Iterator[Arrived | None]
    needed: tuple[bool, ...]
    learned: tuple[torch.Tensor, ...]


def _differentiate(of: _Backward) -> tuple[torch.Tensor | None, ...]:
    """Return gradients of query, key, value and learned tensors. All ranks exchange the same pieces in one order."""
    call, needed, inputs = of.call, of.needed, of.inputs
    q, k, v = inputs.q, inputs.k, inputs.v
    by_keys = needed[1] or needed[2]
    of_queries, sums = _Sum(q), (_Sum(k), _Sum(v))
    learned: list[torch.Tensor | None] = [None] * len(of.learned)
    pending = dict[int, PendingPieces]()
    for i, arrived in enumerate(of.arrivals):
        keys = arrived or Arrived(k[:, :, :0], v[:, :, :0])
        of_keys, of_values = _Sum(keys.k), _Sum(keys.v)
        for n, part in enumerate(call.rounds[i].parts):
            if (i, n) not in of.readies:
                continue
            grads = backward(of.readies[i, n], _select(inputs, keys, part), (needed[0], by_keys, by_keys), of.learned)
            for total, place, g in zip((of_queries, of_keys, of_values), (part.queries, part.keys, part.keys), grads[:3], strict=True):
                if g is not None:
                    total.add(place, g)
            learned = [_add(total, g) for total, g in zip(learned, grads[3:], strict=True)]
        if by_keys:
            pending[i] = call.return_gradients(i, of_keys.compute(), of_values.compute(), sums)
    for i, pieces in pending.items():
        for rank, grads_of_keys in pieces.wait().items():
            for total, g in zip(sums, grads_of_keys, strict=True):
                total.add_places(call.rounds[i].sends[rank], g)
    own = (x.compute() if is_needed else None for x, is_needed in zip((of_queries, *sums), needed[:3], strict=True))
    return *own, *learned


def _select(inputs: BackwardInputs, keys: Arrived, part: Part) -> BackwardInputs:
    """Return the inputs of a part's backward pass."""
    q, o, do = (_take(x, part.queries) for x in (inputs.q, inputs.o, inputs.do))
    lse, dlse = (None if x is None else _take(x, part.queries).contiguous() for x in (inputs.lse, inputs.dlse))
    assert lse is not None
    return BackwardInputs(q, _take(keys.k, part.keys), _take(keys.v, part.keys), o, lse, do, dlse)


def _add(total: torch.Tensor | None, g: torch.Tensor | None) -> torch.Tensor | None:
    return total if g is None else g if total is None else total + g


def attend_in_rounds(call: RoundsCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return O and LSE of a rank's queries, with gradients. Raises CuirError U423 if ranks lose each other."""
    outputs: tuple[torch.Tensor, torch.Tensor] = _Rounds.apply(call, q, k, v, *call.list_learned())
    return outputs


__all__ = [
    "MOST_PARTS",
    "NeededKeys",
    "Part",
    "Round",
    "Rounds",
    "RoundsCall",
    "ShiftedMods",
    "attend_in_rounds",
    "bind_lengths",
    "list_rounds",
    "shift_mod",
]

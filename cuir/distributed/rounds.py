"""Attention of a rank's queries in rounds, each over keys that it holds or receives, merged by LSE.

The backward pass computes each round's gradients from the merged O and LSE, so that no round's own output is kept.
In a ring, keys travel again in the backward pass; their gradients return to the rank that holds them. What is computed
of a rank's own keys alone runs while the others' keys, or their gradients, travel.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from ..attn.api.prepared_calls import find_prepared, prepare
from ..attn.capture.attention_request import SOFTMAX, AttentionRequest, Level, Mod, Weighting
from ..attn.capture.capture_keys import MutationGuard, make_capture_key
from ..attn.capture.double_backward import differentiate_once
from ..attn.kernels.attention_kernel import Ready
from ..attn.kernels.autograd import BackwardInputs, backward, check_unwritten, versions_of
from ..spec.specification import Lengths, list_requested_lengths
from .agreement import Group
from .rank_exchanges import KeyRows, PendingRows, from_rows, make_rows, send_rows, to_rows
from .shards import Shards, Span, find_held, join_spans, merge_spans, place_spans, unite_spans

Places = dict[int, tuple[Span, ...]]  # by rank
MOST_PARTS = 8  # of a rank: more would cost more launches than looking up the numbers of tokens costs


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
        sends: where this rank holds the keys that other ranks need, a message for each span.
        receives: where the keys of other ranks lie among those of the round, a message for each span.
        own: where this rank holds the keys that it needs itself, and where these lie among those of the round.
        keys: the spans of the sequence that the round's keys are, in its order.
        parts: what is computed.
        local: the keys of the round are the rank's own tensors, as they are.
    """

    sends: Places
    receives: Places
    own: tuple[tuple[Span, Span], ...]
    keys: tuple[Span, ...]
    parts: tuple[Part, ...] = ()
    local: bool = False


class Rounds(NamedTuple):
    """The rounds of a rank, and the places of its queries that parts have: each query is in one of them.

    Attributes:
        kept: received keys stay for the backward pass; otherwise they travel again.
    """

    places: tuple[Span, ...]
    steps: tuple[Round, ...]
    kept: bool


class Need(NamedTuple):
    """Queries of a rank, and the spans of keys that they need."""

    queries: Span
    keys: tuple[Span, ...]


NeededKeys = tuple[tuple[Need, ...], ...]  # by rank, in its order


def list_rounds(needed: NeededKeys, keys: Shards, rank: int, single: bool) -> Rounds:
    """List the rounds of a rank: its own keys first, then those of the ranks before it; or all others at once."""
    needs = needed[rank]
    places = place_spans(need.queries for need in needs)
    own_keys, whole = keys.spans[rank], (Span(0, _count(need.queries for need in needs)),)
    if keys.ranks == 1 and len(needs) == 1:
        parts = tuple(map(_keep_numbers, _list_parts(needs, places, own_keys)))
        return Rounds(places, (Round({}, {}, (), own_keys, parts, True),), True)

    def exchange(wanted: list[tuple[Span, ...]], distances: Iterable[int]) -> Round:
        """List the messages of an exchange with the ranks at these distances before this one, and behind it."""
        found, sends = list[tuple[Span, int, Span]](), Places()
        for i in distances:
            source, receiver = (rank - i) % keys.ranks, (rank + i) % keys.ranks
            found += [(span, source, at) for span, at in find_held(keys.spans[source], wanted[rank])]
            if i and (sent := find_held(keys.spans[rank], wanted[receiver])):
                sends[receiver] = tuple(at for _, at in sent)
        found.sort()
        receives, own = dict[int, list[Span]](), list[tuple[Span, Span]]()
        for (_, source, at), place in zip(found, place_spans(span for span, _, _ in found), strict=True):
            if source == rank:
                own.append((at, place))
            else:
                receives.setdefault(source, []).append(place)
        joined = merge_spans(span for span, _, _ in found)
        return Round(sends, {source: tuple(of) for source, of in receives.items()}, tuple(own), joined)

    local = Round({}, {}, (), own_keys, local=True)
    if single:
        away = [tuple(need for need in of if not is_held(need, keys.spans[i])) for i, of in enumerate(needed)]
        steps = [local, exchange([unite_spans(span for need in of for span in need.keys) for of in away], range(keys.ranks))]
        parts_of = [_list_parts(needs, places, own_keys, lambda need: need not in away[rank])]
        parts_of.append(_list_parts(needs, places, steps[1].keys, lambda need: need in away[rank]))
    else:
        wanted = [unite_spans(span for need in of for span in need.keys) for of in needed]
        steps = [local, *(exchange(wanted, [i]) for i in range(1, keys.ranks))]
        parts_of = [_list_parts(needs, places, step.keys) for step in steps]
    if len(own_keys) == 1 and len(parts_of[0]) == 1:  # then its gradients have a place for all own keys
        parts_of[0] = (parts_of[0][0]._replace(keys=Span(0, _count(own_keys)), key_spans=own_keys),)
    if sum(map(len, parts_of)) > MOST_PARTS * (1 if single else len(steps)):
        queries, places = merge_spans(need.queries for need in needs), whole
        if single:
            wanted = [unite_spans(span for need in of for span in need.keys) for of in needed]
            steps[1] = exchange(wanted, range(keys.ranks))
            steps = steps[1:]
        parts_of = [(Part(whole[0], Span(0, _count(step.keys)), queries, step.keys),) if step.keys else () for step in steps]
    return Rounds(places, tuple(step._replace(parts=of) for step, of in zip(steps, parts_of, strict=True)), single)


def is_held(need: Need, own: tuple[Span, ...]) -> bool:
    """Return True if a rank that holds the spans `own` holds all keys of a need."""
    return _count(span for span, _ in find_held(own, need.keys)) == _count(need.keys)


def _list_parts(
    needs: Iterable[Need], places: Iterable[Span], keys: tuple[Span, ...], includes: Callable[[Need], bool] = lambda need: True
) -> tuple[Part, ...]:
    """List each span of queries with what it needs of each span of keys, if anything."""
    parts = list[Part]()
    for need, place in zip(needs, places, strict=True):
        for span, held in zip(keys, place_spans(keys), strict=True) if includes(need) else ():
            common = find_held((span,), need.keys)
            if common:
                start, stop = common[0][0].start, common[-1][0].stop
                at = held.start + start - span.start
                parts.append(Part(place, Span(at, at + stop - start), (need.queries,), (Span(start, stop),)))
    return tuple(parts)


def _keep_numbers(part: Part) -> Part:
    """Return a part of the first queries such that its mods are the call's own, where its keys are the first ones too."""
    return part._replace(query_spans=None, key_spans=None) if part.key_spans and part.key_spans[0].start == 0 else part


def _count(spans: Iterable[Span]) -> int:
    return sum(stop - start for start, stop in spans)


class Arrived(NamedTuple):
    """Keys and values of a round."""

    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True)
class RoundsCall:
    """A call of a rank whose keys arrive in rounds.

    Attributes:
        places, rounds, kept: of `Rounds`.
        mask_mod: of numbers of tokens in the sequence, and of heads in the whole call.
        shifted: the mods of parts, from earlier calls of the plan.
        sizes: lengths of the whole call.
        first_head: the first query head of this rank.
        sink: the logits of this rank's heads.
    """

    group: Group
    places: tuple[Span, ...]
    rounds: tuple[Round, ...]
    kept: bool
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
        tensors = self.shifted.list_learned(self.mask_mod, self.score_mod)
        if isinstance(self.sink, torch.Tensor):
            tensors = [*tensors, self.sink]
        return [t for t in tensors if t.requires_grad and t.is_floating_point()]

    def begin(self, k: torch.Tensor, v: torch.Tensor) -> PendingKeys | None:
        """Begin the first exchange, if there is one."""
        first = int(self.rounds[0].local)
        return self._begin(first, k, v) if first < len(self.rounds) else None

    def receive(self, k: torch.Tensor, v: torch.Tensor, pending: PendingKeys | None) -> Iterator[Arrived | None]:
        """Yield the keys and values of each round, None where the rank needs none; the next ones are under way then.

        All ranks go through all rounds, so that the messages of each pair of ranks have one order. The first exchange
        is pending.
        """
        for i, step in enumerate(self.rounds):
            arrived = Arrived(k, v)
            if not step.local:
                assert pending is not None
                arrived = pending.wait()
                pending = self._begin(i + 1, k, v) if i + 1 < len(self.rounds) else None
            yield arrived if step.parts else None

    def without_keys(self, q: torch.Tensor, v: torch.Tensor) -> _Merged:
        """Return O and LSE of queries that need no keys."""
        lse = torch.full(q.shape[:3], -torch.inf, dtype=torch.float32, device=q.device)
        if self.sink is not None:
            sink = torch.as_tensor(self.sink, dtype=torch.float32, device=q.device).detach()
            lse = sink.reshape(-1, 1).expand(*q.shape[:3]).contiguous()
        return _Merged(q.new_zeros((*q.shape[:3], v.shape[3])), lse)

    def _begin(self, i: int, k: torch.Tensor, v: torch.Tensor) -> PendingKeys:
        """Begin the exchange of a round."""
        step = self.rounds[i]
        rows = KeyRows.make(_count(step.keys), k, v)
        sends, put = dict[int, list[torch.Tensor]](), set[Span]()
        for rank, places in step.sends.items():
            sends[rank] = [self._pack(step, at, rows, (k, v), put) for at in places]
        receives = {rank: [rows.take(place) for place in places] for rank, places in step.receives.items()}
        messages = send_rows(self.group, sends, receives)
        return PendingKeys(rows, messages, [of for of in step.own if of[0] not in put], Arrived(k, v))

    def _pack(self, step: Round, at: Span, rows: KeyRows, keys: tuple[torch.Tensor, torch.Tensor], put: set[Span]) -> torch.Tensor:
        """Return the rows of own keys: those of the round, which are added to `put`, if they are among these."""
        for own, place in step.own:
            if own.start <= at.start and at.stop <= own.stop:
                if own not in put:
                    rows.put(place, *keys, own)
                    put.add(own)
                return rows.take(Span(place.start + at.start - own.start, place.start + at.stop - own.start))
        packed = KeyRows.make(at.stop - at.start, *keys)
        packed.put(Span(0, at.stop - at.start), *keys, at)
        return packed.rows

    def return_gradients(self, i: int, dk: torch.Tensor, dv: torch.Tensor, sums: tuple[_Sum, _Sum]) -> PendingGradients:
        """Begin to send the gradients of a round's keys to the ranks that hold them, and add up this rank's own."""
        step = self.rounds[i]
        for at, place in step.own:
            for total, g in zip(sums, (dk, dv), strict=True):
                total.add(at, _take(g, place))
        sends = {rank: [to_rows(_take(g, p)) for p in places for g in (dk, dv)] for rank, places in step.receives.items()}
        received = [(at, [make_rows(at.stop - at.start, g.like) for g in sums]) for places in step.sends.values() for at in places]
        by_rank = iter(received)
        receives = {rank: [x for _ in places for x in next(by_rank)[1]] for rank, places in step.sends.items()}
        return PendingGradients(received, sums, send_rows(self.group, sends, receives))


class PendingKeys(NamedTuple):
    """Keys and values of a round that are under way.

    Attributes:
        rest: own keys that are not sent, with their place in the round.
        own: the rank's keys and values.
    """

    rows: KeyRows
    messages: PendingRows
    rest: list[tuple[Span, Span]]
    own: Arrived

    def wait(self) -> Arrived:
        """Return the keys and values. Raises CuirError U423."""
        for at, place in self.rest:
            self.rows.put(place, *self.own, at)
        self.messages.wait()
        return Arrived(*self.rows.split())


class PendingGradients(NamedTuple):
    """Gradients of own keys that are under way from other ranks, with where the rank holds these keys."""

    received: list[tuple[Span, list[torch.Tensor]]]
    sums: tuple[_Sum, _Sum]
    messages: PendingRows

    def add(self) -> None:
        """Wait for the gradients and add them up. Raises CuirError U423."""
        self.messages.wait()
        for at, rows in self.received:
            for total, x in zip(self.sums, rows, strict=True):
                total.add(at, from_rows(x))


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
        self._unlearned: MutationGuard | None = None

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

    def list_learned(self, *mods: Mod | None) -> list[torch.Tensor]:
        """List the tensors that mods capture and that require gradients; mods without are walked once."""
        if self._unlearned is not None and self._unlearned.holds(*mods):
            return []
        key = make_capture_key(*mods)
        learned = [t for t in key.tensors if t.requires_grad]
        self._unlearned = None
        if not learned and MutationGuard.possible(key, mods):
            self._unlearned = MutationGuard(key, mods, lambda mod: None)
        return learned


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
        weight = torch.sigmoid(lse - self.lse).nan_to_num(0.0)  # NaN: no keys so far
        self.o = torch.lerp(self.o.float(), o.float(), weight.unsqueeze(-1))
        self.lse = torch.logaddexp(self.lse, lse)


class _Sum:
    """The sum of gradients of some tokens each, in float32 and rounded once."""

    def __init__(self, like: torch.Tensor) -> None:
        self.like = like
        self._addends: list[tuple[Span, torch.Tensor]] = []

    def add(self, place: Span, g: torch.Tensor) -> None:
        """Add a gradient of the tokens at a place; the tensor may be written to later."""
        if place.start < place.stop:
            self._addends.append((place, g))

    def compute(self) -> torch.Tensor:
        """Return the sum, of the shape and dtype of the tensor; in the memory of an addend if one has all tokens."""
        length, addends = self.like.shape[2], self._addends
        whole = next((g for place, g in addends if place == (0, length)), None)
        if whole is not None and len(addends) == 1:
            return whole
        cuts = sorted({0, length, *(n for place, _ in addends for n in place)})
        pieces = []
        for start, stop in itertools.pairwise(cuts):
            parts = [_take(g, Span(start - at.start, stop - at.start)) for at, g in addends if at.start <= start < at.stop]
            pieces.append((Span(start, stop), parts))
        total = torch.empty_like(self.like) if whole is None else whole
        for at, parts in pieces:
            if whole is None or len(parts) > 1:
                _add_up(parts, _take(total, at))
        return total


def _add_up(parts: list[torch.Tensor], out: torch.Tensor) -> None:
    """Write the sum of parts, rounded once: a copy of a single part, zeros if there is none."""
    if not parts:
        out.zero_()
    elif len(parts) == 1:
        out.copy_(parts[0])
    else:
        first, *between, last = parts
        for x in between:
            first = torch.add(first, x) if first.dtype == torch.float32 else first.float().add_(x)
        torch.add(first, last, out=out)


class _Rounds(torch.autograd.Function):
    """O and LSE of a `RoundsCall`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        call: RoundsCall,
        pending: PendingKeys | None,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *learned: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        saved, learned = (q, k, v), tuple(learned)
        q, k, v = (x.detach() for x in saved)
        merged = dict[Span, _Merged]()
        dtype, readies = q.dtype, dict[tuple[int, int], Ready]()
        kept: tuple[torch.Tensor, ...] = ()
        for i, arrived in enumerate(call.receive(k, v, pending)):
            if arrived is None or not q.shape[2]:
                continue
            if call.kept and not call.rounds[i].local:
                kept = arrived
            for n, part in enumerate(call.rounds[i].parts):
                own, tensors = _take(q, part.queries), [_take(x, part.keys) for x in arrived]
                ready = readies[i, n] = call.prepare(own, tensors[0], tensors[1], part, part.queries not in merged)
                o_n, lse_n = ready.outputs(own, tensors[0], tensors[1])[:2]
                if part.queries in merged:
                    merged[part.queries].add(o_n, lse_n)
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
        needed = ctx.needs_input_grad[2:]  # type: ignore[attr-defined]

        def first() -> tuple[torch.Tensor | None, ...]:
            do_or_zeros = torch.zeros_like(o) if do is None else do
            inputs = BackwardInputs(q.detach(), k.detach(), v.detach(), o, lse, do_or_zeros, dlse)
            arrivals: Iterable[tuple[int, Arrived | None]]
            if call.kept:  # first those whose gradients travel
                own, away = Arrived(inputs.k, inputs.v), Arrived(*kept) if kept else None
                arrivals = [(i, own if step.local else away) for i, step in enumerate(call.rounds)][::-1]
            else:
                arrivals = enumerate(call.receive(inputs.k, inputs.v, call.begin(inputs.k, inputs.v)))
            return _differentiate(_Backward(call, ctx.readies, inputs, arrivals, tuple(needed), learned))  # type: ignore[attr-defined]

        return None, None, *differentiate_once(first, (q, k, v, do, dlse, *learned))


@dataclass(frozen=True)
class _Backward:
    """Tensors and options that a backward pass reads."""

    call: RoundsCall
    readies: dict[tuple[int, int], Ready]
    inputs: BackwardInputs
    arrivals: Iterable[tuple[int, Arrived | None]]
    needed: tuple[bool, ...]
    learned: tuple[torch.Tensor, ...]


def _differentiate(of: _Backward) -> tuple[torch.Tensor | None, ...]:
    """Return gradients of query, key, value and learned tensors. All ranks exchange the same pieces in one order."""
    call, needed, inputs = of.call, of.needed, of.inputs
    q, k, v = inputs.q, inputs.k, inputs.v
    by_keys = needed[1] or needed[2]
    of_queries, sums = _Sum(q), (_Sum(k), _Sum(v))
    learned: list[torch.Tensor | None] = [None] * len(of.learned)
    pending = list[PendingGradients]()
    for i, arrived in of.arrivals:
        step, keys = call.rounds[i], arrived or Arrived(k[:, :, :0], v[:, :, :0])
        of_keys, of_values = sums if step.local else (_Sum(keys.k), _Sum(keys.v))
        for n, part in enumerate(step.parts):
            if (i, n) not in of.readies:
                continue
            grads = backward(of.readies[i, n], _select(inputs, keys, part), (needed[0], by_keys, by_keys), of.learned)
            for total, place, g in zip((of_queries, of_keys, of_values), (part.queries, part.keys, part.keys), grads[:3], strict=True):
                if g is not None:
                    total.add(place, g)
            learned = [_add(total, g) for total, g in zip(learned, grads[3:], strict=True)]
        if by_keys and not step.local:
            pending.append(call.return_gradients(i, of_keys.compute(), of_values.compute(), sums))
    for gradients in pending:
        gradients.add()
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
    pending = call.begin(k.detach(), v.detach())  # the keys travel while the host prepares the rest
    outputs: tuple[torch.Tensor, torch.Tensor] = _Rounds.apply(call, pending, q, k, v, *call.list_learned())
    return outputs


__all__ = [
    "MOST_PARTS",
    "Need",
    "NeededKeys",
    "Part",
    "Round",
    "Rounds",
    "RoundsCall",
    "ShiftedMods",
    "attend_in_rounds",
    "bind_lengths",
    "is_held",
    "list_rounds",
    "shift_mod",
]

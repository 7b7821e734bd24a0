"""Attention of a rank's queries in rounds, each over keys that it holds or receives, merged by LSE.

The backward pass computes each round's gradients from the merged O and LSE, so that no round's own output is kept.
Keys travel again in the backward pass where there are several rounds; their gradients return to the rank that holds
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from ..attn.api.prepared_calls import prepare
from ..attn.capture.attention_request import SOFTMAX, AttentionRequest, Level, Mod, Weighting
from ..attn.capture.capture_keys import make_capture_key
from ..attn.capture.double_backward import differentiate_once
from ..attn.kernels.attention_kernel import Ready
from ..attn.kernels.autograd import BackwardInputs, backward, check_unwritten, versions_of
from .agreement import Group
from .rank_exchanges import PendingPieces, Shapes, add_spans, send_pieces, take_spans
from .shards import Shards, Span, join_spans, merge_spans, pick_spans

Places = dict[int, tuple[Span, ...]]  # by rank


class Round(NamedTuple):
    """An exchange of keys and values, and the keys that the rank then attends to.

    Attributes:
        sends: where this rank holds the keys that other ranks need.
        receives: where the other ranks, or this one, hold the keys that this rank needs.
        keys: the spans of the sequence that the received keys are, in their order.
    """

    sends: Places
    receives: Places
    keys: tuple[Span, ...]


def list_rounds(needed: tuple[tuple[Span, ...], ...], keys: Shards, rank: int, single: bool) -> tuple[Round, ...]:
    """List the rounds of a rank: its own keys first, then those of the ranks before it; or all in a single one."""

    def exchange(sources: list[int], receivers: list[int]) -> Round:
        receives = {s: p for s in sources if (p := keys.locate(s, needed[rank]))}
        sends = {r: p for r in receivers if r != rank and (p := keys.locate(rank, needed[r]))}
        spans = [span for s, places in receives.items() for span in pick_spans(places, keys.spans[s])]
        return Round(sends, receives, merge_spans(spans))

    if single:
        return (exchange(list(range(keys.ranks)), list(range(keys.ranks))),)
    return tuple(exchange([(rank - i) % keys.ranks], [(rank + i) % keys.ranks]) for i in range(keys.ranks))


class Arrived(NamedTuple):
    """Keys and values of a round."""

    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True)
class RoundsCall:
    """A call of a rank whose keys arrive in rounds.

    Attributes:
        mask_mod: of numbers of tokens in the sequence, and of heads in the whole call.
        first_head: the first query head of this rank.
        queries: the spans of the sequence that the rank's queries are.
        sink: the logits of this rank's heads.
    """

    group: Group
    rounds: tuple[Round, ...]
    queries: tuple[Span, ...]
    mask_mod: Mod | None
    score_mod: Mod | None
    first_head: int
    sink: torch.Tensor | float | None
    options: tuple[float | None, bool, str, Level]

    def prepare(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: Round, first: bool) -> Ready:
        """Prepare the attention of a round; the first one has the sink."""
        mask_mod, score_mod = (
            None if mod is None else shift_mod(mod, scored, self.first_head, self.queries, step.keys, q.device)
            for mod, scored in ((self.mask_mod, False), (self.score_mod, True))
        )
        weighting = Weighting(sink=self.sink) if first and self.sink is not None else SOFTMAX
        return prepare(AttentionRequest(q, k, v, score_mod, None, *self.options, weighting), mask_mod)

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
            parts = [
                Arrived(take_spans(k, places), take_spans(v, places)) if rank == own else Arrived(*pieces[rank])
                for rank, places in step.receives.items()
            ]
            yield Arrived(_join([p.k for p in parts]), _join([p.v for p in parts])) if parts else None

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

    def return_gradients(self, i: int, dk: torch.Tensor, dv: torch.Tensor, sums: tuple[torch.Tensor, torch.Tensor]) -> PendingPieces:
        """Begin to send the gradients of a round's keys to the ranks that hold them, and add up this rank's own."""
        step, own = self.rounds[i], self.group.rank
        lengths = [sum(b - a for a, b in places) for places in step.receives.values()]
        pieces = {}
        for rank, gk, gv in zip(step.receives, dk.split(lengths, 2), dv.split(lengths, 2), strict=True):
            if rank == own:
                for total, g in zip(sums, (gk, gv), strict=True):
                    add_spans(total, step.receives[rank], g)
            else:
                pieces[rank] = [gk, gv]
        return send_pieces(self.group, pieces, _shapes(step.sends, *sums), dk)


def _shapes(places: Places, k: torch.Tensor, v: torch.Tensor) -> Shapes:
    """Return the shapes of keys and values at places of each rank."""
    counts = {rank: sum(stop - start for start, stop in spans) for rank, spans in places.items()}
    return {rank: [torch.Size((*x.shape[:2], n, x.shape[3])) for x in (k, v)] for rank, n in counts.items()}


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def shift_mod(
    mod: Mod, scored: bool, first_head: int, queries: tuple[Span, ...], keys: tuple[Span, ...], device: torch.device | str
) -> Mod:
    """Return a mod of a rank's own indices, which asks the mod of the whole call.

    Offsets are tensors without dims, so that all rounds share a kernel; tokens of several spans look up their numbers.
    """
    q_of, k_of = _number(queries, device), _number(keys, device)
    head = torch.tensor(first_head, dtype=torch.int32)
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


class _Rounds(torch.autograd.Function):
    """O and LSE of a `RoundsCall`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, call: RoundsCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *learned: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        saved, learned = (q, k, v), tuple(learned)
        q, k, v = (x.detach() for x in saved)
        merged: _Merged | None = None
        dtype, readies = q.dtype, dict[int, Ready]()
        kept: tuple[torch.Tensor, ...] = ()
        for i, arrived in enumerate(call.receive(k, v)):
            if len(call.rounds) == 1 and arrived is not None:
                kept = arrived  # with several rounds keys travel again, instead of staying in memory
            if arrived is None or not q.shape[2]:
                continue
            readies[i] = call.prepare(q, *arrived, call.rounds[i], not readies)
            o_i, lse_i = readies[i].outputs(q, *arrived)[:2]
            if merged is None:
                merged = _Merged(o_i, lse_i)
            else:
                merged.add(o_i.float(), lse_i)
        if merged is None:
            merged = call.without_keys(q, v)
        o, lse = merged.o.to(dtype), merged.lse
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
    """What a backward pass reads."""

    call: RoundsCall
    readies: dict[int, Ready]
    inputs: BackwardInputs
    arrivals: Iterator[Arrived | None]
    needed: tuple[bool, ...]
    learned: tuple[torch.Tensor, ...]


def _differentiate(of: _Backward) -> tuple[torch.Tensor | None, ...]:
    """Return gradients of query, key, value and learned tensors. All ranks exchange the same pieces in one order."""
    call, needed, inputs = of.call, of.needed, of.inputs
    q, k, v = inputs.q, inputs.k, inputs.v
    by_keys = needed[1] or needed[2]
    sums = torch.zeros_like(k, dtype=torch.float32), torch.zeros_like(v, dtype=torch.float32)
    dq = torch.zeros_like(q, dtype=torch.float32)
    learned: list[torch.Tensor | None] = [None] * len(of.learned)
    pending = dict[int, PendingPieces]()
    for i, arrived in enumerate(of.arrivals):
        gk, gv = (torch.zeros_like(x) for x in (arrived or (k[:, :, :0], v[:, :, :0])))
        if arrived is not None and i in of.readies:
            grads = backward(of.readies[i], inputs._replace(k=arrived.k, v=arrived.v), (needed[0], by_keys, by_keys), of.learned)
            if grads[0] is not None:
                dq += grads[0]
            gk, gv = (zero if g is None else g for g, zero in zip(grads[1:3], (gk, gv), strict=True))
            learned = [_add(total, g) for total, g in zip(learned, grads[3:], strict=True)]
        if by_keys:
            pending[i] = call.return_gradients(i, gk, gv, sums)
    for i, pieces in pending.items():
        for rank, grads_of_keys in pieces.wait().items():
            for total, g in zip(sums, grads_of_keys, strict=True):
                add_spans(total, call.rounds[i].sends[rank], g)
    own = (dq.to(q.dtype), sums[0].to(k.dtype), sums[1].to(v.dtype))
    return *(g if is_needed else None for g, is_needed in zip(own, needed[:3], strict=True)), *learned


def _add(total: torch.Tensor | None, g: torch.Tensor | None) -> torch.Tensor | None:
    return total if g is None else g if total is None else total + g


def attend_in_rounds(call: RoundsCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return O and LSE of a rank's queries, with gradients. Raises CuirError U423 if ranks lose each other."""
    outputs: tuple[torch.Tensor, torch.Tensor] = _Rounds.apply(call, q, k, v, *call.list_learned())
    return outputs


__all__ = ["Round", "RoundsCall", "attend_in_rounds", "list_rounds", "shift_mod"]

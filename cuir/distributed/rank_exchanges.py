"""Exchanges of tensors between ranks: spans of keys and values, and heads against tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.autograd.function import FunctionCtx

from .agreement import Group, told_as
from .shards import Shards, Span, place_spans

Pieces = dict[int, list[torch.Tensor]]  # by rank
Shapes = dict[int, list[torch.Size]]


@dataclass(frozen=True)
class PendingPieces:
    """Pieces of tensors that are under way from other ranks; what is sent must stay in memory until then."""

    group: Group
    buffers: Mapping[int, torch.Tensor]
    shapes: Shapes
    works: Sequence[dist.Work]
    sent: Sequence[torch.Tensor]

    def wait(self) -> Pieces:
        """Return the pieces by rank. Raises CuirError U423."""
        with told_as(self.group, "an exchange of keys and values"):
            for work in self.works:
                work.wait()
        return {rank: unpack(self.buffers[rank], shapes) for rank, shapes in self.shapes.items()}


def send_pieces(group: Group, pieces: Pieces, receives: Shapes, like: torch.Tensor) -> PendingPieces:
    """Begin to send pieces to other ranks, and to receive pieces of these shapes.

    Each pair of ranks exchanges one message in each direction. Messages are sent in one order on all ranks.
    """
    sent = {rank: pack(tensors) for rank, tensors in pieces.items()}
    buffers = {rank: like.new_empty(sum(s.numel() for s in shapes)) for rank, shapes in receives.items()}
    process_group = group.process_group
    operations = [dist.P2POp(dist.isend, x, group.peer(rank), process_group) for rank, x in sorted(sent.items()) if x.numel()]
    operations += [dist.P2POp(dist.irecv, x, group.peer(rank), process_group) for rank, x in sorted(buffers.items()) if x.numel()]
    with told_as(group, "an exchange of keys and values"):
        works = dist.batch_isend_irecv(operations) if operations else []
    return PendingPieces(group, buffers, receives, works, tuple(sent.values()))


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of tensors of one dtype, one tensor behind the other, each copied once."""
    packed = tensors[0].new_empty(sum(x.numel() for x in tensors))
    for part, x in zip(packed.split([x.numel() for x in tensors]), tensors, strict=True):
        part.view(x.shape).copy_(x)
    return packed


def unpack(buffer: torch.Tensor, shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
    """Return tensors of these shapes from packed elements."""
    parts = buffer.split([s.numel() for s in shapes])
    return [x.view(s) for x, s in zip(parts, shapes, strict=True)]


def take_spans(x: torch.Tensor, places: Sequence[Span], dim: int = 2) -> torch.Tensor:
    """Return the tokens of a tensor at these places; a view of a single span."""
    parts = [x.narrow(dim, start, stop - start) for start, stop in places]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim) if parts else x.narrow(dim, 0, 0)


class _ExchangeHeads(torch.autograd.Function):
    """All tokens of a part of the heads, from all heads of a part of the tokens; or the other way round."""

    @staticmethod
    def forward(ctx: FunctionCtx, group: Group, shards: Shards, back: bool, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.group, ctx.shards, ctx.back = group, shards, back  # type: ignore[attr-defined]
        return tuple((_give_heads_back if back else _exchange_heads)(group, shards, x) for x in tensors)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        group, shards, back = ctx.group, ctx.shards, ctx.back  # type: ignore[attr-defined]
        return None, None, None, *((_exchange_heads if back else _give_heads_back)(group, shards, g) for g in grads)


def exchange_heads(group: Group, shards: Shards, *tensors: torch.Tensor, back: bool = False) -> tuple[torch.Tensor, ...]:
    """Return [B, H / ranks, tokens of all ranks, D] of tensors [B, H, own tokens, D]; with `back` the reverse.

    The tokens of all ranks, whose shards these are, are in the order of the sequence. Gradients are exchanged the other
    way. Raises CuirError U423.
    """
    if group.size == 1:
        return tensors
    exchanged: tuple[torch.Tensor, ...] = _ExchangeHeads.apply(group, shards, back, *tensors)
    return exchanged


def _exchange_heads(group: Group, shards: Shards, x: torch.Tensor) -> torch.Tensor:
    B, H, _, D = x.shape
    sends = x.unflatten(1, (group.size, H // group.size)).unbind(1)
    shapes = [torch.Size((B, H // group.size, n, D)) for n in shards.lengths]
    by_rank = unpack(_send_to_all(group, sends, shapes), shapes)
    places = [(span, rank, at) for rank, spans in enumerate(shards.spans) for span, at in zip(spans, place_spans(spans), strict=True)]
    return torch.cat([by_rank[rank].narrow(2, at.start, at.stop - at.start) for _, rank, at in sorted(places)] or by_rank, 2)


def _give_heads_back(group: Group, shards: Shards, x: torch.Tensor) -> torch.Tensor:
    B, H, _, D = x.shape
    whole = (tuple(sorted(span for spans in shards.spans for span in spans)),)
    sends = [take_spans(x, [at for span in spans for at in Shards(whole).locate(0, [span])]) for spans in shards.spans]
    n = shards.lengths[group.rank]
    received = _send_to_all(group, sends, [torch.Size((B, H, n, D))] * group.size)
    return received.view(group.size, B, H, n, D).transpose(0, 1).reshape(B, group.size * H, n, D)  # of batch size 1 no copy


def _send_to_all(group: Group, sends: Sequence[torch.Tensor], shapes: Sequence[torch.Size]) -> torch.Tensor:
    """Send a tensor to each rank, and receive one of each, one behind the other."""
    sizes = [s.numel() for s in shapes]
    received = sends[0].new_empty(sum(sizes))
    with told_as(group, "an exchange of heads"):
        dist.all_to_all_single(received, pack(sends), sizes, [x.numel() for x in sends], group=group.process_group)
    return received


__all__ = ["PendingPieces", "Pieces", "Shapes", "exchange_heads", "pack", "send_pieces", "take_spans", "unpack"]

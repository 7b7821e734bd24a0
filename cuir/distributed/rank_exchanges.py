"""Exchanges of tensors between ranks: spans of keys and values, and heads against tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.function import FunctionCtx

from .agreement import Group, told_as
from .shards import Shards, Span, place_spans


@dataclass(frozen=True)
class PendingRows:
    """Messages of tokens' rows that are under way; what is sent must stay in memory until then."""

    group: Group
    works: Sequence[dist.Work]
    sent: Mapping[int, Sequence[torch.Tensor]]

    def wait(self) -> None:
        """Let the current stream wait for the messages. Raises CuirError U423."""
        with told_as(self.group, "an exchange of keys and values"):
            for work in self.works:
                work.wait()


def send_rows(group: Group, sends: Mapping[int, Sequence[torch.Tensor]], receives: Mapping[int, Sequence[torch.Tensor]]) -> PendingRows:
    """Begin to send contiguous tensors to other ranks, and to receive others, a message for each.

    The messages of each pair of ranks have one order.
    """
    process_group = group.process_group
    operations = [
        dist.P2POp(operation, x, group.peer(rank), process_group)
        for operation, messages in ((dist.isend, sends), (dist.irecv, receives))
        for rank, tensors in sorted(messages.items())
        for x in tensors
        if x.numel()
    ]
    with told_as(group, "an exchange of keys and values"):
        works = dist.batch_isend_irecv(operations) if operations else []
    return PendingRows(group, works, sends)


class KeyRows(NamedTuple):
    """Keys and values of some tokens, a row for each token, so that a message is a view of neighbouring rows.

    Attributes:
        rows: [tokens, B * HK * (D + DV)].
        shapes: [B, HK, D] and [B, HK, DV].
    """

    rows: torch.Tensor
    shapes: tuple[torch.Size, torch.Size]

    @classmethod
    def make(cls, count: int, k: torch.Tensor, v: torch.Tensor) -> KeyRows:
        """Make the rows of some tokens, not initialised, for keys and values [B, HK, N, D or DV]."""
        shapes = tuple(torch.Size((*x.shape[:2], x.shape[3])) for x in (k, v))
        return cls(k.new_empty((count, sum(s.numel() for s in shapes))), (shapes[0], shapes[1]))

    def take(self, place: Span) -> torch.Tensor:
        """Return the rows at a place."""
        return self.rows[place.start : place.stop]

    def split(self, place: Span | None = None) -> list[torch.Tensor]:
        """Return keys and values, views of the rows at a place or of all."""
        start, stop = (0, len(self.rows)) if place is None else place
        step = self.rows.stride(0)
        offset, views = self.rows.storage_offset() + start * step, list[torch.Tensor]()
        for B, HK, D in self.shapes:
            views.append(self.rows.as_strided((B, HK, stop - start, D), (HK * D, D, step, 1), offset))
            offset += B * HK * D
        return views

    def put(self, place: Span, k: torch.Tensor, v: torch.Tensor, at: Span) -> None:
        """Copy keys and values of the tokens from `at.start` to the rows at a place."""
        for row, x in zip(self.split(place), (k, v), strict=True):
            row.copy_(x[:, :, at.start : at.stop])


def make_rows(count: int, like: torch.Tensor) -> torch.Tensor:
    """Return rows [count, B, HK, D] of tokens, not initialised, for a tensor [B, HK, N, D]."""
    return like.new_empty((count, *like.shape[:2], like.shape[3]))


def to_rows(x: torch.Tensor) -> torch.Tensor:
    """Return [N, B, HK, D] of a tensor [B, HK, N, D]: its memory if that is contiguous."""
    return x.permute(2, 0, 1, 3).contiguous()


def from_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return a view [B, HK, N, D] of rows [N, B, HK, D]."""
    return rows.permute(1, 2, 0, 3)


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


__all__ = ["KeyRows", "PendingRows", "exchange_heads", "from_rows", "make_rows", "pack", "send_rows", "take_spans", "to_rows", "unpack"]

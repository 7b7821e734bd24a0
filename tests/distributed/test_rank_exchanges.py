"""Exchanges between ranks: what is packed is unpacked, and heads exchanged for tokens return."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from cuir.distributed.agreement import make_group
from cuir.distributed.rank_exchanges import KeyRows, exchange_heads, pack, send_rows, unpack
from cuir.distributed.shards import Shards, Span
from tests.distributed.ranks import run_ranks


def test_packed_tensors_are_unpacked() -> None:
    tensors = [torch.randn(2, 3), torch.empty(0, 4), torch.randn(5)]
    for x, y in zip(tensors, unpack(pack(tensors), [x.shape for x in tensors]), strict=True):
        assert x.equal(y)


def exchange() -> list[bool]:
    """Exchange heads there and back, with gradients, and pieces of unequal sizes."""
    group = make_group(init_device_mesh("cpu", (2,)).get_group())
    shards, rank = Shards(((Span(0, 1), Span(2, 4)), (Span(1, 2),))), dist.get_rank()
    whole = torch.arange(4 * 4.0).view(1, 4, 4, 1)
    own = shards.split(whole, rank).requires_grad_()
    (of_heads,) = exchange_heads(group, shards, own)
    (back,) = exchange_heads(group, shards, of_heads * 2, back=True)
    (grad,) = torch.autograd.grad(back.sum(), own)
    rows = KeyRows.make(3, whole, whole)
    if rank == 0:
        rows.put(Span(0, 3), own.detach(), own.detach() + 1, Span(0, 3))
    messages = {1 - rank: [rows.take(Span(0, 2)), rows.take(Span(2, 3))]}
    send_rows(group, messages if rank == 0 else {}, messages if rank == 1 else {}).wait()
    keys, values = rows.split()
    arrived = keys.equal(whole[:, :, [0, 2, 3]]) and values.equal(keys + 1)
    return [of_heads.equal(whole[:, 2 * rank : 2 * rank + 2]), back.equal(2 * own), grad.equal(torch.full_like(own, 2.0)), arrived]


def test_heads_exchanged_for_tokens_return() -> None:
    assert run_ranks(2, exchange) == [[True] * 4] * 2

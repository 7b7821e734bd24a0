"""Attention over KV caches whose heads, or whose tokens, are spread over ranks, and writes to such caches."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..attn.capture.attention_request import Level, Mod
from ..attn.capture.call_inputs import dtype_of, wrong
from ..attn.capture.graph_breaks import break_graphs
from ..attn.kernels.card_kernels import choose_target
from ..attn.kernels.split_kv import join_shares
from ..attn.serving.cache_writes import find_slots
from ..attn.serving.cached import Layout, attention_with_kv_cache
from ..attn.serving.longest_first import as_they_stand
from ..checking.checked import Const
from .agreement import TIMEOUT, make_group, told_as

ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name since PyTorch 2.13, and before
ROW = 4  # numbers of f32 in the 16 bytes at whose multiples the rows of a share begin


def append_to_sharded_cache(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    starts: torch.Tensor,
    total_seqlens: torch.Tensor,
    page_table: torch.Tensor | None = None,
    layout: Layout = "NHD",
) -> torch.Tensor:
    """Write new tokens to the caches of the ranks that hold their numbers; all ranks make the same call.

    A rank with room for S tokens of each sequence holds the numbers starts[b] .. starts[b] + S - 1. Nothing is exchanged,
    and the host does not wait: a CUDA graph may capture the call.

    Args:
        k_cache: [B, S, HK, D], with layout="HND" [B, HK, S, D]; with page_table pages, [NP, page size, HK, D] or [NP,
            HK, page size, D]. Written in place.
        v_cache: likewise.
        k: [B, N, HK, D], the new keys, the same on all ranks; N is at most S.
        v: [B, N, HK, DV].
        starts: int32 [B], the number in the sequence of this rank's first token.
        total_seqlens: int32 [B], tokens on all ranks before this call. Tokens that no rank has room for are lost.
        page_table: int32 [B, pages of a sequence], of this rank's pages. Entries that get no new token are not read.

    Returns:
        int32 [B], the `cache_seqlens` of this rank behind the call.

    Raises CuirError U413 for more tokens than room, on a CPU U408 for pages that are none.
    """
    if layout not in ("NHD", "HND"):
        wrong("U413", f'layout must be "NHD" or "HND", found {layout!r}')
    keys, values = (x.transpose(1, 2) if layout == "NHD" else x for x in (k_cache, v_cache))
    pages = as_they_stand(len(k), k.device)[:, None] if page_table is None else page_table
    (B, count), room = k.shape[:2], pages.shape[1] * keys.shape[2]
    if count > room:
        wrong("U413", f"a rank has room for {room} tokens of a sequence, found {count} new ones", "several calls")
    if k.numel():
        own = (total_seqlens - starts).unsqueeze(1) + torch.arange(count, dtype=torch.int32, device=k.device)
        held = ((own >= 0) & (own < room)).flatten()
        # other ranks' tokens repeat the write of one of this rank's, or else write back what is there
        some, token = held.any(), torch.where(held, torch.arange(B * count, device=k.device), held.int().argmax())
        page, row = (x[:, 0] for x in find_slots(pages[token // count], own.flatten()[token].unsqueeze(1).long(), keys, some))
        for cache, x in ((keys, k), (values, v)):
            cache[page, :, row] = torch.where(some, x.flatten(0, 1)[token].to(cache.dtype), cache[page, :, row])
    return (total_seqlens + count - starts).clamp(0, room).int()


def attention_with_sharded_cache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    mesh: DeviceMesh | None,
    *,
    cache_seqlens: torch.Tensor | int,
    starts: torch.Tensor | None = None,
    total_seqlens: torch.Tensor | None = None,
    first_head: int = 0,
    page_table: torch.Tensor | None = None,
    score_mod: Mod | None = None,
    block_mask: Mod | None = None,
    scale: float | None = None,
    layout: Layout = "NHD",
    return_lse: bool = False,
    sink: torch.Tensor | float | None = None,
    batch_invariant: bool = False,
    backend: str = "auto",
    verify: Level = "quick",
) -> Any:
    """Compute `attention_with_kv_cache` where each rank's cache holds a part of the heads, or of each sequence's tokens.

    Args:
        q: [B, M, H, D], the same on all ranks of the mesh.
        k_cache: this rank's tokens, as for `attention_with_kv_cache`.
        v_cache: likewise.
        mesh: of one dim, over whose ranks the tokens are spread; None if only heads are, which needs no exchange.
        cache_seqlens: the number of each sequence's tokens in this rank's cache, 0 too.
        starts: int32 [B], the number in the sequence of this rank's first token; mods see numbers in the sequence.
        total_seqlens: int32 [B], tokens on all ranks, the queries' own too. If given, the mask is causal: query i of M is token total - M + i.
        first_head: the number of the first head of q, for mods, if a rank has a part of the heads.
        page_table: of this rank's cache.
        score_mod: as for `attention_with_kv_cache`, like the other arguments.
        block_mask: a mask_mod.
        batch_invariant: as for `attention_with_kv_cache`, if the sequence alone decides `starts`.

    Returns:
        O [B, M, H, DV] of all tokens on every rank, and with return_lse LSE [B, H, M]. The ranks exchange O and LSE in
        one all-gather, and merge them in the order of ranks, so that all have the same bits.

    Raises CuirError U413 if `starts` is missing, U423 if ranks lose each other.
    """
    if mesh is not None and (mesh.ndim != 1 or starts is None):
        wrong(
            "U413", "a cache that is spread over ranks needs a mesh of one dim, and the `starts` of this rank's tokens", "starts=int32 [B]"
        )
    rank = 0 if mesh is None else mesh.get_local_rank()
    if q.shape[1] == 1:
        total_seqlens = None  # a single query is the last token, which sees all
    mask_mod = _make_mask(block_mask, starts, total_seqlens, q.shape[1], first_head)
    o, lse = attention_with_kv_cache(
        q,
        k_cache,
        v_cache,
        cache_seqlens=cache_seqlens,
        page_table=page_table,
        score_mod=None if score_mod is None else _shift_score(score_mod, starts, first_head),
        block_mask=mask_mod,
        scale=scale,
        layout=layout,
        return_lse=True,
        sink=sink if rank == 0 else None,
        batch_invariant=batch_invariant,
        backend=backend,
        verify=verify,
    )
    if mesh is not None and mesh.size() > 1:
        o, lse = _merge(mesh, o, lse, backend)
    return (o, lse) if return_lse else o


def _shift_score(mod: Mod, starts: torch.Tensor | None, first_head: int) -> Mod:
    head = torch.tensor(first_head, dtype=torch.int32)
    if starts is None:
        return lambda score, b, h, q_idx, kv_idx: mod(score, b, h + head, q_idx, kv_idx)
    return lambda score, b, h, q_idx, kv_idx: mod(score, b, h + head, q_idx, kv_idx + starts[b])


def _make_mask(mod: Mod | None, starts: torch.Tensor | None, totals: torch.Tensor | None, queries: int, first_head: int) -> Mod | None:
    """Return the mask_mod of a rank's own tokens, None if it keeps all."""
    if mod is None and totals is None:
        return None
    head, count = (torch.tensor(n, dtype=torch.int32) for n in (first_head, queries))
    if starts is None:
        starts = torch.zeros_like(totals) if totals is not None else None
    if totals is None:
        assert mod is not None
        if starts is None:
            return lambda b, h, q_idx, kv_idx: mod(b, h + head, q_idx, kv_idx)
        return lambda b, h, q_idx, kv_idx: mod(b, h + head, q_idx, kv_idx + starts[b])
    assert starts is not None
    if mod is None:
        return lambda b, h, q_idx, kv_idx: kv_idx + starts[b] <= totals[b] - count + q_idx
    return lambda b, h, q_idx, kv_idx: (kv_idx + starts[b] <= totals[b] - count + q_idx) & mod(b, h + head, q_idx, kv_idx + starts[b])


@break_graphs
def _merge(mesh: DeviceMesh, o: torch.Tensor, lse: torch.Tensor, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return O and LSE of the tokens of all ranks, as shares of the keys that one launch joins."""
    group = make_group(mesh.get_group(), TIMEOUT)
    B, M, H, DV = o.shape
    rows, shares = B * M * H, 1 << (group.size - 1).bit_length()  # the launch joins a power of two
    numbers = rows * DV
    size = -(-(numbers + rows) // ROW) * ROW
    own = o.new_empty(size, dtype=torch.float32)
    own[:numbers].view(B, M, H, DV).copy_(o)
    own[numbers : numbers + rows].view(B, M, H).copy_(lse.transpose(1, 2))
    gathered = own.new_empty((shares, size))
    with told_as(group, "the exchange of O and LSE"):
        ALL_GATHER(gathered[: group.size].view(-1), own, group=group.process_group)
    parts, sums = gathered[:, :numbers].view(shares, rows, 1, DV), gathered[:, numbers : numbers + rows].view(shares, rows, 1)
    if shares > group.size:  # shares without keys
        parts[group.size :], sums[group.size :] = 0.0, -torch.inf
    consts: dict[str, Const] = {"T": dtype_of(o.dtype), "DV": DV, "SPLITS": shares}
    merged = torch.empty_like(o)
    arch = choose_target(o.device, backend).arch
    total = join_shares(parts, sums, merged.view(1, rows, 1, DV), consts, arch, interpreted=backend == "interpret")
    return merged, total.view(B, M, H).transpose(1, 2).contiguous()


__all__ = ["append_to_sharded_cache", "attention_with_sharded_cache"]

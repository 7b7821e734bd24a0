"""Calls of serving on a GPU: caches of 16 and of 8 bits and packed sequences, beside the interpreter; the same bits again; no synchronisation; CUDA graphs; torch.compile."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cuir import attention_with_kv_cache, create_block_mask, flex_attention, varlen_attention
from cuir.attn.kernels.decoding import runs_on_decode_kernel
from cuir.integrations.batches import Batch, CallOptions, attend, rules_of

H, HK, D, PAGE, NP = 8, 2, 128, 16, 40
MIXED: dict[str, tuple[int, torch.dtype]] = {
    "mixed, pages of 32": (32, torch.float16),
    "mixed, pages of 16": (16, torch.float16),
    "mixed, pages of 4": (4, torch.float16),
    "mixed, 32 bits": (16, torch.float32),
    "mixed, 32 bits, pages of 4": (4, torch.float32),
}
KINDS = ("16 bits", "32 bits", "heads", "tokens")  # of caches: of 16 bits, of f32, of 8 with scales of heads, of tokens
DEVICE = "cuda"


class Cache:
    """Three sequences in pages, and a step over them, which writes a token of each. device: "cpu" runs it in the interpreter."""

    def __init__(self, kind: str, device: str = DEVICE, M: int = 1):
        g = torch.Generator().manual_seed(3)
        self.backend = "auto" if device == "cuda" else "interpret"
        pages = [torch.randn(NP, PAGE, HK, D, generator=g) for _ in "kv"]
        self.scales: list[torch.Tensor | None] = [None, None]
        if kind == "heads":
            self.scales = [torch.tensor([0.02, 0.015]).to(device) for _ in "kv"]
        elif kind == "tokens":
            self.scales = [(torch.rand(NP, HK, PAGE, generator=g) * 0.01 + 0.01).to(device) for _ in "kv"]
        dtype = torch.float32 if kind == "32 bits" else torch.float16
        eight = kind in ("heads", "tokens")
        self.pages = [((x * 64).to(torch.float8_e4m3fn) if eight else x.to(dtype)).to(device) for x in pages]
        self.table = torch.randperm(NP, generator=g)[:36].view(3, 12).to(device, torch.int32)
        self.lengths = torch.tensor([150, 0, 37], dtype=torch.int32, device=device)
        self.q = torch.randn(3, M, H, D, generator=g).to(device, dtype)
        self.new = [torch.randn(3, M, HK, D, generator=g).to(device, dtype) for _ in "kv"]
        self.slopes = torch.rand(H, generator=g).to(device) * 0.1

        def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score + self.slopes[h] * kv_idx

        self.score_mod = alibi

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = attention_with_kv_cache(
            self.q,
            *self.pages,
            *self.new,
            cache_seqlens=self.lengths,
            page_table=self.table,
            score_mod=self.score_mod,
            causal=True,
            k_scale=self.scales[0],
            v_scale=self.scales[1],
            return_lse=True,
            backend=self.backend,
        )  # type: ignore[misc]
        return o, lse


class Latent:
    """Three sequences over latent vectors in pages, of 16 heads with a token each, or of 8 with two.

    shared: one long sequence, whose keys are shared out. selected: entries of each query's list of tokens, if it has one.
    """

    def __init__(self, device: str = DEVICE, M: int = 1, shared: bool = False, scales: str = "", selected: int = 0):
        g = torch.Generator().manual_seed(4)
        self.backend = "auto" if device == "cuda" else "interpret"
        lengths, page = ([3000], 64) if shared else ([150, 0, 37], PAGE)
        self.pages = torch.randn(48 if shared else NP, page, 1, 576, generator=g).half().to(device)
        rows = len(lengths), (47 if shared else 12)
        self.table = torch.randperm(len(self.pages), generator=g)[: rows[0] * rows[1]].view(rows).to(device, torch.int32)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        self.q = torch.randn(rows[0], M, 16 // M, 576, generator=g).half().to(device)
        self.new = torch.randn(rows[0], M, 1, 576, generator=g).half().to(device)
        self.tokens = None
        if selected:
            shape = rows[0], M, selected
            self.tokens = torch.randint(-2, max(lengths) + M + 2, shape, generator=g).to(device, torch.int32)
        self.scale = None
        if scales:  # of a cache of 8 bits, a head or a token
            shape = (1,) if scales == "head" else (len(self.pages), 1, page)
            self.scale = torch.linspace(0.01, 0.02, math.prod(shape)).view(shape).to(device)
            self.pages = (self.pages / 0.015).to(torch.float8_e4m3fn)

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = attention_with_kv_cache(
            self.q,
            self.pages,
            None,
            self.new,
            cache_seqlens=self.lengths,
            page_table=self.table,
            causal=True,
            latent=512,
            selected_tokens=self.tokens,
            k_scale=self.scale,
            return_lse=True,
            backend=self.backend,
        )
        return o, lse


class Many:
    """More sequences than are worked on at a time, of different lengths: the longest are begun first."""

    def __init__(self, device: str = DEVICE):
        g = torch.Generator().manual_seed(6)
        self.backend = "auto" if device == "cuda" else "interpret"
        self.lengths = torch.randint(193, (150,), generator=g).to(device, torch.int32)
        self.q, *self.cache = (torch.randn(150, n, heads, 64, generator=g).half().to(device) for n, heads in ((1, 2), (192, 1), (192, 1)))

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = attention_with_kv_cache(self.q, *self.cache, cache_seqlens=self.lengths, return_lse=True, backend=self.backend)
        return o, lse


class Mixed:
    """Sequences of any number of queries each over a cache in pages: a prompt, a piece of one, one that decodes, and one without queries. new: their tokens come with the call."""

    def __init__(self, page: int, device: str = DEVICE, dtype: torch.dtype = torch.float16):
        g = torch.Generator().manual_seed(8)
        self.backend = "auto" if device == "cuda" else "interpret"
        queries, past = [130, 64, 1, 0], [0, 200, 333, 5]
        self.starts = torch.tensor([0, *queries]).cumsum(0).to(device, torch.int32)
        self.lengths = torch.tensor(past, dtype=torch.int32, device=device)
        self.pages = [torch.randn(4 * 352 // page, page, HK, D, generator=g).to(device, dtype) for _ in "kv"]
        self.table = torch.randperm(4 * 352 // page, generator=g).view(4, -1).to(device, torch.int32)
        self.q, *self.new = (torch.randn(sum(queries), heads, D, generator=g).to(device, dtype) for heads in (H, HK, HK))

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = attention_with_kv_cache(
            self.q,
            *self.pages,
            *self.new,
            cu_seqlens_q=self.starts,
            max_seqlen_q=130,
            cache_seqlens=self.lengths,
            page_table=self.table,
            causal=True,
            return_lse=True,
            backend=self.backend,
        )
        return o, lse


class Served:
    """A server's batch, of which one sequence pads it, over pages that hold keys and values side by side, as vLLM's do: three that decode, and with prompts=True two that do not."""

    def __init__(self, prompts: bool, device: str = DEVICE):
        g = torch.Generator().manual_seed(9)
        self.backend = "auto" if device == "cuda" else "interpret"
        counts, tokens = ([1, 1, 1, 40, 7], [150, 333, 16, 200, 7]) if prompts else ([1, 1, 1, 0], [150, 333, 16, 0])
        self.pages = torch.randn(len(counts) * 22, HK, PAGE, 2 * D, generator=g).half().to(device)
        self.table = torch.randperm(len(self.pages), generator=g).view(len(counts), -1).to(device, torch.int32)
        self.lengths = torch.tensor(tokens, dtype=torch.int32, device=device)
        starts = torch.tensor([0, *counts]).cumsum(0).to(device, torch.int32)
        self.q = torch.randn(max(sum(counts), len(counts)), H, D, generator=g).half().to(device)
        self.batch = Batch.of(starts, counts, self.lengths, self.table, len(self.q), H // HK)
        self.rules = rules_of(30.0, (torch.rand(H, generator=g) * 0.1).to(device), 100, torch.rand(H, generator=g).to(device))
        self.out = torch.zeros_like(self.q)

    def step(self) -> tuple[torch.Tensor]:
        attend(
            self.q, self.pages[..., :D], self.pages[..., D:], self.batch, self.rules, D**-0.5, self.out, CallOptions(self.backend, "quick")
        )
        return (self.out,)


class Shared:
    """One sequence of one key head, with room for many tokens: its keys are shared out among several clusters, and another launch joins what they give."""

    def __init__(self, eight: bool, device: str = DEVICE):
        g = torch.Generator().manual_seed(7)
        self.backend = "auto" if device == "cuda" else "interpret"
        self.q, *cache = (torch.randn(1, n, heads, D, generator=g) for n, heads in ((2, H), (1 << 15, 1), (1 << 15, 1)))
        self.q = self.q.half().to(device)
        self.cache = [((x * 64).to(torch.float8_e4m3fn) if eight else x.half()).to(device) for x in cache]
        self.scales = [torch.tensor([1 / 64], device=device) if eight else None for _ in "kv"]
        self.lengths = torch.tensor([9000], dtype=torch.int32, device=device)

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = attention_with_kv_cache(
            self.q,
            *self.cache,
            cache_seqlens=self.lengths,
            k_scale=self.scales[0],
            v_scale=self.scales[1],
            causal=True,
            return_lse=True,
            backend=self.backend,
        )  # type: ignore[misc]
        return o, lse


class Packed:
    """Sequences of which one is empty."""

    def __init__(self, device: str = DEVICE, dtype: torch.dtype = torch.float16):
        g = torch.Generator().manual_seed(4)
        self.backend = "auto" if device == "cuda" else "interpret"
        self.cu = torch.tensor([0, 200, 200, 330], dtype=torch.int32, device=device)
        self.q, self.k, self.v = (torch.randn(330, heads, D, generator=g).to(device, dtype) for heads in (H, HK, HK))

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = varlen_attention(
            self.q, self.k, self.v, self.cu, self.cu, 200, causal=True, enable_gqa=True, return_lse=True, backend=self.backend
        )
        return o, lse


class Few:
    """A call of flex_attention with few queries, which runs on the decode kernel."""

    def __init__(self, device: str = DEVICE):
        g = torch.Generator().manual_seed(5)
        self.backend = "auto" if device == "cuda" else "interpret"
        self.q, self.k, self.v = (torch.randn(2, heads, n, D, generator=g).half().to(device) for heads, n in ((H, 3), (HK, 700), (HK, 700)))
        slopes, last = torch.rand(H, generator=g).to(device) * 0.1, 600
        self.score_mod = lambda score, b, h, q_idx, kv_idx: score + slopes[h] * kv_idx
        self.block_mask = create_block_mask(lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + last, None, None, 3, 700, device=device)
        assert runs_on_decode_kernel(self.q, self.k)

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = flex_attention(
            self.q, self.k, self.v, self.score_mod, self.block_mask, enable_gqa=True, return_lse=True, backend=self.backend, verify="off"
        )
        return o, lse


def _make(kind: str, device: str = DEVICE) -> Any:
    rest = {
        "packed": Packed,
        "packed, 32 bits": partial(Packed, dtype=torch.float32),
        "few": Few,
        "many": Many,
        "latent": Latent,
        "latent, two tokens": partial(Latent, M=2),
        "latent, shared": partial(Latent, shared=True),
        "selected tokens": partial(Latent, selected=100),
        "selected tokens, two queries": partial(Latent, M=2, selected=33),
        "selected tokens, shared": partial(Latent, shared=True, selected=2048),
        "latent, 8 bits": partial(Latent, scales="head"),
        "latent, 8 bits, two tokens": partial(Latent, M=2, scales="token"),
        "latent, 8 bits, shared": partial(Latent, shared=True, scales="token"),
        "shared": partial(Shared, False),
        "shared, 8 bits": partial(Shared, True),
        "server": partial(Served, True),
        "server decoding": partial(Served, False),
        **{kind: partial(Mixed, page, dtype=dtype) for kind, (page, dtype) in MIXED.items()},
    }
    return rest[kind](device) if kind in rest else Cache(kind, device)


def beside_the_interpreter(kind: str, device: str = DEVICE) -> None:
    """O and LSE, and what the caches hold afterwards."""
    ours, interpreted = _make(kind, device), _make(kind, "cpu")
    bounds = {"atol": 2e-5, "rtol": 1e-5} if "32 bits" in kind else {"atol": 3e-3, "rtol": 1e-2}
    for x, y in zip(ours.step(), interpreted.step()):
        torch.testing.assert_close(x.cpu().float(), y.float(), **bounds)
    if kind in KINDS or kind in MIXED:
        for x, y in zip(ours.pages, interpreted.pages):
            torch.testing.assert_close(x.cpu().float(), y.float(), atol=0, rtol=0)


def packed_gradients(dtype: str = "float16", bound: float = 3e-3, device: str = DEVICE, compiler: str | None = None) -> None:
    """Compare gradients of packed sequences with float64 of each alone. compiler: of torch.compile, for a call in a graph."""
    created = Packed(device, getattr(torch, dtype))
    leaves = tuple(x.requires_grad_() for x in (created.q, created.k, created.v))
    step: Callable[[], Any] = created.step if compiler is None else torch.compile(created.step, fullgraph=True, backend=compiler)
    o, lse = step()
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(8)).to(device)
    result = torch.autograd.grad((o.float() * do).sum() + lse.sum(), leaves)
    exact = tuple(x.detach().double().requires_grad_() for x in leaves)
    total, places = torch.zeros((), dtype=torch.float64, device=device), created.cu.tolist()
    for a, b in itertools.pairwise(places):
        q, k, v = (x[a:b].transpose(0, 1) for x in exact)
        k, v = (x.repeat_interleave(H // HK, 0) for x in (k, v))
        s = (q @ k.mT * D**-0.5).masked_fill(torch.ones(b - a, b - a, dtype=torch.bool, device=device).triu(1), -torch.inf)
        total = total + ((s.softmax(-1) @ v).transpose(0, 1) * do[a:b].double()).sum() + s.logsumexp(-1).sum()
    for x, y in zip(result, torch.autograd.grad(total, exact)):
        assert (x.double() - y).norm() <= bound * y.norm()


def same_bits(kind: str, device: str = DEVICE, times: int = 50) -> None:
    result = _make(kind, device)
    first = [x.clone() for x in result.step()]
    for _ in range(times):
        assert all(torch.equal(x, y) for x, y in zip(result.step(), first))


def without_synchronisation(kind: str) -> None:
    result = _make(kind)
    result.step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def in_a_graph(kind: str) -> None:
    """Lengths that grow, and pages that are added, are other data of one graph."""
    result, eager = _make(kind), _make(kind)
    result.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = result.step()
    for turn in range(4):
        for item in (result, eager):
            item.lengths.copy_(torch.tensor([150 + turn, turn, 37 + 30 * turn], dtype=torch.int32))
            item.table.copy_(item.table.roll(turn, 0))
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(outputs, eager.step())), turn


def served_in_a_graph() -> None:
    """A step of sequences that decode, with others' lengths and pages at each replay."""
    result, eager = Served(False), Served(False)
    result.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result.step()
    for turn in range(3):
        for item in (result, eager):
            item.lengths.copy_(torch.tensor([150 + turn, 333 - 100 * turn, 16, 1 if turn == 2 else 0], dtype=torch.int32))
            item.table.copy_(item.table.roll(turn, 0))
        graph.replay()
        assert torch.equal(result.out, eager.step()[0]), turn


def other_places_in_a_graph() -> None:
    """Other numbers of queries, in other pages, within what the graph was captured with."""
    result, eager = Mixed(16), Mixed(16)
    result.step()
    eager.step()  # both have written what a first step writes
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = result.step()
    for queries, past in (([1, 120, 70, 4], [7, 0, 260, 340]), ([0, 0, 60, 130], [1, 0, 0, 222])):
        for item in (result, eager):
            item.starts.copy_(torch.tensor([0, *queries]).cumsum(0))
            item.lengths.copy_(torch.tensor(past))
            item.table.copy_(item.table.roll(1, 0))
        graph.replay()
        rows = sum(queries)
        o, lse = eager.step()
        assert torch.equal(outputs[0][:rows], o[:rows]) and torch.equal(outputs[1][:, :rows], lse[:, :rows]), queries


def other_orders_in_a_graph() -> None:
    """Lengths of which others are the longest, at each replay; and calls of two layers share the order."""
    result, eager = Many(), Many()
    result.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [*result.step(), *result.step()]
    for turn in range(4):
        for item in (result, eager):
            item.lengths.copy_(item.lengths.roll(1 + turn, 0))
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(outputs, 2 * eager.step())), turn


def other_lengths_of_shares_in_a_graph() -> None:
    """Most of the shares have no key, or all have many."""
    result, eager = Shared(False), Shared(False)
    result.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = result.step()
    for length in (9000, 3, 0, 32768):
        for item in (result, eager):
            item.lengths.fill_(length)
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(outputs, eager.step())), length


def compiled(kind: str, device: str = DEVICE, backend: str = "inductor") -> None:
    """The bits of the call outside of a graph, without a break in it."""
    result, eager = _make(kind, device), _make(kind, device)
    step: Callable[[], Any] = torch.compile(result.step, fullgraph=True, backend=backend)
    for _ in range(2):
        assert all(torch.equal(x, y) for x, y in zip(step(), eager.step()))

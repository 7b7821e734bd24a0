"""Suite `varlen` on a GPU: forward attention of packed sequences, keys and values packed or in pages.

Documents are of equal, lognormal and one long length. Results are checked against float64, contenders timed in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from ...arguments.binding import TORCH
from ...spec.specification import Specification
from ...syntax.types import DTYPES
from ..timing.problem import Expectation, Shape, compute_expectation
from ..timing.timing_protocol import AttentionCall
from .cell_benchmark import BUILD_SECONDS, OURS, Cell, Timing
from .contest import Judge, contest, judge_of
from .peers import flashinfer_packed
from .result_rows import Row

SECONDS = 300.0  # until the first call of ours returns: it compiles
TOKENS = (16384, 32768, 65536, 131072)
MODELS = {"llama2-7b": (32, 32), "qwen2.5-72b": (64, 8)}  # heads, key heads; head dim 128
DOCUMENTS = ("equal_512", "equal_2048", "lognormal", "one_long")


@dataclass(frozen=True)
class Kind:
    """Mask (causal or full), distribution of documents, and the tokens of a page (0: keys are packed)."""

    causal: bool
    documents: str
    page: int = 0


KINDS = {
    **{f"{mask}_{documents}": Kind(mask == "causal", documents) for mask in ("causal", "full") for documents in DOCUMENTS},
    **{f"pages_{page}_{documents}": Kind(True, documents, page) for page in (64, 16) for documents in DOCUMENTS},
}


def _causal(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
    """Causal mask."""
    return kv_idx <= q_idx


def lengths(documents: str, tokens: int) -> list[int]:
    """Return the lengths of documents that add up to a number of tokens."""
    kind, _, each = documents.rpartition("_")
    if kind == "equal":
        return [int(each)] * (tokens // int(each)) + ([tokens % int(each)] if tokens % int(each) else [])
    if documents == "one_long":  # half of the tokens in one document
        return [tokens // 2, *lengths("equal_256", tokens - tokens // 2)]
    drawn, g = list[int](), torch.Generator().manual_seed(0)
    while sum(drawn) < tokens:  # as those of the web: many short, some long
        drawn.append(int(torch.randn(1, generator=g).mul(1.1).add(6.6).exp().clamp(16, 8192)))
    drawn[-1] -= sum(drawn) - tokens
    return [n for n in drawn if n > 0]


def cells() -> list[Cell]:
    """Return the cells of the suite."""
    return [Cell(kind, {}, model, Shape(1, H, HK, n, n, 128)) for n in TOKENS for kind in KINDS for model, (H, HK) in MODELS.items()]


class Problem:
    """Tensors of a cell: q [TQ, H, D], k and v [TQ, HK, D], cu int32 [B + 1].

    `counts` are the documents' lengths. In pages also `caches`, [NP, page, HK, D], and `table`, int32 [B, pages].
    """

    def __init__(self, cell: Cell, dtype: str, device: str, kind: Kind | None = None):
        """Draw the tensors of a cell; kind: None is that of the cell's variant."""
        self.kind = kind or KINDS[cell.variant]
        shape, g = cell.shape, torch.Generator(device).manual_seed(0)
        self.counts = lengths(self.kind.documents, shape.N)
        self.cu = torch.tensor([0, *self.counts]).cumsum(0).to(device, torch.int32)
        self.q, self.k, self.v = (
            torch.randn(shape.N, h, shape.D, device=device, generator=g).to(TORCH[DTYPES[dtype]]) for h in (shape.H, shape.HK, shape.HK)
        )
        self.most, self.scale = max(self.counts), shape.D**-0.5
        self.spec = Specification("causal", _causal) if self.kind.causal else Specification("full")
        if self.kind.page:
            self._in_pages(device)

    def _in_pages(self, device: str) -> None:
        """Copy keys and values into shuffled pages."""
        page, B = self.kind.page, len(self.counts)
        self.seqlens = torch.tensor(self.counts, dtype=torch.int32, device=device)
        self.table = torch.zeros(B, -(-self.most // page), dtype=torch.int32)
        needed = [-(-n // page) for n in self.counts]
        shuffled = torch.randperm(sum(needed), generator=torch.Generator().manual_seed(2)).int()
        for row, page_numbers in zip(self.table, shuffled.split(needed)):
            row[: len(page_numbers)] = page_numbers
        self.table = self.table.to(device)
        b = torch.repeat_interleave(torch.arange(B), torch.tensor(self.counts)).to(device)
        at = torch.arange(len(self.q), device=device) - self.cu[b]
        self.caches = [torch.zeros(sum(needed), page, *x.shape[1:], dtype=x.dtype, device=device) for x in (self.k, self.v)]
        for cache, x in zip(self.caches, (self.k, self.v)):
            cache[self.table[b, at // page].long(), at % page] = x

    def ends(self) -> torch.Tensor:
        """Return how many keys of its document each query sees, the first ones, int32 [TQ]."""
        counts = [torch.arange(1, n + 1) if self.kind.causal else torch.full((n,), n) for n in self.counts]
        return torch.cat(counts).to(self.cu.device, torch.int32)

    @property
    def flops(self) -> float:
        """Multiply-adds of unmasked pairs, times two."""
        pairs = sum(n * (n + 1) // 2 if self.kind.causal else n * n for n in self.counts)
        return 4.0 * self.q.shape[2] * self.q.shape[1] * pairs

    def list_checked_documents(self) -> list[slice]:
        """Return the rows of the first, the longest and the last document."""
        places = dict.fromkeys((0, self.counts.index(self.most), len(self.counts) - 1))
        return [slice(sum(self.counts[:i]), sum(self.counts[: i + 1])) for i in places]

    def make_judge(self) -> Judge:
        """Return the judge of O [TQ, H, D], by the documents to check."""
        parts: list[tuple[slice, Expectation]] = []
        for rows in self.list_checked_documents():
            q, k, v = (select_document(x, rows) for x in (self.q, self.k, self.v))
            parts.append((rows, compute_expectation(self.spec, q, k, v, self.scale)))
        return judge_of(
            lambda o: max(e.error(select_document(o, rows)) for rows, e in parts),
            lambda o: next((why for rows, e in parts if (why := e.judge(select_document(o, rows)))), ""),
        )


def select_document(x: torch.Tensor, rows: slice) -> torch.Tensor:
    """Return a document of packed ones, [1, H, N, D]."""
    return x[rows].transpose(0, 1)[None]


def measure_varlen(
    cell: Cell,
    dtype: str,
    peers: Sequence[str],
    timing: Timing = Timing(),
    *,
    device: str = "cuda",
) -> Row:
    """Measure ours and the peers; return the cell's row.

    tflops count 4 D for each unmasked pair. device: "cpu" runs ours in the interpreter. Raises RuntimeError when the
    CUDA context is lost.
    """
    timing.tell("", BUILD_SECONDS)
    problem = Problem(cell, dtype, device)
    entries = contest(
        make_calls(problem, peers),
        problem.make_judge(),
        lambda ms: {"tflops": round(problem.flops / ms / 1e9, 2)},
        timing,
        seconds=lambda name: SECONDS if name == OURS else BUILD_SECONDS,
    )
    return {**cell.as_json(), "dtype": dtype, "flops": problem.flops, "contenders": entries}


def make_calls(p: Problem, names: Sequence[str]) -> dict[str, AttentionCall]:
    """Return our call and the peers'."""
    from ...attn.serving.cached import attention_with_kv_cache
    from ...attn.serving.varlen import varlen_attention

    on_gpu = p.q.device.type == "cuda"
    if p.kind.page:
        options = {"cache_seqlens": p.seqlens, "page_table": p.table, "cu_seqlens_q": p.cu, "max_seqlen_q": p.most, "causal": p.kind.causal}

        def over_pages() -> torch.Tensor:
            return attention_with_kv_cache(p.q, *p.caches, **options, backend="auto" if on_gpu else "interpret", verify="off")  # type: ignore[arg-type]

        def fa3_over_pages() -> torch.Tensor:
            from flash_attn_interface import flash_attn_with_kvcache

            return flash_attn_with_kvcache(p.q, *p.caches, **options)

        return {OURS: over_pages, **({"fa3": fa3_over_pages} if "fa3" in names else {})}

    def ours() -> torch.Tensor:
        return varlen_attention(
            p.q,
            p.k,
            p.v,
            p.cu,
            p.cu,
            p.most,
            p.most,
            causal=p.kind.causal,
            enable_gqa=True,
            backend="auto" if on_gpu else "interpret",
            verify="off",  # results are judged by this benchmark
        )

    def fa3() -> torch.Tensor:
        from flash_attn_interface import flash_attn_varlen_func

        return flash_attn_varlen_func(p.q, p.k, p.v, p.cu, p.cu, p.most, p.most, causal=p.kind.causal)

    def pytorch() -> torch.Tensor:
        from torch.nn.attention.varlen import varlen_attn

        groups = {"enable_gqa": True} if p.q.shape[1] != p.k.shape[1] else {}  # PyTorch 2.11 knows no groups
        return cast(
            torch.Tensor,
            varlen_attn(p.q, p.k, p.v, p.cu, p.cu, p.most, p.most, window_size=(-1, 0 if p.kind.causal else -1), **groups),  # type: ignore[arg-type]
        )  # with no LSE

    def fa4() -> torch.Tensor:
        from flash_attn.cute import flash_attn_varlen_func

        o = flash_attn_varlen_func(
            p.q, p.k, p.v, cu_seqlens_q=p.cu, cu_seqlens_k=p.cu, max_seqlen_q=p.most, max_seqlen_k=p.most, causal=p.kind.causal
        )
        return o[0] if isinstance(o, tuple) else o

    plans: list[object] = []  # of the lengths and the mask, made at the first call

    def cudnn_flex() -> torch.Tensor:
        from cudnn.flex_attention import create_mask_plan, flex_attn_func

        if not plans:
            lengths = {"cu_seqlens_q": p.cu, "cu_seqlens_k": p.cu, "max_seqlen_q": p.most, "max_seqlen_k": p.most}
            plans.append(create_mask_plan(p.ends()[None, None], p.q, p.k, p.v, **lengths))
        return flex_attn_func(p.q, p.k, p.v, mask_plan=plans[0])

    peer_calls: dict[str, AttentionCall] = {"fa3": fa3, "fa4": fa4, "cudnn_flex": cudnn_flex, "varlen_attn": pytorch}
    if "flashinfer" in names:
        peer_calls["flashinfer"] = flashinfer_packed(p.q, p.k, p.v, p.cu, p.kind.causal)
    return {OURS: ours, **{name: peer_calls[name] for name in names}}


__all__ = ["KINDS", "Kind", "Problem", "cells", "lengths", "make_calls", "measure_varlen", "select_document"]

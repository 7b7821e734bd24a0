"""Suite `decode` on a GPU: few queries over long keys, contiguous, in pages, of unequal lengths.

Every result is checked against float64. Contenders are timed in turns, each as a CUDA graph, as serving loops run them:
the host dominates the time of a short call otherwise. GB/s are of the keys and values that the queries need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ...arguments.binding import TORCH
from ...attn.capture.capture_keys import make_capture_key
from ...attn.kernels import decoding
from ...attn.kernels.attention_kernel import make_attention
from ...attn.kernels.experts import Form
from ...attn.serving.fp8_cache import DTYPE as E4M3
from ...attn.serving.fp8_cache import LARGEST
from ...checking.checked import Const
from ...spec.specification import Specification
from ...syntax.types import DTYPES
from ..search.space import label
from ..timing.problem import Expectation, Shape, compute_expectation, make_tensors
from ..timing.timing_protocol import AttentionCall, capture_graph, median_ms
from .cell_benchmark import BUILD_SECONDS, OURS, Cell, Timing
from .contest import Judge, contest, judge_of
from .peers import contenders, flashinfer
from .result_rows import Row

SECONDS = 300.0  # until the first call of ours returns: it compiles
TURN = 30.0  # milliseconds of a contender in a round: a call takes from 0.01 to 2
WINDOW, CAP = 1024, 20.0
UNIT = 2.0**-6  # the scale of 8-bit caches: normal numbers never reach 448 of it, and 16 bits hold its multiples exactly
GROUPED, PLAIN = ("qwen2.5-72b", 64, 8), ("llama2-7b", 32, 32)  # model, heads, key heads; head dim 128
SLICE = ("qwen2.5-72b/8", 8, 1)  # share of one of eight GPUs that divide the heads
_LENGTHS = [
    *((1, n, GROUPED) for n in (1024, 4096, 8192, 16384, 65536, 131072)),
    (16, 4096, GROUPED), (16, 32768, GROUPED), (128, 1024, GROUPED), (128, 4096, GROUPED), (128, 16384, GROUPED),
    (1, 8192, PLAIN), (16, 4096, PLAIN), (64, 4096, PLAIN),
]  # fmt: skip
_UNEQUAL = [(64, 16384, GROUPED), (64, 16384, PLAIN)]
_EIGHT = [(1, 8192, GROUPED), (1, 131072, GROUPED), (16, 4096, GROUPED), (16, 32768, GROUPED), (128, 4096, GROUPED), (16, 4096, PLAIN)]
_SLICED = [(1, 32768, SLICE), (1, 131072, SLICE), (8, 16384, SLICE)]
_RULED = [(1, 8192, GROUPED), (1, 131072, GROUPED), (16, 4096, GROUPED), (16, 4096, PLAIN)]


def _window(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor, *, M: int, N: int) -> torch.Tensor:
    """Mask of a sliding window."""
    return kv_idx > q_idx + (N - M) - WINDOW


def _alibi(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
    """Score rule of ALiBi."""
    return score + torch.exp2(-(h + 1.0) / 8) * kv_idx


def _softcap(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
    """Score rule of a soft cap."""
    return CAP * torch.tanh(score / CAP)


@dataclass(frozen=True)
class Kind:
    """Layout of keys and values, and the specification.

    Attributes:
        page: Tokens of a page, 0 for contiguous ones.
        unequal: Lengths are lognormal, N the largest.
        spec: Specification of the attention.
        eight: Keys and values are e4m3.
    """

    page: int = 0
    unequal: bool = False
    spec: Specification = Specification("full")
    eight: bool = False

    @property
    def cached(self) -> bool:
        """True for a call over a cache."""
        return self.page > 0 or self.eight


KINDS = {
    "full": Kind(), "pages_64": Kind(64), "pages_16": Kind(16), "unequal_pages_64": Kind(64, True), "unequal_pages_16": Kind(16, True),
    "window": Kind(spec=Specification("window", _window)), "alibi": Kind(spec=Specification("alibi", None, _alibi)),
    "softcap": Kind(spec=Specification("softcap", None, _softcap)), "f8": Kind(eight=True), "f8_pages_64": Kind(64, eight=True),
    "slice_pages_64": Kind(64), "slice_f8_pages_64": Kind(64, eight=True),
}  # fmt: skip


def cells() -> list[Cell]:
    """Return the cells, with one query and with four."""
    combinations = [
        *itertools.product(("full", "pages_64", "pages_16"), _LENGTHS),
        *itertools.product(("unequal_pages_64", "unequal_pages_16"), _UNEQUAL),
        *itertools.product(("window", "alibi", "softcap"), _RULED),
        *itertools.product(("f8", "f8_pages_64"), _EIGHT),
        *itertools.product(("slice_pages_64", "slice_f8_pages_64"), _SLICED),
    ]
    return [Cell(kind, {}, model, Shape(B, H, HK, M, N, 128)) for M in (1, 4) for kind, (B, N, (model, H, HK)) in combinations]


class Problem:
    """Tensors of a cell: Q [B, H, M, D], K and V [B, HK, N, D].

    Over a cache also `lengths`, int32 [B], `table`, int32 [B, pages] or None, and `caches`, of keys and of values, [NP,
    page, HK, D] or [B, N, HK, D]; of 8 bits these hold K / UNIT and V / UNIT, and `wide` their values.
    """

    def __init__(self, cell: Cell, dtype: str, device: str):
        self.shape, self.kind, self.device, self.dtype = cell.shape, KINDS[cell.variant], device, DTYPES[dtype]
        self.tensors = make_tensors(cell.shape, TORCH[self.dtype], device)
        self.q, self.k, self.v = (self.tensors[n] for n in "QKV")
        self.counts = self._counts()
        self.spec, self.scale = self.kind.spec, cell.shape.D**-0.5
        self.table: torch.Tensor | None = None
        if not self.kind.cached:
            return
        page = self.kind.page
        if self.kind.eight:
            self.k, self.v = ((x.float() / UNIT).clamp(-LARGEST, LARGEST).to(E4M3).to(x.dtype) * UNIT for x in (self.k, self.v))
        self.lengths = torch.tensor(self.counts, dtype=torch.int32, device=device)
        if page:
            pages = -(-cell.shape.N // page)
            shuffled = torch.randperm(cell.shape.B * pages, generator=torch.Generator().manual_seed(2))
            self.table = shuffled.to(device, torch.int32).view(cell.shape.B, pages)
        self.wide = tuple(self._make_pages(x) for x in (self.k, self.v))
        self.caches = tuple((x / UNIT).to(E4M3) for x in self.wide) if self.kind.eight else self.wide

    def _counts(self) -> list[int]:
        """Return the tokens of each sequence."""
        B, N = self.shape.B, self.shape.N
        if not self.kind.unequal:
            return [N] * B
        drawn = (
            torch.randn(B, generator=torch.Generator().manual_seed(1)).add(math.log(N / 8)).exp()
        )  # their median is an eighth of the most
        return [N, *drawn.clamp(1, N).long().tolist()[1:]]

    def _make_pages(self, x: torch.Tensor) -> torch.Tensor:
        """Return keys or values in pages, or as [B, N, HK, D]."""
        page, (HK, N, D) = self.kind.page, x.shape[1:]
        if self.table is None:
            return x.transpose(1, 2).contiguous()
        padded = torch.nn.functional.pad(x.transpose(1, 2), (0, 0, 0, 0, 0, -N % page)).reshape(-1, page, HK, D)
        cache = torch.empty_like(padded)
        cache[self.table.flatten().long()] = padded
        return cache

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values that the queries need."""
        most = WINDOW + self.shape.M - 1 if self.spec.mask_mod is not None else max(self.counts)
        return 2 * (1 if self.kind.eight else self.k.element_size()) * self.shape.HK * self.shape.D * sum(min(n, most) for n in self.counts)

    def make_judge(self) -> Judge:
        """Return the judge of O [B, H, M, D], by its first and its last sequence."""
        if len(set(self.counts)) == 1:
            whole = compute_expectation(self.spec, self.q, self.k, self.v, self.scale)
            return judge_of(whole.error, whole.judge)
        parts: list[tuple[int, Expectation]] = []
        for b in (0, self.shape.B - 1):
            keys, values = (x[b : b + 1, :, : self.counts[b]] for x in (self.k, self.v))
            parts.append((b, compute_expectation(self.spec, self.q[b : b + 1], keys, values, self.scale)))
        return judge_of(
            lambda o: max(e.error(o[b : b + 1]) for b, e in parts),
            lambda o: next((why for b, e in parts if (why := e.judge(o[b : b + 1]))), ""),
        )


def measure_decode(
    cell: Cell,
    dtype: str,
    peers: Sequence[str],
    timing: Timing = Timing(),
    *,
    device: str = "cuda",
) -> Row:
    """Measure ours and the peers that support the cell; return its row.

    gbs: GB/s of keys and values. device: "cpu" runs ours in the interpreter. Raises RuntimeError when the CUDA context
    is lost.
    """
    timing.tell("", BUILD_SECONDS)
    problem = Problem(cell, dtype, device)
    judge = problem.make_judge()
    entries = contest(
        {**our_calls(problem, peers), **_peers(problem, peers)},
        judge,
        lambda ms: {"gbs": round(problem.nbytes / ms / 1e6, 1)},
        replace(timing, measure=timing.measure or partial(median_ms, milliseconds=TURN)),
        seconds=lambda name: SECONDS if name.startswith(OURS) else BUILD_SECONDS,
        prepared=capture_graph if device == "cuda" else lambda call: call,
    )
    return {**cell.as_json(), "dtype": dtype, "bytes": problem.nbytes, "contenders": entries}


def our_calls(p: Problem, names: Sequence[str]) -> dict[str, AttentionCall]:
    """Return our calls.

    These are the call over a cache, and with "16_bits" the same over a 16-bit cache; over contiguous keys the decode
    kernel, and with "settings" every way to divide the keys.
    """
    backend = "auto" if p.device == "cuda" else "interpret"
    if p.kind.cached:
        from ...attn.serving.cached import attention_with_kv_cache

        q = p.q.transpose(1, 2).contiguous()

        scale = torch.full((p.shape.HK,), UNIT, device=p.device)

        def over_cache(caches: tuple[torch.Tensor, ...], of: torch.Tensor | None) -> torch.Tensor:
            o: torch.Tensor = attention_with_kv_cache(
                q, *caches, cache_seqlens=p.lengths, page_table=p.table, k_scale=of, v_scale=of, backend=backend, verify="off"
            )
            return o.transpose(1, 2)

        if not p.kind.eight:
            return {OURS: partial(over_cache, p.caches, None)}
        wide = {"16_bits": partial(over_cache, p.wide, None)} if "16_bits" in names else {}
        return {OURS: partial(over_cache, p.caches, scale), **wide}
    capture_key = make_capture_key(p.spec.mask_mod, p.spec.score_mod)
    calls: dict[str, AttentionCall] = {}
    fixed: dict[str, Const]
    for fixed in settings(p.shape) if "settings" in names else [{}]:
        form = Form(TORCH[p.dtype], p.shape.D, p.shape.D, "decode", tuple(fixed.items()))
        kernel = make_attention(p.spec, capture_key, form, "off")
        calls[f"{OURS} {label(fixed)}".strip()] = partial(kernel, p.q, p.k, p.v, backend=backend)
    return calls


def settings(shape: Shape) -> list[dict[str, Const]]:
    """Return the ways to divide the keys: CTAs of a cluster, warpgroups, stages and keys of a block."""
    rings = ((2, 3, 64), (2, 2, 64), (1, 6, 64), (1, 4, 64), (1, 3, 128), (1, 2, 128))
    return [{"CLUSTER": c, "WG": wg, "STAGES": stages, "BN": keys} for c in decoding.CLUSTERS for wg, stages, keys in rings]


def _peers(p: Problem, names: Sequence[str]) -> dict[str, AttentionCall]:
    """Return the peers' calls."""
    if p.kind.eight:
        return {}
    if not p.kind.cached:
        calls = contenders([n for n in names if n in ("cudnn", "fa2", "flex")], p.spec, p.tensors, p.scale)
    else:
        calls = {}
    plain_rule = p.spec.mask_mod is None and p.spec.score_mod is None
    if "fa3" in names and plain_rule:
        calls["fa3"] = _fa3(p)
    if "flashinfer" in names and p.table is not None:
        calls |= flashinfer(p.q, p.caches, p.table, p.counts)
    return calls


def _fa3(p: Problem) -> AttentionCall:
    """Return FlashAttention-3's call."""
    q = p.q.transpose(1, 2).contiguous()
    if p.kind.cached:
        keys, values = p.caches
        options: dict[str, Any] = {"cache_seqlens": p.lengths, "page_table": p.table}
    else:
        keys, values = (x.transpose(1, 2).contiguous() for x in (p.k, p.v))
        options = {"cache_seqlens": torch.full((p.shape.B,), p.shape.N, dtype=torch.int32, device=p.device)}

    def call() -> torch.Tensor:
        from flash_attn_interface import flash_attn_with_kvcache

        o = flash_attn_with_kvcache(q, keys, values, causal=False, num_splits=0, **options)
        first: torch.Tensor = o[0] if isinstance(o, tuple) else o
        return first.transpose(1, 2)

    return call


__all__ = ["KINDS", "Problem", "cells", "measure_decode", "our_calls", "settings"]

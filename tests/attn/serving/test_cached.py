"""attention_with_kv_cache in the interpreter, against float64: pages of any size in any order, both orders of heads and tokens, lengths of 0, new tokens, any rule. Slots without a token hold NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import cuir
from cuir import CuirError, attention_with_kv_cache
from cuir.attn.api import prepared_calls
from cuir.attn.kernels import decoding
from cuir.attn.serving import cached
from cuir.attn.serving.longest_first import longest_first

Mod = Callable[..., Any]
SLOPES = torch.tensor([0.5, 0.1, 0.2, 0.3])
START = torch.tensor([60, 0])


def alibi(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + SLOPES[h] * (k - q)


def from_start(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k >= START[b]) | (k == h)


def behind_five(b: Any, h: Any, q: Any, k: Any, *, N: Any) -> Any:
    return k >= N - 5


class Problem:
    """Tokens of some sequences, and a cache that holds them in pages in random order, or one after the other (page=0)."""

    def __init__(
        self,
        lengths: list[int],
        page: int,
        heads: tuple[int, int],
        M: int = 1,
        dims: tuple[int, int] = (64, 64),
        new: int = 0,
        layout: str = "NHD",
        dtype: torch.dtype = torch.float16,
    ):
        g = torch.Generator().manual_seed(page + M)
        B, (H, HK), most = len(lengths), heads, max(lengths) + new
        self.lengths, self.new, self.layout = lengths, new, layout
        MP, size = (-(-most // page), page) if page else (1, most + 5)
        NP = B * MP + 2 if page else B
        self.table = torch.randperm(NP, generator=g)[: B * MP].view(B, MP).int() if page else None
        self.q = torch.randn(B, M, H, dims[0], generator=g).to(dtype)
        self.keys, self.values = ([torch.randn(n + new, HK, d, generator=g).to(dtype) for n in lengths] for d in dims)
        self.caches = [torch.full((NP, size, HK, d), math.nan, dtype=dtype) for d in dims]
        for cache, tokens in zip(self.caches, (self.keys, self.values)):
            for b, n in enumerate(lengths):
                for t in range(n):
                    cache[b if self.table is None else self.table[b, t // size], t % size] = tokens[b][t]
        if layout == "HND":
            self.caches = [x.transpose(1, 2).contiguous() for x in self.caches]

    def call(self, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        new = (
            [torch.stack([x[n:] for x, n in zip(tokens, self.lengths)]) for tokens in (self.keys, self.values)]
            if self.new
            else [None, None]
        )
        seqlens = torch.tensor(self.lengths, dtype=torch.int32)
        o, lse = attention_with_kv_cache(
            self.q,
            *self.caches,
            *new,
            cache_seqlens=seqlens,
            page_table=self.table,
            layout=self.layout,
            return_lse=True,
            backend="interpret",
            **options,
        )  # type: ignore[misc, arg-type]
        return o, lse

    def compute_expected(
        self, score: Mod | None = None, mask: Mod | None = None, causal: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        B, M, H, D = self.q.shape
        rows, sums = [], []
        for b in range(B):
            k, v = self.keys[b].double(), self.values[b].double()
            N, group = k.shape[0], H // k.shape[1]
            h, i, j = torch.arange(H)[:, None, None], torch.arange(M)[:, None], torch.arange(N)
            s = self.q[b].double().transpose(0, 1) @ k.repeat_interleave(group, 1).permute(1, 2, 0) * D**-0.5
            s = s if score is None else score(s, b, h, i, j)
            keep = torch.ones(H, M, N, dtype=torch.bool)
            if mask is not None:
                keep = keep & (mask(b, h, i, j, N=N) if mask is behind_five else mask(b, h, i, j))
            s = s.masked_fill(~(keep & (j <= i + N - M) if causal else keep), -torch.inf)
            lse = s.logsumexp(-1)
            p = (s - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp()
            rows.append((p @ v.repeat_interleave(group, 1).transpose(0, 1)).transpose(0, 1))
            sums.append(lse)
        return torch.stack(rows), torch.stack(sums)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("problem", "score", "mask", "causal"),
    [
        (([300, 17], 0, (8, 2)), None, None, False),
        (([300, 1], 0, (4, 2), 3, (128, 128), 0, "HND"), None, None, True),
        (([100, 0, 31], 16, (4, 1), 2, (64, 64), 2), None, None, True),
        (([200, 63], 64, (4, 4), 1, (128, 64), 0, "HND"), None, None, False),
        (([70, 5], 1, (4, 2)), None, None, True),
        (([70, 5], 4, (4, 2), 2, (64, 64), 1), None, None, True),
        (([170, 49], 48, (4, 2)), None, None, False),
        (([300, 129], 128, (6, 2)), None, behind_five, False),
        (([170, 3], 16, (4, 2), 4), alibi, from_start, True),
        (([170, 30], 16, (4, 2), 4, (96, 96)), None, from_start, False),
        (([130], 64, (4, 1), 1, (256, 256)), None, None, False),
    ],
)
def test_gives_what_float64_gives(problem: tuple[Any, ...], score: Mod | None, mask: Mod | None, causal: bool) -> None:
    result = Problem(*problem)
    o, lse = result.call(score_mod=score, block_mask=mask, causal=causal)
    expected, wanted_lse = result.compute_expected(score, mask, causal)
    torch.testing.assert_close(o.double(), expected, atol=3e-3, rtol=1e-2)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-3, rtol=1e-4)


def test_new_tokens_are_in_the_cache_afterwards() -> None:
    result = Problem([20, 3], 16, (2, 1), new=2)
    result.call()
    assert result.table is not None
    for b, n in enumerate(result.lengths):
        for t in range(n + 2):
            torch.testing.assert_close(result.caches[0][result.table[b, t // 16], t % 16], result.keys[b][t], atol=0, rtol=0)


def test_a_sequence_has_the_same_bits_wherever_its_pages_are_and_whatever_the_others_hold() -> None:
    """Under other schedules, too: verification asks that of every kernel before it runs."""
    result = Problem([100, 40], 16, (4, 2), 2)
    assert result.table is not None
    o, lse = result.call(score_mod=alibi, causal=True)
    order = torch.randperm(len(result.caches[0]), generator=torch.Generator().manual_seed(9))
    result.caches = [x[order] for x in result.caches]
    result.table = order.argsort()[result.table.long()].int()
    for cache in result.caches:
        cache[result.table[1].long()] = 2.0
    result.q[1] = 1.0
    result.lengths[1] = 77
    repeated, lse_again = result.call(score_mod=alibi, causal=True)
    assert torch.equal(o[0], repeated[0]) and torch.equal(lse[0], lse_again[0]) and not torch.equal(o[1], repeated[1])


def test_the_longest_sequence_is_begun_first_where_some_wait_and_the_order_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "count_processors", lambda: 2)
    prepared_calls._ATTENTIONS.clear()
    result, orders = Problem([70, 5, 170, 30], 16, (4, 2)), []

    def note_order(lengths: torch.Tensor) -> torch.Tensor:
        orders.append(longest_first(lengths))
        return orders[-1]

    monkeypatch.setattr(cached, "longest_first", note_order)
    o, lse = result.call(causal=True)
    assert orders[0].tolist() == [2, 0, 3, 1]
    monkeypatch.setattr(cached, "longest_first", lambda lengths: torch.tensor([1, 3, 0, 2], dtype=torch.int32))
    repeated, lse_again = result.call(causal=True)
    prepared_calls._ATTENTIONS.clear()
    assert torch.equal(o, repeated) and torch.equal(lse, lse_again)
    torch.testing.assert_close(o.double(), result.compute_expected(causal=True)[0], atol=3e-3, rtol=1e-2)


def test_other_lengths_and_tables_are_other_data_of_one_program() -> None:
    Problem([100, 40], 16, (4, 2)).call(causal=True)
    before = len(prepared_calls._ATTENTIONS)
    Problem([30, 90], 32, (4, 2)).call(causal=True)  # another CHUNK
    after = len(prepared_calls._ATTENTIONS)
    Problem([64, 1, 7], 32, (8, 2), 2).call(causal=True)
    assert after == before + 1 and len(prepared_calls._ATTENTIONS) == after


def test_what_a_mod_reads_outside_of_a_tensor_by_tokens_is_zero() -> None:
    g = torch.Generator().manual_seed(1)
    q, *cache = (torch.randn(1, n, 4, 64, generator=g).half() for n in (1, 90, 90))
    bias = torch.randn(50, generator=g)  # of 80 tokens
    inputs = [torch.nn.functional.pad(bias, (0, 30)), bias]
    whole, short = (
        attention_with_kv_cache(
            q, *cache, cache_seqlens=80, score_mod=lambda s, b, h, i, j, of=of: s + of[j], backend="interpret", verify="off"
        )
        for of in inputs
    )
    assert torch.equal(whole, short)


@pytest.mark.sweep
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("wrong", "mod"),
    [
        ("element 3 is read (b=0, h=3", lambda of: lambda s, b, h, i, j: s + of[h] * j),
        ("element -1 is read (b=0, h=0", lambda of: lambda s, b, h, i, j: s + of[h - 1] * j),
        ("element 3 is read (b=1, h=0", lambda of: lambda s, b, h, i, j: s + of[3 * b]),
        ("", lambda of: lambda s, b, h, i, j: s + of[h // 2 + b] * j),
        ("", lambda of: lambda s, b, h, i, j: s + of[h + j]),
    ],
)
def test_what_a_mod_reads_by_heads_must_be_there(wrong: str, mod: Callable[[torch.Tensor], Mod], packed: bool) -> None:
    """A kernel reads it as a scalar, for which there is no 0 outside of memory."""
    x = torch.randn(2, 20, 4, 64).half()
    score = mod(torch.tensor([0.25, 0.5, 0.75]))

    def call() -> Any:
        if packed:
            flat, starts = x.flatten(0, 1), torch.tensor([0, 20, 40], dtype=torch.int32)
            return cuir.varlen_attention(flat, flat, flat, starts, starts, 20, 20, score_mod=score, backend="interpret")
        return attention_with_kv_cache(x, x.clone(), x.clone(), cache_seqlens=20, score_mod=score, backend="interpret")

    if not wrong:
        assert call().isfinite().all()
        return
    with pytest.raises(CuirError) as caught:
        call()
    assert caught.value.diagnostics[0].code == "U416" and wrong in caught.value.diagnostics[0].message


@pytest.mark.sweep(4)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize("page", [0, 64, 4])
def test_tokens_without_a_place_are_zeros(page: int, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(page)
    q, *cache = (torch.randn(1, n, 2, 64, generator=g).half() for n in (1, 128, 128))
    cache = [x.to(dtype) for x in cache]
    expected = [torch.nn.functional.pad(x.double(), (0, 0, 0, 0, 0, 72))[0].transpose(0, 1) for x in cache]
    table = None
    if page:  # behind the sequence's pages lies another one's
        table = torch.arange(128 // page, dtype=torch.int32)[None]
        cache = [torch.cat([x.view(-1, page, 2, 64).half(), torch.full((1, page, 2, 64), 7.0).half()]).to(dtype) for x in cache]
    o = attention_with_kv_cache(q, *cache, cache_seqlens=torch.tensor([200], dtype=torch.int32), page_table=table, backend="interpret")
    k, v = expected
    exact = (q[0].double().transpose(0, 1) @ k.mT * 64**-0.5).softmax(-1) @ v
    torch.testing.assert_close(o[0].double(), exact.transpose(0, 1), atol=2e-3, rtol=1e-2)


def test_a_sink_and_a_block_mask_of_ours() -> None:
    result, sink = Problem([100, 40], 16, (4, 2)), torch.tensor([0.5, -1.0, 9.0, 2.0])
    _, lse = result.call(sink=sink, block_mask=cuir.create_block_mask(from_start, 2, 4, 1, 112, device="cpu"))
    _, plain = result.compute_expected(mask=from_start)
    torch.testing.assert_close(lse.double(), torch.logaddexp(plain, sink[:, None].double()), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"layout": "DNH"}, "U413"),
        ({"scale": -1.0}, "U413"),
        ({"k_cache": torch.zeros(3, 16, 2, 64)}, "U404"),
        ({"k_cache": torch.zeros(3, 16, 2, 64).double()}, "U109"),
        ({"q": torch.zeros(2, 1, 4, 64), **{n: torch.zeros(3, 16, 2, 64).to(torch.float8_e4m3fn) for n in ("k_cache", "v_cache")}}, "U109"),
        ({"k_cache": torch.zeros(3, 16, 2, 64, dtype=torch.bfloat16)}, "U404"),
        ({"k_cache": torch.zeros(3, 16, 2, 32).half()}, "U408"),
        ({"k_cache": torch.zeros(3, 16, 3, 64).half(), "v_cache": torch.zeros(3, 16, 3, 64).half()}, "U411"),
        ({"k_cache": torch.zeros(3, 16, 2, 65).half()[..., :64]}, "U406"),
        ({"q": torch.zeros(2, 4, 64).half()}, "U405"),
        ({"q": "queries"}, "U403"),
        ({"page_table": None}, "U408"),
        ({"page_table": torch.zeros(2, 1)}, "U404"),
        ({"page_table": torch.zeros(3, 1).int()}, "U408"),
        ({"cache_seqlens": torch.zeros(2)}, "U404"),
        ({"cache_seqlens": None}, "U403"),
        ({"k": torch.zeros(2, 1, 2, 64).half()}, "U402"),
        ({"k": torch.zeros(2, 1, 2, 64).half(), "v": torch.zeros(2, 2, 2, 64).half()}, "U408"),
        ({"block_mask": 3}, "U412"),
        ({"sink": torch.zeros(3)}, "U408"),
        ({"q": torch.zeros(2, 1, 4, 64, device="meta").half()}, "U407"),
        ({"cache_seqlens": -1}, "U408"),
        ({"cache_seqlens": 17}, "U408"),
        ({"cache_seqlens": 16, "k": torch.zeros(2, 1, 2, 64).half(), "v": torch.zeros(2, 1, 2, 64).half()}, "U408"),
        (
            {"page_table": torch.tensor([[0], [3]]).int(), "k": torch.zeros(2, 1, 2, 64).half(), "v": torch.zeros(2, 1, 2, 64).half()},
            "U408",
        ),
        ({"max_seqlen": -1}, "U413"),
        ({"max_seqlen": 3.5}, "U413"),
        ({"k_cache": torch.zeros(3, 0, 2, 64).half(), "v_cache": torch.zeros(3, 0, 2, 64).half()}, "U408"),
    ],
)
def test_wrong_calls_are_told(change: dict[str, Any], code: str) -> None:
    inputs: dict[str, Any] = {
        "q": torch.zeros(2, 1, 4, 64).half(),
        "k_cache": torch.zeros(3, 16, 2, 64).half(),
        "v_cache": torch.zeros(3, 16, 2, 64).half(),
        "cache_seqlens": torch.tensor([3, 4], dtype=torch.int32),
        "page_table": torch.tensor([[0], [2]], dtype=torch.int32),
        "backend": "interpret",
    }
    with pytest.raises(CuirError) as caught:
        attention_with_kv_cache(**{**inputs, **change})
    assert caught.value.diagnostics[0].code == code


def test_new_tokens_without_room_leave_those_before_alone() -> None:
    cache = torch.randn(2, 2, 16, 2, 64).half()
    keys, values = (x.clone() for x in cache)
    new = torch.randn(2, 3, 2, 64).half()
    attention_with_kv_cache(
        torch.randn(1, 1, 4, 64).half(),
        keys,
        values,
        new[:1],
        new[1:],
        cache_seqlens=torch.tensor([30]).int(),
        page_table=torch.tensor([[1, 0]]).int(),
        backend="interpret",
    )
    assert [(keys[p] != cache[0, p]).any(-1).any(-1).nonzero().flatten().tolist() for p in (1, 0)] == [[], [14, 15]]

"""attention_with_kv_cache of packed queries in the interpreter, against float64: pages of any size in any order, sequences of any number of queries, new tokens, any rule, and
a batch of servers. Slots without a token hold NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import cuir
from cuir import CuirError, attention_with_kv_cache
from cuir.attn.api import prepared_calls
from tests.attn.serving.test_varlen import Mod, Packed, alibi, close, from_start, window


class Problem(Packed):
    """Sequences whose keys lie in pages in random order (page=0: one behind the other, each in a row of its own). new: of each, the queries' own tokens come with the call."""

    def __init__(
        self,
        queries: list[int],
        keys: list[int],
        page: int,
        heads: tuple[int, int],
        dims: tuple[int, int] = (64, 64),
        new: bool = False,
        layout: str = "NHD",
        behind: int = 0,
        dtype: torch.dtype = torch.float16,
    ):
        super().__init__(queries, keys, heads, dims, dtype)
        g = torch.Generator().manual_seed(page)
        B, HK, most = len(queries), heads[1], max(keys)
        MP, size = (-(-most // page), page) if page else (1, most + 5)
        NP = B * MP + 2 if page else B
        self.table = torch.randperm(NP, generator=g)[: B * MP].view(B, MP).int() if page else None
        self.layout, self.new, self.behind = layout, new, behind
        self.past = [n - m * new for m, n in zip(queries, keys)]
        self.caches = [torch.full((NP, size, HK, d), math.nan, dtype=dtype) for d in dims]
        for cache, tokens in zip(self.caches, (self.k, self.v)):
            for b, n in enumerate(self.past):
                for t in range(n):
                    cache[b if self.table is None else self.table[b, t // size], t % size] = tokens[b][t]

    def call(self, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """behind: rows of no sequence come after all."""
        caches = [x.transpose(1, 2).contiguous() for x in self.caches] if self.layout == "HND" else self.caches
        news = [torch.cat([x[n:] for x, n in zip(tokens, self.past)]) for tokens in (self.k, self.v)] if self.new else []
        rows = [torch.cat([x, torch.full((self.behind, *x.shape[1:]), math.nan, dtype=x.dtype)]) for x in (torch.cat(self.q), *news)]
        starts = torch.tensor([0, *self.lengths[0]]).cumsum(0).int()
        options = {"max_seqlen_q": max(self.lengths[0]), "page_table": self.table, "layout": self.layout, "backend": "interpret", **options}
        o, lse = attention_with_kv_cache(
            rows[0],
            *caches,
            *rows[1:],
            cu_seqlens_q=starts,
            cache_seqlens=torch.tensor(self.past, dtype=torch.int32),
            return_lse=True,
            **options,
        )
        self.caches = [x.transpose(1, 2).contiguous() for x in caches] if self.layout == "HND" else caches
        count = sum(self.lengths[0])
        return o[:count], lse[:, :count]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("problem", "score", "mask", "causal"),
    [
        (([100, 1, 0, 3], [200, 77, 30, 3], 64, (4, 2)), None, None, True),
        (([70, 1], [70, 130], 16, (4, 4), (128, 128)), None, None, True),
        (([1, 1, 1], [300, 0, 17], 128, (4, 1)), None, None, True),
        (([130, 20], [140, 150], 48, (4, 2), (64, 128)), alibi, from_start, True),
        (([9, 66], [90, 66], 4, (2, 2)), None, None, True),
        (([40, 5], [55, 5], 8, (2, 1), (96, 40)), None, window, False),
        (([80, 30], [80, 200], 0, (4, 2)), None, None, False),
        (([50, 2], [60, 40], 32, (2, 2), (64, 64), False, "HND"), None, None, True),
        (([200], [210], 64, (2, 1), (192, 128)), None, None, True),
        (([65], [160], 64, (2, 1), (256, 256)), None, None, True),
    ],
)
def test_gives_what_float64_gives(problem: tuple[Any, ...], score: Mod | None, mask: Mod | None, causal: bool) -> None:
    item = Problem(*problem)
    close(item.call(score_mod=score, block_mask=mask, causal=causal), item.compute_expected(score, mask, causal))


@pytest.mark.sweep
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page", [0, 16, 3])
def test_new_tokens_are_written_and_count(page: int, layout: str) -> None:
    """Rows of no sequence among them, which are written nowhere."""
    item = Problem([20, 1, 0, 5], [50, 33, 16, 5], page, (4, 2), new=True, layout=layout, behind=3)
    whole = Problem([20, 1, 0, 5], [50, 33, 16, 5], page, (4, 2), layout=layout)
    o, lse = item.call(causal=True)
    assert all(torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in zip(item.caches, whole.caches))
    expected, sums = whole.call(causal=True)
    assert torch.equal(o, expected) and torch.equal(lse, sums)


def test_where_no_sequence_has_a_token_nothing_is_written() -> None:
    caches = [torch.randn(2, 16, 1, 64).half() for _ in range(2)]
    before = [x.clone() for x in caches]
    q, k, v = (torch.randn(4, 1, 64).half() for _ in range(3))
    attention_with_kv_cache(
        q,
        *caches,
        k,
        v,
        cu_seqlens_q=torch.zeros(3, dtype=torch.int32),
        cache_seqlens=torch.tensor([3, 5], dtype=torch.int32),
        backend="interpret",
    )
    assert all(torch.equal(x, y) for x, y in zip(caches, before))


def test_a_sequence_has_the_same_bits_whatever_the_others_are_and_wherever_its_pages_lie() -> None:
    item = Problem([33, 70], [40, 90], 16, (2, 1))
    o, lse = item.call(causal=True)
    moved = Problem([33, 70], [40, 90], 16, (2, 1))
    assert moved.table is not None
    moved.table = moved.table.flip(0).contiguous()
    for cache, tokens in zip(moved.caches, (moved.k, moved.v)):
        for b, n in enumerate(moved.past):
            for t in range(n):
                cache[moved.table[b, t // 16], t % 16] = tokens[b][t] if b else math.nan
    repeated, sums = moved.call(causal=True)
    assert torch.equal(o[33:], repeated[33:]) and torch.equal(lse[:, 33:], sums[:, 33:])


def test_one_kernel_for_all_lengths() -> None:
    prepared_calls._ATTENTIONS.clear()
    for queries, keys in (([70, 1], [80, 20]), ([1, 90, 4], [30, 100, 4])):
        Problem(queries, keys, 16, (2, 1)).call(causal=True)
    assert len({id(expected_values.attention) for expected_values in prepared_calls._ATTENTIONS.values()}) == 1


def test_under_torch_compile() -> None:
    problem = Problem([20, 1], [50, 33], 16, (4, 2), new=True)
    expected, _ = Problem([20, 1], [50, 33], 16, (4, 2), new=True).call(causal=True)
    starts, past = torch.tensor([0, 20, 21], dtype=torch.int32), torch.tensor(problem.past, dtype=torch.int32)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        o: torch.Tensor = attention_with_kv_cache(
            q,
            *problem.caches,
            k,
            v,
            cu_seqlens_q=starts,
            max_seqlen_q=20,
            cache_seqlens=past,
            page_table=problem.table,
            causal=True,
            backend="interpret",
        )
        return o

    news = [torch.cat([x[n:] for x, n in zip(tokens, problem.past)]) for tokens in (problem.k, problem.v)]
    assert torch.equal(step(torch.cat(problem.q), *news), expected)


@pytest.mark.parametrize(
    ("code", "result", "options"),
    [
        ("U405", "of packed sequences, whose cu_seqlens_q there is", {"q": torch.zeros(1, 4, 2, 64).half()}),
        ("U405", "packed sequences, of 3, come with cu_seqlens_q", {"cu_seqlens_q": None}),
        ("U408", "one entry more than there are sequences", {"cu_seqlens_q": torch.zeros(1, 2, dtype=torch.int32)}),
        ("U408", "an entry for each of 2 sequences", {"cache_seqlens": torch.zeros(3, dtype=torch.int32)}),
        ("U404", "must be int32", {"cu_seqlens_q": torch.zeros(3)}),
        ("U413", "max_seqlen_q must be an integer from 0 on", {"max_seqlen_q": -1}),
        ("U402", "new keys and values come together", {"k": torch.zeros(4, 1, 64).half()}),
        ("U408", "`k` must be [4, 1, 64]", {"k": torch.zeros(5, 1, 64).half(), "v": torch.zeros(5, 1, 64).half()}),
        (
            "U109",
            "found cu_seqlens_q",
            {"k_cache": torch.zeros(2, 16, 1, 64).to(torch.float8_e4m3fn), "v_cache": torch.zeros(2, 16, 1, 64).to(torch.float8_e4m3fn)},
        ),
        ("U413", "found no cu_seqlens_q", {"q": torch.zeros(2, 1, 2, 64).half(), "cu_seqlens_q": None, "max_seqlen_q": 3}),
    ],
)
def test_what_does_not_fit_is_said(code: str, result: str, options: dict[str, Any]) -> None:
    caches = {name: torch.zeros(2, 16, 1, 64).half() for name in ("k_cache", "v_cache")}
    inputs = {
        "q": torch.zeros(4, 2, 64).half(),
        "cu_seqlens_q": torch.tensor([0, 3, 4], dtype=torch.int32),
        "cache_seqlens": 4,
        **caches,
        **options,
    }
    with pytest.raises(CuirError) as caught:
        attention_with_kv_cache(**inputs, backend="interpret")
    assert caught.value.diagnostics[0].code == code and result in caught.value.diagnostics[0].message


@pytest.mark.thorough("whole verifications: faults have their tests in test_serving_specifications.py, float32 in test_serving_float32.py")
def test_the_kernel_is_verified_over_a_cache() -> None:
    import corpus

    text = corpus.kernels()["flash_fwd_varlen_sm90"].read_text(encoding="utf-8")
    consts, spec = {"T": cuir.f16, "D": 64, "BM": 64, "BN": 64, "CHUNK": 16}, corpus.specification("causal_packed")()
    assert cuir.verify(cuir.parse(text), spec, consts=consts, seeded=0).ok
    right = "return PAGES[b, page] if row < KEND[b] else NP, row - page * PAGE"
    assert text.count(right) == 1
    wrong = cuir.parse(text.replace(right, "return PAGES[b, page] if row < KEND[b] - 1 else NP, row - page * PAGE"))
    assert not cuir.verify(wrong, spec, consts=consts, seeded=0, shrink=False).ok


# ---- what does not fit
@pytest.mark.sweep
@pytest.mark.parametrize("page", [8, 16, 32, 64, 24, 6])
@pytest.mark.parametrize("kind", ["packed", "each", "8 bits"])
def test_lengths_beyond_the_table_read_nothing_behind_it(page: int, kind: str) -> None:
    """Two rows of one page each: tokens without a place are zeros, and count; the next sequence's page is none of the first's."""
    q, keys, values = torch.randn(2, 1, 1, 16).half(), *(torch.randn(2, page, 1, 16) for _ in range(2))
    if kind == "8 bits":
        keys, values = (x.to(torch.float8_e4m3fn) for x in (keys, values))
    else:
        keys, values = keys.half(), values.half()
    lengths = [page + 300, page]
    inputs = {
        "cache_seqlens": torch.tensor(lengths, dtype=torch.int32),
        "page_table": torch.tensor([[0], [1]], dtype=torch.int32),
        "backend": "interpret",
    }
    if kind == "packed":
        o = attention_with_kv_cache(q[:, 0], keys, values, cu_seqlens_q=torch.tensor([0, 1, 2], dtype=torch.int32), **inputs)  # type: ignore[arg-type]
    else:
        o = attention_with_kv_cache(q, keys, values, **inputs)  # type: ignore[arg-type]
    for b, n in enumerate(lengths):
        k, v = (torch.cat([x[b, :, 0].double(), torch.zeros(n - page, 16, dtype=torch.float64)]) for x in (keys, values))
        expected = torch.softmax(q[b, 0, 0].double() @ k.T * 0.25, -1) @ v
        assert torch.allclose(o[b].double().flatten(), expected, atol=3e-3)


@pytest.mark.parametrize("packed", [True, False])
def test_a_table_without_columns_has_no_token(packed: bool) -> None:
    q, caches = torch.randn(1, 1, 16).half(), [torch.randn(2, 16, 1, 16).half() for _ in range(2)]
    options = {"page_table": torch.zeros(1, 0, dtype=torch.int32), "backend": "interpret"}
    if packed:
        options["cu_seqlens_q"] = torch.tensor([0, 1], dtype=torch.int32)
    for length in (0, 5):
        o = attention_with_kv_cache(q if packed else q[None], *caches, cache_seqlens=torch.tensor([length], dtype=torch.int32), **options)
        assert bool((o == 0).all())


@pytest.mark.parametrize("filler", [-1, 10**6])
def test_entries_of_sequences_without_new_tokens_are_not_used(filler: int) -> None:
    caches, (q, k, v) = [torch.randn(2, 16, 1, 8).half() for _ in range(2)], torch.randn(3, 5, 1, 8).half()
    before = [x.clone() for x in caches]
    table = torch.tensor([[1, filler], [filler, filler]], dtype=torch.int32)
    starts, lengths = torch.zeros(3, dtype=torch.int32), torch.tensor([9, 0], dtype=torch.int32)
    attention_with_kv_cache(q, *caches, k, v, cache_seqlens=lengths, page_table=table, cu_seqlens_q=starts, backend="interpret")
    assert all(torch.equal(x, y) for x, y in zip(caches, before))


def test_places_may_have_strides() -> None:
    item = Problem([9, 0, 11], [20, 34, 14], 16, (4, 2))
    expected = item.call(causal=True)
    assert item.table is not None
    item.table = torch.stack([item.table, item.table.flip(0)], -1)[..., 0]
    assert item.table.stride(1) == 2 and all(torch.equal(x, y) for x, y in zip(item.call(causal=True), expected))
    places = torch.tensor([0, 7, 9, 7, 9, 7, 20, 7], dtype=torch.int32)[::2]
    lengths = torch.tensor([[n, 7] for n in item.past], dtype=torch.int32)[:, 0]
    o = attention_with_kv_cache(
        torch.cat(item.q), *item.caches, cache_seqlens=lengths, page_table=item.table, cu_seqlens_q=places, causal=True, backend="interpret"
    )
    assert torch.equal(o, expected[0])


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("code", "mask"),
    [("X101", lambda b, h: True), ("X102", lambda b, h, q, k, *, W: k > W), ("X123", lambda b, h, q, k: k * 0.5)],
)
def test_a_wrong_mask_beside_causal_is_told_at_its_place(code: str, mask: Any, packed: bool) -> None:
    q, caches = torch.zeros(1, 1, 16).half(), [torch.zeros(1, 16, 1, 16).half() for _ in range(2)]
    options: dict[str, Any] = {"cache_seqlens": 5, "causal": True, "block_mask": mask, "backend": "interpret"}
    if packed:
        options["cu_seqlens_q"] = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(CuirError) as caught:
        attention_with_kv_cache(q if packed else q[None], *caches, **options)
    assert caught.value.diagnostics[0].code == code and "per_sequence" not in str(caught.value)


@pytest.mark.parametrize("name", ["q", "k_cache", "cu_seqlens_q", "page_table"])
def test_sparse_tensors_are_refused(name: str) -> None:
    inputs: dict[str, Any] = {
        "q": torch.ones(1, 1, 16).half(),
        "k_cache": torch.ones(1, 16, 1, 16).half(),
        "v_cache": torch.ones(1, 16, 1, 16).half(),
        "cu_seqlens_q": torch.tensor([0, 1], dtype=torch.int32),
        "page_table": torch.ones(1, 1, dtype=torch.int32),
    }
    inputs[name] = inputs[name].to_sparse()
    with pytest.raises(CuirError, match="must be a dense tensor"):
        attention_with_kv_cache(**inputs, cache_seqlens=5, backend="interpret")


def test_a_call_that_is_refused_writes_nothing() -> None:
    caches, (q, k, v) = [torch.zeros(1, 16, 2, 16).half() for _ in range(2)], torch.randn(3, 1, 2, 16).half()

    def biased(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return s + table[h]

    table, places = torch.zeros(1), torch.tensor([0, 1], dtype=torch.int32)  # of too few heads
    for cut, options in ((lambda x: x, {"cu_seqlens_q": places}), (lambda x: x[None], {})):
        with pytest.raises(CuirError, match="U416"):
            attention_with_kv_cache(cut(q), *caches, cut(k), cut(v), cache_seqlens=3, score_mod=biased, backend="interpret", **options)
        assert not any(x.any() for x in caches)
    whole = torch.zeros(1, 1, 2, 16).half().expand(1, 16, 2, 16)
    with pytest.raises(CuirError, match="U419"):
        attention_with_kv_cache(q, whole, whole, k, v, cache_seqlens=3, cu_seqlens_q=places, backend="interpret")


@pytest.mark.parametrize(
    ("change", "result"),
    [
        ({"cu_seqlens_q": torch.tensor([0, 5, 9])}, "cu_seqlens_q must lie from 0 to the 8 tokens of `q`, found 0 to 9"),
        ({"max_seqlen_q": 2}, "max_seqlen_q must be at least the longest sequence, 3 tokens (sequence 0), found 2"),
    ],
)
def test_places_on_a_cpu_are_checked(change: dict[str, Any], result: str) -> None:
    cache = torch.zeros(2, 16, 1, 64).half()
    inputs = {"cu_seqlens_q": torch.tensor([0, 3, 4]), "cache_seqlens": torch.tensor([3, 5]), "backend": "interpret", **change}
    with pytest.raises(CuirError) as caught:
        attention_with_kv_cache(torch.zeros(8, 2, 64).half(), cache, cache, **inputs)
    assert caught.value.diagnostics[0].code == "U413" and result in str(caught.value)

"""attention_with_kv_cache over a latent cache in the interpreter, against float64: pages, lengths of 0, new tokens, any rule; and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir import CuirError, attention_with_kv_cache
from cuir.attn.kernels import latent_settings

LATENT, D = 128, 192
E4M3 = torch.float8_e4m3fn
Mod = Callable[..., Any]


def tilt(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + (h + 1) * 0.01 * (k - q)


def near(b: Any, h: Any, q: Any, k: Any, *, N: Any) -> Any:
    return k >= N - 70


class Problem:
    """Latent vectors of some sequences, in pages of any order whose other slots hold NaN."""

    def __init__(
        self,
        lengths: list[int],
        page: int,
        heads: int,
        M: int = 1,
        new: int = 0,
        dtype: torch.dtype = torch.float16,
        scales: str = "",  # of a cache of 8 bits: "head" or "token"
    ):
        g = torch.Generator().manual_seed(page + M + heads)
        B, most = len(lengths), max(lengths) + new
        MP = -(-most // page)
        self.lengths, self.new = lengths, new
        self.table = torch.randperm(B * MP + 2, generator=g)[: B * MP].view(B, MP).int()
        self.q = torch.randn(B, M, heads, D, generator=g).to(dtype)
        self.tokens = [torch.randn(n + new, D, generator=g).to(dtype) for n in lengths]
        self.cache = torch.full((B * MP + 2, page, 1, D), math.nan, dtype=dtype)
        for b, n in enumerate(lengths):
            for t in range(n):
                self.cache[self.table[b, t // page], t % page, 0] = self.tokens[b][t]
        self.scale: torch.Tensor | None = None
        if scales:
            self._quantise(scales)

    def _quantise(self, scales: str) -> None:
        """Make the cache one of 8 bits; tokens become the numbers that it stands for."""
        if scales == "head":
            self.scale = torch.tensor([0.03])
            of = self.scale.view(1, 1, 1, 1)
        else:
            largest = self.cache.float().abs().amax(-1).nan_to_num(1.0).clamp_min(1e-3)  # [pages, page size, 1]
            self.scale = (largest / 448).transpose(1, 2).contiguous()
            of = self.scale.transpose(1, 2)[..., None]
        page, self.cache = self.cache.shape[1], (self.cache.float() / of).to(E4M3)
        wide = self.cache.float() * of
        self.tokens = [x.clone() for x in self.tokens]
        for b, n in enumerate(self.lengths):
            for t in range(n):
                self.tokens[b][t] = wide[self.table[b, t // page], t % page, 0]

    def call(self, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        new = torch.stack([x[n:, None] for x, n in zip(self.tokens, self.lengths)]) if self.new else None
        seqlens = torch.tensor(self.lengths, dtype=torch.int32)
        given = {
            "cache_seqlens": seqlens,
            "page_table": self.table,
            "latent": LATENT,
            "return_lse": True,
            "verify": "off",
            "k_scale": self.scale,
        }
        o, lse = attention_with_kv_cache(self.q, self.cache, None, new, backend="interpret", **{**given, **options})  # type: ignore[misc, arg-type]
        return o, lse

    def compute_expected(self, score: Mod | None, mask: Mod | None, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
        _, M, H, _ = self.q.shape
        rows, sums = [], []
        for b, tokens in enumerate(self.tokens):
            k, N = tokens.double(), len(tokens)
            h, i, j = torch.arange(H)[:, None, None], torch.arange(M)[:, None], torch.arange(N)
            s = self.q[b].double().transpose(0, 1) @ k.T * D**-0.5
            s = s if score is None else score(s, b, h, i, j)
            keep = torch.ones(H, M, N, dtype=torch.bool) if mask is None else mask(b, h, i, j, N=N).expand(H, M, N)
            s = s.masked_fill(~(keep & (j <= i + N - M) if causal else keep), -torch.inf)
            lse = s.logsumexp(-1)
            rows.append(((s - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp() @ k[:, :LATENT]).transpose(0, 1))
            sums.append(lse)
        return torch.stack(rows), torch.stack(sums)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("problem", "score", "mask", "causal"),
    [
        (Problem([130, 0, 64], 64, 16), None, None, False),
        (Problem([200, 65], 32, 8, M=2), None, None, True),
        (Problem([70, 1], 4, 3, dtype=torch.bfloat16), tilt, None, False),
        (Problem([190], 128, 100, M=1, new=2), tilt, near, True),
        (Problem([700], 64, 16), None, None, False),  # keys in shares
    ],
    ids=["heads", "causal", "small pages", "rules and new tokens", "shares"],
)
def test_results_are_those_of_float64(problem: Problem, score: Mod | None, mask: Mod | None, causal: bool) -> None:
    o, lse = problem.call(score_mod=score, block_mask=mask, causal=causal)
    expected, sums = problem.compute_expected(score, mask, causal)
    tolerance = 0.02 if problem.q.dtype == torch.bfloat16 else 0.003
    torch.testing.assert_close(o.double(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), sums, atol=0.003, rtol=0.001)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("problem", "score", "mask", "causal"),
    [
        (Problem([130, 0, 65], 64, 16, scales="head"), None, None, False),
        (Problem([100, 33], 16, 8, M=2, dtype=torch.bfloat16, scales="token"), tilt, near, True),
        (Problem([70, 1], 4, 3, scales="token"), None, None, True),
        (Problem([700], 64, 16, dtype=torch.bfloat16, scales="head"), tilt, None, False),
    ],
    ids=["heads", "rules", "small pages", "shares"],
)
def test_results_over_8_bits_are_those_of_float64(problem: Problem, score: Mod | None, mask: Mod | None, causal: bool) -> None:
    test_results_are_those_of_float64(problem, score, mask, causal)


@pytest.mark.parametrize("scales", ["head", "token"])
def test_new_tokens_of_8_bits_are_written(scales: str) -> None:
    """With a scale for each token, the call chooses the scale that makes the token's largest number 448."""
    problem = Problem([31, 5], 32, 4, new=2, scales=scales)
    o, lse = problem.call()
    assert problem.scale is not None
    for b, n in enumerate(problem.lengths):
        for t in (n, n + 1):
            page, row = int(problem.table[b, t // 32]), t % 32
            scale = problem.scale[0] if scales == "head" else problem.scale[page, 0, row]
            stored = problem.cache[page, row, 0].float() * scale
            assert scales == "head" or problem.cache[page, row, 0].float().abs().max() == 448
            torch.testing.assert_close(stored, problem.tokens[b][t].float(), atol=0.02, rtol=0.07)
            problem.tokens[b][t] = stored
    expected, sums = problem.compute_expected(None, None, False)
    torch.testing.assert_close(o.double(), expected, atol=0.005, rtol=0.005)
    torch.testing.assert_close(lse.double(), sums, atol=0.005, rtol=0.001)


@pytest.mark.parametrize("normalize", ["sigmoid", "relu"])
def test_weights_without_a_state(normalize: str) -> None:
    problem = Problem([100], 64, 2)
    o, lse = problem.call(normalize=normalize)
    k = problem.tokens[0].double()
    s = problem.q[0].double().transpose(0, 1) @ k.T * D**-0.5
    weights = s.sigmoid() if normalize == "sigmoid" else s.relu() / 100
    torch.testing.assert_close(o[0].double(), (weights @ k[:, :LATENT]).transpose(0, 1), atol=0.01, rtol=0.01)
    assert (lse == 0).all()


def test_new_tokens_are_written() -> None:
    problem = Problem([63, 5], 64, 2, new=2)
    problem.call()
    for b, n in enumerate(problem.lengths):
        for t in (n, n + 1):
            assert problem.cache[problem.table[b, t // 64], t % 64, 0].equal(problem.tokens[b][t])


def attend_selected(problem: Problem, tokens: torch.Tensor, score: Mod | None, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return O [B, M, H, DV] and LSE [B, H, M] in float64: each query gathers its tokens."""
    B, M, H, _ = problem.q.shape
    o, lse = torch.zeros(B, M, H, LATENT, dtype=torch.float64), torch.full((B, H, M), -math.inf, dtype=torch.float64)
    for b, vectors in enumerate(problem.tokens):
        N = len(vectors)
        for i in range(M):
            j = tokens[b, i].long()
            j = j[(j >= 0) & (j < N) & ((j <= i + N - M) | (not causal))]
            if not len(j):
                continue
            k = vectors[j].double()
            s = problem.q[b, i].double() @ k.T * D**-0.5
            s = s if score is None else score(s, b, torch.arange(H)[:, None], i, j)
            o[b, i], lse[b, :, i] = s.softmax(-1) @ k[:, :LATENT], s.logsumexp(-1)
    return o, lse


@given(
    st.lists(st.integers(0, 150), min_size=1, max_size=2),
    st.sampled_from([4, 64, 37]),
    st.sampled_from([1, 3, 65]),
    st.integers(1, 3),
    st.integers(0, 140),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=6, deadline=None)
def test_selected_tokens_are_those_that_are_gathered(
    lengths: list[int], page: int, heads: int, M: int, n: int, causal: bool, rule: bool
) -> None:
    """Entries that are no tokens are left out, and a token that is named twice counts twice."""
    problem = Problem([max(1, max(lengths)), *lengths], page, heads, M)
    g = torch.Generator().manual_seed(n)
    tokens = torch.randint(-2, max(problem.lengths) + 2, (len(problem.lengths), M, n), generator=g)
    score = tilt if rule else None
    o, lse = problem.call(selected_tokens=tokens if n % 2 else tokens.int(), score_mod=score, causal=causal)
    expected, sums = attend_selected(problem, tokens, score, causal)
    torch.testing.assert_close(o.double(), expected, atol=0.004, rtol=0.004)
    torch.testing.assert_close(lse.double(), sums, atol=0.003, rtol=0.001)


def test_selected_tokens_in_shares_and_new_ones() -> None:
    problem = Problem([700], 64, 16, new=1, dtype=torch.bfloat16)
    tokens = torch.randint(-1, 701, (1, 1, 600), generator=torch.Generator().manual_seed(0)).int()
    tokens[0, 0, 5] = 700  # the new one
    o, lse = problem.call(selected_tokens=tokens)
    expected, sums = attend_selected(problem, tokens, None, False)
    torch.testing.assert_close(o.double(), expected, atol=0.02, rtol=0.02)
    torch.testing.assert_close(lse.double(), sums, atol=0.003, rtol=0.001)


def test_bits_of_selected_tokens_are_of_their_list_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of other queries and sequences, nor of entries behind the list that are no tokens."""
    monkeypatch.setattr(latent_settings, "FIXED_SHARE", 128)
    problem = Problem([300, 90], 64, 16, M=2)
    tokens = torch.randint(0, 300, (2, 2, 200), generator=torch.Generator().manual_seed(1)).int()
    together, _ = problem.call(selected_tokens=tokens, batch_invariant=True)
    alone, _ = attention_with_kv_cache(
        problem.q[:1, 1:].contiguous(),
        problem.cache,
        None,
        cache_seqlens=300,
        page_table=problem.table[:1],
        latent=LATENT,
        selected_tokens=torch.nn.functional.pad(tokens[:1, 1:], (0, 300), value=-1),
        batch_invariant=True,
        return_lse=True,
        backend="interpret",
        verify="off",
    )
    assert alone[0, 0].equal(together[0, 1])


LIST = torch.zeros(1, 1, 5, dtype=torch.int32)


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("U402", {"latent": None}),
        ("U413", {"latent": 100}),
        ("U402", {"v_scale": torch.ones(1)}),
        ("U404", {"k_scale": torch.ones(1)}),
        ("U413", {"cu_seqlens_q": torch.tensor([0, 1], dtype=torch.int32)}),
        ("U403", {"selected_tokens": [[[0]]]}),
        ("U404", {"selected_tokens": LIST.float()}),
        ("U407", {"selected_tokens": LIST.to("meta")}),
        ("U408", {"selected_tokens": LIST.expand(1, 2, 5)}),
        ("U408", {"selected_tokens": LIST[0]}),
    ],
)
def test_what_is_refused(code: str, options: dict[str, Any]) -> None:
    with pytest.raises(CuirError) as error:
        Problem([9], 64, 2).call(**options)
    assert error.value.diagnostics[0].code == code


def test_tokens_are_selected_from_latent_vectors_of_the_dtype_of_q() -> None:
    with pytest.raises(CuirError) as error:
        Problem([9], 64, 2, scales="head").call(selected_tokens=LIST)
    assert error.value.diagnostics[0].code == "U109"
    problem = Problem([9], 64, 2)
    with pytest.raises(CuirError, match="selected_tokens are of a latent cache") as error:
        attention_with_kv_cache(
            problem.q, problem.cache, problem.cache, cache_seqlens=9, page_table=problem.table, selected_tokens=LIST, backend="interpret"
        )
    assert error.value.diagnostics[0].code == "U402"


def test_tensors_that_are_refused() -> None:
    problem = Problem([9], 64, 2)
    values = problem.cache[..., :LATENT]
    for code, q, cache, v_cache in (
        ("U402", problem.q, problem.cache, values),
        ("U109", problem.q.float(), problem.cache.float(), None),
        ("U109", problem.q.float(), problem.cache.to(E4M3), None),
        ("U110", problem.q[..., :64], problem.cache, None),
    ):
        with pytest.raises(CuirError) as error:
            attention_with_kv_cache(q, cache, v_cache, cache_seqlens=9, page_table=problem.table, latent=LATENT, backend="interpret")
        assert error.value.diagnostics[0].code == code


@pytest.mark.sweep
@pytest.mark.parametrize("scales", ["", "token"])
def test_bits_are_of_the_sequence_alone(scales: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of other sequences, the capacity, or the number of queries; some divisions for each shape are not so."""
    monkeypatch.setattr(latent_settings, "FIXED_SHARE", 128)
    problem = Problem([500, 90, 257], 64, 16, M=2, scales=scales)
    together, sums = problem.call(causal=True, batch_invariant=True)
    expected, _ = problem.compute_expected(None, None, True)
    torch.testing.assert_close(together.double(), expected, atol=0.003, rtol=0.003)
    for b, n in enumerate(problem.lengths):
        wider = torch.nn.functional.pad(problem.table[b : b + 1], (0, 9))
        for M, length, table in ((2, n, problem.table[b : b + 1]), (2, n, wider), (1, n, wider), (1, n - 1, wider)):
            q = problem.q[b : b + 1, 1 if (M, length) == (1, n) else 0 :][:, :M]
            alone = attention_with_kv_cache(
                q.contiguous(),
                problem.cache,
                None,
                cache_seqlens=torch.tensor([length], dtype=torch.int32),
                page_table=table,
                causal=True,
                latent=LATENT,
                batch_invariant=True,
                k_scale=problem.scale,
                return_lse=True,
                backend="interpret",
                verify="off",
            )
            rows = slice(None) if M == 2 else slice(length - n + 1, length - n + 2)
            assert alone[0][0].equal(together[b, rows]) and alone[1][0].equal(sums[b, :, rows]), (b, M, length)

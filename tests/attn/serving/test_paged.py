"""PyTorch's PagedAttention on top: its masks and mods over a cache of pages that all batches share, beside attention on the sequences themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.experimental._paged_attention import PagedAttention

from cuir import CuirError, Specification, attention, create_block_mask, flex_attention
from cuir.attn.api import prepared_calls
from cuir.attn.capture.capture_keys import make_capture_key

H, D, PAGE, PAGES, LONGEST = 2, 64, 32, 20, 160
LENGTHS = torch.tensor([100, 60, 160])
Mod = Callable[..., Any]


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def sloped(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + (q - k) * 0.02 * (h + 1)


class Cache:
    """Sequences of three batches, in pages that were reserved in turns, so that those of a batch lie anywhere."""

    def __init__(self, heads: int = H) -> None:
        g = torch.Generator().manual_seed(0)
        self.k, self.v = (torch.randn(3, heads, LONGEST, D, generator=g).half() for _ in range(2))
        self.paged = PagedAttention(PAGES, PAGE, 3, device="cpu")
        self.pages_k, self.pages_v = (torch.zeros(1, heads, PAGES * PAGE, D, dtype=torch.float16) for _ in range(2))
        for part in (1, 2):
            for b, length in enumerate(LENGTHS):
                self.paged.reserve(torch.tensor(b), length * part // 2)
        for b, length in enumerate(LENGTHS.tolist()):
            self.paged.assign(
                torch.tensor([b]),
                torch.arange(length)[None],
                self.k[b : b + 1, :, :length],
                self.v[b : b + 1, :, :length],
                self.pages_k,
                self.pages_v,
            )

    def attend(self, q: torch.Tensor, mask: Any, score: Mod | None, **options: Any) -> torch.Tensor:
        ours = self.paged.convert_logical_block_mask(mask, kv_len=LENGTHS)
        within = self.paged.get_score_mod(score, LENGTHS)  # which leaves out what a whole block has behind the end of its sequence
        result = flex_attention(q, self.pages_k, self.pages_v, within, ours, backend="interpret", verify="off", **options)
        assert isinstance(result, torch.Tensor)
        return result

    def compute_expected(self, q: torch.Tensor, mod: Mod | None, score: Mod | None) -> torch.Tensor:
        def within(b: Any, h: Any, i: Any, j: Any) -> Any:
            short = j < LENGTHS[b]
            return short if mod is None else short & mod(b, h, i, j)

        return Specification("wanted", within, score).reference(q, self.k, self.v, D**-0.5)[0].float()


def queries(m: int, heads: int = H) -> torch.Tensor:
    return torch.randn(3, heads, m, D, generator=torch.Generator().manual_seed(m)).half()


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.float(), expected, atol=3e-3, rtol=1e-2)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("make", [torch_flex.create_block_mask, create_block_mask], ids=["PyTorch's", "ours"])
@pytest.mark.parametrize("score", [None, sloped])
@pytest.mark.parametrize("mod", [causal, torch_flex.noop_mask])
def test_pages_of_a_cache(mod: Mod, score: Mod | None, make: Callable[..., Any]) -> None:
    cache, q = Cache(), queries(LONGEST)
    mask = make(mod, 3, 1, LONGEST, LONGEST, "cpu", BLOCK_SIZE=PAGE)
    close(cache.attend(q, mask, score), cache.compute_expected(q, None if mod is torch_flex.noop_mask else mod, score))


def test_decoding_with_grouped_heads() -> None:
    cache, q = Cache(1), queries(1, 4)
    at = LENGTHS - 1

    def last(b: Any, h: Any, i: Any, j: Any) -> Any:
        return at[b] + i >= j

    mask = create_block_mask(last, 3, 1, 1, LONGEST, "cpu", BLOCK_SIZE=(1, PAGE))
    close(cache.attend(q, mask, None, enable_gqa=True), cache.compute_expected(q, last, None))


def test_pages_that_are_reserved_later_are_other_data() -> None:
    cache, q = Cache(), queries(LONGEST)
    mask = create_block_mask(causal, 3, 1, LONGEST, LONGEST, "cpu", BLOCK_SIZE=PAGE)
    mod = cache.paged.get_mask_mod(causal, LENGTHS)
    before = make_capture_key(mod)
    for step in range(3):
        prepared_calls._ATTENTIONS.clear()
        close(cache.attend(q, mask, sloped), cache.compute_expected(q, causal, sloped))
        if step == 0:
            expected_values = len(prepared_calls._TRACED)
        cache.paged.reserve(torch.tensor(step % 2), LENGTHS[step % 2] + 40)
    assert len(prepared_calls._TRACED) == expected_values and make_capture_key(mod).structure == before.structure


def test_a_cache_under_torch_compile() -> None:
    cache, q = Cache(), queries(LONGEST)
    mask = create_block_mask(causal, 3, 1, LONGEST, LONGEST, "cpu", BLOCK_SIZE=PAGE)
    paged_mask = cache.paged.convert_logical_block_mask(mask, kv_len=LENGTHS)
    score = cache.paged.get_score_mod(sloped, LENGTHS)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score, paged_mask, backend="interpret", verify="off")

    torch.compiler.reset()
    close(torch.compile(call, fullgraph=True, backend="eager")(q, cache.pages_k, cache.pages_v), cache.compute_expected(q, causal, sloped))


# ---- an object of a library's class is known by what the code on the way reads of it
def by_name(paged: PagedAttention) -> Mod:
    return lambda b, h, q, k: q // paged.page_size == k // paged.page_size


def by_getattr(paged: PagedAttention) -> Mod:
    return lambda b, h, q, k: q // getattr(paged, "page_" + "size") == k // paged.page_size


@pytest.mark.parametrize("make", [by_name, by_getattr])
def test_what_a_mod_reads_of_it_is_noticed(make: Callable[[PagedAttention], Mod]) -> None:
    paged, (q, k, v) = PagedAttention(5, 8, 1, device="cpu"), (queries(40)[:1] for _ in range(3))
    mod = make(paged)
    mask = create_block_mask(mod, None, None, 40, 40, "cpu")
    for size in (8, 20, 8):
        paged.page_size = size
        for _ in range(2):
            result = flex_attention(q, k, v, None, mask, backend="interpret", verify="off")
            close(result, Specification("wanted", mod).reference(q, k, v, D**-0.5)[0].float())  # type: ignore[arg-type]
    before = make_capture_key(mod)
    paged.empty_pages.append(9)
    assert (make_capture_key(mod).structure == before.structure) == (make is by_name)


def test_an_attribute_that_comes_to_be_read() -> None:
    """What another attribute leads to reads it."""
    paged: Any = PagedAttention(5, 8, 1, device="cpu")
    paged.other, paged.width = causal, 3
    mod = lambda b, h, q, k: paged.other(b, h, q, k)  # noqa: E731
    before = make_capture_key(mod)
    paged.width = 4
    assert make_capture_key(mod).values == before.values
    paged.other = lambda b, h, q, k: q - k < paged.width
    before = make_capture_key(mod)
    paged.width = 5
    assert make_capture_key(mod).values != before.values


# ---- keys that all batches share
def test_keys_of_one_batch_as_pytorch_takes_them() -> None:
    q, k, v = queries(90), *(torch.randn(1, H, 130, D).half() for _ in range(2))
    mask = create_block_mask(lambda b, h, i, j: i + 10 * b >= j, 3, None, 90, 130, "cpu")
    expected = torch_flex.flex_attention(q.float(), k.float(), v.float(), sloped, mask)
    for _ in range(2):
        close(flex_attention(q, k, v, sloped, mask, backend="interpret", verify="off"), expected)  # type: ignore[arg-type]
    each = (x.expand(3, -1, -1, -1).contiguous() for x in (k, v))
    close(flex_attention(q, *each, sloped, mask, backend="interpret", verify="off"), expected)  # type: ignore[arg-type]
    item = flex_attention(q[:1], k, v, sloped, create_block_mask(causal, None, None, 90, 130), backend="interpret", verify="off")
    close(
        item, torch_flex.flex_attention(q[:1].float(), k.float(), v.float(), sloped, create_block_mask(causal, None, None, 90, 130, "cpu"))
    )  # type: ignore[arg-type]


def test_the_explicit_form() -> None:
    q, k, v = queries(90), *(torch.randn(1, H, 130, D).half() for _ in range(2))
    spec = Specification("shared", causal, sloped)
    expected = spec.reference(q, *(x.expand(3, -1, -1, -1) for x in (k, v)), D**-0.5)[0]
    close(attention(spec, head_dim=D)(q, k, v, backend="interpret"), expected.float())  # type: ignore[arg-type]


def test_batches_that_disagree() -> None:
    q, k, v = queries(90), torch.zeros(2, H, 130, D).half(), torch.zeros(1, H, 130, D).half()
    for keys, values in ((k, k), (v, k), (k, v)):
        with pytest.raises(CuirError, match="U408"):
            flex_attention(q, keys, values, backend="interpret")

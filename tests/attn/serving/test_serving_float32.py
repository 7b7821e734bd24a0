"""float32 in packed sequences, nested tensors and calls over a cache, in the interpreter: as accurate as float32 is, TF32 where PyTorch allows it, with gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import corpus
import cuir
from cuir import attention_with_kv_cache, flex_attention, varlen_attention
from cuir.attn.api import prepared_calls
from cuir.verification import stages
from tests.attn.serving import test_cached as cached
from tests.attn.serving import test_packed_cache as packed_cache
from tests.attn.serving.test_varlen import PACKED_ARGUMENTS, PACKED_CASES, Mod, Packed, alibi, from_start, gradients

SINGLE = torch.float32
Outputs = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def off(x: torch.Tensor, exact: torch.Tensor) -> float:
    return float((x.detach().double() - exact.detach()).norm() / (exact.detach().norm() or 1.0))


def exact_to_single(actual: Outputs, expected: Outputs) -> None:
    assert actual[0].dtype == actual[1].dtype == SINGLE
    assert off(actual[0], expected[0]) < 1e-6
    torch.testing.assert_close(actual[1].double(), expected[1], rtol=1e-5, atol=1e-5)


ODD_DIMS = (([30, 90], [100, 90], (2, 2), (35, 21)), None, from_start, False)


@pytest.mark.sweep
@pytest.mark.parametrize(PACKED_ARGUMENTS, [*PACKED_CASES, ODD_DIMS])
def test_packed_sequences(problem: tuple[Any, ...], score: Mod | None, mask: Mod | None, causal: bool) -> None:
    result = Packed(*problem, dtype=SINGLE)
    exact_to_single(result.call(score_mod=score, block_mask=mask, causal=causal), result.compute_expected(score, mask, causal))


@pytest.mark.sweep
@pytest.mark.parametrize(
    PACKED_ARGUMENTS,
    [
        (([300, 17], 0, (8, 2)), None, None, False),
        (([200, 1], 0, (4, 2), 3, (128, 128), 0, "HND"), None, None, True),
        (([100, 0, 31], 16, (4, 1), 2, (64, 64), 2), None, None, True),
        (([70, 5], 1, (4, 2)), None, None, True),
        (([70, 5], 4, (4, 2), 2, (68, 36), 1), None, None, True),
        (([170, 49], 48, (4, 2)), None, cached.behind_five, False),
        (([170, 3], 16, (4, 2), 4), cached.alibi, cached.from_start, True),
        (([70], 64, (2, 1), 70, (256, 256)), None, None, True),
    ],
)
def test_queries_over_a_cache(problem: tuple[Any, ...], score: Mod | None, mask: Mod | None, causal: bool) -> None:
    result = cached.Problem(*problem, dtype=SINGLE)
    exact_to_single(result.call(score_mod=score, block_mask=mask, causal=causal), result.compute_expected(score, mask, causal))


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    PACKED_ARGUMENTS,
    [
        (([100, 1, 0, 3], [200, 77, 30, 3], 64, (4, 2)), None, None, True),
        (([130, 20], [140, 150], 48, (4, 2), (64, 128)), alibi, from_start, True),
        (([9, 66], [90, 66], 4, (2, 2)), None, None, True),
        (([80, 30], [80, 200], 0, (4, 2)), None, None, False),
        (([50, 2], [60, 40], 32, (2, 2), (64, 64), True, "HND"), None, None, True),
    ],
)
def test_packed_queries_over_a_cache(problem: tuple[Any, ...], score: Mod | None, mask: Mod | None, causal: bool) -> None:
    result = packed_cache.Problem(*problem, dtype=SINGLE)
    exact_to_single(result.call(score_mod=score, block_mask=mask, causal=causal), result.compute_expected(score, mask, causal))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("level", ["high", "medium"])
def test_tf32_where_it_is_allowed(level: str) -> None:
    for result in (Packed([70, 30], [70, 90], (2, 1), dtype=SINGLE), cached.Problem([150, 20], 16, (4, 2), 3, dtype=SINGLE)):
        torch.set_float32_matmul_precision("highest")
        expected = result.compute_expected()[0]
        exact = result.call()[0]
        torch.set_float32_matmul_precision(level)
        rounded = result.call()[0]  # the same mods: a call that is known, but for the precision
        assert off(exact, expected) < 1e-6 < 1e-5 < off(rounded, expected) < 8e-4


def test_gradients_of_nested_tensors_and_of_what_their_mod_captures() -> None:
    result, slopes = Packed([37, 3, 70], [37, 3, 70], (2, 2), dtype=SINGLE), torch.tensor([0.5, 0.1]).requires_grad_()
    leaves = [torch.cat(x).requires_grad_() for x in (result.q, result.k, result.v)]
    offsets = torch.tensor([0, *result.lengths[0]]).cumsum(0)
    query, key, value = (torch.nested.nested_tensor_from_jagged(x, offsets).transpose(1, 2) for x in leaves)
    o, lse = flex_attention(
        query, key, value, lambda s, b, h, q, k: s + slopes[h] * 0.1 * (k - q), return_lse=True, backend="interpret", verify="off"
    )
    actual = gradients((o.transpose(1, 2).values(), lse.transpose(1, 2).values().T), (*leaves, slopes))
    exact = [x.detach().double().requires_grad_() for x in (*leaves, slopes)]
    result.q, result.k, result.v = (list(x.split(result.lengths[0])) for x in exact[:3])
    expected = gradients(result.compute_expected(lambda s, b, h, q, k: s + exact[3][h] * 0.1 * (k - q)), tuple(exact))
    assert all(off(x, y) < 3e-6 for x, y in zip(actual, expected, strict=True))


def test_gradients_of_packed_sequences() -> None:
    result = Packed([30, 60], [100, 90], (2, 1), (36, 20), dtype=SINGLE)
    leaves = [torch.cat(x).requires_grad_() for x in (result.q, result.k, result.v)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    starts = [torch.tensor([0, *n]).cumsum(0).int() for n in result.lengths]
    actual = varlen_attention(*leaves, *starts, causal=True, enable_gqa=True, return_lse=True, backend="interpret", verify="off")  # type: ignore[misc]
    result.q, result.k, result.v = (list(x.split(n)) for x, n in zip(exact, (result.lengths[0], result.lengths[1], result.lengths[1])))
    expected = result.compute_expected(causal=True)
    exact_to_single(actual, expected)
    assert all(off(x, y) < 3e-6 for x, y in zip(gradients(actual, tuple(leaves)), gradients(expected, tuple(exact)), strict=True))


def test_new_tokens_are_in_the_cache_and_one_program_serves_all_calls_over_it() -> None:
    result = cached.Problem([40, 5], 16, (4, 2), 1, new=1, dtype=SINGLE)
    result.call(causal=True)
    assert result.table is not None
    assert all(
        torch.equal(cache[result.table[b, n // 16], n % 16], tokens[b][n])
        for cache, tokens in zip(result.caches, (result.keys, result.values))
        for b, n in ((0, 40), (1, 5))
    )
    prepared_calls._ATTENTIONS.clear()
    for lengths, M in (([40, 5], 1), ([9, 100, 3], 4)):
        cached.Problem(lengths, 16, (4, 2), M, dtype=SINGLE).call()
    packed_cache.Problem([3, 20], [30, 20], 16, (4, 2), dtype=SINGLE).call()
    assert len({id(expected_values.attention) for expected_values in prepared_calls._ATTENTIONS.values()}) == 1


def test_under_torch_compile() -> None:
    def call(q: torch.Tensor, *caches: torch.Tensor) -> torch.Tensor:
        packed = varlen_attention(
            q.flatten(0, 1), *(x.flatten(0, 1) for x in caches), starts, ends, enable_gqa=True, backend="interpret", verify="off"
        )
        return attention_with_kv_cache(q, *caches, cache_seqlens=lengths, backend="interpret", verify="off") + packed.view(q.shape)

    q, k, v = (torch.randn(2, n, h, 64, generator=torch.Generator().manual_seed(n)) for n, h in ((3, 4), (40, 2), (40, 2)))
    lengths, starts, ends = (torch.tensor(x, dtype=torch.int32) for x in ([40, 9], [0, 3, 6], [0, 40, 80]))
    assert torch.equal(torch.compile(call, backend="eager", fullgraph=True)(q, k, v), call(q, k, v))


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("chunk", "right", "wrong"),
    [
        (0, "cleared(sV[s], left)\n", "fence_async()\n"),
        (16, "return PAGES[b, page] if row < KEND[b] else NP", "return PAGES[b, page] if row < KEND[b] - 1 else NP"),
    ],
)
def test_a_fault_at_the_end_of_a_sequence_is_found(chunk: int, right: str, wrong: str) -> None:
    text = corpus.kernels()["flash_fwd_varlen_f32"].read_text(encoding="utf-8")
    assert text.count(right) == 1
    consts, spec = {"T": cuir.f32, "D": 8, "BM": 64, "CHUNK": chunk}, corpus.specification("causal_packed")()
    assert not cuir.verify(cuir.parse(text.replace(right, wrong)), spec, consts=consts, seeded=0, shrink=False).ok


@pytest.mark.thorough("a whole verification of a right program, whose numbers and faults have their tests here")
def test_the_kernel_is_right_over_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its schedules are alike: tests/explore/test_programs.py."""
    monkeypatch.setattr(stages._Verification, "schedules", lambda *arguments: None)
    program = cuir.parse(corpus.kernels()["flash_fwd_varlen_f32"].read_text(encoding="utf-8"))
    consts = {"T": cuir.f32, "D": 8, "BM": 64, "CHUNK": 16}
    assert cuir.verify(program, corpus.specification("causal_packed")(), consts=consts, seeded=0).ok

"""Reads by function, searches and joins of captured tensors, as PyTorch computes them for single pairs; what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir import Specification
from cuir.attn.tracing.mod_evaluator import CONSTANTS, evaluate
from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Lengths
from cuir.text.diagnostics import CuirError

F = torch.nn.functional
AT = Lengths(2, 4, 4, 24, 24)
G = torch.Generator().manual_seed(0)
T, R, IDS = torch.randn(7, 5, generator=G), torch.randn(6, generator=G), torch.randint(0, 6, (24,), generator=G)
EDGES, STEPS, SORTED = (
    torch.tensor([1, 3, 3, 8, 20]),
    torch.tensor([-0.5, 0.0, 0.7, 1.5]),
    torch.sort(torch.randn(4, 6, generator=G)).values,
)
ORDER, TABLE = torch.argsort(R), torch.nn.Embedding(7, 5, padding_idx=2).requires_grad_(False)
MODS: dict[str, Callable[..., Any]] = {
    "embedding": lambda s, b, h, q, k: s + F.embedding(q % 7, T)[k % 5] + F.embedding(IDS[k], T, padding_idx=-3).sum(),
    "embedding as a module and as an operation": lambda s, b, h, q, k: s + TABLE(k % 7)[h] + torch.embedding(T, q % 7)[1],
    "embedding of rows": lambda s, b, h, q, k: s + F.embedding(IDS[:3], T)[h % 3, k % 5] + F.embedding(input=IDS[None], weight=T)[0, q, k % 5],
    "gather": lambda s, b, h, q, k: s + torch.gather(R, 0, (k % 6).long()) + R.gather(0, IDS[k].long()) + T.gather(1, IDS[:3][None].long() % 5)[0, h % 3],
    "gather by name": lambda s, b, h, q, k: s + torch.gather(input=T[h], dim=-1, index=(k % 5).long().unsqueeze(0))[0],
    "index_select": lambda s, b, h, q, k: s + R.index_select(0, q % 6)[0] + torch.index_select(T, 1, IDS[:2] % 5)[h, k % 2] + T.index_select(dim=0, index=k % 7).sum(),
    "take": lambda s, b, h, q, k: s + torch.take(T, (k + h).long()) + T.take(IDS.long()).sum() + R.take(torch.tensor(-1)),
    "take_along_dim": lambda s, b, h, q, k: s + torch.take_along_dim(R, (k % 6).long()[None], 0)[0] + torch.take_along_dim(R, (k % 6).long())[0] + T.take_along_dim(IDS[:7].long()[:, None] % 5, 1)[h, 0],
    "stack, then reduced": lambda s, b, h, q, k: torch.stack([s, s * 2, R[h]]).max() + torch.stack([R[q % 6], R[k % 6], s]).sum() + torch.stack((q, k)).float().mean() * 0.1,
    "stack, then indexed": lambda s, b, h, q, k: torch.stack([s, s * 2, R[h], -s])[(q + k) % 4] + torch.stack([q, k, s])[-1] + torch.stack([q, k, s])[q % 3 - 3],
    "stack, then multiplied": lambda s, b, h, q, k: s + torch.dot(torch.stack([R[q % 6], R[k % 6]]), torch.stack([R[1], R[h]])) + torch.stack([T[h], T[b]], dim=1)[k % 5, q % 2],
    "stack of rows": lambda s, b, h, q, k: s + torch.stack([T[h], T[b], T[q % 7]])[k % 3].sum() + torch.stack([torch.stack([s, R[0]]), torch.stack([R[1], R[2]])]).prod(0)[k % 2],
    "cat": lambda s, b, h, q, k: s + torch.cat([R, T[h], T[1]])[k % 16] + torch.cat([T, T[:2]], dim=0)[k % 9, h] + torch.cat((T, T), -1)[h, 9] + torch.cat([T, R[:5][None]])[-1].sum(),
    "hstack and vstack": lambda s, b, h, q, k: torch.hstack([s, R[h], R[k % 6]])[q % 3] + torch.vstack([R, R * 2])[q % 2, k % 6] + torch.hstack([T, T])[h, k % 10] + torch.concat([s[None], R]).amax(),
    "isin": lambda s, b, h, q, k: torch.where(torch.isin(k, IDS[:5]) | torch.isin(q, torch.tensor([3, 9]), invert=True), s, s - 1) + torch.isin(IDS[:4], k).sum() * 0.1 + torch.isin(s, R) * 1.0,
    "isin of numbers": lambda s, b, h, q, k: torch.where(torch.isin(elements=k, test_elements=IDS[:5], assume_unique=False), s, 0.0) + torch.isin(IDS[q], 3),
    "bucketize": lambda s, b, h, q, k: s + T[torch.bucketize(k, EDGES), torch.bucketize(q - k, EDGES, right=True, out_int32=True) % 5] + torch.bucketize(s, STEPS) + torch.bucketize(input=s, boundaries=STEPS, right=True),
    "searchsorted": lambda s, b, h, q, k: s + torch.searchsorted(EDGES, k, side="right") + torch.searchsorted(SORTED[h], s) * 0.5 + torch.searchsorted(SORTED, R[:4, None])[h, 0] + torch.searchsorted(sorted_sequence=STEPS, input=s, right=True),
    "searchsorted of another order": lambda s, b, h, q, k: s + torch.searchsorted(R, s, sorter=ORDER),
    "one_hot": lambda s, b, h, q, k: s + (F.one_hot(k.long() % 6, 6) * R).sum() + F.one_hot(IDS.long(), 6)[q, 3] + F.one_hot(q.long() % 4, num_classes=4)[h],
    "where of rows": lambda s, b, h, q, k: s + torch.where(T[h] > s, T[h], T[b]).sum() + T[h].where(T[h] > 0, s).amax() + torch.where(torch.stack([q, k]) > 3, R[:2], R[2:4]).sum(),
    "places of extremes": lambda s, b, h, q, k: torch.stack([s, s * 2, R[h], R[h]]).argmax() + T.argmin(1)[h] * 0.5 + torch.argmax(T) + T[q % 7].max(0).indices + sum(T[k % 7].min(dim=0)) + torch.stack([q, k]).max(-1)[1] + largest(T[h]),
    "tensors that the mod makes": lambda s, b, h, q, k: s + torch.arange(24)[q] + torch.ones(24, 24).tril()[q, k] + torch.tensor([0.5, 2.0, -1.0])[k % 3] * torch.eye(4, dtype=torch.bool)[h, k % 4] + torch.arange(5).repeat_interleave(5)[k],
    "places that shift": lambda s, b, h, q, k: s + R.roll(2)[k % 6] + T.roll(-1, 0)[h, k % 5] + torch.roll(T, (1, 2), (0, 1))[q % 7, h] + T.roll(3)[h, 0],
    "repetitions": lambda s, b, h, q, k: s + R.repeat(4)[k] + R.repeat_interleave(4)[q] + T.tile(2)[h, k % 10] + T.repeat(2, 1, 3)[b, q % 7, k % 15] + torch.repeat_interleave(T, 2, dim=1)[h, k % 10] + T.ravel()[k],
    "triangles": lambda s, b, h, q, k: s + T.tril()[q % 7, k % 5] + T.triu(-1)[h, k % 5] + torch.tril(T > 0, 1)[q % 7, k % 5],
    "parts": lambda s, b, h, q, k: s + T[h].split(2)[1].sum() + T.split([3, 4])[1][h, k % 5] + sum(T[q % 7].chunk(2)[0]) + torch.chunk(T, 3, dim=-1)[2][h, 0],
    "products": lambda s, b, h, q, k: s + F.linear(T[h], T[:3], R[:3])[k % 3] + torch.einsum("d,ed->e", T[h], T)[k % 7] + torch.einsum("i, j", R, R)[h, k % 6] + torch.outer(T[h], T[b])[k % 5, 1] + F.linear(T[:2], R[:5])[b],
    "distributions": lambda s, b, h, q, k: s + T[h].softmax(-1)[k % 5] + F.log_softmax(torch.stack([s, R[h], R[1]]), dim=0)[0] + T.logsumexp(1)[h] + T[q % 7].var(unbiased=False) + T.std(0)[k % 5] + R.var(False) + T[h].std(correction=2),
    "normalisation": lambda s, b, h, q, k: s + F.layer_norm(T[h], (5,), R[:5], R[1:])[k % 5] + F.rms_norm(T[q % 7], [5], eps=1e-3)[h] + torch.stack(torch.var_mean(T[h])).sum(),
    "half precision": lambda s, b, h, q, k: s + torch.stack([R[h].half(), q.half()]).sum().float() + torch.stack([R[h].half(), R[k % 6]])[0] / 3 + torch.cat([R.half(), IDS[:2]])[k % 8].float() / 3,
}  # fmt: skip


def largest(row: Any) -> Any:
    values, places = row.max(0)
    return values * places


SCORES = (0.7, -0.5, 0.0, float(R[2]), math.nan)


def evaluate_score(mod: Callable[..., Any], place: tuple[torch.Tensor, ...], score: float) -> torch.Tensor:
    """The traced score of a pair."""
    spec = Specification("lookups", score_mod=mod)
    traced = trace(spec)
    assert traced.rows
    names = {p.name: p.argument(spec, AT) for p in traced.parameters}
    names |= {n: x.to(torch.int32) for n, x in zip("bhqk", place)} | {"S": torch.tensor(score), "scale": 1.0}
    terms = (torch.as_tensor(evaluate(e, names)) for e in (traced.score, traced.factor))
    return (next(terms) * next(terms) / CONSTANTS["LOG2E"]).reshape(())


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODS)
def test_the_trace_gives_what_pytorch_gives_for_single_pairs(name: str) -> None:
    places = torch.randint(0, 2**20, (12, 4), generator=torch.Generator().manual_seed(3)) % torch.tensor([AT.B, AT.H, AT.M, AT.N])
    for place in places:
        for score in SCORES:
            expected = torch.as_tensor(MODS[name](torch.tensor(score), *place)).float()
            torch.testing.assert_close(evaluate_score(MODS[name], tuple(place), score), expected, rtol=1e-4, atol=1e-5, equal_nan=True)


floats = st.floats(-2, 2, width=16).map(lambda x: round(x * 4) / 4)  # of which many are equal


@settings(max_examples=40, deadline=None)
@given(st.lists(floats, max_size=9), st.one_of(floats, st.sampled_from([math.inf, -math.inf, math.nan])), st.booleans(), st.integers(0, 8))
def test_searches_count_equal_boundaries_and_special_values_as_pytorch(bounds: list[float], score: float, right: bool, k: int) -> None:
    row, whole = torch.tensor(bounds).sort().values, torch.tensor(bounds).mul(4).int().sort().values

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        actual = torch.bucketize(s, row, right=right) + 10 * torch.searchsorted(row, s, side="left" if not right else "right")
        return actual + 100 * torch.bucketize(k, whole, right=right) + 0.25 * torch.isin(s, row) + 0.5 * torch.isin(k, whole, invert=right)

    place = tuple(torch.tensor(i) for i in (0, 0, 0, k))
    score = score if bounds else 0.0  # of no boundary the result is a constant, to which a trace adds 0 times the product
    expected = mod(torch.tensor(score), *place[:3], place[3].int())
    assert round(4 * float(evaluate_score(mod, place, score)), 2) == 4 * float(expected)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(floats, st.just(math.nan)), max_size=9), floats, st.booleans())
def test_boundaries_that_are_nan_or_out_of_order_are_searched_as_pytorch_does(bounds: list[float], score: float, right: bool) -> None:
    row = torch.tensor(bounds)
    place = tuple(torch.tensor(0) for _ in range(4))
    result = evaluate_score(lambda s, b, h, q, k: torch.bucketize(s, row, right=right), place, score if bounds else 0.0)
    assert round(float(result), 3) == int(torch.bucketize(torch.tensor(score), row, right=right))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_joined_tensors_are_read_at_any_place_as_pytorch_reads_them(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any))
    dtypes = data.draw(st.lists(st.sampled_from([torch.float32, torch.int32, torch.bool]), min_size=len(sizes), max_size=len(sizes)))
    dim, total = data.draw(st.sampled_from([0, 1, -1])), sum(sizes)
    size = data.draw(st.integers(1, 3))
    parts = [torch.randn([n, size] if dim == 0 else [size, n]).mul(3).to(d) for n, d in zip(sizes, dtypes)]
    alike = [torch.randn(size, 2).mul(3).to(d) for d in dtypes]
    shift = data.draw(st.integers(-total, 0))

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        joined, stacked = torch.cat(parts, dim), torch.stack(alike, dim)
        mine = joined[q % total + shift, k % size] if dim == 0 else joined[k % size, q % total + shift]
        last = [size, 2]
        last.insert(dim if dim >= 0 else 2, len(alike))
        return s + mine + stacked[q % last[0], k % last[1], h % last[2]].float()

    for place in ((0, 0, 0, 0), (0, 1, total - 1, size - 1), (1, 3, 5, 7)):
        pair = tuple(map(torch.tensor, place))
        torch.testing.assert_close(evaluate_score(mod, pair, 0.5), torch.as_tensor(mod(torch.tensor(0.5), *pair)).float())


LONG = torch.arange(300)
REFUSED: dict[str, tuple[Callable[..., Any], str, str]] = {
    "isin of many": (lambda s, b, h, q, k: s + torch.isin(k, LONG), "X120", "before the mod, and wanted[kv_idx] in it"),
    "bucketize of many": (lambda s, b, h, q, k: s + torch.bucketize(k, LONG), "X120", "before the mod, and bucket[kv_idx] in it"),
    "shapes that differ": (lambda s, b, h, q, k: torch.stack([s, R]).sum(), "X120", "its tensors have one shape"),
    "cat of numbers": (lambda s, b, h, q, k: torch.cat([s, s]).sum(), "X120", "torch.stack joins numbers to a row"),
    "one tensor": (lambda s, b, h, q, k: torch.stack(R).sum(), "X120", "torch.stack([x, y])"),
    "a table that is written to": (lambda s, b, h, q, k: F.embedding(k, T, max_norm=1.0).sum(), "X120", "before the call"),
    "sparse gradients": (lambda s, b, h, q, k: F.embedding(k, T, sparse=True).sum(), "X120", "leave out scale_grad_by_freq and sparse"),
    "a row as a table": (lambda s, b, h, q, k: F.embedding(k, R).sum(), "X120", "table[idx]"),
    "a place below 0": (lambda s, b, h, q, k: s + R.gather(0, torch.tensor(-1)), "U416", "x[-1] is the last one"),
    "a place behind": (lambda s, b, h, q, k: s + R.gather(0, torch.tensor([6]))[0], "U416", "count from 0"),
    "dims that differ": (lambda s, b, h, q, k: s + T.gather(0, k)[0], "X120", "x.index_select(dim, idx)"),
    "a float as a place": (lambda s, b, h, q, k: s + R.gather(0, s), "X120", ".to(torch.int32) converts"),
    "one place along a dim": (lambda s, b, h, q, k: s + torch.take_along_dim(R, k, 0), "X120", "idx.unsqueeze(0)"),
    "one_hot of unknown classes": (lambda s, b, h, q, k: s + F.one_hot(k)[0], "X120", "give num_classes"),
    "two sides": (lambda s, b, h, q, k: s + torch.searchsorted(R, s, side="left", right=True), "X120", '"left" or "right"'),
    "an output": (lambda s, b, h, q, k: torch.stack([s, s], out=R)[0], "X120", ""),
    "a made tensor of an index": (lambda s, b, h, q, k: s + torch.arange(q)[0], "X120", "torch.stack([x, y]) joins numbers to a row"),
    "sections that do not fit": (lambda s, b, h, q, k: s + R.split([2, 2])[0][0], "X120", "the sizes add up to the length"),
    "repetitions by a tensor": (lambda s, b, h, q, k: s + R.repeat_interleave(IDS[:6])[k], "X120", "before the mod"),
    "softmax of no dim": (lambda s, b, h, q, k: s + F.softmax(T[h])[0], "X120", "dim=-1"),
    "no degrees of freedom": (lambda s, b, h, q, k: s + R[:1].var(), "X120", "correction=0"),
    "einsum of other dims": (lambda s, b, h, q, k: s + torch.einsum("ij,j->i", R, R)[0], "X120", "one letter for each dim"),
    "a row as the result": (lambda s, b, h, q, k: s + R.index_select(0, k), "X123", "return the new score"),
    "a tensor of scores": (lambda s, b, h, q, k: torch.tensor([s, s]).sum(), "X120", "torch.stack([x, y]) joins numbers to a row"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_to_write_instead(name: str) -> None:
    mod, code, hint = REFUSED[name]
    with pytest.raises(CuirError) as caught:
        trace(Specification("refused", score_mod=mod))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code
    assert hint in (diagnostic.hint or "")
    assert diagnostic.span is not None
    assert diagnostic.span.source.name == __file__

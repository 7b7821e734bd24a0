"""Reads of captured tensors: refused where they lie outside, for a pair that counts, and only there; what intervals tell without a look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir import CuirError, Specification, attention, create_block_mask, flex_attention
from cuir.attn.tracing import read_ranges as ranges
from cuir.attn.tracing.read_ranges import Reads, negative_read, trace_without_clashes
from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Lengths
from tests.strategies.selection import examples

Mod = Callable[..., Any]
AT = Lengths(B=2, H=2, HK=1, M=9, N=13)
CPU = torch.device("cpu")


def check(mask: Mod | None = None, score: Mod | None = None, at: Lengths = AT) -> None:
    traced = trace_without_clashes(Specification("reads", mask, score))
    Reads(traced).check([p.value for p in traced.parameters], at, CPU)


def read_refusal(mask: Mod | None = None, score: Mod | None = None, at: Lengths = AT) -> CuirError:
    with pytest.raises(CuirError) as raised:
        check(mask, score, at)
    assert raised.value.diagnostics[0].code == "U416"
    return raised.value


def table(*shape: int) -> torch.Tensor:
    return torch.arange(int(torch.Size(shape).numel())).view(shape)


# ---- what intervals tell: nothing is looked at
def test_intervals_tell_of_common_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reads, "_look", None)
    doc, heads, bias, place = table(2, 13), torch.rand(2), torch.rand(2, 30), torch.rand(13, 13)
    offsets, window = torch.tensor([0, 4, 9, 13]), 5
    group = torch.arange(13) // 5
    for mod in (
        lambda s, b, h, q, k: s + heads[h] * (k - q) + place[q, k],
        lambda s, b, h, q, k: s + bias[h, q - k + 13] + doc[b, k],
        lambda s, b, h, q, k: s + bias[h, torch.clamp(q - k, -3, 3) + 3] + bias[h % 2, abs(q - k)],
        lambda s, b, h, q, k: s + doc[b, torch.minimum(q * 2, torch.tensor(12))] + heads[(q < k).to(torch.int32)],
        lambda s, b, h, q, k: s + offsets[group[q]] + offsets[group[k] + 1] + heads[k // 13] + doc[0, k % window + window],
        lambda s, b, h, q, k: s + place[torch.where(q < 3, q, 0), k] + doc[b, -k + 12],
        lambda s, b, h, q, k, *, N: s + doc[b, N - 1 - k] + place[(q & 3) | 4, (q & 3) ^ 1],
    ):
        check(score=mod)


@examples(2)
@given(data=st.data())
def test_intervals_hold_all_values(data: st.DataObject) -> None:
    rows = st.recursive(
        st.sampled_from(["q", "k", "b", "h", "3", "0", "doc"]),
        lambda c: st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "min", "max", "abs", "where"]), c, c),
        max_leaves=6,
    )
    tree, doc = data.draw(rows), torch.tensor([4, -2, 7] * 5)

    def value(node: Any, e: dict[str, Any]) -> Any:
        if isinstance(node, str):
            return doc[e["k"]] if node == "doc" else e[node] if node in e else torch.tensor(int(node))
        op, x, y = node[0], value(node[1], e), value(node[2], e)
        if op in ("//", "%"):
            return x // (abs(y) + 1) if op == "//" else x % (abs(y) + 1)
        if op == "where":
            return torch.where(e["q"] < e["k"], x, y)
        named = {"min": lambda: torch.minimum(x, y), "max": lambda: torch.maximum(x, y), "abs": lambda: abs(x - y)}
        return named[op]() if op in named else {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y}[op]()

    big = torch.zeros(1)
    traced = trace(Specification("any", score_mod=lambda s, b, h, q, k: s + big[value(tree, {"b": b, "h": h, "q": q, "k": k}) + 0 * q]))
    reads = Reads(traced)
    read = next(r for r in reads.reads if r.value.id == "big")  # type: ignore[union-attr]
    given_values = {p.name: p.value for p in traced.parameters}
    result = ranges._Bounds(given_values, ranges._Extremes(given_values), AT).bound(read.indices[0])  # type: ignore[arg-type]
    names = {n: torch.arange(size).view([-1 if i == d else 1 for i in range(4)]) for d, (n, size) in enumerate(zip("bhqk", (2, 2, 9, 13)))}
    every = value(tree, names) + 0 * names["q"]
    assert result is None or (result[0] <= int(every.min()) and int(every.max()) <= result[1])


# ---- what is refused
def test_a_table_that_is_too_short() -> None:
    short = table(12)
    error = read_refusal(lambda b, h, q, k: short[k] > 3)
    text = str(error)
    assert "`short` has 12 elements, and its element 12 is read" in text and "kv_idx=12" in text and "short[k]" in text and __file__ in text
    read_refusal(score=lambda s, b, h, q, k: s + short[k])


def test_a_negative_index_does_not_count_from_the_end() -> None:
    bias = torch.rand(40)
    assert "a negative index does not count from the end" in str(read_refusal(score=lambda s, b, h, q, k: s + bias[k - q]))


def test_an_index_that_a_table_holds() -> None:
    offsets, group = table(4), torch.tensor([0, 1, 2, 3, 4] + [0] * 8)
    assert "element 4" in str(read_refusal(lambda b, h, q, k: offsets[group[k]] <= q))
    group[4] = 3
    check(lambda b, h, q, k: offsets[group[k]] <= q)


def test_the_opposite_of_a_truth_value_is_one() -> None:
    """`~` of an i32 in 0 .. 1 is in -2 .. -1, of a truth value in 0 .. 1."""
    short, flags = torch.rand(2), torch.tensor([True, False] * 7)
    for truth in (lambda q, k: q < k, lambda q, k: flags[q]):
        read_refusal(score=lambda s, b, h, q, k, truth=truth: s + short[(~truth(q, k)).to(torch.int32) + 2])
        check(score=lambda s, b, h, q, k, truth=truth: s + short[(~truth(q, k)).to(torch.int32)])


def test_a_batch_or_a_head_too_many() -> None:
    doc, slopes = table(1, 13), torch.rand(1)
    assert "1 elements along dim 0" in str(read_refusal(lambda b, h, q, k: doc[b, k] > 3))
    read_refusal(score=lambda s, b, h, q, k: s * slopes[h])
    check(lambda b, h, q, k: doc[b, k] > 3, at=Lengths(1, 2, 1, 9, 13))


# ---- what does not count
def test_reads_that_a_condition_leaves_out() -> None:
    short = table(8)
    inside: list[Mod] = [
        lambda s, b, h, q, k: torch.where(k < 8, short[k], 0) + s,
        lambda s, b, h, q, k: torch.where((k >= 8) | (short[k] > 2), s, s + 1),
        lambda s, b, h, q, k: torch.where((short[k] > 2) & (k < 8), s, s + 1),
        lambda s, b, h, q, k: torch.where(q >= 2, torch.where(q < 8, short[q - 2], 0), torch.where(q < 2, short[q], 0)) + s,
    ]
    for mod in inside:
        check(score=mod)
    read_refusal(score=lambda s, b, h, q, k: torch.where(k <= 8, short[k], 0) + s)
    read_refusal(score=lambda s, b, h, q, k: torch.where((k > 8) | (short[k] > 2), s, s + 1))
    read_refusal(score=lambda s, b, h, q, k: torch.where(s > 0, short[k], 0) + s)


def test_scores_of_dropped_pairs() -> None:
    bias = torch.rand(9)
    check(lambda b, h, q, k: q >= k, lambda s, b, h, q, k: s + bias[q - k])
    read_refusal(lambda b, h, q, k: q + 1 >= k, lambda s, b, h, q, k: s + bias[q - k])


def test_nothing_is_read_without_pairs() -> None:
    short = table(1)
    check(lambda b, h, q, k: short[k] > 3, at=Lengths(1, 1, 1, 5, 0))


@examples(1.5)
@given(st.integers(1, 14), st.integers(-4, 4), st.integers(0, 13), st.booleans(), st.booleans())
def test_as_every_pair_says(size: int, shift: int, edge: int, two_sided: bool, other_way: bool) -> None:
    """Against a loop over the pairs that fails where PyTorch would be asked for an element that is not there."""
    short = torch.arange(size) + 1

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        read, cond = short[k + shift] > 2, k <= edge if two_sided else q >= edge
        return (read | cond if other_way else cond & read) if two_sided else (read & cond if other_way else cond | read)

    bad = False
    for q in range(AT.M):
        for k in range(AT.N):
            cond, out = k <= edge if two_sided else q >= edge, not 0 <= k + shift < size
            decided = cond if (other_way if two_sided else not other_way) else not cond
            bad = bad or (out and not decided)
    if bad:
        read_refusal(mod)
    else:
        check(mod)


# ---- values
def test_integers_of_more_than_32_bits() -> None:
    for value in (2**31, -(2**31) - 1):
        wide = torch.tensor([0, value] + [0] * 20)
        with pytest.raises(CuirError, match=rf"U417.*`wide` holds {value}"):
            check(lambda b, h, q, k: wide[k] == 0)  # noqa: B023
    wide = torch.tensor([2**31 - 1, -(2**31)] * 10)
    check(lambda b, h, q, k: wide[k] == 0)
    long = torch.tensor([2**63 + 5], dtype=torch.uint64).expand(20)
    with pytest.raises(CuirError, match="U417"):
        check(lambda b, h, q, k: long[k] == 0)


def test_captured_values_with_names_of_indices_and_lengths() -> None:
    N, q, S, h, scale = 3, 4, torch.arange(13), 5, 2
    for mod in (lambda b, _h, i, j: S[j] + h <= N + q, lambda b, _h, i, j, *, M: (S[j] >= q) & (S[i * scale % N] <= M)):
        check(mod)
    assert "element 13" in str(read_refusal(lambda b, _h, i, j: S[j + (q > 3)] <= N))
    assert "q_idx=9, kv_idx=0" in str(read_refusal(lambda b, _h, i, j: S[i + q] <= N + scale, at=Lengths(1, 1, 1, 10, 1)))


# ---- in a call
def test_calls_and_later_changes() -> None:
    q, k, v = (torch.randn(1, 2, n, 64).half() for n in (40, 50, 50))
    group, starts = torch.arange(50) // 10, torch.arange(5) * 10

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx >= starts[group[q_idx]]

    block_mask = create_block_mask(mask, None, None, 40, 50)
    flex_attention(q, k, v, None, block_mask, backend="interpret")
    group[3] = 5
    with pytest.raises(CuirError, match=r"U416.*`starts`"):
        flex_attention(q, k, v, None, block_mask, backend="interpret")
    group[3] = 4
    flex_attention(q, k, v, None, block_mask, backend="interpret")
    result = attention(mask, head_dim=64)
    result(q, k, v, backend="interpret")
    group[3] = -1
    with pytest.raises(CuirError, match=r"U416.*`starts`"):
        result(q, k, v, backend="interpret")


def test_a_longer_call_with_the_same_table() -> None:
    ids = torch.arange(50) // 10

    def call(n: int) -> None:
        q, k, v = (torch.randn(1, 2, n, 64).half() for _ in range(3))
        mask = create_block_mask(lambda b, h, q, k: ids[q] == ids[k], None, None, n, n)
        flex_attention(q, k, v, None, mask, backend="interpret")

    call(50)
    with pytest.raises(CuirError, match=r"U416.*`ids` has 50 elements"):
        call(51)


# ---- negative indices that PyTorch counts from the end
T1, T8, T64, T127, T4 = table(1), table(8), table(64), table(127), table(4, 9)


@pytest.mark.parametrize(
    ("mod", "text"),
    [
        (lambda s, b, h, q, k: s + T64[q - k], True),
        (lambda s, b, h, q, k: s + T64[-1], False),  # a constant counts from the end here, too
        (lambda s, b, h, q, k: s + T8[h - 1], True),
        (lambda s, b, h, q, k: s + torch.where(q >= k, T64[q - k], 0), False),
        (lambda s, b, h, q, k: s + T1[k], False),  # no length is too long for a table of another one
        (lambda s, b, h, q, k: s + T1[k - 1], True),
        (lambda s, b, h, q, k: s + T127[k - q + 63], False),
        (lambda s, b, h, q, k: s + T4[h, torch.clamp(k - q, -4, 4) + 4], False),
    ],
)
def test_negative_reads_are_told(mod: Mod, text: bool) -> None:
    assert bool(negative_read(Specification("reads", None, mod))) == text


def test_a_mask_leaves_negative_reads_out() -> None:
    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + T64[q - k]

    result = negative_read(Specification("reads", None, score))
    assert (
        result.startswith("line ")
        and "test_read_ranges.py: `T64` has 64 elements, and its element -1 is read (b=0, h=0, q_idx=0, kv_idx=1)" in result
    )
    assert negative_read(Specification("reads", lambda b, h, q, k: k <= q, score)) == ""


def test_what_cannot_be_traced_tells_nothing() -> None:
    assert negative_read(Specification("reads", None, lambda s, b, h, q, k: s + torch.fft.fft(s))) == ""


@pytest.mark.parametrize("name", sorted(corpus.variants()))
def test_no_variant_of_the_corpus_reads_so(name: str) -> None:
    assert negative_read(corpus.variant(name)()) == ""

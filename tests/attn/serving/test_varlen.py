"""Packed sequences and nested tensors in the interpreter, against float64: any rule, lengths of 0, other sequences of any content, one kernel for all lengths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import cuir
from cuir import CuirError, flex_attention, varlen_attention
from cuir.attn.api import prepared_calls
from cuir.attn.kernels.serving_settings import VarlenSettings, longest_class
from cuir.attn.serving import packed_training, varlen
from cuir.flex import create_nested_block_mask
from cuir.spec.specification import Lengths
from cuir.syntax.types import DType

Mod = Callable[..., Any]
SLOPES = torch.tensor([0.5, 0.1, 0.2, 0.3])
START = torch.tensor([60, 0, 3])


def alibi(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + SLOPES[h] * (k - q)


def from_start(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k >= START[b]) | (k == h)


def window(b: Any, h: Any, q: Any, k: Any, *, M: Any, N: Any) -> Any:
    return k >= q + (N - M) - 20


class Packed:
    """Tokens of some sequences, each made by itself: `queries` and `keys` of them."""

    def __init__(
        self,
        queries: list[int],
        keys: list[int],
        heads: tuple[int, int],
        dims: tuple[int, int] = (64, 64),
        dtype: torch.dtype = torch.float16,
    ):
        g = torch.Generator().manual_seed(sum(queries))
        self.lengths = queries, keys
        H, HK = heads
        self.q, self.k, self.v = (
            [torch.randn(n, h, d, generator=g).to(dtype) for n in lengths]
            for lengths, h, d in ((queries, H, dims[0]), (keys, HK, dims[0]), (keys, HK, dims[1]))
        )

    def call(self, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        starts = (torch.tensor([0, *n]).cumsum(0).int() for n in self.lengths)
        o, lse = varlen_attention(
            *(torch.cat(x) for x in (self.q, self.k, self.v)),
            *starts,
            max(self.lengths[0]),
            max(self.lengths[1]),
            return_lse=True,
            enable_gqa=True,
            backend="interpret",
            **options,
        )  # type: ignore[misc]
        return o, lse

    def compute_expected(
        self, score: Mod | None = None, mask: Mod | None = None, causal: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, sums = [], []
        for b, (q, k, v) in enumerate(zip(self.q, self.k, self.v)):
            (M, H, D), N = q.shape, len(k)
            h, i, j = torch.arange(H)[:, None, None], torch.arange(M)[:, None], torch.arange(N)
            k, v = (x.double().repeat_interleave(H // k.shape[1], 1) for x in (k, v))
            s = q.double().transpose(0, 1) @ k.permute(1, 2, 0) * D**-0.5
            s = s if score is None else score(s, b, h, i, j)
            keep = torch.ones(H, M, N, dtype=torch.bool)
            if mask is not None:
                keep = keep & (mask(b, h, i, j, M=M, N=N) if mask is window else mask(b, h, i, j))
            s = s.masked_fill(~(keep & (j <= i + N - M) if causal else keep), -torch.inf)
            lse = s.logsumexp(-1)
            p = (s - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp()
            rows.append((p @ v.transpose(0, 1)).transpose(0, 1))
            sums.append(lse)
        return torch.cat(rows), torch.cat(sums, 1)


def close(actual: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.testing.assert_close(actual[0].double(), expected[0], atol=3e-3, rtol=1e-2)
    torch.testing.assert_close(actual[1].double(), expected[1], atol=1e-3, rtol=1e-4)


PACKED_ARGUMENTS = ("problem", "score", "mask", "causal")
PACKED_CASES: list[tuple[tuple[Any, ...], Mod | None, Mod | None, bool]] = [
    (([70, 0, 200], [90, 30, 150], (4, 2)), None, None, True),
    (([64, 128, 3], [64, 128, 3], (2, 2), (128, 128)), None, None, False),
    (([130, 5, 70], [0, 300, 70], (2, 1), (64, 72)), None, window, True),
    (([20, 1, 40], [70, 9, 200], (4, 1)), alibi, from_start, True),
    (([30, 90], [100, 90], (2, 2), (36, 20)), None, from_start, False),
    (([70, 10], [70, 40], (1, 1), (256, 256)), None, None, True),
]


@pytest.mark.sweep
@pytest.mark.parametrize(PACKED_ARGUMENTS, PACKED_CASES)
def test_gives_what_float64_gives(problem: tuple[Any, ...], score: Mod | None, mask: Mod | None, causal: bool) -> None:
    result = Packed(*problem)
    close(result.call(score_mod=score, block_mask=mask, causal=causal), result.compute_expected(score, mask, causal))


def test_a_sequence_has_the_same_bits_whatever_the_others_hold() -> None:
    result = Packed([70, 90, 75], [70, 90, 75], (2, 1))
    before = result.call(causal=True)
    for x in (result.q, result.k, result.v):
        x[0][:], x[2][:] = math.nan, math.inf
    after = result.call(causal=True)
    assert torch.equal(before[0][70:160], after[0][70:160]) and torch.equal(before[1][:, 70:160], after[1][:, 70:160])
    assert before[0].isfinite().all()
    places = torch.tensor([0, 90], dtype=torch.int32)
    alone = varlen_attention(
        *(x[1] for x in (result.q, result.k, result.v)), places, places, causal=True, enable_gqa=True, backend="interpret"
    )
    assert torch.equal(alone, before[0][70:160])


def test_other_lengths_are_other_data_of_one_kernel() -> None:
    result = Packed([100, 40], [100, 40], (2, 2))
    result.call(causal=True)
    expected_values = next(reversed(prepared_calls._ATTENTIONS.values())).attention
    for lengths in ([30, 90, 100], [129]):
        Packed(lengths, lengths, (4, 2)).call(causal=True)
    assert next(reversed(prepared_calls._ATTENTIONS.values())).attention is expected_values and len(expected_values.settings.checks) <= 2


def choose_packed_setting(dims: tuple[int, int], longest: int | None, tokens: int = 32768, dtype: DType = cuir.bf16) -> dict[str, Any]:
    from cuir.attn.kernels.card_kernels import DEFAULT, find_kernel
    from cuir.attn.kernels.experts import origin_of, starts_of

    program = origin_of(find_kernel(DEFAULT, "varlen", dtype))
    fixed = {"T": dtype, "D": dims[0], "DV": dims[1]}
    settings = VarlenSettings(program, fixed, starts_of(program, fixed, DEFAULT))
    return settings.choose_untuned(Lengths(1, 32, 8, longest_class(longest, tokens), 1))


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("dims", "longest", "tile"),
    [
        ((64, 64), 64, (64, 128)),
        ((64, 64), 65, (128, 128)),
        ((64, 64), 511, (128, 128)),
        ((64, 64), 512, (192, 128)),
        ((64, 64), None, (192, 128)),
        ((128, 128), 65, (128, 128)),
        ((128, 128), 2047, (128, 128)),
        ((128, 128), 2048, (192, 80)),
        ((128, 128), None, (192, 80)),
        ((192, 128), None, (128, 128)),
        ((256, 256), None, (128, 64)),
    ],
)
def test_long_sequences_get_tall_tiles(dims: tuple[int, int], longest: int | None, tile: tuple[int, int]) -> None:
    setting = choose_packed_setting(dims, longest)
    assert (setting["BM"], setting["BN"]) == tile


def test_the_number_of_others_decides_no_setting() -> None:
    for longest in (100, 600, 4096, None):
        assert choose_packed_setting((128, 128), longest, 300) == choose_packed_setting((128, 128), longest, 1 << 20)


def test_logits_far_below_those_of_f16_are_logits() -> None:
    result = Packed([1, 70], [5, 70], (1, 1), dtype=torch.bfloat16)
    for q, k in zip(result.q, result.k, strict=True):
        q[:], k[:] = 1e16, -1e16
    torch.testing.assert_close(result.call(causal=True)[1].double(), result.compute_expected(causal=True)[1], atol=0, rtol=1e-2)


def make_nested(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)


def test_nested_tensors_are_packed_sequences() -> None:
    result = Packed([70, 3, 20], [30, 90, 20], (2, 1))
    k, v = (torch.cat(x) for x in (result.k, result.v))
    query, offsets = make_nested(result.q), torch.tensor([0, 30, 120, 140])
    key, value = (torch.nested.nested_tensor_from_jagged(x, offsets).transpose(1, 2) for x in (k, v))
    mask = create_nested_block_mask(from_start, 3, None, query, key)
    o, lse = flex_attention(query, key, value, alibi, mask, enable_gqa=True, return_lse=True, backend="interpret")
    assert o.shape[:3] == query.shape[:3] and (query + o).is_nested and lse.shape == query.shape[:3]
    close((o.transpose(1, 2).values(), lse._values), result.compute_expected(alibi, from_start))


@pytest.mark.parametrize(
    ("offsets", "result"),
    [
        ([0, 3, 11], "the offsets of `query` must lie from 0 to the 10 tokens of `query`, found 0 to 11"),
        ([0, 7, 3], "the offsets of `query` must not decrease, found 7 and behind it 3 (sequence 1)"),
    ],
)
def test_offsets_of_nested_tensors_on_a_cpu_are_checked(offsets: list[int], result: str) -> None:
    x = torch.nested.nested_tensor_from_jagged(torch.zeros(10, 1, 64).half(), torch.tensor(offsets)).transpose(1, 2)
    with pytest.raises(CuirError) as caught:
        flex_attention(x, x, x, backend="interpret", verify="off")
    assert caught.value.diagnostics[0].code == "U413" and result in str(caught.value)


def test_nested_tensors_give_no_warning_of_the_internals_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(torch.fx._symbolic_trace, "is_fx_tracing_warning", lambda: warned.append("once"))
    x = make_nested([torch.randn(3, 1, 64).half(), torch.randn(2, 1, 64).half()])
    flex_attention(x, x, x, backend="interpret", verify="off")
    x.requires_grad_()
    flex_attention(x, x, x, backend="interpret", verify="off").values().sum().backward()
    assert warned == []


FILLED = torch.cat([torch.arange(20), torch.arange(25, 55)])  # rows of two sequences, which others lie between


def with_holes(parts: list[torch.Tensor]) -> torch.Tensor:
    """Two sequences [20, 2, 64] and [30, 2, 64] as rows of [60, 2, 64], whose others are no numbers."""
    values = torch.full((60, 2, 64), math.nan, dtype=torch.float16)
    values[FILLED] = torch.cat(parts)
    return values


def test_nested_tensors_may_have_holes() -> None:
    result, offsets = Packed([20, 30], [20, 30], (2, 2)), (torch.tensor([0, 25, 60]), torch.tensor([20, 30]))
    tensors = [torch.nested.nested_tensor_from_jagged(with_holes(x), *offsets).transpose(1, 2) for x in (result.q, result.k, result.v)]
    o, lse = flex_attention(*tensors, return_lse=True, backend="interpret")
    close((o._values.transpose(0, 1)[FILLED], lse._values[:, FILLED]), result.compute_expected())


def gradients(outputs: tuple[torch.Tensor, torch.Tensor], leaves: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Those of a sum of O and LSE, each times numbers of its own."""
    g = torch.Generator().manual_seed(7)
    total = sum((x.double() * torch.randn(x.shape, generator=g).double()).sum() for x in outputs)
    return torch.autograd.grad(total, leaves)  # type: ignore[arg-type]


def close_gradients(actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for x, y in zip(actual, expected, strict=True):
        assert (x.double() - y).norm() <= 3e-3 * y.norm()


@pytest.mark.sweep
@pytest.mark.parametrize(
    PACKED_ARGUMENTS,
    [
        (([37, 0, 70, 5], [50, 3, 70, 9], (4, 2)), None, None, True),
        (([130, 3], [130, 3], (2, 2), (128, 128)), None, None, False),
        (([20, 1, 40], [70, 9, 200], (4, 1)), alibi, from_start, True),
        (([30, 60], [100, 90], (2, 2), (36, 20)), None, window, True),
        (([40, 6], [25, 6], (2, 1)), None, None, True),
    ],
)
def test_gradients(problem: tuple[Any, ...], score: Mod | None, mask: Mod | None, causal: bool) -> None:
    result = Packed(*problem)
    leaves = [[x.requires_grad_() for x in parts] for parts in (result.q, result.k, result.v)]
    actual = gradients(result.call(score_mod=score, block_mask=mask, causal=causal), tuple(x for parts in leaves for x in parts if len(x)))
    result.q, result.k, result.v = exact = [[x.detach().double().requires_grad_() for x in parts] for parts in leaves]
    expected = gradients(result.compute_expected(score, mask, causal), tuple(x for parts in exact for x in parts if len(x)))
    for i in range(3):  # of q, k and v, each of all sequences
        lengths = [sum(1 for x in parts if len(x)) for parts in exact]
        first = sum(lengths[:i])
        close_gradients(*((torch.cat(g[first : first + lengths[i]]),) for g in (actual, expected)))  # type: ignore[arg-type]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tokens", [60, 77])
def test_gradients_read_no_token_of_no_sequence(tokens: int, causal: bool) -> None:
    """Tokens behind the last sequence, and what is given for their outputs, may be NaN; without them nothing is copied."""
    result = Packed([25, 35], [25, 35], (2, 2))
    places = torch.tensor([0, 25, 60], dtype=torch.int32)
    padded = [torch.cat([*x, torch.full((tokens - 60, 2, 64), math.nan).half()]).requires_grad_() for x in (result.q, result.k, result.v)]
    o = varlen_attention(*padded, places, places, causal=causal, backend="interpret", verify="off")
    assert not o[60:].any()
    nodes, names = [o.grad_fn], set()
    while nodes:
        if (node := nodes.pop()) is not None:
            names.add(node.name())
            nodes += [of for of, _ in node.next_functions]
    assert any("Where" in name for name in names) == (tokens > 60) and not any("Select" in name for name in names)
    do = torch.randn(tokens, 2, 64, generator=torch.Generator().manual_seed(0))
    do[60:] = math.nan
    actual = torch.autograd.grad(o, padded, do.half())
    result.q, result.k, result.v = exact = [[x.double().requires_grad_() for x in parts] for parts in (result.q, result.k, result.v)]
    leaves = tuple(x for parts in exact for x in parts)
    expected = torch.autograd.grad(result.compute_expected(causal=causal)[0], leaves, do[:60].half().double())
    close_gradients(tuple(x[:60] for x in actual), tuple(torch.cat(expected[i : i + 2]) for i in (0, 2, 4)))
    assert all(not x[60:].any() for x in actual)


def test_places_that_are_written_to_are_other_places() -> None:
    """The tables of which token is of which sequence are kept for the layers of a model."""
    result = Packed([30, 50], [30, 50], (2, 2))
    q, k, v = (torch.cat(x).requires_grad_() for x in (result.q, result.k, result.v))
    places = torch.tensor([0, 30, 80], dtype=torch.int32)
    for border in (30, 30, 45):
        places[1] = border
        o = varlen_attention(q, k, v, places, places, causal=True, backend="interpret", verify="off")
        exact = Packed([border, 80 - border], [border, 80 - border], (2, 2))
        exact.q, exact.k, exact.v = ([x[:border], x[border:]] for x in (q.detach(), k.detach(), v.detach()))
        torch.testing.assert_close(o.double(), exact.compute_expected(causal=True)[0], atol=3e-3, rtol=1e-2)
    expected_values = len(packed_training._TABLES)
    varlen_attention(q, k, v, places, places, causal=True, backend="interpret", verify="off")
    assert len(packed_training._TABLES) == expected_values


def test_gradients_of_what_a_mod_captures() -> None:
    result, slopes = Packed([30, 50], [60, 50], (4, 2)), SLOPES.clone().requires_grad_()
    (actual,) = gradients(result.call(score_mod=lambda s, b, h, q, k: s + slopes[h] * 0.1 * (k - q), causal=True), (slopes,))
    exact = SLOPES.double().requires_grad_()
    (expected,) = gradients(result.compute_expected(lambda s, b, h, q, k: s + exact[h] * 0.1 * (k - q), causal=True), (exact,))
    assert (actual.double() - expected).norm() <= 2e-2 * expected.norm()


@pytest.mark.sweep
@pytest.mark.parametrize("call", ["packed", "nested", "compiled"])
def test_a_read_outside_names_the_indices_of_its_sequence(call: str) -> None:
    packed, table = Packed([7, 0, 13], [7, 0, 13], (2, 2)), torch.zeros(3, 10, requires_grad=True)

    def biased(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + table[b, k]

    wrong = r"U416.*`table` has 10 elements along dim 1, and its element 10 is read \(b=2, h=0, q_idx=0, kv_idx=10\)"
    with pytest.raises(CuirError, match=wrong):
        if call == "compiled":
            torch.compile(lambda: packed.call(score_mod=biased), backend="aot_eager")()
        elif call == "nested":
            flex_attention(*map(make_nested, (packed.q, packed.k, packed.v)), biased, backend="interpret")
        else:
            packed.call(score_mod=biased)


def test_gradients_of_nested_tensors_with_holes() -> None:
    result, offsets = Packed([20, 30], [20, 30], (2, 2)), (torch.tensor([0, 25, 60]), torch.tensor([20, 30]))
    leaves = tuple(with_holes(x).requires_grad_() for x in (result.q, result.k, result.v))
    o, lse = flex_attention(
        *(torch.nested.nested_tensor_from_jagged(x, *offsets).transpose(1, 2) for x in leaves), return_lse=True, backend="interpret"
    )
    actual = gradients((o.transpose(1, 2).values()[FILLED], lse.transpose(1, 2).values()[FILLED].T), leaves)
    result.q, result.k, result.v = exact = [[x.double().requires_grad_() for x in parts] for parts in (result.q, result.k, result.v)]
    expected = gradients(result.compute_expected(), tuple(x for parts in exact for x in parts))
    close_gradients(tuple(x[FILLED] for x in actual), tuple(torch.cat(expected[i : i + 2]) for i in (0, 2, 4)))
    assert all(not x[20:25].any() and not x[55:].any() for x in actual)


X = torch.zeros(10, 2, 64).half()
CU = torch.tensor([0, 4, 10], dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"q": [1.0]}, "U403"),
        ({"q": X.to("meta")}, "U407"),
        ({"k": X[None]}, "U405"),
        ({"q": X.float()}, "U404"),
        ({"q": X.double()}, "U109"),
        ({"v": X.bfloat16()}, "U404"),
        ({"v": X[:9]}, "U408"),
        ({"k": X[..., :32]}, "U408"),
        ({"q": X.repeat(1, 2, 1)}, "U411"),
        ({"q": X.clone().requires_grad_(), "normalize": "sigmoid"}, "X109"),
        ({"cu_seqlens_q": [0, 4, 10]}, "U403"),
        ({"cu_seqlens_k": CU.float()}, "U404"),
        ({"cu_seqlens_k": CU[None]}, "U408"),
        ({"cu_seqlens_k": CU[:2]}, "U408"),
        ({"max_seqlen_q": CU.max()}, "U413"),
        ({"scale": 0.0}, "U413"),
        ({"sink": torch.zeros(3)}, "U408"),
        ({"block_mask": 3}, "U412"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], code: str) -> None:
    inputs: dict[str, Any] = {"q": X, "k": X, "v": X, "cu_seqlens_q": CU, "cu_seqlens_k": CU, "backend": "interpret", **change}
    with pytest.raises(CuirError) as caught:
        varlen_attention(**inputs)
    assert caught.value.diagnostics[0].code == code


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("change", "result"),
    [
        ({"cu_seqlens_q": [0, 4, 11]}, "cu_seqlens_q must lie from 0 to the 10 tokens of `q`, found 0 to 11"),
        ({"cu_seqlens_k": [-5, 4, 10]}, "cu_seqlens_k must lie from 0 to the 10 tokens of `k`, found -5 to 10"),
        ({"cu_seqlens_k": [0, 8, 3]}, "cu_seqlens_k must not decrease, found 8 and behind it 3 (sequence 1)"),
        ({"max_seqlen_q": 5}, "max_seqlen_q must be at least the longest sequence, 6 tokens (sequence 1), found 5"),
    ],
)
def test_places_on_a_cpu_are_checked(change: dict[str, Any], result: str, gradients: bool) -> None:
    x = X.clone().requires_grad_(gradients)
    changed = {n: torch.tensor(v) if isinstance(v, list) else v for n, v in change.items()}
    with pytest.raises(CuirError) as caught:
        varlen_attention(**{"q": x, "k": X, "v": X, "cu_seqlens_q": CU, "cu_seqlens_k": CU, "backend": "interpret", **changed})
    assert caught.value.diagnostics[0].code == "U413" and result in str(caught.value)


def test_rows_of_no_sequence_are_zeros_on_a_cpu() -> None:
    places = torch.tensor([2, 4, 7], dtype=torch.int32)
    o, lse = varlen_attention(X, X, X, places, places, return_lse=True, backend="interpret", verify="off")
    outside = torch.tensor([0, 1, 7, 8, 9])
    assert bool((o[outside] == 0).all()) and bool((lse[:, outside] == -math.inf).all()) and bool(lse[:, 2:7].isfinite().all())


@pytest.mark.sweep
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"score_mod": 3}, "X101"),
        ({"score_mod": lambda s, b: s}, "X101"),
        ({"score_mod": lambda s, b, h, i, j: None}, "X123"),
        ({"block_mask": lambda b, h, i, j: i * 0.5}, "X123"),
    ],
)
def test_mods_that_are_none_are_told_at_their_place(change: dict[str, Any], code: str, gradients: bool) -> None:
    """Also where the call's own mods stand around them."""
    with pytest.raises(CuirError) as caught:
        varlen_attention(X.clone().requires_grad_(gradients), X, X, CU, CU, backend="interpret", **change)
    text = caught.value.diagnostics[0]
    assert text.code == code and (
        change == {"score_mod": 3} or (text.span is not None and text.span.source.name.endswith("test_varlen.py"))
    )


def test_nested_tensors_that_were_made_apart_have_equal_lengths() -> None:
    result = Packed([20, 30], [20, 30], (2, 2))
    tensors = [make_nested(x) for x in (result.q, result.k, result.v)]
    offsets = {id(x._offsets) for x in tensors}  # type: ignore[attr-defined]
    assert len(offsets) == 3
    mask = create_nested_block_mask(from_start, 2, None, tensors[0], tensors[1])
    o, lse = flex_attention(*tensors, alibi, mask, return_lse=True, backend="interpret")
    close((o.transpose(1, 2).values(), lse._values), result.compute_expected(alibi, from_start))
    with_lengths = torch.nested.nested_tensor_from_jagged(torch.cat(result.v), torch.tensor([0, 20, 50]), torch.tensor([20, 30])).transpose(
        1, 2
    )
    repeated, _ = flex_attention(*tensors[:2], with_lengths, alibi, mask, return_lse=True, backend="interpret")
    assert torch.equal(o._values, repeated._values)


def test_offsets_are_compared_once_and_again_after_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU each comparison waits for the device."""
    compared: list[int] = []
    equal = torch.equal
    offsets = torch.tensor([0, 4, 9])
    q, k = (torch.nested.nested_tensor_from_jagged(X[:9], at).transpose(1, 2) for at in (torch.tensor([0, 4, 9]), torch.tensor([0, 4, 9])))
    v = torch.nested.nested_tensor_from_jagged(X[:9], offsets).transpose(1, 2)

    def call() -> int:
        compared.clear()
        with monkeypatch.context() as patched:
            patched.setattr(varlen.torch, "equal", lambda a, b: compared.append(1) or equal(a, b))
            varlen._check_alike(k, v)
        return len(compared)

    flex_attention(q, k, v, backend="interpret", verify="off")
    assert call() == 0
    offsets[1] = 4
    assert call() == 2 and call() == 0
    offsets[1] = 5
    with pytest.raises(CuirError, match=r"found 4 and 5 for sequence 0"):
        flex_attention(q, k, v, backend="interpret", verify="off")


def test_nested_tensors_that_do_not_fit_are_refused() -> None:
    x = make_nested([X[:4], X[4:]])
    for tensors, code in (((x, X, X), "U403"), ((x.transpose(1, 2),) * 3, "U405"), ((x, x, make_nested([X[:5], X[5:]])), "U408")):
        with pytest.raises(CuirError) as caught:
            flex_attention(*tensors, backend="interpret")
        assert caught.value.diagnostics[0].code == code
    with pytest.raises(CuirError, match="U413"):
        flex_attention(x, x, x, return_aux=cuir.flex.AuxRequest(max_scores=True), backend="interpret")
    with pytest.raises(CuirError, match="U403"):
        create_nested_block_mask(from_start, None, None, X)


@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.1}], ids=["gradients", "dropout"])
def test_one_long_sequence_has_no_bits_of_each_sequence(options: dict[str, Any]) -> None:
    """Gradients and dropout run as one, whose blocks begin anywhere in a sequence."""
    q, bounds = torch.randn(30, 1, 64, dtype=torch.float16, requires_grad=not options), torch.tensor([0, 10, 30], dtype=torch.int32)
    with pytest.raises(CuirError) as error:
        varlen_attention(q, q.detach(), q.detach(), bounds, bounds, batch_invariant=True, backend="interpret", verify="off", **options)
    assert error.value.diagnostics[0].code == "U413"

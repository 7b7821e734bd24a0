"""Head dims, strides and batches of a call: what the kernels read where it lies, and what is copied first.

Numbers that calls take: Python's, NumPy's, and objects that are integers to `operator.index`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import cuir
from cuir import CuirError
from cuir.flex import attention, create_block_mask, flex_attention, packed_copies
from cuir.spec import Specification
from tests.strategies.selection import examples

DIMS = st.one_of(st.sampled_from([16, 32, 48, 80, 96, 160, 192, 256]), st.integers(1, 256))


def causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q >= k


def agrees(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """O, within what rounding its weights and values costs of float64's."""
    mask = create_block_mask(causal, None, None, q.shape[2], k.shape[2], "cpu")
    o, lse = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True, backend="interpret", verify="off")
    keys, values = (x.double().expand(q.shape[0], -1, -1, -1).repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q.double() @ keys.mT * q.shape[3] ** -0.5).masked_fill(~torch.ones(q.shape[2], k.shape[2]).tril().bool(), -torch.inf)
    expected = scores.softmax(-1) @ values
    assert o.shape == expected.shape and (o.double() - expected).norm() <= 2e-3 * expected.norm()
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-4, atol=1e-4)
    return o  # type: ignore[no-any-return]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).half()


@examples(0.15)
@given(dims=st.tuples(DIMS, DIMS), lengths=st.tuples(st.integers(1, 200), st.integers(1, 200)))
def test_any_head_dims(dims: tuple[int, int], lengths: tuple[int, int]) -> None:
    packed_copies().reset()
    o = agrees(numbers(1, 2, lengths[0], dims[0]), numbers(1, 1, lengths[1], dims[0]), numbers(1, 1, lengths[1], dims[1]))
    assert o.is_contiguous()
    rows = [lengths[0] * 2, lengths[1], lengths[1]]  # a single row begins where it begins
    assert packed_copies().calls == sum(n > 1 and d % 8 != 0 for n, d in zip(rows, (dims[0], *dims), strict=True))


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_rows_of_any_length_are_verified() -> None:
    """A call on a GPU: rows of no multiple of 16 bytes lie further apart than they are long."""
    result = attention(causal, head_dim=17, value_dim=9, consts={"BM": 64, "BN": 64})
    report = result.report
    assert report is not None and report.ok and "rows of `V`, 9 f16 of 18 bytes" in report.stages[0].reason


LAYOUTS = {  # name: what a tensor [2, 2, 50, 64] lies in, and whether it is read there
    "rows": (lambda x: x.contiguous(), True),
    "heads inside": (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), True),
    "between others": (lambda x: torch.cat([x, x, x], -1)[..., 64:128].copy_(x), True),
    "one batch for all": (lambda x: x[:1].expand(2, -1, -1, -1), True),
    "one head for all": (lambda x: x[:, :1].expand(-1, 2, -1, -1), True),
    "one row for all": (lambda x: x[:, :, :1].expand(-1, -1, 50, -1), True),
    "odd rows": (lambda x: torch.cat([x, x[..., :1]], -1)[..., :64], False),
    "odd start": (lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape), False),
    "columns outside": (lambda x: x.mT.contiguous().mT, False),
    "one column for all": (lambda x: x[..., :1].expand(-1, -1, -1, 64), False),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("selector", ["query", "key", "value"])
def test_strides(layout: str, selector: str) -> None:
    lay, fits = LAYOUTS[layout]
    inputs = {name: numbers(2, 2, 50, 64) for name in ("query", "key", "value")}
    inputs[selector] = lay(inputs[selector])
    packed_copies().reset()
    o = agrees(*inputs.values())
    assert packed_copies().calls == (0 if fits else 1)
    assert packed_copies().nbytes == (0 if fits else 2 * 2 * 50 * 64 * 2)
    if inputs["query"].stride(3) == 1:  # results are rows
        assert o.stride() == torch.empty_like(inputs["query"]).stride()


@pytest.mark.parametrize("columns", [64, 20])
@pytest.mark.parametrize("odd", [0, 1])
def test_results_lie_as_queries_do(columns: int, odd: int) -> None:
    """In the order of their dims, packed or not, and as torch.compile is told that they do."""
    q = numbers(50, 2, 2, 64 + odd)[..., :64].permute(1, 2, 0, 3)
    o = agrees(q, numbers(2, 2, 60, 64), numbers(2, 2, 60, columns))
    assert o.stride() == torch.empty_permuted(o.shape, (2, 0, 1, 3)).stride()
    with FakeTensorMode() as mode:
        fakes = (mode.from_tensor(x) for x in (q, numbers(2, 2, 60, 64), numbers(2, 2, 60, columns)))
        text = torch.ops.cuir.flex_attention.default(*fakes, [], "none", 0.125, True, "interpret", "off")[0]
    assert (text.shape, text.stride()) == (o.shape, o.stride())


def test_a_copy_of_what_is_expanded_is_of_one() -> None:
    packed_copies().reset()
    odd = numbers(1, 1, 50, 65)[..., :64]
    agrees(numbers(4, 2, 50, 64), odd.expand(4, 2, -1, -1), numbers(1, 2, 50, 64).expand(4, -1, -1, -1))
    assert packed_copies().nbytes == 50 * 64 * 2


def test_the_explicit_form() -> None:
    q, k, v = numbers(1, 2, 50, 48), numbers(1, 2, 50, 48), numbers(1, 2, 50, 16)
    o = attention(causal, head_dim=48, value_dim=16, verify="off")(q, k, v, backend="interpret")
    assert isinstance(o, torch.Tensor)
    torch.testing.assert_close(o, agrees(q, k, v))


@pytest.mark.parametrize("shape", [(0, 2, 50), (1, 2, 0)])
def test_nothing_to_attend_for(shape: tuple[int, int, int]) -> None:
    q, k = numbers(*shape, 64), numbers(shape[0], 2, 50, 64)
    o, lse = flex_attention(q, k, k, return_lse=True, backend="interpret")
    assert o.shape == q.shape and lse.shape == q.shape[:-1]


def test_autocast() -> None:
    q, k = numbers(1, 2, 50, 64).float(), numbers(1, 2, 70, 64).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = flex_attention(q, k, k, backend="interpret", verify="off")
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(o, flex_attention(*(x.bfloat16() for x in (q, k, k)), backend="interpret", verify="off"))


OPTIONS: dict[str, Any] = {"backend": "interpret", "verify": "off"}
Q = torch.randn(3, 2, 64, 32).half()
PACKED = Q[0].transpose(0, 1)
PLACES = torch.tensor([0, 30, 64], dtype=torch.int32)


class Index:
    def __init__(self, value: int):
        self.value = value

    def __index__(self) -> int:
        return self.value


def causal_of_numbers(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


@pytest.mark.parametrize("number", [np.int64, np.uint8, Index], ids=["int64", "uint8", "index"])
def test_lengths_are_integers_of_any_kind(number: Any) -> None:
    ours = create_block_mask(
        causal_of_numbers, number(3), number(2), number(64), number(64), device="cpu", BLOCK_SIZE=(number(64), number(32))
    )
    plain = create_block_mask(causal_of_numbers, 3, 2, 64, 64, device="cpu", BLOCK_SIZE=(64, 32))
    assert ours.shape == plain.shape and ours.BLOCK_SIZE == (64, 32) and torch.equal(ours.kv_num_blocks, plain.kv_num_blocks)
    assert torch.equal(flex_attention(Q, Q, Q, None, ours, **OPTIONS), flex_attention(Q, Q, Q, None, plain, **OPTIONS))
    packed = (cuir.varlen_attention(PACKED, PACKED, PACKED, PLACES, PLACES, n, n, **OPTIONS) for n in (34, number(34)))
    assert torch.equal(*packed)
    cache = Q.transpose(1, 2)
    cached = (cuir.attention_with_kv_cache(cache[:, :1], cache, cache, cache_seqlens=n, max_seqlen=n, **OPTIONS) for n in (50, number(50)))
    assert torch.equal(*cached)


@pytest.mark.parametrize("bad", [True, np.bool_(True), 1.0, np.array([1, 2]), "3", torch.tensor(1.5), torch.tensor(3)], ids=repr)
def test_what_is_no_integer_is_refused(bad: Any) -> None:
    with pytest.raises(CuirError, match="U412"):
        create_block_mask(causal_of_numbers, bad, None, 64, 64)


@pytest.mark.parametrize(
    "scale", [np.float32(0.5), np.float16(0.5), Fraction(1, 2), np.float64(0.5)], ids=["f32", "f16", "fraction", "f64"]
)
def test_scales_and_sinks_are_numbers_of_any_kind(scale: Any) -> None:
    assert torch.equal(flex_attention(Q, Q, Q, scale=scale, sink=scale, **OPTIONS), flex_attention(Q, Q, Q, scale=0.5, sink=0.5, **OPTIONS))
    with pytest.raises(CuirError, match="U413"):
        flex_attention(Q, Q, Q, scale=np.bool_(True), **OPTIONS)


def test_an_attention_takes_them_too() -> None:
    def window(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, width: int) -> Any:
        return abs(q_idx - kv_idx) < width

    result = (
        cuir.attention(
            Specification("window", window, captured={"width": number(5)}), head_dim=number(32), consts={"BM": number(64)}, verify="off"
        )
        for number in (int, np.int64)
    )
    assert torch.equal(*(a(Q, Q, Q, backend="interpret") for a in result))

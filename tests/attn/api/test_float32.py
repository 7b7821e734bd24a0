"""float32 in a call: as accurate as PyTorch's own, TF32 where PyTorch's settings allow it, and all else as for half precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask as their_mask
from torch.nn.attention.flex_attention import flex_attention as torch_flex

import corpus
from cuir import Specification
from cuir.attn.capture.call_inputs import parts_for
from cuir.flex import AuxRequest, attention, create_block_mask, flex_attention, packed_copies
from cuir.text.diagnostics import CuirError
from tests.strategies.effort import examples

DIMS = st.one_of(st.sampled_from([8, 32, 64, 96, 128, 192, 256]), st.integers(1, 256))
TF32 = 8e-4  # relative, in the norm: what rounding to 11 bits costs


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def inputs(m: int, n: int, d: int, dv: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return numbers(1, 2, m, d), numbers(1, 1, n, d), numbers(1, 1, n, dv)


def off(x: torch.Tensor, expected: torch.Tensor) -> float:
    return float((x.double() - expected).norm() / (expected.norm() or 1.0))


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
    mask = create_block_mask(causal, None, None, q.shape[2], k.shape[2], "cpu")
    return flex_attention(q, k, v, block_mask=mask, enable_gqa=True, backend="interpret", verify="off", **options)


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE of eager FlexAttention."""
    mask = their_mask(causal, None, None, q.shape[2], k.shape[2], "cpu")
    return torch_flex(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True)  # type: ignore[return-value]


@examples(0.15)
@given(dims=st.tuples(DIMS, DIMS), lengths=st.tuples(st.integers(1, 200), st.integers(1, 200)))
def test_within_twice_the_error_of_pytorch(dims: tuple[int, int], lengths: tuple[int, int]) -> None:
    torch.set_float32_matmul_precision("highest")
    q, k, v = inputs(*lengths, *dims)
    o, lse = ours(q, k, v, return_lse=True)
    expected, wanted_lse = reference(q.double(), k.double(), v.double())
    private = off(reference(q, k, v)[0], expected)
    assert o.dtype == torch.float32 and o.shape == expected.shape
    assert off(o, expected) <= 2 * private + 2.0**-23
    torch.testing.assert_close(lse.double(), wanted_lse.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", ["high", "medium"])
def test_tf32_where_it_is_allowed(level: str) -> None:
    q, k, v = inputs(150, 130, 64, 64)
    expected = reference(q.double(), k.double(), v.double())[0]
    exact = ours(q, k, v)
    torch.set_float32_matmul_precision(level)
    rounded = ours(q, k, v)  # the same mods and tensors: a call that is known, but for the precision
    assert 5e-5 < off(rounded, expected) < TF32
    torch.set_float32_matmul_precision("highest")
    assert torch.equal(ours(q, k, v), exact) and not torch.equal(exact, rounded)


def test_the_switch_of_the_backend_counts() -> None:
    assert parts_for(torch.float32) == 2 and parts_for(torch.float16) == 0
    torch.backends.cuda.matmul.allow_tf32 = True
    assert parts_for(torch.float32) == 1
    torch.backends.cuda.matmul.allow_tf32 = False
    assert parts_for(torch.float32) == 2


def test_settings_of_each_backend_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_mixed() -> str:
        raise RuntimeError("you have used mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", raise_mixed)
    for message, parts in (("tf32", 1), ("ieee", 2)):
        monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision=message))
        assert parts_for(torch.float32) == parts


def test_rows_of_16_bytes_are_read_where_they_lie() -> None:
    packed_copies().reset()
    q, k, v = inputs(20, 30, 12, 20)
    ours(q, k, v)
    assert packed_copies().calls == 0
    ours(*inputs(20, 30, 13, 20))
    assert packed_copies().calls == 2  # of query and key


def test_autocast_takes_half_precision() -> None:
    q, k, v = inputs(20, 30, 16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(q, k, v).dtype == torch.bfloat16


def test_the_largest_scores() -> None:
    q, k, v = inputs(40, 50, 16, 16)
    _, aux = ours(q, k, v, return_aux=AuxRequest(lse=True, max_scores=True))
    scores = (q.double() @ k.double().mT * 0.25).masked_fill(~torch.ones(40, 50).tril().bool(), -torch.inf)
    torch.testing.assert_close(aux.max_scores.double(), scores.amax(-1), rtol=1e-5, atol=1e-5)


def test_queries_without_keys() -> None:
    q, k, v = inputs(70, 40, 16, 16)
    mask = create_block_mask(lambda b, h, q, k: (q >= 64) & (k < 8), None, None, 70, 40, "cpu")
    o, lse = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True, backend="interpret", verify="off")
    assert (o[:, :, :64] == 0).all() and (lse[:, :, :64] == -torch.inf).all() and lse[:, :, 64:].isfinite().all()


def test_float64_is_refused() -> None:
    q, k, v = (x.double() for x in inputs(8, 8, 16, 16))
    with pytest.raises(CuirError, match="found float64") as caught:
        ours(q, k, v)
    assert caught.value.diagnostics[0].code == "U109" and "query.float()" in str(caught.value.diagnostics[0].hint)
    with pytest.raises(CuirError, match="for f16, bf16 and f32") as caught:
        attention(Specification("causal", causal), dtype=torch.float64, head_dim=16)
    assert caught.value.diagnostics[0].code == "U109" and "torch.float32" in str(caught.value.diagnostics[0].hint)
    with torch.autocast("cpu"), pytest.raises(CuirError, match="found float64"):
        ours(q, k, v)
    assert torch_flex(q, k, v, enable_gqa=True).dtype == torch.float64, "as the message says"


@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize("parts", [1, 2])
def test_the_object_is_verified(parts: int) -> None:
    """Mask, schedules and numbers, by the error that the kernel's precision allows."""
    result = attention(Specification("causal", causal), dtype="f32", head_dim=64, consts={"PARTS": parts, "BM": 128, "BN": 32, "ROWS": 128})
    report = result.report
    assert report is not None and report.ok and result.program.kernels()["flash_fwd"].params[0].name == "Q"
    assert corpus.expert("f32") == "flash_fwd_f32"


@pytest.mark.thorough("a whole verification of a right program, whose numbers have their tests here")
@pytest.mark.parametrize("score", [lambda s, b, h, q, k: s * 2, lambda s, b, h, q, k: s * s], ids=["twice", "squared"])
def test_steep_scores_are_verified_in_tf32(score: Callable[..., Any]) -> None:
    """PyTorch has the same error as the kernel where TF32 rounds few weights, and an LSE."""
    report = attention(Specification("steep", score_mod=score), dtype="f32", head_dim=64, consts={"PARTS": 1}).report
    assert report is not None and report.ok


def test_a_call_takes_the_start_that_was_measured() -> None:
    """Tables and the model of cost are of the kernel for half precision."""
    from cuir.performance.selection import Device, Evidence, choose
    from cuir.spec.specification import Lengths

    created = attention(Specification("causal", causal), dtype="f32", head_dim=64, consts={"PARTS": 2})
    fixed = {"T": created.settings.fixed["T"], "D": 64, "DV": 64, "PARTS": 2}
    result = choose(
        created.program,
        fixed,
        Lengths(2, 16, 16, 4096, 4096),
        Evidence(created.settings.starts, device=Device("NVIDIA H200 sm_90 132", 132)),
    )
    assert result.source == "start" and (result.consts["BM"], result.consts["ROWS"]) == (256, 128)

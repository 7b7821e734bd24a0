"""flex_attention against PyTorch's, in the interpreter; what a call may be given; what is made anew for another call, and what is not."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

import cuir
from cuir import CuirError, Specification, attention, create_block_mask, flex_attention
from cuir.attn.api import prepared_calls
from cuir.attn.capture.capture_keys import make_capture_key
from cuir.attn.capture.first_call_progress import Progress
from cuir.attn.kernels import attention_kernel, transfers
from cuir.testing import assert_attention_matches
from tests.strategies.selection import examples

ROOT = Path(__file__).parents[3]
M, N, D = 100, 140, 64
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Mod = Callable[..., Any]


def tensors(
    heads: int = 2, key_heads: int = 2, m: int = M, n: int = N, batch: int = 1, dtype: torch.dtype = torch.float16, dim: int = D
) -> Tensors:
    g = torch.Generator().manual_seed(m + n)
    q, k, v = (torch.randn(batch, h, s, dim, generator=g).to(dtype) for h, s in ((heads, m), (key_heads, n), (key_heads, n)))
    return q, k, v


def compare(qkv: Tensors, score: Mod | None = None, mask: Mod | None = None, block_mask: Any = None, **options: Any) -> None:
    """O and LSE of both; PyTorch computes in float32."""
    q, k, v = qkv
    lengths = q.shape[2], k.shape[2]
    second = torch_flex.create_block_mask(mask, None, None, *lengths, device="cpu") if mask else block_mask
    if block_mask is None and mask is not None:
        block_mask = create_block_mask(mask, None, None, *lengths, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, wanted_lse = torch_flex.flex_attention(q.float(), k.float(), v.float(), score, second, return_lse=True, **options)
    actual = flex_attention(q, k, v, score, block_mask, return_lse=True, backend="interpret", **options)
    assert isinstance(actual, tuple)
    o, lse = actual
    assert o.dtype == q.dtype and o.shape == q.shape and lse.dtype == torch.float32 and lse.shape == q.shape[:-1]
    torch.testing.assert_close(o.float(), expected, atol=3e-3 if q.dtype == torch.float16 else 2e-2, rtol=1e-2)
    torch.testing.assert_close(lse, wanted_lse, atol=2e-3, rtol=1e-4)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def make_window(size: int) -> Mod:
    return lambda b, h, q, k: (q - k <= size) & (k - q <= size)


def make_softcap(cap: float) -> Mod:
    return lambda s, b, h, q, k: cap * torch.tanh(s / cap)


def alibi(heads: int) -> Mod:
    slopes = torch.tensor([2.0 ** -(i + 1) for i in range(heads)])
    return lambda s, b, h, q, k: s + slopes[h] * (k - q)


def documents(seed: int = 0, n: int = N, batch: int = 1) -> Mod:
    ids = torch.randint(0, 4, (batch, n), generator=torch.Generator().manual_seed(seed)).sort(-1).values
    return lambda b, h, q, k: ids[b, q] == ids[b, k]


# ---- against PyTorch
@pytest.mark.parametrize(
    ("score", "mask"),
    [
        (None, None),
        (None, causal),
        (make_softcap(20.0), None),
        (alibi(2), None),
        (alibi(2), causal),
        (None, documents()),
    ],
    ids=["plain", "causal", "softcap", "alibi", "alibi causal", "documents"],
)
def test_as_pytorch_computes_it(score: Mod | None, mask: Mod | None) -> None:
    compare(tensors(), score, mask)


NANS = torch.randn(N, generator=torch.Generator().manual_seed(3))
NANS[[3, 40]] = torch.nan
LIMITS = torch.tensor([0.5, torch.nan])


@pytest.mark.parametrize(
    "mask",
    [
        lambda b, h, q, k: (torch.maximum(NANS[q], NANS[k]) > 0.3) | (q == k),
        lambda b, h, q, k: (torch.fmax(NANS[q], NANS[k]) > 0.3) | (q == k),
        lambda b, h, q, k: (LIMITS[h] >= 0.2) | (k <= q),
        lambda b, h, q, k: (q * 0.1 - k * 0.1 >= 0) & (q / 3.0 >= k / 3.0),
    ],
    ids=["maximum", "fmax", "a head without a limit", "as written"],
)
def test_masks_of_nans_and_of_rounded_products(mask: Mod) -> None:
    assert_attention_matches(None, mask, M=M, N=N, gradients=False)


def test_other_dtypes_and_head_dims() -> None:
    assert_attention_matches(None, documents(batch=2), M=M, N=N, B=2, D=128, dtype=torch.bfloat16, gradients=False)


def test_grouped_heads_and_scale() -> None:
    assert_attention_matches(alibi(4), causal, M=M, N=N, H=4, HK=2, scale=0.3, gradients=False)


def test_queries_without_keys() -> None:
    def late(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k + 20

    assert_attention_matches(None, late, M=M, N=N, gradients=False)
    o, lse = flex_attention(*tensors(), None, create_block_mask(late, 1, 2, M, N), return_lse=True, backend="interpret")
    assert not bool(o[:, :, :20].any()) and bool((lse[:, :, :20] == -torch.inf).all())


def test_strided_tensors_keep_their_layout() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors())
    compare((q, k, v), None, causal)
    o = flex_attention(q, k, v, backend="interpret")
    assert isinstance(o, torch.Tensor) and o.stride() == q.stride()


@pytest.mark.parametrize("mask", [causal, documents(1)])
def test_block_masks_of_pytorch(mask: Mod) -> None:
    compare(tensors(), None, None, torch_flex.create_block_mask(mask, None, None, M, N, device="cpu"))


def test_captured_values_with_names_of_lengths() -> None:
    N, k, S = 30, torch.arange(140) // 20, 2.0

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (k[q_idx] == k[kv_idx]) | (kv_idx < N)

    assert_attention_matches(lambda s, b, h, q, _k: s * S, mask, M=100, N=140, gradients=False)
    compare(tensors(), None, None, torch_flex.create_block_mask(mask, None, None, 100, 140, device="cpu"))


def test_combined_masks_of_pytorch() -> None:
    assert_attention_matches(None, torch_flex.and_masks(causal, documents(2)), M=M, N=N, gradients=False)


@examples(0.2)
@given(size=st.integers(0, 90), m=st.integers(1, 150), n=st.integers(1, 150), seed=st.integers(0, 3))
def test_any_window_and_length(size: int, m: int, n: int, seed: int) -> None:
    mask = torch_flex.or_masks(make_window(size), documents(seed, max(m, n)))
    assert_attention_matches(None, mask, M=m, N=n, H=1, seed=seed, gradients=False)


# ---- the explicit form
def test_the_explicit_form() -> None:
    spec = Specification("capped", causal, make_softcap(15.0))
    actual = attention(spec, dtype="f16", head_dim=64)
    q, k, v = tensors()
    o, lse = actual(q, k, v, return_lse=True, backend="interpret")
    expected, wanted_lse = spec.reference(q, k, v, D**-0.5)
    torch.testing.assert_close(o.double(), expected, atol=2e-3, rtol=1e-2)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-3, rtol=1e-4)
    assert cuir.parse(cuir.show(actual.program)).funcs().keys() >= {"score", "keep"}
    assert "__global__" in actual.cuda.source
    assert "capped" in repr(actual)
    with pytest.raises(CuirError, match="U404"):
        actual(q.bfloat16(), k.bfloat16(), v.bfloat16(), backend="interpret")


def test_data_that_follow_the_lengths() -> None:
    def mask(b: Any, h: Any, q: Any, k: Any, *, ids: Any) -> Any:
        return ids[q] == ids[k]

    spec = Specification("ids", mask, captured={"ids": lambda at: torch.arange(max(at.M, at.N)) // 30})
    q, k, v = tensors()
    o = attention(spec, head_dim=64)(q, k, v, backend="interpret")
    torch.testing.assert_close(o.double(), spec.reference(q, k, v, D**-0.5)[0], atol=2e-3, rtol=1e-2)


# ---- what is made anew
@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is compiled, where kernels on a GPU are stood in for by the interpreter."""
    calls: list[Any] = []

    def compile(program: Any, consts: Any, run: Any) -> Any:
        calls.append(consts)

        def launch(arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
            lse = torch.empty(arguments["Q"].shape[:-1])
            cuir.run(program, {**arguments, "LSE": lse}, consts=consts)
            return arguments["O"], lse

        return SimpleNamespace(launch=launch, spilled=0, make_replay=lambda varying, arguments: None)  # every call is seen here

    monkeypatch.setattr("cuir.runtime.compiled.compile", compile)
    monkeypatch.setattr(attention_kernel, "need_gpu", lambda device, arch: None)
    monkeypatch.setattr(attention_kernel, "_SETTINGS", {})
    monkeypatch.setattr(prepared_calls, "_ATTENTIONS", OrderedDict())
    monkeypatch.setattr(prepared_calls, "_TRACED", {})
    monkeypatch.setattr(prepared_calls, "_WARM", OrderedDict())
    yield calls


def call(qkv: Tensors, mask: Mod | None, score: Mod | None = None, **options: Any) -> torch.Tensor:
    q, k, v = qkv
    block_mask = create_block_mask(mask, None, None, q.shape[2], k.shape[2]) if mask else None
    o = flex_attention(q, k, v, score, block_mask, **{"verify": "off", **options})
    assert isinstance(o, torch.Tensor)
    expected = Specification("wanted", mask, score).reference(q, k, v, q.shape[3] ** -0.5)[0]
    torch.testing.assert_close(o.double(), expected, atol=3e-3, rtol=1e-2)
    return o


def test_one_kernel_for_all_data_and_lengths(compiled: list[Any]) -> None:
    for seed, (m, n) in enumerate([(M, N), (M, N), (70, 33), (33, 150)]):
        call(tensors(m=m, n=n), documents(seed, max(m, n)))
    for size in (5, 9, 40):
        call(tensors(), make_window(size))
    assert len(compiled) == 2
    call(tensors(dtype=torch.bfloat16, dim=128), make_window(5))
    assert len(compiled) == 3


def test_tensors_that_were_written_to(compiled: list[Any]) -> None:
    ids = torch.arange(N) // 50

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ids[q] == ids[k]

    before = call(tensors(), mask)
    ids.copy_(torch.arange(N) // 20)
    assert not torch.equal(before, call(tensors(), mask)) and len(compiled) == 1


def test_numbers_that_become_part_of_the_program(compiled: list[Any]) -> None:
    def mod(kind: int, factor: float) -> Mod:
        def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            if kind == 1:
                return s * factor
            return s + factor * (k - q)

        return score

    for kind, factor in ((1, 0.5), (2, 0.5), (1, 0.25), (1, -0.5)):
        call(tensors(), None, mod(kind, factor))
    assert len(compiled) == 3  # a factor that is not positive cannot leave the score


def test_data_that_cannot_be_compared(compiled: list[Any]) -> None:
    table = np.array([0, 30])

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k + int(table[1])

    before = call(tensors(), mask)
    table[1] = 10
    assert not torch.equal(before, call(tensors(), mask)) and len(compiled) == 2


def test_nothing_is_transferred_again(compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    call(tensors(), documents(0), alibi(2))
    monkeypatch.setattr(attention_kernel, "transfer", None)
    call(tensors(), documents(1), alibi(2))
    call(tensors(4, 4, n=90), documents(1, 300), alibi(4))
    assert len(compiled) == 1 and len(prepared_calls._ATTENTIONS) == 2


def test_a_wrong_kernel_never_runs(compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str] = []

    def wrong(program: Any, spec: Any, key: Any, consts: Any, level: str, progress: Any) -> Any:
        levels.append(level)
        raise CuirError.of("V305", "another mask")

    monkeypatch.setattr(transfers, "verify_or_recall", wrong)
    monkeypatch.setattr(cuir, "run", None)  # what stands in for a kernel
    for level in ("quick", "full"):
        with pytest.raises(CuirError, match="V305"):
            call(tensors(), causal, verify=level)
    assert levels == ["quick", "full"]


# ---- verification is remembered
SMALL = {"BM": 64, "BN": 64}


@pytest.mark.usefixtures("few_problems")
def test_the_answer_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    first = attention(documents(0), head_dim=64, consts=SMALL).report
    assert first is not None and first.ok and len(list(tmp_path.glob("verified/*.json"))) == 1

    def never(*args: Any, **named: Any) -> Any:
        raise AssertionError("asked again")

    monkeypatch.setattr("cuir.verification.stages.verify", never)
    repeated = attention(documents(1, 500), head_dim=64, consts=SMALL).report
    assert repeated is not None and repeated.summary() == first.summary() and repeated.consts == first.consts
    with pytest.raises(AssertionError, match="asked again"):
        _ = attention(make_window(3), head_dim=64, consts=SMALL).report
    next(tmp_path.glob("verified/*.json")).write_text("{}")
    with pytest.raises(AssertionError, match="asked again"):
        _ = attention(documents(0), head_dim=64, consts=SMALL).report
    assert attention(documents(0), head_dim=64, consts=SMALL, verify="off").report is None


def test_a_wrong_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    right = attention(causal, head_dim=64, consts=SMALL)
    second = Specification("other", make_window(7))
    with pytest.raises(CuirError, match="V107"):
        transfers.verify_or_recall(
            right.program, second, make_capture_key(second.mask_mod), {"T": cuir.f16, "D": 64, **SMALL}, "quick", Progress("other")
        )
    assert not list(tmp_path.glob("verified/*"))


# ---- identities
def test_what_an_identity_tells_apart() -> None:
    item, two = make_capture_key(make_window(3)), make_capture_key(make_window(4))
    assert item.structure == two.structure and item.values != two.values and item.digest() == two.digest()
    assert make_capture_key(make_window(-3)).structure != item.structure
    assert (
        make_capture_key(make_window(3)) == item
        and make_capture_key(make_softcap(3.0)).structure != make_capture_key(make_softcap(3)).structure
    )
    a, b = documents(0), documents(1, 500)
    assert make_capture_key(a).structure == make_capture_key(b).structure and make_capture_key(a).values != make_capture_key(b).values
    assert len(make_capture_key(a, a).tensors) == 1 and make_capture_key(a, a).structure != make_capture_key(a, documents(1)).structure
    assert make_capture_key(causal).structure != make_capture_key(lambda b, h, q, k: q > k).structure


def test_containers_that_hold_themselves() -> None:
    loop: list[Any] = [3]
    loop.append(loop)
    container: dict[str, Any] = {"size": 4}
    container["itself"] = container
    assert make_capture_key(lambda b, h, q, k: q - k <= loop[0] + container["size"]).values == (4, 3)


def test_things_that_cannot_be_compared() -> None:
    table = np.arange(4)
    assert not make_capture_key(lambda b, h, q, k: table[0] + q >= k).comparable

    class Window:
        def __init__(self, size: int) -> None:
            self.size = size

        def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return q - k <= self.size

    assert make_capture_key(Window(3)).values != make_capture_key(Window(4)).values


# ---- what else is refused
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CuirError, match=r'U501(.|\n)*backend="interpret"'):
        flex_attention(*tensors())

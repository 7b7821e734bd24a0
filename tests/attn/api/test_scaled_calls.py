"""Calls with scales of 8-bit inputs in the interpreter, against float64; in graphs; and which calls are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest

import cuir
from cuir.attn.api.scaled_calls import Scales, make_scaled_score
from cuir.attn.kernels.card_kernels import find_kernel
from cuir.syntax.types import F8E4M3
from cuir.text.diagnostics import CuirError

B, H, HK, M, N = 2, 4, 2, 70, 150
INTERPRETED: dict[str, Any] = {"backend": "interpret", "verify": "off", "enable_gqa": True, "return_lse": True}
Pair = tuple[torch.Tensor, torch.Tensor]
Mod = Callable[..., Any]
BIAS = torch.randn(H, generator=torch.Generator().manual_seed(9))


def draw(D: int = 64, DV: int | None = None) -> list[torch.Tensor]:
    """Queries, keys and values of unlike size."""
    g = torch.Generator().manual_seed(D)
    shapes = ((H, M, D, 3.0), (HK, N, D, 0.5), (HK, N, DV or D, 7.0))
    return [torch.randn(B, h, n, d, generator=g) * size for h, n, d, size in shapes]


def quantised(D: int = 64, per: str = "head", **more: Any) -> list[Pair]:
    q, k, v = draw(D, more.pop("DV", None))
    return [cuir.quantize_fp8(x, of, **more) for x, of in ((q, per), (k, per), (v, "head" if per == "block" else per))]  # type: ignore[arg-type]


def widen(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The numbers that 8-bit ones with their scales stand for, in float64."""
    if scale.dim() == 3:
        scale = scale.repeat_interleave(128, 2)[:, :, : x.shape[2]]
    return x.double() * scale.double().reshape(*scale.shape, *(1,) * (4 - scale.dim()))


def expect(
    pairs: list[Pair], mod: Mod | None = None, kept: torch.Tensor | None = None, sink: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = (widen(*pair) for pair in pairs)
    s = q @ k.repeat_interleave(H // HK, 1).mT * q.shape[-1] ** -0.5
    if mod is not None:
        s = mod(s, *torch.meshgrid(*map(torch.arange, s.shape), indexing="ij"))
    if kept is not None:
        s = s.masked_fill(~kept, -torch.inf)
    lse = s.logsumexp(-1) if sink is None else torch.logaddexp(s.logsumexp(-1), sink.double().expand(H)[:, None])
    return torch.exp(s - lse.clamp(min=-1e30)[..., None]) @ v.repeat_interleave(H // HK, 1), lse


def call(pairs: list[Pair], *mods: Any, **options: Any) -> Any:
    (q, qs), (k, ks), (v, vs) = pairs
    return cuir.flex_attention(q, k, v, *mods, q_scale=qs, k_scale=ks, v_scale=vs, **{**INTERPRETED, **options})


def require_close(result: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor], error: float = 0.04) -> None:
    """Weights of e4m3 have 4 bits, whose errors average out."""
    assert result[0].dtype == torch.bfloat16
    assert float((result[0].double() - expected[0]).norm() / expected[0].norm()) < error
    torch.testing.assert_close(result[1].double(), expected[1], atol=2e-5, rtol=2e-5)


def biased(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return score + BIAS[h] * (i - j) * 0.1


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return j <= i + (N - M)


@pytest.mark.parametrize("per", ["tensor", "head", "block"])
def test_scales(per: str) -> None:
    pairs = quantised(per=per)
    assert [s.dim() for _, s in pairs] == {"tensor": [0, 0, 0], "head": [2, 2, 2], "block": [3, 3, 2]}[per]
    require_close(call(pairs), expect(pairs))


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("dims", "dtype"),
    [
        ((128, 128), torch.float8_e4m3fn),
        ((192, 128), torch.float8_e4m3fn),
        ((256, 256), torch.float8_e4m3fn),
        ((40, 24), torch.float8_e5m2),
    ],
    ids=str,
)
def test_head_dims_and_dtypes(dims: tuple[int, int], dtype: torch.dtype) -> None:
    pairs = quantised(dims[0], DV=dims[1], dtype=dtype)
    require_close(call(pairs), expect(pairs), 0.04 if dtype == torch.float8_e4m3fn else 0.08)


def test_mods_see_scaled_scores() -> None:
    pairs = quantised()
    mask = cuir.create_block_mask(causal, None, None, M, N, device="cpu")
    kept = torch.arange(N)[None] <= torch.arange(M)[:, None] + (N - M)
    require_close(call(pairs, biased, mask), expect(pairs, biased, kept))


def test_scales_of_blocks_beside_a_mod() -> None:
    pairs = quantised(per="block")
    pairs[1] = pairs[1][0], pairs[1][1] * torch.tensor([1.0, 4.0])
    require_close(call(pairs, biased), expect(pairs, biased))


@pytest.mark.parametrize("per", ["tensor", "head"])
def test_a_scale_of_a_head_is_no_work_for_a_pair(per: str) -> None:
    """It goes into the factor of the exponents; a scale of a block multiplies each score."""
    pairs = quantised(per=per)
    mod = make_scaled_score(None, Scales(pairs[0][1], pairs[1][1], 1.0), H // HK, usual=True)
    program = cuir.show(cuir.attention(mod, dtype=torch.float8_e4m3fn, head_dim=64, verify="off").program)
    assert re.search(r"return S, scale \* max\(scale_2\[.*\* LOG2E", program)


def test_scores_of_any_scale() -> None:
    """A scale of scores so small that its product with those of heads might be 0 stays apart."""
    pairs = [(x, s * 2.0**40) for x, s in quantised()]
    (q, qs), (k, ks), (v, vs) = pairs
    result = cuir.flex_attention(q, k, v, scale=2.0**-84, q_scale=qs, k_scale=ks, v_scale=vs, **INTERPRETED)
    s = widen(q, qs) @ widen(k, ks).repeat_interleave(H // HK, 1).mT * 2.0**-84
    require_close(result, (torch.softmax(s, -1) @ widen(v, vs).repeat_interleave(H // HK, 1), s.logsumexp(-1)))


def test_numbers_are_scales() -> None:
    (q, _), (k, _), (v, _) = quantised()
    scales = 0.003, 0.004, 2.0
    of_all = dict(zip(("q_scale", "k_scale", "v_scale"), scales, strict=True))
    o, aux = cuir.flex_attention(q, k, v, **of_all, **{**INTERPRETED, "return_lse": False}, return_aux=AuxRequest(lse=True))
    require_close((o, aux.lse), expect([(x, torch.tensor(s)) for x, s in zip((q, k, v), scales, strict=True)]))


def test_a_later_call_with_other_scales_takes_these() -> None:
    pairs = quantised()
    first = call(pairs)[0]
    pairs[2] = pairs[2][0], pairs[2][1] * 2
    torch.testing.assert_close(call(pairs)[0], first * 2, rtol=0, atol=0)
    pairs[0][1].mul_(3.0)
    require_close(call(pairs), expect(pairs))


def test_autocast_leaves_8_bit_inputs() -> None:
    pairs = quantised()
    with torch.autocast("cpu", torch.bfloat16):
        require_close(call(pairs), expect(pairs))


# ---- graphs
def test_a_graph_of_torch_compile() -> None:
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = [cuir.quantize_fp8(x) for x in (q, k, v)]
        o, lse = call(pairs, biased)
        return o * 2, lse

    tensors = draw()
    compiled = torch.compile(step, backend="eager", fullgraph=True)(*tensors)
    for a, b in zip(compiled, step(*tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_tensors_without_data() -> None:
    pairs = [(x.to("meta"), s.to("meta")) for x, s in quantised(64, DV=128)]
    o, lse = call(pairs)
    assert (o.shape, o.dtype, lse.shape, lse.dtype) == ((B, H, M, 128), torch.bfloat16, (B, H, M), torch.float32)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("kept", [True, False], ids=["all keys", "some queries without keys"])
@pytest.mark.parametrize("sink", [-2.0, torch.linspace(-3.0, 30.0, H)], ids=["number", "heads"])
def test_sinks(sink: Any, kept: bool) -> None:
    pairs, mask = quantised(), None if kept else cuir.create_block_mask(lambda b, h, i, j: j <= i - 5, None, None, M, N)
    pairs_kept = None if kept else torch.arange(N) <= torch.arange(M)[:, None] - 5
    expected = expect(pairs, None, pairs_kept, torch.as_tensor(sink))
    require_close(call(pairs, None, mask, sink=sink), expected)
    step = torch.compile(lambda: call(pairs, None, mask, sink=sink), backend="aot_eager", fullgraph=True)
    require_close(step(), expected)


# ---- what is refused
@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"k_scale": None}, "U402", "`k_scale` is missing"),
        ({"q_scale": torch.ones(B, H, dtype=torch.float64)}, "U404", "`q_scale` must be float32, found float64"),
        ({"q_scale": torch.ones(H)}, "U408", "`q_scale` has the shape [] or [2, 4] or [2, 4, 1], found [4]"),
        ({"k_scale": torch.ones(B, HK, 3)}, "U408", "[2, 2, 2], found [2, 2, 3]"),
        ({"v_scale": torch.ones(B, HK, 2)}, "U408", "`v_scale` has the shape [] or [2, 2], found"),
        ({"v_scale": -1.0}, "U413", "`v_scale` must be a positive number or a tensor of float32, found -1.0"),
        ({"sink": torch.ones(H, requires_grad=True)}, "X109", "no gradients"),
        ({"normalize": "sigmoid"}, "U413", "is a softmax"),
        ({"dropout_p": 0.5}, "U413", "dropout"),
        ({"batch_invariant": True}, "U413", "batch_invariant"),
        ({"q_scale": torch.ones(B, H, requires_grad=True)}, "X109", "no gradients"),
        ({"score_mod": lambda s, b, h, i, j: s + LEARNED[h]}, "X109", "no gradients"),
        ({"query": torch.zeros(B, H, M, 64)}, "U109", "scales are for 8-bit floats, found `query` of float32"),
        ({"key": torch.zeros(B, HK, N, 64).to(torch.float8_e5m2)}, "U404", "`key` must have the dtype of `query`"),
        ({"q_scale": None, "k_scale": None, "v_scale": None}, "U109", "`query` must be float16, bfloat16 or float32"),
    ],
    ids=lambda x: ",".join(x) if isinstance(x, dict) else "",
)
def test_what_is_refused(changes: dict[str, Any], code: str, words: str) -> None:
    (q, qs), (k, ks), (v, vs) = quantised()
    arguments = {"query": q, "key": k, "value": v, "q_scale": qs, "k_scale": ks, "v_scale": vs, **changes}
    with pytest.raises(CuirError) as caught:
        cuir.flex_attention(**arguments, **INTERPRETED)
    first = caught.value.diagnostics[0]
    assert first.code == code and words in first.message, first


LEARNED = torch.ones(H, requires_grad=True)


def test_further_outputs_are_refused() -> None:
    with pytest.raises(CuirError, match="further outputs"):
        call(quantised(), return_lse=False, return_aux=AuxRequest(max_scores=True))


def test_wide_heads_and_older_cards_are_refused() -> None:
    with pytest.raises(CuirError, match="head dims above 256 in f8e4m3"):
        call(quantised(320))
    with pytest.raises(CuirError, match="kernels of sm_80 multiply f16 and bf16 and f32, found f8e4m3"):
        find_kernel("sm_80", "forward", F8E4M3)


# ---- quantisation
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("per", ["tensor", "head", "block"])
def test_quantised_numbers_are_the_nearest(per: Any, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 200, 16, generator=torch.Generator().manual_seed(3)) * torch.tensor([1.0, 100.0, 0.01])[:, None, None]
    x[0, 0, 0] = 0.0
    y, scale = cuir.quantize_fp8(x, per, dtype)
    assert y.dtype == dtype and scale.shape == {"tensor": (), "head": (2, 3), "block": (2, 3, 2)}[per]
    assert float(y.float().abs().max()) == torch.finfo(dtype).max
    step = torch.finfo(dtype).eps * x.abs() / 2 + scale.max() * torch.finfo(dtype).smallest_normal
    assert bool(((widen(y, scale) - x).abs() <= 1.01 * step).all())


def test_zeros_have_a_scale() -> None:
    y, scale = cuir.quantize_fp8(torch.zeros(1, 2, 5, 16))
    assert bool((y.float() == 0).all()) and bool((scale == 1).all())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((torch.zeros(2, 3, 4),), "U405"),
        ((torch.zeros(1, 1, 1, 8), "row"), "U413"),
        ((torch.zeros(1, 1, 1, 8), "head", torch.int8), "U404"),
    ],
)
def test_what_is_not_quantised(arguments: Any, code: str) -> None:
    with pytest.raises(CuirError) as caught:
        cuir.quantize_fp8(*arguments)
    assert caught.value.diagnostics[0].code == code

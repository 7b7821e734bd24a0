"""Calls with few queries and many keys, in the interpreter: which run on the decode kernel, with which setting, and that they give what PyTorch's flex_attention gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import corpus
from benchmarks.recorded import read_rows
from cuir import Specification, check, flex_attention, transfer
from cuir.attn.api import prepared_calls
from cuir.attn.capture.capture_keys import make_capture_key
from cuir.attn.kernels import attention_kernel, decoding
from cuir.attn.kernels.experts import Form, origin_of
from cuir.attn.kernels.serving_settings import DecodeSettings
from cuir.attn.tracing.read_ranges import trace_without_clashes
from cuir.flex import AuxRequest
from cuir.spec.specification import Lengths
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, F16
from cuir.testing import assert_attention_matches

PROGRAM = parse(corpus.kernels()["decode_sm90"].read_text(encoding="utf-8"))
Mod = Callable[..., Any]
LENGTHS = torch.tensor([300, 0])
SLOPES = torch.tensor([0.5, 0.1, 0.2, 0.3])
TREE = torch.rand(7, 7, generator=torch.Generator().manual_seed(0)) > 0.4


def alibi(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + SLOPES[h] * (k - q)


def cap(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 20 * torch.tanh(s / 20) * torch.where(h > 1, 2.0, 0.5)


def own_length(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k < LENGTHS[b]


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k <= q + 290) & (k > q + 200)


def of_heads(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k < (h + 1) * 60


def tree(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k < 293) | TREE[q, (k - 293).clamp(0, 6)]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("shape", "dims", "score", "mask"),
    [
        ((1, 8, 1, 1, 300), (64, 64), None, None),
        ((2, 4, 2, 1, 320), (64, 64), None, own_length),
        ((1, 4, 2, 3, 300), (64, 64), alibi, window),
        ((1, 4, 1, 2, 300), (192, 128), cap, None),
        ((1, 4, 2, 2, 300), (64, 64), None, of_heads),
        ((1, 6, 2, 7, 300), (96, 96), None, tree),
        ((1, 2, 1, 2, 260), (256, 256), None, None),
    ],
)
def test_gives_what_pytorch_gives(shape: tuple[int, ...], dims: tuple[int, int], score: Mod | None, mask: Mod | None) -> None:
    B, H, HK, M, N = shape
    assert_attention_matches(score, mask, B=B, H=H, HK=HK, M=M, N=N, D=dims[0], DV=dims[1], gradients=False)
    assert next(reversed(prepared_calls._ATTENTIONS.values())).attention.transferred.kernel == "flash_decode"


def test_sinks_other_weights_and_largest_scores() -> None:
    q, k, v = (torch.randn(1, h, n, 64).half() for h, n in ((4, 2), (2, 300), (2, 300)))
    s = q.double() @ k.double().repeat_interleave(2, 1).mT / 8
    values, sink = v.double().repeat_interleave(2, 1), torch.tensor([0.5, -1.0, 9.0, 2.0])
    lse = torch.logaddexp(s.logsumexp(-1), sink[:, None].double())
    for expected, options in (
        ((s - lse[..., None]).exp() @ values, {"sink": sink}),
        (s.sigmoid() @ values, {"normalize": "sigmoid"}),
        (s.clamp(min=0) @ values / 300, {"normalize": "relu"}),
    ):
        o, aux = flex_attention(q, k, v, enable_gqa=True, backend="interpret", return_aux=AuxRequest(lse=True, max_scores=True), **options)
        torch.testing.assert_close(o.double(), expected, atol=5e-3 * float(expected.abs().max()), rtol=1e-2)
        torch.testing.assert_close(aux.max_scores.double(), s.amax(-1), atol=1e-3, rtol=1e-4)
        if "sink" in options:
            torch.testing.assert_close(aux.lse.double(), lse, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "decode"),
    [
        ((8, 1, 8, 256), True),
        ((8, 1, 8, 255), False),
        ((8, 1, 9, 4096), False),
        ((64, 1, 1, 256), True),
        ((2, 2, 64, 256), True),
        ((2, 2, 65, 256), False),
    ],
)
def test_which_calls(shape: tuple[int, ...], decode: bool) -> None:
    H, HK, M, N = shape
    assert decoding.runs_on_decode_kernel(torch.empty(1, H, M, 64).half(), torch.empty(1, HK, N, 64).half()) == decode
    assert not decoding.runs_on_decode_kernel(torch.empty(1, H, M, 64), torch.empty(1, HK, N, 64))  # of float32


def test_heads_share_a_tile_where_the_mods_admit_it() -> None:
    fixed = {"T": BF16, "D": 64, "DV": 64}
    for spec, shared in (
        (Specification("alibi", score_mod=alibi), True),
        (Specification("window", window), True),
        (Specification("of_heads", of_heads), False),  # each head has blocks of its own
        (Specification("cap", score_mod=cap), False),  # a choice by the head is one of scalars
    ):
        traced = trace_without_clashes(spec)
        program = transfer(PROGRAM, spec, traced=traced).program
        assert decoding.can_pack_heads(traced, program, fixed) == shared, spec.name


def test_heads_share_the_tile_of_a_latent_cache_of_8_bits() -> None:
    spec, fixed = Specification("alibi", score_mod=alibi), {"T": BF16, "D": 192, "DV": 128, "CHUNK": 32, "TOKENS": 1}
    traced = trace_without_clashes(spec)
    assert decoding.can_pack_heads(traced, transfer(origin_of("mla_decode_f8_sm90"), spec, traced=traced).program, fixed)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)])
@pytest.mark.parametrize("heads", [(64, 8), (32, 32), (6, 2), (3, 1)])
@pytest.mark.parametrize("M", [1, 4, 8])
def test_settings_make_kernels(dims: tuple[int, int], heads: tuple[int, int], M: int) -> None:
    fixed = {"T": F16, "D": dims[0], "DV": dims[1]}
    for batch, keys in ((1, 256), (1, 131072), (128, 4096)):
        consts = decoding.consts_for(Lengths(batch, *heads, M, keys), fixed, True)
        assert consts["BM"] * consts["GROUP"] == 64 and consts["BM"] >= M
        assert consts["CLUSTER"] * consts["WG"] <= math.ceil(keys / consts["BN"])
    check(PROGRAM, None, consts)


def test_sequences_of_a_cache_that_wait_are_ordered_and_few_long_ones_shared() -> None:
    fixed = {"T": F16, "D": 128, "DV": 128}
    for batch, heads, keys, ordered, cluster in (
        (64, (64, 8), 16384, True, 2),
        (128, (64, 8), 1024, True, 1),  # too short to be shared
        (64, (32, 32), 16384, True, 1),  # many
        (16, (64, 8), 4096, False, 1),  # all begin at once
        (1, (256, 256), 4096, False, 1),  # of one sequence
    ):
        consts = decoding.consts_for(Lengths(batch, *heads, 1, keys), {**fixed, "CHUNK": 64}, True)
        assert (consts["ORDERED"], consts["CLUSTER"]) == (ordered, cluster), (batch, heads, keys)
        assert "ORDERED" not in decoding.consts_for(Lengths(batch, *heads, 1, keys), fixed, True)


MEASURED = Path(__file__).parents[3] / "benchmarks/results/decode-settings-h200-2026-11-26.jsonl.xz"


def test_a_call_gets_what_was_the_fastest() -> None:
    """Of all ways to share out the keys that were timed, within 3 %."""
    rows = read_rows(MEASURED)[1:]
    assert len(rows) == 28
    for row in rows:
        B, H, HK, M, N, D = row["shape"]
        chosen = decoding.consts_for(Lengths(B, H, HK, M, N), {"T": F16, "D": D, "DV": D}, True)
        speeds = {name: of["gbs"] for name, of in row["contenders"].items() if name.startswith("cuir")}
        name = "cuir " + ",".join(f"{key}={chosen[key]}" for key in ("CLUSTER", "WG", "STAGES", "BN"))
        assert speeds[name] >= 0.97 * max(speeds.values()), (row["shape"], name)


def causal(b: Any, h: Any, q: Any, k: Any, *, M: Any, N: Any) -> Any:
    return k <= q + (N - M)


def behind(b: Any, h: Any, q: Any, k: Any, *, M: Any, N: Any) -> Any:
    return k > q + (N - M) - width


width = 1000


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("mask", "M", "keys"),
    [
        (None, 4, 131072),
        (causal, 4, 131072),
        (behind, 1, 1024),  # sixteen blocks of 64 keys
        (behind, 4, 1024),
        (own_length, 1, 131072),  # known on the device alone
    ],
)
@pytest.mark.parametrize(("kind", "fixed"), [("decode", {}), ("cache", {"CHUNK": 64}), ("cache of 8 bits", {"CHUNK": 64, "TOKENS": 0})])
def test_work_is_shared_out_for_what_the_mask_leaves(mask: Mod | None, M: int, keys: int, kind: Any, fixed: dict[str, int]) -> None:
    spec = Specification("some", mask)
    attention = attention_kernel.make_attention(
        spec, make_capture_key(mask, None), Form(torch.float16, 128, 128, kind, tuple(fixed.items())), "off"
    )
    settings, at = attention.settings, Lengths(1, 64, 8, M, 131072)
    numbers = settings.numbers(attention.transferred.captured)
    assert isinstance(settings, DecodeSettings) and keys == settings.limit_to_kept_keys(at, dict(numbers)).N
    shared = settings.choice(at, numbers).consts.get("SPLITS", 1)
    assert (shared > 1) == (keys == 131072 and kind != "decode")  # type: ignore[operator]


def test_a_score_mod_makes_sharing_worth_while_sooner() -> None:
    at = Lengths(1, 64, 8, 1, 131072)
    for score, shared in ((None, False), (alibi, True)):
        attention = attention_kernel.make_attention(
            Specification("some", None, score), make_capture_key(None, score), Form(torch.float16, 128, 128, "decode"), "off"
        )
        assert ("SPLITS" in attention.settings.choice(at).consts) == shared

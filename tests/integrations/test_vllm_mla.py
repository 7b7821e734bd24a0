"""The backend for vLLM's latent attention against vLLM's own interface. Skipped where vLLM cannot be imported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cuir.attn.kernels.card_kernels import DEFAULT, VARIABLE
from tests.attn.serving.test_latent_cache import LATENT, Problem
from tests.attn.serving.test_latent_cache import D as COLUMNS
from tests.stand_in_cards import forget

layers = pytest.importorskip("vllm.model_executor.layers.attention.mla_attention", reason="vLLM cannot be imported", exc_type=ImportError)
HEADS = 8
TURING, AMPERE = SimpleNamespace(major=7, minor=5), SimpleNamespace(major=8, minor=0)


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> Any:
    from cuir.integrations import vllm, vllm_mla

    vllm.register(backend="interpret", verify="off")
    config = SimpleNamespace(parallel_config=SimpleNamespace(decode_context_parallel_size=1))
    monkeypatch.setattr(layers, "get_current_vllm_config", lambda: config)
    yield vllm_mla
    forget()


def make_layer(ours: Any, dtype: str = "auto", latent: int = LATENT, **options: Any) -> Any:
    given = {"alibi_slopes": None, "sliding_window": None, "logits_soft_cap": None, "attn_type": "decoder", **options}
    dims = {"kv_lora_rank": latent, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "qk_head_dim": 128, "v_head_dim": 64}
    return ours.CuirMLAImpl(
        HEADS,
        COLUMNS,
        COLUMNS**-0.5,
        1,
        kv_cache_dtype=dtype,
        kv_sharing_target_layer_name=None,
        **given,
        **dims,
        q_lora_rank=None,
        kv_b_proj=None,
    )


def make_metadata(problem: Problem) -> Any:
    B, M = problem.q.shape[:2]
    lengths = torch.tensor(problem.lengths, dtype=torch.int32)
    decode = layers.MLACommonDecodeMetadata(block_table=problem.table, seq_lens=lengths, dcp_tot_seq_lens=None)
    return layers.MLACommonMetadata(
        num_reqs=B,
        max_query_len=M,
        max_seq_len=max(problem.lengths),
        num_actual_tokens=B * M,
        query_start_loc=torch.arange(0, B * M + 1, M),
        slot_mapping=torch.zeros(B * M),
        num_decodes=B,
        num_decode_tokens=B * M,
        num_prefills=0,
        decode=decode,
    )


@pytest.mark.parametrize(("M", "scales", "arch"), [(1, "", DEFAULT), (2, "", "sm_80"), (2, "", "sm_75"), (2, "head", DEFAULT)])
def test_the_decode_of_a_layer(M: int, scales: str, arch: str, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries come whole or in two parts; vLLM's caches of 8 bits are bytes."""
    monkeypatch.setenv(VARIABLE, arch)
    forget()
    problem = Problem([130, 40], 16, HEADS, M=M, scales=scales)
    cache, layer = problem.cache[:, :, 0], SimpleNamespace(_k_scale=torch.tensor(1.0) if problem.scale is None else problem.scale[0])
    rows = problem.q.flatten(0, 1)
    q = rows if M == 1 else (rows[..., :LATENT], rows[..., LATENT:])
    cache = cache.view(torch.uint8) if scales else cache
    o, lse = make_layer(ours, "fp8" if scales else "auto").forward_mqa(q, cache, make_metadata(problem), layer)
    expected, sums = problem.compute_expected(None, None, True)
    torch.testing.assert_close(o.double(), expected.flatten(0, 1), atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(lse.double(), sums.transpose(1, 2).flatten(0, 1), atol=4e-3, rtol=1e-3)


def test_vllm_finds_the_backend(ours: Any) -> None:
    from vllm.config.attention import AttentionConfig

    found = AttentionConfig(backend="cuir_mla").backend.get_class()  # type: ignore[arg-type, union-attr]
    assert found is ours.CuirMLABackend and found.get_name() == "CUIR_MLA" and found.is_mla()
    assert issubclass(found.get_impl_cls(), layers.MLACommonImpl) and issubclass(found.get_builder_cls(), layers.MLACommonMetadataBuilder)


@pytest.mark.parametrize(
    ("requests", "reasons"),
    [
        ({}, []),
        ({"kv_cache_dtype": "fp8", "head_size": 320}, []),
        ({"use_mla": False}, ["MLA"]),
        ({"use_sparse": True}, ["sparse"]),
        ({"head_size": 512}, ["head_size"]),
        ({"kv_cache_dtype": "fp8_ds_mla"}, ["kv_cache_dtype"]),
        ({"device_capability": SimpleNamespace(major=7, minor=0)}, ["compute capability"]),
        *(({"device_capability": SimpleNamespace(major=x, minor=y)}, []) for x, y in ((8, 0), (8, 6), (8, 9), (10, 0), (12, 0))),
        ({"device_capability": TURING, "dtype": torch.float16, "head_size": 192}, []),
        ({"device_capability": TURING}, ["kernels of sm_75 multiply f16, found bf16"]),
        (
            {"device_capability": TURING, "dtype": torch.float16, "kv_cache_dtype": "fp8"},
            ["sm_75 has no kernel for attention over a latent"],
        ),
        ({"device_capability": AMPERE, "kv_cache_dtype": "fp8_e4m3"}, ["sm_80 has no kernel for attention over a latent cache of 8-bit"]),
        ({"device_capability": AMPERE, "kv_cache_dtype": "fp8_ds_mla"}, ["kv_cache_dtype"]),
    ],
)
def test_vllm_is_told_what_it_takes(requests: dict[str, Any], reasons: list[str], ours: Any) -> None:
    inputs = {
        "head_size": 576,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": 64,
        "use_mla": True,
        "has_sink": False,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": SimpleNamespace(major=9, minor=0),
        "attn_type": "decoder",
    }
    result = ours.CuirMLABackend.validate_configuration(**{**inputs, **requests})
    assert len(result) == len(reasons) and all(word in text for word, text in zip(reasons, result, strict=True))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"sliding_window": 9}, "windows"),
        ({"attn_type": "encoder_only"}, "decoders"),
        ({"dtype": "fp8_e5m2"}, "found fp8_e5m2"),
        ({"latent": 100}, "latents of 128, 256, 384, 512"),
    ],
)
def test_what_a_layer_does_not_take_is_refused(options: dict[str, Any], word: str, ours: Any) -> None:
    with pytest.raises(NotImplementedError, match=word):
        make_layer(ours, **options)

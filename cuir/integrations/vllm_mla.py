"""vLLM's interface for multi-head latent attention: a backend CUIR_MLA, whose decode runs over the latent cache.

vLLM's own layer absorbs the projections, writes the cache and computes prompts; this is the rest. It is written for,
and tested against, the interface of vLLM 0.33 (`vllm.model_executor.layers.attention.mla_attention`).
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.v1.attention.backend import AttentionCGSupport

from ..attn.serving.cached import attention_with_kv_cache
from ..attn.serving.fp8_cache import DTYPE as EIGHT_BITS
from ..attn.serving.latent_cache import LATENTS
from .vllm import HALVES, MLA_NAME, CuirCapabilities, get_call_options


class _Layer(Protocol):
    _k_scale: torch.Tensor


class CuirMLAMetadataBuilder(MLACommonMetadataBuilder[MLACommonMetadata]):
    """A builder of metadata: sequences that decode have equal numbers of queries."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[QueryLenSupport] = QueryLenSupport.UNIFORM


class CuirMLABackend(CuirCapabilities, MLACommonBackend):
    """The capabilities of the backend: latent caches in f16 and bf16, and on Hopper in e4m3, with a scale a layer."""

    BACKEND = MLA_NAME
    KINDS = ("latent cache",)
    KINDS_OF_8_BITS = ("latent cache of 8 bits",)
    supported_kv_cache_dtypes: ClassVar[list[str]] = [*HALVES, "fp8", "fp8_e4m3"]

    @staticmethod
    def get_impl_cls() -> type[CuirMLAImpl]:
        return CuirMLAImpl

    @staticmethod
    def get_builder_cls() -> type[CuirMLAMetadataBuilder]:
        return CuirMLAMetadataBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [latent + 64 for latent in LATENTS]  # with 64 columns of rotary embeddings


class CuirMLAImpl(MLACommonImpl[MLACommonMetadata]):
    """Latent attention of one layer."""

    can_return_lse_for_decode: bool = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **of_latents: object,
    ) -> None:
        """Store a layer's options.

        Raises NotImplementedError for what CuirMLABackend does not support.
        """
        if alibi_slopes is not None or sliding_window is not None or logits_soft_cap:
            raise NotImplementedError(f"{MLA_NAME} has no windows, soft caps and ALiBi: vLLM computes prompts without them")
        CuirMLABackend.check_layer(attn_type, kv_cache_dtype)
        options = alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap, attn_type, kv_sharing_target_layer_name
        super().__init__(num_heads, head_size, scale, num_kv_heads, *options, **of_latents)
        if self.kv_lora_rank not in LATENTS:
            raise NotImplementedError(f"{MLA_NAME} has latents of {', '.join(map(str, LATENTS))} columns, found {self.kv_lora_rank}")
        if self.dcp_world_size > 1:
            raise NotImplementedError(f"{MLA_NAME} has whole sequences in a cache, found {self.dcp_world_size} ranks")
        self.supports_quant_query_input = False  # queries keep their dtype over a cache of 8 bits

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: MLACommonMetadata,
        layer: _Layer,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute attention of the queries that decode, [rows, H, D], or their latent and their rotary columns.

        Returns O [rows, H, latent] and LSE [rows, H]. The cache is [pages, page size, D]. Raises CuirError as
        `attention_with_kv_cache`.
        """
        decode, options = attn_metadata.decode, get_call_options()
        assert decode is not None
        queries = torch.cat(q, -1) if isinstance(q, tuple) else q
        cache, eight = kv_c_and_k_pe_cache[:, :, None], self.kv_cache_dtype not in HALVES
        o, lse = attention_with_kv_cache(
            queries.unflatten(0, (len(decode.seq_lens), -1)),
            cache.view(EIGHT_BITS) if eight else cache,
            None,
            cache_seqlens=decode.seq_lens,
            page_table=decode.block_table,
            causal=attn_metadata.causal,
            scale=self.scale,
            k_scale=layer._k_scale.reshape(1) if eight else None,
            return_lse=True,
            latent=self.kv_lora_rank,
            batch_invariant=options.batch_invariant,
            backend=options.backend,
            verify=options.verify,
        )
        return o.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1)


__all__ = ["CuirMLABackend", "CuirMLAImpl", "CuirMLAMetadataBuilder"]

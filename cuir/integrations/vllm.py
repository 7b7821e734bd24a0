"""vLLM's plug-in interface: an attention backend CUIR, for models with a cache in vLLM's pages.

`pip install cubridge` enters `plugin` among vLLM's general plug-ins, so `vllm serve MODEL --attention-backend CUIR`
finds it. It is written for, and tested against, the interface of vLLM 0.33 (`vllm.v1.attention.backend`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from vllm import envs
from vllm.platforms import current_platform
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from ..attn.capture.call_inputs import check_options, dtype_of
from ..attn.kernels.attention_kernel import Level
from ..attn.kernels.card_kernels import DEFAULT, KERNELS, Kind, find_arch, find_kernel
from ..text.diagnostics import CuirError
from .batches import Batch, CallOptions, attend, rules_of

NAME, MLA_NAME = "CUIR", "CUIR_MLA"
MOST_COLUMNS = 256  # of a head
HALVES = ("auto", "float16", "bfloat16")  # caches of the dtype of queries
_OPTIONS = CallOptions()


# what vLLM gives, as far as it is read
class _ModelConfig(Protocol):
    def get_num_attention_heads(self, parallel_config: object, /) -> int: ...
    def get_num_kv_heads(self, parallel_config: object, /) -> int: ...


class _Config(Protocol):
    @property
    def model_config(self) -> _ModelConfig: ...
    @property
    def parallel_config(self) -> object: ...


class _Capability(Protocol):
    @property
    def major(self) -> int: ...
    @property
    def minor(self) -> int: ...


class _Layer(Protocol):
    _k_scale: torch.Tensor
    _v_scale: torch.Tensor


def register(*, backend: str = "auto", verify: Level = "quick") -> None:
    """Register the backends CUIR and CUIR_MLA in vLLM.

    backend and verify are those of all calls, as for `flex_attention`. A later call replaces the options of an earlier
    one. vLLM's own VLLM_BATCH_INVARIANT=1 makes all calls batch invariant. Raises CuirError U413.
    """
    check_options(None, backend, verify)
    _OPTIONS.backend, _OPTIONS.verify = backend, verify
    _enter()


def get_call_options() -> CallOptions:
    """Return the options of calls, with vLLM's own switch for batch invariance."""
    return replace(_OPTIONS, batch_invariant=bool(envs.VLLM_BATCH_INVARIANT))


def _enter() -> None:
    for name, path in ((NAME, f"{__name__}.CuirAttentionBackend"), (MLA_NAME, f"{__name__}_mla.CuirMLABackend")):
        if name not in AttentionBackendEnum.__members__:
            register_backend(name, path)


def plugin() -> None:
    """Register the backends when vLLM starts a process, in any order with other plug-ins.

    Options that one of them set are kept. An incompatible interface gives a warning, and keeps nobody from using vLLM.
    """
    try:
        _enter()
    except Exception as error:  # whatever another interface raises
        warnings.warn(
            f"cubridge's attention backend {NAME} is not there: the interface of this vLLM is another one than 0.33's ({error!r})",
            stacklevel=2,
        )


@dataclass
class CuirMetadata(AttentionMetadata):
    """The metadata of one batch, for all layers with one cache."""

    batch: Batch


class CuirMetadataBuilder(AttentionMetadataBuilder[CuirMetadata]):
    """A builder of metadata: a batch's sequences that decode come first, and are one call."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: object, layer_names: list[str], vllm_config: _Config, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        self.heads = model.get_num_attention_heads(parallel) // max(1, model.get_num_kv_heads(parallel))

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False) -> CuirMetadata:
        """Build the metadata of a batch.

        Raises NotImplementedError where only some sequences of a batch are causal.
        """
        metadata = common_attn_metadata
        if isinstance(metadata.causal, torch.Tensor):
            raise NotImplementedError("a batch of which some sequences are causal and others are not")
        counts = metadata.query_start_loc_cpu.diff().tolist()
        batch = Batch.of(
            metadata.query_start_loc,
            counts,
            metadata.seq_lens,
            metadata.block_table_tensor,
            metadata.num_actual_tokens,
            self.heads,
            metadata.causal,
            bool(envs.VLLM_BATCH_INVARIANT),
        )
        return CuirMetadata(batch)


class CuirCapabilities(AttentionBackend):
    """Answer what vLLM asks of all backends of this package, ahead of a base class of vLLM's.

    Attributes:
        BACKEND: Its name in vLLM.
        KINDS: Kinds of kernels that its calls run over caches of the dtype of queries.
        KINDS_OF_8_BITS: Kinds of kernels that they run over caches of 8-bit numbers.
    """

    BACKEND: ClassVar[str]
    KINDS: ClassVar[tuple[Kind, ...]]
    KINDS_OF_8_BITS: ClassVar[tuple[Kind, ...]] = ()
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(HALVES)

    @classmethod
    def get_name(cls) -> str:
        return cls.BACKEND

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: object = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]  # others are right, too, and slower

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        capability = current_platform.get_device_capability()
        return capability is not None and find_arch((capability.major, capability.minor)) == DEFAULT

    @classmethod
    def supports_compute_capability(cls, capability: _Capability) -> bool:
        arch = find_arch((capability.major, capability.minor))
        return arch is not None and KERNELS[arch].keys() >= set(cls.KINDS)

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: _Capability,
    ) -> str | None:
        """Return why a GPU has no kernel for a dtype and a cache; None if it has one, or if vLLM asks for one of them alone."""
        alone = cls.supports_compute_capability(device_capability), cls.supports_dtype(dtype), cls.supports_kv_cache_dtype(kv_cache_dtype)
        arch = find_arch((device_capability.major, device_capability.minor))
        if arch is None or not all(alone):
            return None
        try:
            for kind in cls.KINDS if kv_cache_dtype in (None, *HALVES) else cls.KINDS_OF_8_BITS:
                find_kernel(arch, kind, dtype_of(dtype))
        except CuirError as error:
            return error.diagnostics[0].message
        return None

    @classmethod
    def check_layer(cls, attn_type: str, kv_cache_dtype: str) -> None:
        """Raise NotImplementedError for a layer that is no decoder's, or whose cache has another dtype."""
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"{cls.BACKEND} has attention of decoders, found {attn_type}")
        if not cls.supports_kv_cache_dtype(kv_cache_dtype):
            raise NotImplementedError(f"{cls.BACKEND} has caches of {', '.join(cls.supported_kv_cache_dtypes)}, found {kv_cache_dtype}")


class CuirAttentionBackend(CuirCapabilities):
    """The capabilities of the backend.

    It supports decoders on GPUs with kernels for KV caches and packed sequences, f16 and bf16, head dims up to 256 in steps of 8, windows, soft caps, ALiBi, sinks;
    caches of their dtype.
    """

    BACKEND = NAME
    KINDS = ("cache", "varlen")
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_impl_cls() -> type[CuirAttentionImpl]:
        return CuirAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[CuirMetadataBuilder]:
        return CuirMetadataBuilder

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and 8 <= head_size <= MOST_COLUMNS

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # which sequences decode is settled on the host


class CuirAttentionImpl(AttentionImpl[CuirMetadata]):
    """Attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Store a layer's options.

        Raises NotImplementedError for what CuirAttentionBackend does not support.
        """
        CuirAttentionBackend.check_layer(attn_type, kv_cache_dtype)
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype, self.kv_sharing_target_layer_name = kv_cache_dtype, kv_sharing_target_layer_name
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.rules = rules_of(logits_soft_cap or 0.0, slopes, sliding_window, sinks)
        self.slopes, self.sliding_window, self.logits_soft_cap, self.sinks = slopes, sliding_window, logits_soft_cap or 0.0, sinks

    def forward(
        self,
        layer: _Layer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CuirMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute attention of query [rows, H, D] into output [rows, H, D], and return it.

        kv_cache is [pages, HK, page size, 2 D], where `do_kv_cache_update` has written key and value. Without
        attn_metadata, as when vLLM profiles its memory, the output is zeros. Raises NotImplementedError for outputs of
        8 bits, CuirError as `attention_with_kv_cache`.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(f"{NAME} gives outputs of the dtype of queries")
        if attn_metadata is None:
            return output.fill_(0)
        self._on(query.device)
        keys, values = kv_cache[..., : self.head_size], kv_cache[..., self.head_size :]
        attend(
            query,
            keys,
            values,
            attn_metadata.batch,
            self.rules,
            self.scale,
            output.view(len(output), self.num_heads, -1),
            get_call_options(),
        )
        return output

    def do_kv_cache_update(
        self, layer: _Layer, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Write key and value [rows, HK, D] to slots [rows] of kv_cache [pages, HK, page size, 2 D].

        Negative slots are skipped.
        """
        if kv_cache.is_cuda:
            from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash

            keys, values = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
            triton_reshape_and_cache_flash(key, value, keys, values, slot_mapping, self.kv_cache_dtype, layer._k_scale, layer._v_scale)
            return
        some = slot_mapping >= 0
        slots, size = slot_mapping[some].long(), kv_cache.shape[2]
        kv_cache[slots // size, :, slots % size] = torch.cat([key, value], -1)[: len(some)][some].to(kv_cache.dtype)

    def _on(self, device: torch.device) -> None:
        """Move slopes to this device, and make the rules anew if needed."""
        if self.slopes is not None and self.slopes.device != device:
            self.slopes = self.slopes.to(device)
            self.rules = rules_of(self.logits_soft_cap, self.slopes, self.sliding_window, self.sinks)


__all__ = [
    "HALVES",
    "MLA_NAME",
    "NAME",
    "CuirAttentionBackend",
    "CuirAttentionImpl",
    "CuirCapabilities",
    "CuirMetadata",
    "CuirMetadataBuilder",
    "get_call_options",
    "plugin",
    "register",
]

"""FlexAttention's interface on verified kernels."""

from ..attn.api.block_masks import create_block_mask, create_nested_block_mask
from ..attn.api.fp8_calls import fp8_attention
from ..attn.api.scaled_calls import quantize_fp8
from ..attn.capture.kernel_operands import packed_copies
from ..attn.kernels.attention_kernel import Attention, attention
from ..attn.serving.cached import attention_with_kv_cache
from ..attn.serving.selected import selected_attention
from ..attn.serving.varlen import varlen_attention
from .front import flex_attention

_PYTORCH_NAMES = (
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "and_masks",
    "create_mask",
    "noop_mask",
    "or_masks",
)  # re-exported: these kernels take PyTorch's own


def __getattr__(name: str) -> object:
    if name not in _PYTORCH_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch.nn.attention import flex_attention as module

    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PYTORCH_NAMES})


__all__ = [
    "Attention",
    "attention",
    "attention_with_kv_cache",
    "create_block_mask",
    "create_nested_block_mask",
    "flex_attention",
    "fp8_attention",
    "packed_copies",
    "quantize_fp8",
    "selected_attention",
    "varlen_attention",
]

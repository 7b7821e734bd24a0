"""FlexAttention's interface on verified kernels. Owns the calls; tracing, verification and compiling are packages of their own."""

from .front import flex_attention
from .kernels import Attention, attention
from .masks import BlockMask, create_block_mask

__all__ = ["Attention", "BlockMask", "attention", "create_block_mask", "flex_attention"]

"""From specifications to CuIR: tracing of PyTorch mods, and transfer to expert kernels."""

from __future__ import annotations

from .blocks import blocks
from .captured_arguments import captured_arguments
from .lists import Lists
from .names import MAX_SCORES, SPLICE_POINTS, STANDARD
from .parameter import Parameter
from .splice import TransferResult, transfer
from .trace import trace, tracing_once
from .traced import Traced

__all__ = [
    "MAX_SCORES",
    "SPLICE_POINTS",
    "STANDARD",
    "Lists",
    "Parameter",
    "Traced",
    "TransferResult",
    "blocks",
    "captured_arguments",
    "trace",
    "tracing_once",
    "transfer",
]

"""Specification -> CuIR: traces PyTorch mods and replaces the splice points of an expert kernel. Owns no verification."""

from __future__ import annotations

from .blocks import blocks
from .splice import SPLICE_POINTS, STANDARD, TransferResult, captured_arguments, transfer
from .trace import Parameter, Traced, trace

__all__ = ["SPLICE_POINTS", "STANDARD", "Parameter", "Traced", "TransferResult", "blocks", "captured_arguments", "trace", "transfer"]

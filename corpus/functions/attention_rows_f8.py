"""Row sums for the backward pass of attention of 8-bit floats, and an empty gradient to add to."""

from __future__ import annotations

from cuir.attn.verification.fp8_specifications import make_fp8_rows
from cuir.spec import FunctionSpecification


def attention_rows_f8() -> FunctionSpecification:
    """L, DL and zeros in dQ from O, LSE, and dO in 8 bits with a scale for each key head."""
    return make_fp8_rows()

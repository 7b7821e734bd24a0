"""Causal attention over the blocks of keys that lists name."""

from __future__ import annotations

from dataclasses import replace

from cuir.attn.verification.selected_specifications import make_selected_specification
from cuir.spec import FunctionSpecification, Specification


def causal_selected() -> FunctionSpecification:
    """O [B, H, M, D] and LSE f32 [B, H, M]: each SPAN queries of a group of heads see the keys k <= q + (N - M) of the blocks that their list names.

    Block j has the keys j * BLOCK .. j * BLOCK + BLOCK - 1; BLOCKS[b, u, g] has COUNTS[b, u, g] of them. A query without keys has O = 0 and LSE = -inf.
    """
    made = make_selected_specification(Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M)))
    return replace(made, name="causal_selected", doc=causal_selected.__doc__ or "")

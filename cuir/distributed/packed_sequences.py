"""Packed sequences over ranks: one long sequence whose mask keeps the keys of a query's own sequence."""

from __future__ import annotations

import torch

from ..attn.capture.attention_request import Mod
from ..attn.capture.call_inputs import wrong
from ..attn.serving.packed_training import make_tables, mods_of_long_sequence
from ..attn.serving.per_sequence import check_places, places, rule
from ..spec.specification import list_requested_lengths


def pack_mods(
    cu_seqlens: torch.Tensor, tokens: int, *, mask_mod: Mod | None = None, score_mod: Mod | None = None, causal: bool = False
) -> tuple[Mod, Mod | None]:
    """Return the mods of one long sequence in which packed sequences follow each other.

    They are those of calls over ranks, whose queries [1, H, tokens, D] are the packed ones [tokens, H, D] with their
    dims exchanged: ranks hold any part of them, of several sequences too.

    Args:
        cu_seqlens: int32 [B + 1], of the whole batch, on the device of the queries: sequence b has the tokens
            cu_seqlens[b] .. cu_seqlens[b + 1] - 1. Other tokens see nothing, and nothing sees them.
        tokens: of all ranks.
        mask_mod: mask_mod(b, h, q_idx, kv_idx), where b is the number of the sequence, and indices start from 0 in it.
            Keyword-only parameters B, M and N are the number of sequences and the lengths of this one.
        score_mod: score_mod(score, b, h, q_idx, kv_idx), likewise.
        causal: a query sees no key behind itself.

    Raises CuirError U403, U404, U408, U413 for bounds that do not fit, U413 for mods that take H or HK.
    """
    for mod in (mask_mod, score_mod):
        if mod is not None and {"H", "HK"} & set(list_requested_lengths(mod)):
            wrong("U413", "mods of packed sequences over ranks take B, M and N, found H or HK", "capture the number of heads")
    bounds = places("cu_seqlens", cu_seqlens, cu_seqlens)
    check_places("q", bounds, tokens, places="cu_seqlens")
    tables = make_tables(bounds, bounds, (tokens, tokens))
    return mods_of_long_sequence(rule(mask_mod, causal), score_mod, tables, {"B": len(bounds.starts), "H": None, "HK": None})


__all__ = ["pack_mods"]

"""Captured biases that hide keys by runs of -inf: at the start of a row, at its end, everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from ...spec.specification import Lengths, Specification
from ...text.diagnostics import CuirError
from ...verification.values.special_plan import DTYPES
from ...verification.values.special_values import hide
from ..splicing.specification_copies import bound_reads, rebuild_mods
from ..tracing.read_ranges import trace_without_clashes
from .problems import Case

MOST = 3  # the largest number of variants
_TURNS = (0, 2)  # rows of the first head begin or end with a run of -inf


def make_hidden_biases(spec: Specification, BM: int, BN: int) -> Iterator[tuple[str, Specification, Case]]:
    """Make variants whose captured tensors have runs of -inf: all of them together, or one.

    Scores must stay numbers or -inf. Yields a description, the variant, and a problem of more than two blocks of keys.
    """
    if spec.score_mod is None:
        return
    try:
        parameters = trace_without_clashes(spec).parameters
    except CuirError:  # a mod that no kernel can have: its captured values are not known
        return
    tensors = [(p.name, p.value) for p in parameters if isinstance(p.value, torch.Tensor) and _may_hide(p.value)]
    # some are functions of the lengths
    all_names = [*(n for n, _ in tensors), *(n for n, v in spec.captured.items() if callable(v))]
    lengths = Lengths(1, 4, 2, min(BM + 9, 80), 2 * BN + 17)
    choices = [(all_names, None, turn) for turn in _TURNS] + [([n], x, 0) for n, x in tensors if len(tensors) > 1]
    count = 0
    for names, single, turn in choices:

        def change(x: torch.Tensor, single: torch.Tensor | None = single, turn: int = turn) -> torch.Tensor:
            return _hide(x, lengths.N, BN, turn) if _may_hide(x) and (single is None or x is single) else x

        if not names or count == MOST or not hides(spec, variant := rebuild_mods(spec, change), replace(lengths, M=9)):
            continue
        count += 1
        yield f"runs of -inf in {', '.join(names)}", bound_reads(variant), Case("hidden keys", lengths, seed=turn)


def _may_hide(x: torch.Tensor) -> bool:
    return x.dtype in (*DTYPES, torch.float64) and x.dim() > 0 and x.numel() > 1 and not x.is_meta


def _hide(x: torch.Tensor, keys: int, block: int, turn: int) -> torch.Tensor:
    """Return the tensor with runs of -inf in its first columns, as many as there are keys."""
    plain = x.detach().cpu()
    columns = min(keys, plain.shape[-1])
    hidden = hide(plain[..., :columns], turn, block, torch.Generator().manual_seed(0))
    # the dtype's lowest number does not mask a score
    hidden = torch.where(hidden.isfinite(), plain[..., :columns], hidden)
    return torch.cat([hidden, plain[..., columns:]], -1).to(x.device)


def hides(spec: Specification, variant: Specification, at: Lengths) -> bool:
    """Return whether scores of the variant are -inf where the plain ones are not.

    NaN and inf must not occur, and numbers must remain.
    """
    scores = torch.randn(at.B, at.H, at.M, at.N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    try:
        plain, scores_of_variant = (bound_reads(s).scores(scores.clone(), at) for s in (spec, variant))
    except (CuirError, RuntimeError, IndexError):
        return False
    return bool(
        ((scores_of_variant < torch.inf) & ~scores_of_variant.isnan()).all()
        and ((scores_of_variant == -torch.inf) & plain.isfinite()).any()
        and scores_of_variant.isfinite().any()
    )


__all__ = ["hides", "make_hidden_biases"]

"""Captured biases that hide keys by runs of -inf: at the start of a row, at its end, everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from ..spec.specification import Lengths, Specification
from ..text.diagnostics import CuirError
from ..variants.ranges import traced_apart
from ..variants.rebuilt import bounded, rebuilt
from .problems import Case
from .special_plan import DTYPES
from .special_values import hide

MOST = 3  # variants that are tried
_TURNS = (0, 2)  # rows begin with a run of -inf, or end with one, in the first head


def make_hidden_biases(spec: Specification, BM: int, BN: int) -> Iterator[tuple[str, Specification, Case]]:
    """Make variants whose captured tensors have runs of -inf: all of them together, or one, where scores stay numbers or -inf.

    Gives a name in words, the variant, and a problem of more than two blocks of keys.
    """
    if spec.score_mod is None:
        return
    try:
        parameters = traced_apart(spec).parameters
    except CuirError:  # a mod that no kernel can have: its captured values are not known
        return
    tensors = [(p.name, p.value) for p in parameters if isinstance(p.value, torch.Tensor) and _may_hide(p.value)]
    every = [*(n for n, _ in tensors), *(n for n, v in spec.captured.items() if callable(v))]  # some follow the lengths
    at = Lengths(1, 4, 2, min(BM + 9, 80), 2 * BN + 17)
    tried = [(every, None, turn) for turn in _TURNS] + [([n], x, 0) for n, x in tensors if len(tensors) > 1]
    made = 0
    for names, alone, turn in tried:

        def changed(x: torch.Tensor, alone: torch.Tensor | None = alone, turn: int = turn) -> torch.Tensor:
            return _hidden(x, at.N, BN, turn) if _may_hide(x) and (alone is None or x is alone) else x

        if not names or made == MOST or not hides(spec, variant := rebuilt(spec, changed), replace(at, M=9)):
            continue
        made += 1
        yield f"runs of -inf in {', '.join(names)}", bounded(variant), Case("hidden keys", at, seed=turn)


def _may_hide(x: torch.Tensor) -> bool:
    return x.dtype in (*DTYPES, torch.float64) and x.dim() > 0 and x.numel() > 1 and not x.is_meta


def _hidden(x: torch.Tensor, keys: int, block: int, turn: int) -> torch.Tensor:
    """The tensor with runs in its first columns, as many as there are keys."""
    plain = x.detach().cpu()
    columns = min(keys, plain.shape[-1])
    hidden = hide(plain[..., :columns], turn, block, torch.Generator().manual_seed(0))
    hidden = torch.where(hidden.isfinite(), plain[..., :columns], hidden)  # the dtype's lowest number is no mask of a score
    return torch.cat([hidden, plain[..., columns:]], -1).to(x.device)


def hides(spec: Specification, variant: Specification, at: Lengths) -> bool:
    """Check that scores of the variant are -inf where the plain ones are not, NaN or inf nowhere, and numbers somewhere."""
    scores = torch.randn(at.B, at.H, at.M, at.N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    try:
        plain, found = (bounded(s).scores(scores.clone(), at) for s in (spec, variant))
    except (CuirError, RuntimeError, IndexError):
        return False
    return bool(
        ((found < torch.inf) & ~found.isnan()).all() and ((found == -torch.inf) & plain.isfinite()).any() and found.isfinite().any()
    )


__all__ = ["hides", "make_hidden_biases"]

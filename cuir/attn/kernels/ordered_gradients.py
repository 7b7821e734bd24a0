"""Gradients of captured tensors in a fixed order: by PyTorch's operations, where kernels would add atomically.

This takes many times as long as the kernels, and is for PyTorch's deterministic mode.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...spec.specification import LENGTHS, Lengths
from ...syntax.walk import names_read
from ..splicing.captured_gradients import collect_gradient_paths
from ..splicing.splice import TransferResult
from ..tracing.mod_evaluator import Value, evaluate
from ..tracing.traced_result import Traced

LN2 = 0.6931471805599453
# q, k, v, O, LSE, dO, dLSE
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]
PAIRS = 2**24  # of queries and keys that are evaluated at a time


def list_scored(traced: Traced, places: Sequence[int]) -> list[int]:
    """Return the places of captured tensors through which gradients of scores flow."""
    names = collect_gradient_paths(traced.differentiated[0])
    return [i for i in places if traced.parameters[i].name in names]


def can_order(traced: Traced, places: Sequence[int], dropout: bool) -> bool:
    """Return whether gradients of scores can be computed here: without dropout, and apart from a sink's."""
    of_sink = names_read(traced.sink) if traced.sink is not None else set()
    return not dropout and not any(traced.parameters[i].name in of_sink for i in places)


def compute_ordered_gradients(
    traced: Traced, data: TransferResult, tensors: Tensors, scale: float, places: Sequence[int]
) -> dict[int, torch.Tensor]:
    """Return the gradients of captured tensors, f32, by place.

    Batches, and blocks of queries in them, are added one after another.
    """
    q, k, v, o, lse, do, dlse = tensors
    (B, H, M, _), (_, HK, N, _) = q.shape, k.shape
    at, device = Lengths(B, H, HK, M, N), q.device
    values: dict[str, Value] = {n: getattr(at, n) for n in LENGTHS}
    values |= {p.name: of.value for p, of in zip(traced.parameters, data.captured, strict=True) if of.value is not None}
    leaves = {i: data.captured[i].value.detach().float().requires_grad_() for i in places}  # type: ignore[union-attr]
    values |= {traced.parameters[i].name: leaf for i, leaf in leaves.items()}
    totals = {i: torch.zeros_like(leaf, requires_grad=False) for i, leaf in leaves.items()}
    group, step = H // max(1, HK), max(1, PAIRS // max(1, H * N))
    heads, keys = (torch.arange(n, dtype=torch.int32, device=device) for n in (H, N))
    for b in range(B if H * N else 0):
        k_all, v_all = (x[b].float().repeat_interleave(group, 0) for x in (k, v))
        for first in range(0, M, step):
            rows = slice(first, min(M, first + step))
            d_rows, l_rows = do[b, :, rows].float(), lse[b, :, rows, None]
            index: dict[str, Value] = {
                "b": b,
                "h": heads[:, None, None],
                "q": torch.arange(rows.start, rows.stop, dtype=torch.int32, device=device)[:, None],
            }
            names: dict[str, Value] = {**values, **index, "k": keys, "S": q[b, :, rows].float() @ k_all.mT, "scale": scale}
            with torch.enable_grad():
                score, factor = (torch.as_tensor(evaluate(e, names), device=device) for e in traced.differentiated)
                logits = (score * factor * LN2).expand(H, rows.stop - rows.start, N)
            kept = l_rows > -torch.inf
            if traced.keep is not None:
                kept = kept & torch.as_tensor(evaluate(traced.keep, names), dtype=torch.bool, device=device)
            weights = torch.where(kept, (logits.detach() - l_rows).exp(), 0.0)
            delta = (d_rows * o[b, :, rows].float()).sum(-1, keepdim=True)
            delta = delta if dlse is None else delta - dlse[b, :, rows, None]
            flowing = weights * (d_rows @ v_all.mT - delta)
            if logits.requires_grad:
                some = torch.autograd.grad(logits, list(leaves.values()), torch.where(weights > 0, flowing, 0.0), allow_unused=True)
                for total, g in zip(totals.values(), some, strict=True):
                    total += 0.0 if g is None else g
    return totals


__all__ = ["can_order", "compute_ordered_gradients", "list_scored"]

"""Rows and views of captured tensors within mods, as PyTorch computes them for each pair: dot products, reductions, views, indices with None and `...`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import Specification, attention
from cuir.attn.tracing.mod_evaluator import evaluate
from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Lengths
from cuir.testing import assert_attention_matches

B, H, S, R = 2, 4, 24, 4
generator = torch.Generator().manual_seed(0)
ROPE_Q, ROPE_K = torch.randn(B, H, S, R, generator=generator), torch.randn(B, 1, S, R, generator=generator)
TABLE, TILES = torch.randn(B, 8, generator=generator), torch.randint(0, 4, (B, H, 3, 3), generator=generator)
GRID = torch.randn(4, 6, generator=generator)
MODS: dict[str, Callable[..., Any]] = {
    "a dot product": lambda s, b, h, q, k: s + 0.5 * torch.dot(ROPE_Q[b, h, q], ROPE_K[b, h // 4, k]),
    "matmul": lambda s, b, h, q, k: s + ROPE_Q[b, h, q] @ ROPE_K[b, 0, k],
    "a sum of products": lambda s, b, h, q, k: s + (ROPE_Q[b, h, q] * ROPE_K[b, 0, k]).sum(-1),
    "a sum of a row": lambda s, b, h, q, k: s + TABLE[b].sum(dim=-1) + TABLE[b].mean() + TABLE[b].prod(),
    "extremes": lambda s, b, h, q, k: s + TABLE[b].max() - TABLE[b].amin() + torch.max(TABLE[b], 0).values,
    "a distance": lambda s, b, h, q, k: s - ((ROPE_Q[b, h, q] - ROPE_K[b, 0, k]) ** 2).sum().sqrt(),
    "a norm": lambda s, b, h, q, k: s - torch.linalg.vector_norm(ROPE_Q[b, h, q] - ROPE_K[b, 0, k]),
    "one of a list": lambda s, b, h, q, k: torch.where((TILES[b, h, q // 8] == (k // 8).unsqueeze(-1)).any(dim=-1), s, s - 3),
    "all of a row": lambda s, b, h, q, k: torch.where((GRID[h] > (k - 12) * 0.1).all(), s, 0.0),
    "a view": lambda s, b, h, q, k: s + TABLE.view(2, 2, 4)[b, q % 2, k % 4],
    "a transposed table": lambda s, b, h, q, k: s + GRID.T[k % 6, h] + GRID.transpose(0, 1)[q % 6, h] + GRID.permute(1, 0)[0, h],
    "slices": lambda s, b, h, q, k: s + GRID[:, 2:][h, q % 4] + GRID[1:, ::2][h % 3, k % 3] + GRID[h, -3:].sum(),
    "new dims": lambda s, b, h, q, k: s + GRID.unsqueeze(0)[0, h, q % 6] + GRID[h, None, 1][0] + GRID[..., k % 6][h] + GRID[None, h][0, 2],
    "expanded": lambda s, b, h, q, k: s + ROPE_K.expand(B, H, S, R)[b, h, k, 2] + ROPE_K.squeeze(1)[b, q, 1],
    "flattened": lambda s, b, h, q, k: s + GRID.reshape(-1)[h * 6 + q % 6] + GRID.flatten()[h] + GRID.flip(1)[h, k % 6],
    "rows as indices": lambda s, b, h, q, k: s + TABLE[b, TILES[b, h, q // 8]].sum(),
    "a whole tensor": lambda s, b, h, q, k: s + (1 - GRID)[h, k % 6] + torch.tanh(GRID)[h, q % 6],
    "taken apart": lambda s, b, h, q, k: s + sum(x * (i + 1) for i, x in enumerate(GRID[h])),
    "a constant row": lambda s, b, h, q, k: s + (torch.arange(R) * ROPE_K[b, 0, k]).sum() + torch.where(GRID[h] > 0, GRID[h], 0.5).sum(),
    "a matrix": lambda s, b, h, q, k: s + (GRID[:, :4] @ ROPE_K[b, 0, k])[h],
    "booleans are counted": lambda s, b, h, q, k: s + (GRID[h] > 0).sum() * 0.25 + (GRID[h] > 0).float().mean(),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODS)
def test_rows(name: str) -> None:
    assert_attention_matches(MODS[name], M=S, N=S, B=B, H=H, gradients=False)


@pytest.mark.parametrize("name", MODS)
def test_what_is_traced_is_what_single_pairs_give(name: str) -> None:
    mod, at = MODS[name], Lengths(B, H, H, S, S)
    spec = Specification("rows", score_mod=mod)
    traced = trace(spec)
    assert traced.rows
    names = {p.name: p.argument(spec, at) for p in traced.parameters}
    for b, h, q, k in torch.randint(0, 2**20, (40, 4), generator=torch.Generator().manual_seed(3)) % torch.tensor([B, H, S, S]):
        place = {n: x.to(torch.int32) for n, x in zip("bhqk", (b, h, q, k))}
        result = torch.as_tensor(evaluate(traced.score, {**names, **place, "S": torch.tensor(0.7), "scale": 1.0})) * torch.as_tensor(
            evaluate(traced.factor, {**names, **place, "scale": 1.0})
        )
        torch.testing.assert_close(
            result / 1.4426950408889634, torch.as_tensor(mod(torch.tensor(0.7), b, h, q, k)).float(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.thorough("a whole verification of a right program, whose numbers have their tests here")
def test_a_mod_on_rows_is_verified_at_lengths_that_its_tensors_were_not_made_for() -> None:
    spec = Specification(
        "rows",
        lambda b, h, q, k: (TILES[b, h, q // 8] == (k // 8).unsqueeze(-1)).any(-1),
        lambda s, b, h, q, k: s + GRID.view(2, 12)[h % 2, k],
    )
    report = attention(spec, head_dim=64, consts={"BM": 64, "BN": 64}).report
    assert report is not None and report.ok

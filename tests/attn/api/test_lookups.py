"""Reads by function, searches and joins in calls: scores and gradients of captured tables beside the dense formula in float64, masks beside PyTorch's, compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from cuir import Specification, attention, create_block_mask, flex_attention

F = torch.nn.functional
B, H, S, D = 1, 2, 20, 16
G = torch.Generator().manual_seed(0)
TABLE, ROW = torch.randn(7, 3, generator=G), torch.randn(6, generator=G)
IDS, EDGES, CHOSEN = torch.randint(0, 6, (200,), generator=G), torch.tensor([-9, -3, 0, 2, 7]), torch.tensor([3, 7, 100])
STARTS, OPEN = torch.tensor([40, 90, 91, 150]), torch.rand(5, 3, generator=G) > 0.4
Mod = Callable[..., Any]
SCORES: dict[str, Callable[[torch.Tensor, torch.Tensor], Mod]] = {
    "embedding": lambda T, R: lambda s, b, h, q, k: s + F.embedding(k % 7, T)[h] + F.embedding(q % 7, T, padding_idx=2).sum() + R[h],
    "gather": lambda T, R: lambda s, b, h, q, k: s * torch.gather(R, 0, IDS[k].long()) + T.gather(1, IDS[:7, None].long() % 3)[q % 7, 0] + torch.take_along_dim(R, (q % 6)[None].long(), 0)[0],
    "select": lambda T, R: lambda s, b, h, q, k: s + R.index_select(0, (k % 6)[None]).sum() * torch.take(T, (q + h).long()) + torch.index_select(T, 1, IDS[:2] % 3)[h, k % 2],
    "stack": lambda T, R: lambda s, b, h, q, k: torch.stack([s * R[h], R[q % 6] * 2, T[k % 7, 0]]).amax() + torch.stack([R[q % 6], s * 0.5, T[1, 1]])[(q + k) % 3],
    "products": lambda T, R: lambda s, b, h, q, k: s + torch.dot(torch.stack([R[q % 6], R[k % 6]]), torch.stack([T[h, 1], T[k % 7, 2]])) + torch.stack([T[h], T[k % 7]]).prod(0)[q % 3],
    "cat": lambda T, R: lambda s, b, h, q, k: s + torch.cat([R, T[h], T[k % 7]])[(q + k) % 12] + torch.cat([T, T[:2] * 2])[k % 9, h] + torch.hstack([R[0], s])[k % 2],
    "buckets": lambda T, R: lambda s, b, h, q, k: s + T[torch.bucketize(k - q, EDGES), h] + F.embedding(torch.searchsorted(EDGES, q - k, side="right"), T)[k % 3] * R[0],
    "one_hot": lambda T, R: lambda s, b, h, q, k: s + (F.one_hot(k.long() % 6, 6) * R).sum() + torch.where(torch.isin(k, IDS[:3]), R[h], T[0]).sum(),
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """PyTorch says which of these it maps slowly."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod: Mod) -> torch.Tensor:
    s = q @ k.mT * D**-0.5
    at = (x.reshape(-1) for x in torch.meshgrid(*(torch.arange(n, dtype=torch.int32) for n in s.shape), indexing="ij"))
    scores: torch.Tensor = torch.vmap(mod)(s.reshape(-1), *at).reshape(s.shape)
    return scores.softmax(-1) @ v


def draw(size: int = S) -> list[torch.Tensor]:
    return [torch.randn(B, H, size, D, generator=torch.Generator().manual_seed(i)).half().requires_grad_() for i in range(3)]


@pytest.mark.sweep
@pytest.mark.parametrize("name", SCORES)
def test_scores_and_gradients_of_captured_tables(name: str) -> None:
    ours = [*draw(), TABLE.clone().requires_grad_(), ROW.clone().requires_grad_()]
    exact = [x.detach().double().requires_grad_() for x in ours]
    o = flex_attention(*ours[:3], score_mod=SCORES[name](*ours[3:]), backend="interpret", verify="off")
    expected = dense(*exact[:3], SCORES[name](*exact[3:]))
    torch.testing.assert_close(o.double(), expected, rtol=4e-3, atol=4e-3)
    o.float().square().sum().backward()
    expected.square().sum().backward()
    for x, y in zip(ours, exact):
        assert x.grad is not None
        assert y.grad is not None
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-2, atol=4e-3 * float(y.grad.abs().max().clamp(min=1)))


MASKS: dict[str, Mod] = {
    "isin": lambda b, h, q, k: torch.isin(IDS[k], IDS[:3]) | (q == k),
    "isin of constants": lambda b, h, q, k: torch.isin(k, torch.tensor([1, 5, 9])) | (q >= k) & torch.isin(q, CHOSEN, invert=True),
    "one bucket": lambda b, h, q, k: torch.bucketize(q, STARTS, right=True) == torch.bucketize(k, STARTS, right=True),
    "documents before": lambda b, h, q, k: torch.searchsorted(STARTS, q, side="right") >= torch.searchsorted(STARTS, k, right=True),
    "a table of bools": lambda b, h, q, k: F.embedding(torch.bucketize(q, STARTS), OPEN)[k % 3],
    "conditions": lambda b, h, q, k: torch.stack([q >= k, q - k < 30, torch.isin(k, CHOSEN)]).any() & torch.stack([q, k])[h].ge(2),
    "gather": lambda b, h, q, k: (torch.gather(IDS, 0, q.long()) == IDS.index_select(0, k[None]))[0],
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", MASKS)
def test_masks_are_pytorchs_in_our_block_masks_and_in_theirs(name: str) -> None:
    q, k, v = (x.detach() for x in draw(200))
    ours = create_block_mask(MASKS[name], None, None, 200, 200, device="cpu")
    mask = torch_flex.create_block_mask(MASKS[name], None, None, 200, 200, device="cpu")
    assert torch.equal(ours.to_dense(), mask.to_dense())
    expected = torch_flex.flex_attention(q.double(), k.double(), v.double(), block_mask=mask)
    for item in (ours, mask):
        o = flex_attention(q, k, v, block_mask=item, backend="interpret", verify="off")
        torch.testing.assert_close(o.double(), expected, rtol=4e-3, atol=4e-3)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.row = torch.nn.Embedding(7, 3), torch.nn.Parameter(torch.ones(6))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weight, row = self.table.weight, self.row

        def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            joined = torch.cat([row, weight[h]])[q % 9] + torch.stack([s, row[q % 6], s * 2]).amax()
            result = F.embedding(IDS[k], weight)[h] + self.table(k % 7)[1] + row.gather(0, (k % 6).long())
            return s + joined + result + torch.bucketize(k, STARTS) * 0.1 + F.one_hot(q.long() % 3, 3)[h]

        def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
            return torch.isin(IDS[k], IDS[:3]) | (torch.searchsorted(STARTS, q) == torch.bucketize(k, STARTS))

        block_mask = create_block_mask(mask, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, score_mod=mod, block_mask=block_mask, backend="interpret", verify="off")


def test_a_compiled_module_has_the_same_results_and_gradients() -> None:
    layer, results = Layer(), []
    for call in (layer, torch.compile(layer, backend="eager", fullgraph=True)):
        layer.zero_grad()
        o = call(*draw(64))
        o.float().square().sum().backward()
        assert layer.table.weight.grad is not None
        assert layer.row.grad is not None
        results.append((o.detach(), layer.table.weight.grad.clone(), layer.row.grad.clone()))
    assert all(torch.equal(x, y) for x, y in zip(*results))


@pytest.mark.thorough("a whole verification of a right program, whose numbers have their tests here")
def test_a_mod_of_these_is_verified() -> None:
    spec = Specification("lookups", score_mod=SCORES["stack"](TABLE, ROW))
    report = attention(spec, head_dim=64, consts={"BM": 64, "BN": 64}).report
    assert report is not None
    assert report.ok

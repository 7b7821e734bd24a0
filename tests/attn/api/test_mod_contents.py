"""PyTorch's elementwise functions in a score_mod, run in the interpreter beside float64; and that steep ones are verified.

Rows and views of captured tensors within mods, as PyTorch computes them for each pair: dot products, reductions, views, indices with None and `...`.

Reads by function, searches and joins in calls: scores and gradients of captured tables beside the dense formula in float64, masks beside PyTorch's, compiled.

Tensors that a mod makes itself and reads at its indices: constants of the kernel, the same in each call.

A torch.nn.Module as a mod: its `forward` is the mod, its parameters learn, its arguments are checked as a function's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

import cuir
from cuir import Specification, attention, create_block_mask, flex_attention
from cuir.attn.tracing.mod_evaluator import evaluate
from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Lengths
from cuir.testing import assert_attention_matches
from cuir.text.diagnostics import CuirError
from tests.peer.reports.suite import dense_attention as dense_attention

F = torch.nn.functional
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sin and cos": lambda x: torch.sin(x) + x.cos(),
    "tan": lambda x: torch.tan(x * 0.5),
    "inverse": lambda x: torch.asin(x * 0.1) + torch.acos(x * 0.1) + torch.atan(x),
    "hyperbolic": lambda x: torch.sinh(x) * 0.1 + torch.cosh(x) * 0.1 + x.tanh(),
    "inverse hyperbolic": lambda x: torch.asinh(x) + torch.atanh(x * 0.1) + torch.acosh(x.abs() + 1.5),
    "erf": lambda x: torch.erf(x) + torch.special.erfc(x),
    "exponentials": lambda x: torch.expm1(x * 0.5) + torch.exp2(x),
    "logarithms": lambda x: torch.log1p(x.abs()) + torch.log10(x.abs() + 1),
    "roots": lambda x: torch.sqrt(x.abs()) + torch.rsqrt(x * x + 1),
    "powers": lambda x: (x.abs() + 0.5) ** 1.7 - x**3 * 0.01,
    "whole": lambda x: (x * 4).floor() / 4 + x.ceil() * 0.1 + x.trunc() * 0.1,
    "remainders": lambda x: torch.fmod(x, 0.7) + torch.remainder(x, 0.9),
    "quotients": lambda x: x // 0.5 + torch.div(x, 0.3, rounding_mode="trunc"),
    "activations": lambda x: (
        F.gelu(x)
        + F.gelu(x, approximate="tanh")
        + F.silu(x)
        + F.softplus(x)
        + F.leaky_relu(x, 0.2)
        + F.mish(x)
        + F.elu(x)
        + F.logsigmoid(x)
    ),
    "what is no number": lambda x: torch.where(torch.isnan(x) | torch.isinf(x), 0.0, x) + torch.nan_to_num(x),
    "limits": lambda x: x.clamp(-1, 1) + torch.maximum(x, -x) + torch.sign(x) * x.square() * 0.1 + torch.reciprocal(x.abs() + 1),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_a_score(name: str) -> None:
    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return FUNCTIONS[name](s + (q - k) * 0.05)

    assert_attention_matches(score_mod, M=40, N=40, gradients=False)


@pytest.mark.thorough("a whole verification of a right program, whose numbers have their tests here")
@pytest.mark.parametrize("function", [torch.floor, torch.tan, torch.expm1, torch.sqrt], ids=lambda f: f.__name__)
def test_steps_poles_overflows_and_roots_of_negatives_are_verified(function: Callable[[Any], Any]) -> None:
    report = attention(Specification("steep", score_mod=lambda s, b, h, q, k: function(s)), head_dim=64, consts={"BM": 64, "BN": 64}).report
    assert report is not None and report.ok


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


@pytest.mark.sweep(4)
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


B_OF_LOOKUPS, H_OF_LOOKUPS, S_OF_LOOKUPS, D = 1, 2, 20, 16
G = torch.Generator().manual_seed(0)
TABLE_OF_LOOKUPS, ROW = torch.randn(7, 3, generator=G), torch.randn(6, generator=G)
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


@pytest.fixture
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


def draw(size: int = S_OF_LOOKUPS) -> list[torch.Tensor]:
    return [
        torch.randn(B_OF_LOOKUPS, H_OF_LOOKUPS, size, D, generator=torch.Generator().manual_seed(i)).half().requires_grad_()
        for i in range(3)
    ]


@pytest.mark.usefixtures("quiet")
@pytest.mark.sweep
@pytest.mark.parametrize("name", SCORES)
def test_scores_and_gradients_of_captured_tables(name: str) -> None:
    ours = [*draw(), TABLE_OF_LOOKUPS.clone().requires_grad_(), ROW.clone().requires_grad_()]
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


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
@pytest.mark.thorough("a whole verification of a right program, whose numbers have their tests here")
def test_a_mod_of_these_is_verified() -> None:
    spec = Specification("lookups", score_mod=SCORES["stack"](TABLE_OF_LOOKUPS, ROW))
    report = attention(spec, head_dim=64, consts={"BM": 64, "BN": 64}).report
    assert report is not None
    assert report.ok


S_OF_MADE_BY_MODS = 40
QKV = torch.randn(3, 1, 2, S_OF_MADE_BY_MODS, 16, generator=torch.Generator().manual_seed(0)).unbind()
OPTIONS: dict[str, Any] = {"backend": "interpret", "verify": "off"}


def distances(n: int) -> Callable[..., Any]:
    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        slopes = torch.tensor([0.5, 2.0])
        return s - slopes[h] * torch.arange(n)[(q - k).abs()] + torch.eye(n)[q, k] - torch.linspace(0, 1, n).flip(0)[k]

    return score


def ours(q: Any, k: Any, v: Any, score_mod: Any) -> Any:
    return cuir.flex_attention(q, k, v, score_mod=score_mod, **OPTIONS)


@pytest.mark.parametrize("compiled", [False, True])
def test_scores_read_them_in_each_call(compiled: bool) -> None:
    call = torch.compile(ours, fullgraph=True) if compiled else ours
    mods = [distances(S_OF_MADE_BY_MODS), distances(S_OF_MADE_BY_MODS), distances(S_OF_MADE_BY_MODS + 9)]
    for mod in (mods[0], *mods):  # warm, of one structure, with another size
        leaves = [x.clone().requires_grad_() for x in QKV]
        actual, expected = call(*leaves, mod), dense_attention(*leaves, score_mod=mod)
        torch.testing.assert_close(actual, expected)
        for a, b in zip(*(torch.autograd.grad(o.square().sum(), leaves) for o in (actual, expected)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_masks_read_them() -> None:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        halves = torch.tensor([0] * 25 + [1] * 15)
        return torch.ones(S_OF_MADE_BY_MODS, S_OF_MADE_BY_MODS, dtype=torch.bool).tril()[q, k] & (halves[q] == halves[k])

    block_mask = cuir.create_block_mask(mask, None, None, S_OF_MADE_BY_MODS, S_OF_MADE_BY_MODS, device="cpu", BLOCK_SIZE=16)
    o = cuir.flex_attention(*QKV, block_mask=block_mask, **OPTIONS)
    torch.testing.assert_close(o, dense_attention(*QKV, block_mask=block_mask))


def test_one_that_is_too_short_is_refused() -> None:
    with pytest.raises(CuirError, match=r"U416.*39 elements"):
        ours(*QKV, distances(S_OF_MADE_BY_MODS - 1))


def test_equal_ones_are_one_parameter() -> None:
    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        mine = torch.zeros(S_OF_MADE_BY_MODS)
        first = mine[q]
        mine[3] = 1.0
        return s + first + mine[k] + torch.zeros(S_OF_MADE_BY_MODS)[k] + torch.zeros(S_OF_MADE_BY_MODS).double()[k]

    values = [p.value for p in trace(Specification("constants", score_mod=score)).parameters]
    assert [float(v.sum()) for v in values if isinstance(v, torch.Tensor)] == [0.0, 1.0, 0.0]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(-5, 5), min_size=S_OF_MADE_BY_MODS, max_size=S_OF_MADE_BY_MODS),
    st.sampled_from([torch.int64, torch.bool, torch.float32, torch.float64, torch.uint8]),
)
def test_any_dtype_is_read_as_captured_tensors_are(values: list[int], dtype: torch.dtype) -> None:
    captured = torch.tensor(values).to(dtype)
    result = ours(*QKV, lambda s, b, h, q, k: s + torch.tensor(values, dtype=dtype)[k])
    assert torch.equal(result, ours(*QKV, lambda s, b, h, q, k: s + captured[k]))


class Bias(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, N: Any) -> Any:
        return score + self.table[(q_idx - kv_idx + N).clamp(0, 7)] / N


class Fewer(torch.nn.Module):
    def forward(self, score: Any, h: Any) -> Any:
        return score


def attend(mod: Any) -> torch.Tensor:
    q, k, v = torch.randn(3, 1, 1, 12, 16, generator=torch.Generator().manual_seed(0))
    result: torch.Tensor = cuir.flex_attention(q, k, v, score_mod=mod, backend="interpret", verify="off")
    return result


def test_a_module_is_its_forward() -> None:
    """With lengths that it asks for, the gradient of its parameter, and a write to that."""
    bias = Bias()
    outputs = []
    for mod in (bias, bias.forward):
        o = attend(mod)
        (g,) = torch.autograd.grad(o.square().sum(), bias.table)
        outputs.append((o, g))
    assert torch.equal(outputs[0][0], outputs[1][0]) and torch.equal(outputs[0][1], outputs[1][1]) and outputs[0][1].count_nonzero() > 1
    with torch.no_grad():
        bias.table.copy_(bias.table.flip(0))
    assert not torch.equal(attend(bias), outputs[0][0]) and torch.equal(attend(bias), attend(bias.forward))


def test_an_attention_is_made_of_a_module() -> None:
    assert "table" in cuir.show(cuir.attention(Bias(), dtype=torch.float32, head_dim=16).program)


def test_other_arguments_are_shown_at_its_forward() -> None:
    with pytest.raises(CuirError) as caught:
        attend(Fewer())
    result = caught.value.diagnostics[0]
    assert result.code == "X101" and "found 2 positional parameters" in result.message
    assert result.span is not None and result.span.text().startswith("def forward(self, score: Any, h: Any)")

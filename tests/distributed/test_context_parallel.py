"""Attention over several processes gives what one process gives, gradients too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from cuir import create_block_mask
from cuir.distributed import balance_sequence, context_parallel_attention, shard_by_lengths
from cuir.distributed.context_parallel import mesh_rank
from cuir.spec.specification import Lengths, indices
from tests.distributed.ranks import run_ranks

Mod = Callable[..., torch.Tensor]
CONDITIONS, TERMS = 5, 4  # of which rules are drawn


@dataclass(frozen=True)
class Rule:
    """A mask and a score rule, combined from numbered conditions and terms.

    Attributes:
        conditions: numbers of the conditions that a pair must meet.
        terms: numbers of the changes of a score, in their order.
        documents: ids of documents, of which position i has the one at i modulo their number.
        reach: how far a window reaches.
        prefix: keys that all queries see.
    """

    conditions: tuple[int, ...]
    terms: tuple[int, ...]
    documents: tuple[int, ...]
    reach: int
    prefix: int
    head: int


@dataclass(frozen=True)
class Case:
    """A call over ranks that is compared with one process."""

    method: str | None
    lengths: tuple[int, ...]
    rule: str | Rule = "causal"
    heads: tuple[int, int] = (4, 4)
    mesh: tuple[int, ...] = ()
    balanced: int = 0  # size of blocks
    dtensor: bool = False
    sink: bool = False


def make_mods(rule: str | Rule, length: int) -> tuple[object, object, list[torch.Tensor]]:
    """Return mask_mod, score_mod and the tensors that they learn."""
    if isinstance(rule, Rule):
        return combine_mods(rule, length)
    if rule == "causal":
        return (lambda b, h, q, k: q >= k), None, []
    if rule == "window":
        return (lambda b, h, q, k: (q >= k) & (q - k < 5)), None, []
    if rule == "full":
        return None, None, []
    documents = (torch.arange(length) // 9).int()
    slopes = torch.linspace(-1.0, 1.0, 4).requires_grad_()
    table = torch.linspace(0.0, 1.0, 2 * length).sin().requires_grad_()
    mask_mod = lambda b, h, q, k: (documents[q] == documents[k]) & (q >= k)  # noqa: E731
    score_mod = lambda score, b, h, q, k: score + slopes[h] * torch.abs(q - k) + table[q - k + length]  # noqa: E731
    return mask_mod, score_mod, [slopes, table]


def combine_mods(rule: Rule, length: int) -> tuple[object, object, list[torch.Tensor]]:
    """Return the mods of a rule and the tensors that they learn, the same in each process."""
    ids = torch.tensor([rule.documents[i % len(rule.documents)] for i in range(length)], dtype=torch.int32)
    reach, prefix, head = rule.reach, rule.prefix, rule.head
    bias = torch.linspace(-1.0, 1.0, length).cos().requires_grad_()
    table = torch.linspace(0.0, 3.0, 4 * length).sin().view(4, length).requires_grad_()
    conditions = [
        lambda b, h, q, k: q >= k,
        lambda b, h, q, k: torch.abs(q - k) < reach,
        lambda b, h, q, k: ids[q] == ids[k],
        lambda b, h, q, k: (k < prefix) | (q == k),
        lambda b, h, q, k: (h % 2 == head) | (k % 3 != 1),
    ]
    assert len(conditions) == CONDITIONS
    terms = [
        (lambda s, b, h, q, k: s + bias[k], [bias]),
        (lambda s, b, h, q, k: s * 0.5 + table[h, q], [table]),
        (lambda s, b, h, q, k: 3.0 * torch.tanh(s / 3.0), []),
        (lambda s, b, h, q, k: s - 0.1 * torch.abs(q - k) * (h + 1), []),
    ]
    assert len(terms) == TERMS
    masks, scores = [conditions[i] for i in rule.conditions], [terms[i] for i in rule.terms]
    mask_mod = functools.reduce(and_masks, masks) if masks else None
    score_mod = functools.reduce(chain_scores, [s for s, _ in scores]) if scores else None
    return mask_mod, score_mod, [x for _, learned in scores for x in learned]


def and_masks(first: Mod, second: Mod) -> Mod:
    return lambda b, h, q, k: first(b, h, q, k) & second(b, h, q, k)


def chain_scores(first: Mod, second: Mod) -> Mod:
    return lambda s, b, h, q, k: second(first(s, b, h, q, k), b, h, q, k)


LARGEST = 9  # positions of a rank
RULES = st.builds(
    Rule,
    conditions=st.lists(st.integers(0, CONDITIONS - 1), unique=True, max_size=3).map(tuple),
    terms=st.lists(st.integers(0, TERMS - 1), unique=True, max_size=2).map(tuple),
    documents=st.lists(st.integers(0, 3), min_size=1, max_size=4 * LARGEST).map(tuple),
    reach=st.integers(1, 4 * LARGEST),
    prefix=st.integers(0, 4 * LARGEST),
    head=st.integers(0, 1),
)


def cases(ranks: int) -> st.SearchStrategy[Case]:
    """Return calls of any method, lengths, heads and mods."""
    method, heads = st.sampled_from(["heads", "gather", "ring"]), st.tuples(st.just(4), st.sampled_from([1, 2, 4]))
    lengths = st.tuples(*[st.integers(0, LARGEST)] * ranks).filter(any)
    uneven = st.builds(Case, method, lengths, RULES, heads, sink=st.booleans())
    return uneven | st.builds(Case, method, st.just((8,) * ranks), RULES, heads, balanced=st.just(4))


def compare(case: Case) -> dict[str, float]:
    """Return the largest differences from one process's O, LSE and gradients, in every rank."""
    mesh = init_device_mesh("cpu", case.mesh or (dist.get_world_size(),), mesh_dim_names=("groups", "heads")[: len(case.mesh) or 1])
    rank, length = mesh_rank(mesh), sum(case.lengths)
    torch.manual_seed(0)
    H, HK = case.heads
    q, k, v = (torch.randn(1, h, length, 16, dtype=torch.bfloat16) for h in (H, HK, HK))
    weights, lse_weights = torch.randn(1, H, length, 16), torch.randn(1, H, length)
    mask_mod, score_mod, learned = make_mods(case.rule, length)
    sink = torch.linspace(0.0, 1.0, H).requires_grad_() if case.sink else None
    learned += [sink] if sink is not None else []
    block_mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, length, length, device="cpu")
    options = {"score_mod": score_mod, "block_mask": block_mask, "enable_gqa": H != HK, "return_lse": True, "sink": sink}
    options |= {"backend": "interpret", "verify": "off"}
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    o, lse = compute(whole, mask_mod, score_mod, sink)
    expected_grads = torch.autograd.grad((o * weights).sum() + (lse * lse_weights).nan_to_num(0, 0, 0).sum(), [*whole, *learned])

    shards = balance_sequence(mask_mod, length, len(case.lengths), block=case.balanced) if case.balanced else shard_by_lengths(case.lengths)
    local = [shards.split(x, rank).requires_grad_() for x in (q, k, v)]
    inputs = local
    if case.dtensor:
        inputs = [DTensor.from_local(x, mesh, [Shard(2)] * mesh.ndim, shape=w.shape, stride=w.stride()) for x, w in zip(local, whole)]
    passed = shards if case.balanced else None
    out, out_lse = context_parallel_attention(*inputs, mesh, method=case.method, shards=passed, **options)
    if case.dtensor:
        assert out.shape == o.shape and out_lse.shape == lse.shape and out.placements == inputs[0].placements
        out, out_lse = out.to_local(), out_lse.to_local()
    own_weights, own_lse_weights = shards.split(weights, rank), shards.split(lse_weights, rank)
    loss = (out.float() * own_weights).sum() + (out_lse * own_lse_weights).nan_to_num(0, 0, 0).sum()
    grads = list(torch.autograd.grad(loss, [*local, *learned], allow_unused=True))
    for i, x in enumerate(learned, 3):
        grads[i] = torch.zeros_like(x) if grads[i] is None else grads[i]
        dist.all_reduce(grads[i])
    results = {"o": difference(out, shards.split(o, rank)), "lse": difference(out_lse, shards.split(lse, rank))}
    for name, g, e in zip("qkv", grads, expected_grads):
        results[name] = difference(g, shards.split(e, rank))
    for i, (g, e) in enumerate(zip(grads[3:], expected_grads[3:])):
        results[f"learned {i}"] = difference(g, e)
    return results


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference by the largest number."""
    a, b = a.detach().double(), b.detach().double()
    assert a.shape == b.shape, (a.shape, b.shape)
    if not a.numel():
        return 0.0
    return float(
        ((a - b).nan_to_num(0, 0, 0).abs().max() + (a.isfinite() != b.isfinite()).sum())
        / max(1.0, float(b.nan_to_num(0, 0, 0).abs().max()))
    )


def compute(
    tensors: list[torch.Tensor], mask_mod: Callable[..., torch.Tensor] | None, score_mod: Callable[..., torch.Tensor] | None, sink: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O and LSE of the whole sequence by PyTorch's operations, in float64."""
    q, k, v = (x.double() for x in tensors)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / q.shape[3] ** 0.5
    b, h, i, j = indices(Lengths(*q.shape[:2], *k.shape[1:2], q.shape[2], k.shape[2]), "cpu")
    if score_mod is not None:
        scores = score_mod(scores, b, h, i, j)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(b, h, i, j), -torch.inf)
    if isinstance(sink, torch.Tensor):
        scores = torch.cat([scores, sink.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    empty = (scores == -torch.inf).all(-1, keepdim=True)  # queries without keys
    scores = scores.masked_fill(empty, 0.0)
    weights = scores.softmax(-1)[..., : k.shape[2]].masked_fill(empty, 0.0)
    return weights @ v, scores.logsumexp(-1).masked_fill(empty.squeeze(-1), -torch.inf)


def compare_all(cases: list[Case]) -> list[dict[str, float]]:
    return [compare(case) for case in cases]


def check(count: int, cases: list[Case]) -> None:
    results = run_ranks(count, compare_all, cases)
    for result in results:
        assert isinstance(result, list), result
        for case, differences in zip(cases, result, strict=True):
            assert max(differences.values()) < 0.02, (case, differences)


TWO = [
    Case("gather", (12, 12)),
    Case("gather", (13, 8), rule="documents"),
    Case("heads", (13, 8), rule="documents", heads=(4, 2)),
    Case("heads", (12, 12), heads=(4, 1), sink=True),
    Case("ring", (12, 12), rule="full"),
    Case("ring", (13, 8), rule="documents", heads=(4, 1), sink=True),
    Case("ring", (20, 0)),
    Case(None, (12, 12), rule="documents", dtensor=True),
    Case("mixed", (7, 5), rule="documents", heads=(4, 1), mesh=(1, 2)),
    Case("mixed", (7, 5), rule="documents", mesh=(2, 1)),
]
FOUR = [
    Case("ring", (8, 8, 8, 8), rule="window", balanced=4),
    Case("ring", (7, 0, 9, 4), rule="documents"),
    Case("gather", (8, 8, 8, 8), rule="documents", balanced=4),
    Case("mixed", (6, 6, 6, 6), rule="documents", mesh=(2, 2)),
    Case("heads", (6, 6, 6, 5), mesh=(2, 2), dtensor=True),
    Case("mixed", (5, 4, 5, 4), heads=(4, 1), mesh=(2, 2), dtensor=True),
]


@pytest.mark.thorough("drawn rules; chosen ones have a test below")
@pytest.mark.parametrize(("ranks", "examples"), [(2, 12), (4, 6)])
def test_any_rule_gives_what_one_process_gives(ranks: int, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(st.lists(cases(ranks), min_size=1, max_size=4))
    def check_drawn(drawn: list[Case]) -> None:
        check(ranks, drawn)

    check_drawn()


def test_two_processes_give_what_one_gives() -> None:
    check(2, TWO)


@pytest.mark.thorough
def test_four_processes_give_what_one_gives() -> None:
    check(4, FOUR)

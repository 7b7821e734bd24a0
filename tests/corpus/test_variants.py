"""The corpus's variants keep the pairs that their definitions say, written out by hand here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import corpus
from cuir.attn.splicing.splice import transfer
from cuir.attn.verification.splice_evaluator import Evaluator, collect_kernel_values
from cuir.checking.checker import check
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths
from cuir.syntax.parser import parse
from cuir.syntax.types import F16, F32
from cuir.verification import Problem, check_contracts, check_mask

EXPERT = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"))
AMPERE = parse(corpus.kernels()["flash_fwd_sm80"].read_text(encoding="utf-8"))
SINGLE = parse(corpus.kernels()["flash_fwd_f32"].read_text(encoding="utf-8"))
Pair = Callable[[int, int, int, int], bool]

RULES: dict[str, tuple[dict[str, int], Pair]] = {
    "full": ({}, lambda q, k, M, N: True),
    "causal": ({}, lambda q, k, M, N: k <= q + N - M),
    "causal_top_left": ({}, lambda q, k, M, N: k <= q),
    "sliding_window": ({"window": 5}, lambda q, k, M, N: 0 <= q + N - M - k <= 5),
    "local": ({"left": 3, "right": 2}, lambda q, k, M, N: q + N - M - 3 <= k <= q + N - M + 2),
    "prefix_lm": ({"prefix": 7}, lambda q, k, M, N: k < 7 or k <= q),
    "global_sliding_window": (
        {"left": 4, "right": 2, "tokens": 3},
        lambda q, k, M, N: (q >= k and (q - k <= 4 or k < 3)) or (k >= q and (k - q <= 2 or q < 3)),
    ),
    "sliding_window_global": ({"window": 4, "tokens": 3}, lambda q, k, M, N: k <= q + N - M and (q + N - M - k <= 4 or k < 3)),
    "qk_sparse": ({"start": 0, "length": 6}, lambda q, k, M, N: k <= q and not (k < 6 and q < 6)),
    "document": ({"length": 6}, lambda q, k, M, N: q // 6 == k // 6),
    "causal_document": ({"length": 6}, lambda q, k, M, N: q // 6 == k // 6 and k <= q),
    "causal_blockwise": ({"length": 5}, lambda q, k, M, N: k <= q and (q // 5 == k // 5 or q // 5 == (max(M, N) - 1) // 5)),
    "share_question": (
        {"question": 4, "answer": 3, "answers": 2},
        lambda q, k, M, N: k <= q and q // 10 == k // 10 and (k % 10 < 4 or (k % 10 - 4) // 3 == (q % 10 - 4) // 3),
    ),
    "softcap": ({}, lambda q, k, M, N: True),
    "softcap_causal": ({}, lambda q, k, M, N: k <= q + N - M),
    "alibi": ({}, lambda q, k, M, N: True),
    "alibi_causal": ({}, lambda q, k, M, N: k <= q + N - M),
    "relative_position": ({}, lambda q, k, M, N: True),
    "relative_position_table": ({}, lambda q, k, M, N: True),
    "prefix_document": ({"length": 6, "prefix": 2}, lambda q, k, M, N: q // 6 == k // 6 and (k % 6 < 2 or k <= q)),
    "relu": ({}, lambda q, k, M, N: True),
    "sigmoid": ({}, lambda q, k, M, N: True),
    "combo": ({"prefix": 7}, lambda q, k, M, N: k < 7 or k <= q),
    "sink_causal": ({}, lambda q, k, M, N: k <= q + N - M),
}


@pytest.mark.parametrize("name", sorted(corpus.variants()))
def test_mask_is_the_definition(name: str) -> None:
    parameters, rule = RULES[name]
    spec = as_specification(corpus.variant(name), name, parameters)
    for M, N in ((13, 13), (11, 17), (17, 11), (1, 9)):
        result = spec.mask(Lengths(1, 2, 1, M, N))[0, 1]
        assert result.tolist() == [[rule(q, k, M, N) for k in range(N)] for q in range(M)]
    assert spec.name == name and spec.doc


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(corpus.variants()))
def test_the_expert_kernel_of_a_variant_keeps_its_mask(name: str) -> None:
    """Blocks and mask as `cuir verify` reads them, on small problems; numbers are in tests/verification."""
    spec = as_specification(corpus.variant(name), name, RULES[name][0])
    program = transfer(EXPERT, spec).program
    checked = check(program, None, {"T": F16, "D": 64, "BM": 64, "BN": 16})
    few = [Problem(Lengths(2, 2, 1, M, N), BM, BN) for M, N in ((37, 61), (61, 37), (48, 48)) for BM, BN in ((16, 8), (8, 16))]
    assert check_contracts(program, checked.origin, spec, few, checked.consts)
    assert check_mask(program, checked, spec, Lengths(1, 2, 1, 70, 83)).read > 70 * 83


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(corpus.variants()))
def test_the_kernel_for_f32_of_a_variant_keeps_its_mask(name: str) -> None:
    """Its warpgroups own 64 rows or 128, for which it asks kv_rows twice."""
    spec = as_specification(corpus.variant(name), name, RULES[name][0])
    program = transfer(SINGLE, spec).program
    for rows in (64, 128):
        checked = check(program, None, {"T": F32, "D": 16, "BM": 128, "BN": 16, "ROWS": rows})
        assert check_mask(program, checked, spec, Lengths(1, 2, 1, 150, 83)).read > 140 * 83
    few = [Problem(Lengths(2, 2, 1, M, N), BM, BN) for M, N in ((37, 61), (61, 37)) for BM, BN in ((16, 8), (8, 16))]
    assert check_contracts(program, checked.origin, spec, few, checked.consts)


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(corpus.variants()))
def test_the_kernel_for_sm80_of_a_variant_keeps_its_mask(name: str) -> None:
    """Warps that own fewer than 64 rows share what kv_rows says of these."""
    spec = as_specification(corpus.variant(name), name, RULES[name][0])
    program = transfer(AMPERE, spec).program
    checked = check(program, None, {"T": F16, "D": 16, "BM": 128, "BN": 32})
    few = [Problem(Lengths(2, 2, 1, M, N), BM, BN) for M, N in ((37, 61), (61, 37)) for BM, BN in ((16, 8), (8, 16))]
    assert check_contracts(program, checked.origin, spec, few, checked.consts)
    assert check_mask(program, checked, spec, Lengths(1, 2, 1, 150, 83)).read > 140 * 83


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", sorted(corpus.variants()))
def test_no_block_is_visited_in_vain(name: str) -> None:
    """Closed forms and lists alike visit the blocks with a kept pair, and mask those with a dropped one; the keys end within a block."""
    spec = as_specification(corpus.variant(name), name, RULES[name][0])
    result = transfer(EXPERT, spec)
    kernel, at, BM, BN = result.program.kernels()["flash_fwd"], Lengths(1, 1, 1, 96, 91), 8, 6
    consts = {"D": 64, "BM": BM, "BN": BN}
    values = {"scale": 1.0, **result.arguments(at, consts=consts)}
    names = collect_kernel_values(kernel, {"B": 1, "H": 1, "HK": 1, "M": at.M, "N": at.N}, consts, values)
    tiles, blocks = at.M // BM, -(-at.N // BN)
    partial, n = (
        np.broadcast_to(np.asarray(x), (tiles,)) for x in Evaluator(result.program, names).call("kv_count", 0, 0, np.arange(tiles))
    )
    retained = np.zeros((at.M, blocks * BN), bool)
    retained[:, : at.N] = spec.mask(at)[0, 0].numpy()
    pairs = retained.reshape(tiles, BM, blocks, BN).sum((1, 3))
    needed, whole = (pairs > 0).sum(1), (pairs == BM * BN).sum(1)
    assert (n == needed).all()
    # a tile with queries before and behind the last global one: its bounds are those of both kinds
    assert (n - partial <= whole).all() and (whole - (n - partial)).sum() <= (name == "global_sliding_window")


def test_scores_are_the_definitions() -> None:
    at = Lengths(1, 4, 2, 5, 6)
    s = torch.randn(1, 4, 5, 6, dtype=torch.float64) * 30
    q, k, h = torch.arange(5)[:, None], torch.arange(6)[None, :], torch.arange(4)[:, None, None]

    def scores(name: str, **parameters: float) -> torch.Tensor:
        return as_specification(corpus.variant(name), name, parameters).scores(s, at)

    torch.testing.assert_close(scores("softcap"), 50 * torch.tanh(s / 50))
    torch.testing.assert_close(scores("alibi"), s + 2.0 ** (-8 * (h + 1).double() / 4) * (k - q))
    torch.testing.assert_close(scores("relative_position"), s + 0.01 * (k - q))
    future = k > q + 1  # one more key than queries
    torch.testing.assert_close(scores("softcap_causal", cap=20.0), (20 * torch.tanh(s / 20)).masked_fill(future, -torch.inf))
    biased = s + 2.0 ** (-(h + 1).double() / 4) * (k - q)
    torch.testing.assert_close(scores("alibi_causal", heads=32), biased.masked_fill(future, -torch.inf))
    torch.testing.assert_close(scores("alibi", heads=32), biased)


def test_weights_are_the_definitions() -> None:
    """The corpus's variants without a softmax of their keys alone, from their formulas."""
    B, H, M, N, D, scale = 1, 4, 7, 9, 16, 0.25
    q, k, v = (torch.randn(B, H, n, D, dtype=torch.float64) for n in (M, N, N))
    s, i, j = q @ k.mT * scale, torch.arange(M)[:, None], torch.arange(N)[None, :]

    def compute(name: str, **parameters: float) -> tuple[torch.Tensor, torch.Tensor]:
        return as_specification(corpus.variant(name), name, parameters).reference(q, k, v, scale)

    torch.testing.assert_close(compute("relu")[0], s.clamp(min=0) / N @ v)
    torch.testing.assert_close(compute("sigmoid")[0], 1 / (1 + torch.exp(-s) * N) @ v)
    torch.testing.assert_close(compute("sigmoid", bias=-1.5)[0], 1 / (1 + torch.exp(1.5 - s)) @ v)
    capped = 1 / (1 + N * torch.exp(-20 * torch.tanh(s / 20)))
    o, lse = compute("combo", prefix=3)
    torch.testing.assert_close(o, capped * ((j < 3) | (j <= i)) @ v)
    assert (lse == 0).all()
    weights, sink = torch.exp(s) * (j <= i + 2), torch.exp(torch.linspace(-2, 6, H, dtype=torch.float64)).view(H, 1)
    o, lse = compute("sink_causal")
    total = sink + weights.sum(-1)
    torch.testing.assert_close(o, weights @ v / total[..., None])
    torch.testing.assert_close(lse, total.log())
    table = torch.randn(H, 5, dtype=torch.float64)
    biased = s + table[:, (j - i).clamp(-2, 2) + 2]
    spec = as_specification(corpus.variant("relative_position_table")(table, radius=2), "table")
    torch.testing.assert_close(spec.reference(q, k, v, scale)[0], biased.softmax(-1) @ v)


@pytest.mark.parametrize("name", ["document", "causal_document"])
def test_documents_begin_where_they_should(name: str) -> None:
    def documents(**parameters: int) -> torch.Tensor:
        mask = as_specification(corpus.variant(name), name, {"length": 4, **parameters}).mask(Lengths(3, 1, 1, 12, 12))
        return torch.stack([m.tril().float().argmax(-1) for m in mask[:, 0]])  # the first key of each query

    assert torch.equal(documents(stagger=0), (torch.arange(12) // 4 * 4).expand(3, 12))
    starts = documents(stagger=1)
    assert starts[0, 3] == 0 and starts[1, 3] == 3 and starts[2, 2] == 2, "each batch's documents begin one token earlier"

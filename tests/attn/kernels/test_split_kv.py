"""Calls over a cache whose keys are shared out among several clusters: the launches together, the kernel that joins, and which calls these are."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

import cuir
from cuir.attn.kernels import decoding, split_kv
from cuir.explore import explore
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.specification import Lengths
from cuir.syntax.parser import parse
from tests.attn.kernels.test_autograd import dense
from tests.attn.serving import test_cached as cached
from tests.attn.serving import test_fp8_cache as eight_bit
from tests.explore.programs import tensors

TEXT = split_kv.PROGRAM.read_text(encoding="utf-8")


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Keys are shared out wherever they may be. The ways that calls had."""
    pairs, ways = list[tuple[int, int]](), decoding._shared_out

    def note_count(units: int, blocks: int, of: decoding.Features) -> tuple[int, int]:
        pairs.append(ways(units, blocks, of))
        return pairs[-1]

    monkeypatch.setattr(decoding, "GAIN", 100.0)
    monkeypatch.setattr(decoding, "LEAST_BLOCKS", 1)
    monkeypatch.setattr(decoding, "JOIN_SHARES", {False: -1000, True: -1000})
    monkeypatch.setattr(decoding, "_shared_out", note_count)
    return pairs


@pytest.mark.sweep
@pytest.mark.parametrize(
    "problem",
    [
        cached.Problem([300, 40], 16, (4, 2), M=3),
        cached.Problem([500, 0, 77], 64, (4, 1), M=4),
        cached.Problem([400], 0, (4, 4), M=2, dims=(128, 64)),
        cached.Problem([290, 3], 4, (4, 2), new=1),
        cached.Problem([200, 90], 32, (2, 2), layout="HND"),
    ],
)
@pytest.mark.parametrize("rule", [{}, {"score": cached.alibi, "causal": True}, {"mask": cached.from_start}])
def test_gives_what_float64_gives(problem: cached.Problem, rule: dict, counts: list[tuple[int, int]]) -> None:
    if "mask" in rule and len(problem.lengths) != 2:
        pytest.skip("a mask of two sequences")
    called = {{"score": "score_mod", "mask": "block_mask"}.get(n, n): v for n, v in rule.items()}
    o, lse = problem.call(**called)
    expected, wanted_lse = problem.compute_expected(**rule)
    assert counts[-1][1] > 1
    torch.testing.assert_close(o.double(), expected.nan_to_num(), atol=2e-3, rtol=1e-2)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-3, rtol=1e-4)


@pytest.mark.sweep
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    "problem",
    [
        eight_bit.Problem([200, 17], 16, "heads"),
        eight_bit.Problem([300, 1], 64, "tokens", M=3),
        eight_bit.Problem([270, 200], 0, "", M=18, D=128),
        eight_bit.Problem([130], 32, "heads", new=1, M=2, D=256, dtype=torch.bfloat16),
    ],
)
def test_eight_bits(problem: eight_bit.Problem, many: bool, counts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MANY", 0 if many else 1 << 20)
    o, lse = problem.call(verify="off")
    expected, wanted_lse = problem.compute_expected()
    assert counts[-1][1] > 1
    torch.testing.assert_close(o.double(), expected, atol=3e-3 * (8 if o.dtype == torch.bfloat16 else 1), rtol=1e-2)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-3, rtol=1e-4)


def test_only_weights_of_a_softmax_are_joined(counts: list[tuple[int, int]]) -> None:
    """A sink would be counted in each share."""
    problem = cached.Problem([300, 40], 16, (4, 2))
    for options, shared in (({"sink": torch.tensor([0.5] * 4)}, False), ({"normalize": "sigmoid"}, False), ({}, True)):
        problem.call(**options)
        assert (counts[-1][1] > 1) == shared


@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.parametrize(
    ("at", "shared"),
    [
        (Lengths(1, 8, 1, 1, 32768), True),  # one of eight GPUs that share a model's heads
        (Lengths(1, 64, 8, 1, 131072), True),
        (Lengths(1, 64, 8, 4, 131072), True),
        (Lengths(1, 64, 8, 1, 4096), False),
        (Lengths(16, 64, 8, 1, 32768), False),
        (Lengths(128, 64, 8, 4, 4096), False),
        (Lengths(1, 8, 1, 1, 512), False),
    ],
)
def test_keys_are_shared_out_where_few_units_have_many(at: Lengths, shared: bool, eight: bool) -> None:
    fixed = {"T": cuir.f16, "D": 128, "DV": 128, "CHUNK": 64, **({"TOKENS": 0} if eight else {})}
    consts = decoding.consts_for(at, fixed, True, True)
    assert (split_kv.share_count(consts) > 1) == shared
    assert split_kv.share_count(decoding.consts_for(at, fixed, True)) == 1
    if shared:
        cluster, splits = consts["CLUSTER"], consts["SPLITS"]
        assert isinstance(cluster, int) and isinstance(splits, int)
        assert consts["G"] == cuir.f32 and at.B * at.HK * cluster * splits <= decoding.PROCESSORS


def specify_join(splits: int) -> FunctionSpecification:
    """O and LSE of all keys, from those of shares without a key, of queries without one in any, and of shares far above or below the others."""

    def join(po: torch.Tensor, pl: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        o, sums = po.unflatten(0, (-1, splits)), pl.unflatten(0, (-1, splits))
        lse = sums.logsumexp(1)
        return ((sums - lse.masked_fill(lse == -torch.inf, 0.0)[:, None]).exp()[..., None] * o).sum(1), lse

    def sizes(drawn: Mapping[str, int]) -> dict[str, int]:
        return {"B": 1 + drawn["B"] % 3, "BS": (1 + drawn["B"] % 3) * splits, "H": 1 + drawn["H"] % 20, "M": 1 + drawn["M"] % 3}

    def inputs(sizes: Mapping[str, int], generator: torch.Generator, pl: torch.Tensor) -> dict[str, torch.Tensor]:
        far = 120.0 * torch.randint(-1, 2, pl.shape, generator=generator) * (torch.rand(pl.shape[1:], generator=generator) < 0.5)
        empty = (torch.rand(pl.shape, generator=generator) < 0.2) | (torch.rand(pl.shape[1:], generator=generator) < 0.1)
        return {"PL": (pl + far).masked_fill(empty, -torch.inf)}

    return FunctionSpecification("joined", join, inputs, sizes)


@pytest.mark.usefixtures("few_problems")
@pytest.mark.sweep
@pytest.mark.parametrize(("splits", "DV"), [(2, 40), (8, 64)])
def test_the_kernel_that_joins_is_verified(splits: int, DV: int) -> None:
    consts = {"T": cuir.f16, "DV": DV, "SPLITS": splits}
    report = cuir.verify(parse(TEXT, "joined_shares.cuir"), specify_join(splits), consts=consts, seeded=0)
    assert report.ok, report.summary()


@pytest.mark.usefixtures("few_problems")
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("- top) * LOG2E)\n            empty", "- top))\n            empty"),
        ("range(1, W)", "range(2, W)"),
        ("range(EACH)", "range(EACH - 1)"),
    ],
)
def test_a_wrong_join_is_found(right: str, wrong: str) -> None:
    assert right in TEXT
    consts = {"T": cuir.f16, "DV": 64, "SPLITS": 8}
    assert not cuir.verify(parse(TEXT.replace(right, wrong)), specify_join(8), consts=consts, seeded=0, shrink=False).ok


@pytest.mark.parametrize("splits", [2, 8])
def test_every_schedule_of_the_kernel_that_joins(splits: int) -> None:
    checked = cuir.check(parse(TEXT, "joined_shares.cuir"), None, {"T": cuir.f16, "DV": 64, "SPLITS": splits})
    exploration = explore(checked, tensors(checked, {"B": 1, "H": 2, "M": 2}), grid=1)
    assert exploration.verdict == "clean" and exploration.alike, exploration.diagnostics


@pytest.mark.sweep
@pytest.mark.parametrize("rule", ["none", "slopes", "window"])
@pytest.mark.parametrize(("heads", "M", "dims"), [((4, 1), 2, (64, 64)), ((2, 2), 1, (128, 40)), ((6, 2), 5, (16, 72))])
def test_few_queries_of_flex_attention(
    heads: tuple[int, int], M: int, dims: tuple[int, int], rule: str, counts: list[tuple[int, int]]
) -> None:
    """Twice, as a warm call is another one; with LSE; with gradients of few queries, which begin with O and LSE."""
    g, N = torch.Generator().manual_seed(M), 700
    q, k, v = (
        torch.randn(2, h, n, d, generator=g).half() for h, n, d in ((heads[0], M, dims[0]), (heads[1], N, dims[0]), (heads[1], N, dims[1]))
    )
    slopes = torch.rand(heads[0], generator=g)
    score = (lambda s, b, h, i, j: s + slopes[h] * (j - i) / 64) if rule == "slopes" else None
    mask = (lambda b, h, i, j: j - i > 500) if rule == "window" else None
    blocks = None if mask is None else cuir.create_block_mask(mask, None, None, M, N, device="cpu")
    expected, wanted_lse = dense(q.double(), k.double(), v.double(), mask, score)
    for _ in range(2):
        o, lse = cuir.flex_attention(q, k, v, score, blocks, enable_gqa=True, return_lse=True, backend="interpret", verify="off")
        torch.testing.assert_close(o.double(), expected, atol=2e-3, rtol=1e-2)
        torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-3, rtol=1e-4)
    assert counts[-1][1] > 1
    leaf, exact = q.clone().requires_grad_(), q.double().requires_grad_()
    actual = torch.autograd.grad(
        cuir.flex_attention(leaf, k, v, score, blocks, enable_gqa=True, backend="interpret", verify="off").float().square().sum(), leaf
    )[0]
    (true,) = torch.autograd.grad(dense(exact, k.double(), v.double(), mask, score)[0].square().sum(), exact)
    assert (actual.double() - true).norm() <= 1e-2 * true.norm()

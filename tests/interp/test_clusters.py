"""Clusters: the expert kernel with multicast computes what it computes alone, under any schedule; what is left out of the protocol is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir import check, parse
from cuir.checking.checked import ctas_along
from cuir.interp import Schedule, run
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from tests.interp.conftest import causal
from tests.interp.test_never_crashes import mutate, outcomes

FLAGSHIP = "corpus/kernels/flash_fwd_sm90.cuir"
SMALL: dict[str, Any] = {"CLUSTER": 2, "BM": 128, "BN": 64}
CONFIGURATIONS = [
    SMALL,
    {"CLUSTER": 2, "BM": 256, "PINGPONG": True},
    {"CLUSTER": 2, "BM": 384, "BN": 80, "DYNAMIC": False},
    {"CLUSTER": 3, "BM": 192, "BN": 48, "QBUF": 1, "STAGES": 3},
    {"CLUSTER": 2, "BM": 256, "BN": 80, "QBUF": 1, "AHEAD": False, "STAGED": False},
]
SHAPES = [(1, 2, 1, 256, 256), (2, 4, 2, 200, 333), (1, 2, 2, 77, 0), (2, 2, 1, 1, 300), (1, 1, 1, 300, 100)]


@pytest.mark.sweep
@pytest.mark.parametrize("consts", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_in_float64(attention, consts: dict[str, Any], shape: tuple[int, ...]) -> None:
    """Odd numbers of tiles, grouped heads, rows without a key, CTAs that have no rows at all."""
    ran, error, lse_error = attention(FLAGSHIP, *shape, consts=consts)
    assert ran.error is None, ran.error
    assert error.max() < 1.5e-3 and lse_error.max() < 1e-5


FULL = [
    ("k <= q + (N - M)", "k >= 0"),
    ("cdiv((m + 1) * BM + N - M, BN)", "cdiv(N, BN)"),
    ("max(0, m * BM + N - M + 1) // BN", "N // BN"),
    ("cdiv(r + N - M + 64, BN)", "cdiv(N, BN)"),
    ("max(0, r + N - M + 1) // BN", "N // BN"),
]


@pytest.fixture(scope="module")
def in_order(attention) -> dict[bool, Any]:
    """Results of the causal and of the full kernel, by `full`."""
    return {
        full: attention(*SMALL_RUN, keep=None if full else causal, changes=FULL if full else [], **SMALL_OPTIONS) for full in (False, True)
    }


SMALL_RUN: tuple[Any, ...] = (FLAGSHIP, 1, 2, 1, 140, 150)
SMALL_OPTIONS: dict[str, Any] = {"consts": SMALL, "grid": 3}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("full", [False, True], ids=["causal", "full"])
def test_every_schedule_gives_the_same_bits(attention, in_order, any_schedule, full: bool) -> None:
    first, error, _ = in_order[full]
    assert first.error is None and error.max() < 1.5e-3
    second, _, _ = attention(*SMALL_RUN, keep=None, changes=FULL if full else [], schedule=any_schedule, **SMALL_OPTIONS)
    assert second.error is None, second.error
    for name in ("O", "LSE"):
        assert torch.equal(first.arguments[name], second.arguments[name])


def test_the_words_for_clusters_mean_the_plain_thing_in_a_cluster_of_one(attention) -> None:
    plain = [(f"{x}.arrive(cluster=True)", f"{x}.arrive()") for x in ("k_empty[s]", "v_empty[u]")]
    without = [(", cluster=True)", ")"), (", cluster=CLUSTER", ""), *plain]
    item, _, _ = attention(FLAGSHIP, 1, 2, 1, 200, 300)
    second, _, _ = attention(FLAGSHIP, 1, 2, 1, 200, 300, changes=without)
    assert item.report is not None and second.report is not None
    assert item.report.events == second.report.events and torch.equal(item.arguments["O"], second.arguments["O"])


Change = tuple[str, str]
K, V = "k_empty[s].arrive(cluster=True)", "v_empty[u].arrive(cluster=True)"
COUNT = "{0}_full, {0}_empty = mbarrier(1, stages=STAGES), mbarrier({1}WG, stages=STAGES)"
RACES = {"R401", "M401", "S401", "S402", "S403"}  # what is met first hangs on the schedule
MUTANTS: dict[str, tuple[list[Change], set[str]]] = {
    "a release of K that stays in its CTA": ([(K, "k_empty[s].arrive()")], {"D401"}),
    "a release of V that stays in its CTA": ([(V, "v_empty[u].arrive()")], {"D401"}),
    "only the own CTA is waited for": ([(COUNT.format("k", "CLUSTER * "), COUNT.format("k", "")), (K, "k_empty[s].arrive()")], RACES),
    "a count without the other CTA": ([(COUNT.format("v", "CLUSTER * "), COUNT.format("v", ""))], RACES),
    "K is not multicast": ([("k_full[s], cluster=True)", "k_full[s])")], {"D401"}),
    "V is not multicast": ([("v_full[s], cluster=True)", "v_full[s])")], {"D401"}),
    "only the bytes of the own part": ([("k_full[s].expect(nbytes(sK[s]))", "k_full[s].expect(nbytes(sK[s]) // CLUSTER)")], RACES),
    "all fetch the same part": ([("sK[s, part : part + PART]", "sK[s, 0 : PART]")], RACES),
    "a stage written without waiting": ([("v_empty[s].wait(phase ^ 1)", "v_empty[s].wait(1)")], RACES),
    "all store the same rows": ([("r = m * BM + own + wg * 64", "r = m * BM + wg * 64")], {"R402"}),
    "CTAs with different numbers of blocks": ([("hk = h // (H // HK)", "hk = h // (H // HK)\n            n = n - cta_rank()")], {"D401"}),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_protocol_is_found(attention: Callable[..., Any], name: str) -> None:
    """By every schedule that is tried: what is wrong is wrong for all."""
    changes, codes = MUTANTS[name]
    for schedule in ["in_order", "random:1", "adversarial:2", "adversarial:engines_first"]:
        ran, _, _ = attention(FLAGSHIP, 1, 1, 1, 140, 410, consts=SMALL, changes=changes, grid=1, schedule=Schedule.parse(schedule))
        assert ran.error is not None and ran.code in codes, (schedule, str(ran.error))


def test_the_report_of_a_deadlock_names_the_cta(attention) -> None:
    changes, _ = MUTANTS["a release of K that stays in its CTA"]
    ran, _, _ = attention(FLAGSHIP, 1, 1, 1, 140, 410, consts=SMALL, changes=changes, grid=1)
    assert ran.error is not None
    text = "\n".join(d.render() for d in ran.error.diagnostics)
    assert "load_k[0] of CTA 0 waits for phase" in text and "k_empty[0] of CTA 0" in text and "1 of 2 arrivals" in text


PAIR = [
    ('arch="sm_90a"', 'arch="sm_90a", cluster=2'),
    ("warpgroups=2, registers=240) as wg", "warpgroups=1, registers=240)"),
    ("wg * 64", "cta_rank() * 64"),
    (
        "X[i, 0 : 64, :], sX[s], full[s])",
        "X[i, cta_rank() * 32 : cta_rank() * 32 + 32, :], sX[s, cta_rank() * 32 : cta_rank() * 32 + 32], full[s], cluster=True)",
    ),
    ("empty[s].arrive()", "empty[s].arrive(cluster=True)"),
]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("seed", range(16))
def test_every_schedule_agrees_on_a_mutant_in_clusters(pipe_text: str, seed: int) -> None:
    for old, new in PAIR:
        assert old in pipe_text
        pipe_text = pipe_text.replace(old, new)
    lines, rng = pipe_text.split("\n"), random.Random(seed)
    if seed == 0:
        description = "nothing"
    elif seed % 4 == 1:  # what is for the cluster stays in the CTA
        i = rng.choice([i for i, line in enumerate(lines) if "cluster=True" in line])
        lines[i] = lines[i].replace(", cluster=True", "").replace("cluster=True", "")
        description = lines[i].strip()
    else:
        description = mutate(lines, rng)
    result = outcomes("\n".join(lines))
    codes = {code for code, _ in result}
    assert "" not in codes or codes == {""}, (description, codes)
    assert seed != 0 or codes == {""}
    if codes == {""}:
        assert all(torch.equal(result[0][1], y) for _, y in result), description


@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_lines_of_a_cluster(x: int, y: int, data: st.DataObject) -> None:
    """Lines along x and along y part the cluster; the two of a CTA meet in it alone."""
    ours = data.draw(st.integers(0, x * y - 1))
    lines = {along: [ctas_along(x * y, x, cta, along) for cta in range(x * y)] for along in ("x", "y")}
    for along, size in (("x", x), ("y", y)):
        parts = {tuple(line) for line in lines[along]}
        assert sorted(cta for part in parts for cta in part) == list(range(x * y)) and {len(part) for part in parts} == {size}
    assert set(lines["x"][ours]) & set(lines["y"][ours]) == {ours}
    assert ctas_along(x * y, x, ours, True) == list(range(x * y)) and ctas_along(x * y, x, ours, False) == [ours]


LINES = {  # of a product in clusters of 2 x 2
    "A goes to the CTAs below": ('full[s], cluster="x")', 'full[s], cluster="y")'),
    "A goes to all": ('full[s], cluster="x")', "full[s], cluster=True)"),
    "A stays": ('full[s], cluster="x")', "full[s])"),
    "those below are told of A": ('a_empty[(it - 1) % STAGES].arrive(cluster="x")', 'a_empty[(it - 1) % STAGES].arrive(cluster="y")'),
    "all are told of Bt": ('b_empty[(it - 1) % STAGES].arrive(cluster="y")', "b_empty[(it - 1) % STAGES].arrive(cluster=True)"),
    "a store too many leaves": ("store_wait(1)", "store_wait(2)"),
    "a count of the other side": (
        "mbarrier(CX * WG, stages=STAGES), mbarrier(CY * WG",
        "mbarrier(CX * WG + 1, stages=STAGES), mbarrier(CY * WG",
    ),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("description", [None, *LINES])
@pytest.mark.parametrize("sides", [(2, 2), (1, 4), (4, 1), (2, 1)])
def test_clusters_of_two_dims(description: str | None, sides: tuple[int, int]) -> None:
    """A product of matrices, and that each change which matters for clusters of these sides is seen."""
    text = corpus.programs()["gemm_clusters"].read_text(encoding="utf-8")
    if description is not None:
        assert LINES[description][0] in text
        text = text.replace(*LINES[description])
    checked = check(parse(text), "gemm", {"T": F16, "BM": 64, "BN": 64, "STAGES": 2, "CX": sides[0], "CY": sides[1]})
    g = torch.Generator().manual_seed(1)
    a, bt, bias = torch.randn(300, 200, generator=g).half(), torch.randn(304, 200, generator=g).half(), torch.randn(304, generator=g)
    c = torch.full((300, 304), torch.nan).half()
    x, y = sides
    harmless = {
        "A goes to the CTAs below": x == y == 1,
        "A goes to all": y == 1,
        "A stays": x == 1,
        "those below are told of A": False,
        "all are told of Bt": x == 1,
    }
    arguments = {"A": a, "Bt": bt, "C": c, "bias": bias}
    if description is not None and not harmless.get(description, False):
        with pytest.raises(CuirError) as caught:
            run(checked, arguments, grid=2)
        assert caught.value.diagnostics[0].code in ("D401", "R401", "S401", "S402", "S403"), str(caught.value)
        return
    run(checked, arguments, grid=2)
    exact = a.double() @ bt.double().T + bias.double()
    expected = exact * torch.sigmoid(1.702 * exact)
    assert (c.double() - expected).norm() < 1e-3 * expected.norm()


def test_the_count_that_is_named_is_of_the_line() -> None:
    text = corpus.programs()["gemm_clusters"].read_text(encoding="utf-8").replace("mbarrier(CX * WG", "mbarrier(CY * WG")
    checked = check(parse(text), "gemm", {"T": F16, "BM": 64, "BN": 64, "STAGES": 2, "CX": 4, "CY": 2})
    a, bt, c = torch.ones(323, 80).half(), torch.ones(80, 80).half(), torch.zeros(323, 80).half()
    with pytest.raises(CuirError) as caught:
        run(checked, {"A": a, "Bt": bt, "C": c, "bias": torch.zeros(80)}, grid=1)
    assert "is 2, and 4 workers arrive on it" in str(caught.value) and "here 4" in str(caught.value)

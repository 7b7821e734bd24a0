"""Gradients, decoding over caches, also of latent vectors, and packed sequences by the kernels for sm_75, in the interpreter beside float64: lengths, heads, head dims, settings, variants, faults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from corpus.computes import COMPUTES
from cuir import Specification
from cuir.attn.splicing.backward import KERNEL, transfer_backward, transfer_query_gradients
from cuir.checking.checker import check
from cuir.interp import run
from cuir.spec.loading import as_any
from cuir.spec.specification import lengths_of
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.verification import verify
from tests.corpus.test_backward_sm80 import CAUSAL, SIZES, Consts, Problem, Tensors, consts_of, read, run_by_queries
from tests.corpus.test_serving_sm80 import COMMON, check_sizes
from tests.strategies.selection import examples

BY_KEYS, BY_QUERIES = read("flash_bwd_sm75"), read("flash_bwd_dq_sm75")
DECODE = ("decode_cache_sm75", "flash_decode", "cached_decode")
LATENT = ("mla_decode_sm75", "mla_decode", "cached_latent_decode")
PACKED = ("flash_fwd_varlen_sm75", "flash_fwd_varlen", "causal_packed")
# fewer rows than warps move at a time, warps that share keys, another dim of values
KEYS_SETTINGS: list[Consts] = [
    {"D": 64},
    {"D": 40, "DV": 24, "BM": 64},
    {"D": 128, "BM": 32, "BN": 32, "SPLIT": 2},
]
QUERIES_SETTINGS: list[Consts] = [{"D": 64, "BN": 64}, {"D": 40, "DV": 24, "BM": 32}, {"D": 128}]
DECODE_SETTINGS: list[Consts] = [
    {"D": 64, "BM": 4, "GROUP": 4, "WG": 2},
    {"D": 40, "BM": 8, "GROUP": 2, "WG": 1, "CHUNK": 4},
    {"D": 128, "DV": 64, "BM": 16},
]
# heads and queries of a tile, keys that are no whole panels
LATENT_SETTINGS: list[Consts] = [
    {"D": 192, "DV": 128, "BM": 4, "GROUP": 4},
    {"D": 144, "DV": 128, "BM": 16, "GROUP": 1},
    {"D": 320, "DV": 256, "BM": 1, "GROUP": 16},
]
# blocks that some warps skip, two slabs of queries, pages of few rows
PACKED_SETTINGS: list[Consts] = [
    {"D": 64},
    {"D": 40, "BM": 128, "ROWS": 32, "DYNAMIC": False},
    {"D": 64, "DV": 32, "BM": 32, "BN": 32, "CHUNK": 4},
]


def run_keys(program: Program, problem: Problem, consts: Consts, grid: int = 2, **captured: Any) -> Tensors:
    """Run `prepare` and `flash_bwd`."""
    rows = {n: torch.full((*problem.q.shape[:2], problem.rows), torch.nan) for n in ("L", "DL")}
    around = {n: v for n, v in consts.items() if n in ("T", "D", "DV")}
    dq = torch.full(problem.q.shape, torch.nan)
    run(check(program, "prepare", around), {"O": problem.o, "dO": problem.do, "LSE": problem.lse, **rows, "dQ": dq}, grid=grid)
    results = {"dK": torch.full_like(problem.k, torch.nan), "dV": torch.full_like(problem.v, torch.nan)}
    run(check(program, KERNEL, consts), {**problem.inputs(**rows), **results, **captured}, grid=grid)
    assert dq.isnan().all()
    return results


@pytest.mark.sweep
@pytest.mark.parametrize("setting", KEYS_SETTINGS, ids=str)
@examples(0.2)
@given(SIZES, st.integers(1, 3), st.integers(0, 9))
def test_gradients_of_any_lengths(setting: Consts, sizes: tuple[int, int, int, int, int], grid: int, seed: int) -> None:
    problem = Problem(CAUSAL, F16, sizes, (setting["D"], setting.get("DV", setting["D"])), seed)
    for name, actual in run_keys(BY_KEYS, problem, consts_of(F16, setting), grid).items():
        problem.assert_close(name, actual, F16)


@pytest.mark.sweep
@pytest.mark.parametrize("setting", QUERIES_SETTINGS, ids=str)
@examples(0.2)
@given(SIZES, st.integers(1, 3), st.integers(0, 9))
def test_query_gradients_of_any_lengths(setting: Consts, sizes: tuple[int, int, int, int, int], grid: int, seed: int) -> None:
    problem = Problem(CAUSAL, F16, sizes, (setting["D"], setting.get("DV", setting["D"])), seed)
    problem.assert_close("dQ", run_by_queries(BY_QUERIES, problem, consts_of(F16, setting), grid)["dQ"], F16)


@pytest.mark.sweep
@pytest.mark.parametrize("setting", DECODE_SETTINGS, ids=str)
@examples(0.2)
@given(st.fixed_dictionaries({**COMMON, "M": st.integers(0, 19)}), st.integers(0, 9))
def test_decoding_of_any_lengths(setting: Consts, drawn: dict[str, int], seed: int) -> None:
    check_sizes(DECODE, setting, drawn, F16, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("setting", LATENT_SETTINGS, ids=str)
@examples(0.2)
@given(st.fixed_dictionaries({**COMMON, "M": st.integers(0, 19)}), st.integers(0, 9))
def test_decoding_of_latent_vectors_of_any_lengths(setting: Consts, drawn: dict[str, int], seed: int) -> None:
    check_sizes(LATENT, setting, drawn, F16, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("setting", PACKED_SETTINGS, ids=str)
@examples(0.2)
@given(st.fixed_dictionaries({**COMMON, "TQ": st.integers(1, 200)}), st.integers(0, 9))
def test_packed_sequences_of_any_lengths(setting: Consts, drawn: dict[str, int], seed: int) -> None:
    check_sizes(PACKED, setting, drawn, F16, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["softcap_causal", "causal_document", "relative_position_table", "full"])
def test_gradients_of_variants(name: str) -> None:
    spec = corpus.specification(name)()
    assert isinstance(spec, Specification)
    problem = Problem(spec, F16, (1, 1, 2, 100, 100), (64, 64))
    lengths, consts = lengths_of(problem.q, problem.k), consts_of(F16, {"D": 64, "BM": 64, "BN": 64})
    by_keys, by_queries = transfer_backward(BY_KEYS, spec), transfer_query_gradients(BY_QUERIES, spec)
    results = run_keys(by_keys.program, problem, consts, **by_keys.arguments(lengths, consts=consts))
    results |= run_by_queries(by_queries.program, problem, consts, **by_queries.arguments(lengths, consts=consts))
    for x, actual in results.items():
        problem.assert_close(x, actual, F16)


FAULTS = [
    ("flash_bwd_sm75", "sync()                               # dO has landed for all", "pass_by = 0", "dO has not landed"),
    ("flash_bwd_sm75", "sync()                               # all have left Q", "pass_by = 0", "Q is overwritten"),
    (
        "flash_bwd_sm75",
        "if own < BM:\n                            store(sdO",
        "if True:\n                            store(sdO",
        "behind the block",
    ),
    ("flash_bwd_dq_sm75", "sync()                                   # V has landed for all", "pass_by = 0", "V has not landed"),
    ("flash_bwd_dq_sm75", "P * (dP - delta)", "P * dP", "without the row sum"),
    pytest.param(
        "decode_cache_sm75",
        "where(token < LENGTHS[b], PAGES[b, page], NP)",
        "PAGES[b, page]",
        "what lies behind the last token",
        marks=pytest.mark.thorough("its numbers take long"),
    ),
    (
        "decode_cache_sm75",
        "sync()                                       # all are done with keys and values",
        "pass_by = 0",
        "sums over values in use",
    ),
    ("mla_decode_sm75", "sync()                                   # the first block's weights", "pass_by = 0", "weights have not landed"),
    (
        "mla_decode_sm75",
        "sync()                                   # all have left the pair before the next one comes",
        "pass_by = 0",
        "keys in use",
    ),
    ("flash_fwd_varlen_sm75", "sync()                                   # V has landed for all", "pass_by = 0", "V has not landed"),
    pytest.param(
        "flash_fwd_varlen_sm75",
        "where(t < keys(b), KSTART[b] + t, -1)",
        "KSTART[b] + t",
        "rows of another sequence",
        marks=pytest.mark.thorough("its numbers take long"),
    ),
]


@pytest.mark.usefixtures("few_problems")
@pytest.mark.sweep
@pytest.mark.parametrize(("name", "old", "new", "what"), FAULTS)
def test_faults_are_found(name: str, old: str, new: str, what: str) -> None:
    text = corpus.kernels()[name].read_text(encoding="utf-8")
    assert text.count(old) == 1, what
    kernel, computed = next(iter((k, c) for k, c in COMPUTES[name].items() if k != "prepare"))
    spec = as_any(corpus.specification(computed.specification), computed.specification)
    report = verify(parse(text.replace(old, new), f"{name}.cuir"), spec, kernel, {"D": 64, **computed.tested}, seeded=0, shrink=False)
    assert not report.ok, what

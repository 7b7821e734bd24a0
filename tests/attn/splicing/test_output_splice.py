"""The largest score of each query as an output: what is added to a program that is asked for it, and that it is the maximum, whatever the softmax keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
import cuir
from cuir import CuirError, Lengths, Specification
from cuir.attn.splicing.splice import transfer
from cuir.syntax.printer import show
from cuir.verification import Case, check_mask, check_numbers
from tests.strategies.selection import examples

KERNELS = corpus.kernels()
CONSTS = {"T": cuir.f16, "D": 64, "BM": 64, "BN": 64}


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k <= q - 20


def capped(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 20 * torch.tanh(s / 20) + h


SPECS = {
    "full": Specification("full"),
    "causal": Specification("causal", causal),
    "capped": Specification("capped", causal, capped),
    "sink": Specification("sink", causal, sink=0.5),
    "sigmoid": Specification("sigmoid", causal, capped, normalize="sigmoid"),
    "relu": Specification("relu", None, capped, normalize="relu"),
    "documents": Specification("documents", lambda b, h, q, k, *, ids=torch.arange(1000) // 70: ids[q] == ids[k]),
}


def make_program(name: str, origin: str = "flash_fwd_sm90") -> tuple[cuir.Program, Specification]:
    spec = replace(SPECS[name], max_scores=True)
    return transfer(str(KERNELS[origin]), spec).program, spec


@pytest.mark.sweep
@pytest.mark.parametrize("name", SPECS)
def test_it_is_the_largest_score(name: str) -> None:
    program, spec = make_program(name)
    checked = cuir.check(program, consts=CONSTS)
    for case in (
        Case("ragged", Lengths(1, 4, 2, 150, 300)),
        Case("no keys", Lengths(1, 2, 1, 40, 0)),
        Case("growing", Lengths(1, 2, 2, 100, 512), "growing"),  # where the reference lags behind
        Case("large", Lengths(1, 2, 1, 70, 200), "large"),
    ):
        check_numbers(program, checked, spec, case)
    assert check_mask(program, checked, spec, Lengths(1, 2, 1, 70, 83)).read > 0


@examples(0.1)
@given(name=st.sampled_from(sorted(SPECS)), m=st.integers(1, 200), n=st.integers(1, 300), seed=st.integers(0, 99))
def test_any_lengths(name: str, m: int, n: int, seed: int) -> None:
    program, spec = make_program(name)
    check_numbers(
        program, cuir.check(program, consts=CONSTS), spec, Case("drawn", Lengths(1, 2, 1, m, n), "growing" if seed % 2 else "normal", seed)
    )


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", SPECS)
def test_only_what_asks_for_it_has_it(name: str) -> None:
    plain, requests = transfer(str(KERNELS["flash_fwd_sm90"]), SPECS[name]), make_program(name)[0]
    assert "MAX_SCORES" not in plain.text
    lines, signature = set(show(requests).splitlines()), plain.text.partition("def flash_fwd(")[2].partition("):")[0]
    missing_lines = [line for line in plain.text.splitlines() if line not in lines]
    assert all("def softmax_" in line or "def flash_fwd(" in line or line in signature for line in missing_lines), missing_lines
    before, after = (cuir.check(p, consts=CONSTS) for p in (plain.program, requests))
    assert [t.name for t in after.tensors if t.written] == [*(t.name for t in before.tensors if t.written), "MAX_SCORES"]


def test_the_lowering_looks_for_the_maximum_of_a_block_once() -> None:
    plain = transfer(str(KERNELS["flash_fwd_sm90"]), SPECS["causal"]).program
    sources = [cuir.lower(cuir.check(p, consts=CONSTS)).source for p in (plain, make_program("causal")[0])]
    assert sources[0].count("shfl") == sources[1].count("shfl") > 0


def test_a_reference_that_lags_behind_is_found() -> None:
    program, spec = make_program("full")
    text = show(program).replace("state[1] * LN2", "state[0][0] * LN2")
    stale = cuir.parse(text)
    case = Case("growing", Lengths(1, 2, 2, 100, 512), "growing")
    with pytest.raises(CuirError, match=r"V309(.|\n)*MAX_SCORES"):
        check_numbers(stale, cuir.check(stale, consts=CONSTS), spec, case)
    plain = transfer(str(KERNELS["flash_fwd_sm90"]), SPECS["full"]).program
    with pytest.raises(CuirError, match=r"V309(.|\n)*no MAX_SCORES"):
        check_numbers(plain, cuir.check(plain, consts=CONSTS), spec, case)


def test_a_kernel_that_stores_no_lse_beside_its_softmax_is_refused() -> None:
    text = KERNELS["flash_fwd_sm90"].read_text(encoding="utf-8").replace("store(LSE[b, h, r + rows(64)], lse)", "store_wait()")
    with pytest.raises(CuirError, match=r"X130(.|\n)*LSE"):
        transfer(cuir.parse(text), replace(SPECS["full"], max_scores=True))

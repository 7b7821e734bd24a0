"""The suites decode and varlen on a CPU, ours in the interpreter and the clock given: rows of ours beside PyTorch's, wrong results told, what lengths and pages are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir.attn.kernels.decoding import runs_on_decode_kernel
from cuir.cli.commands.bench import _only
from cuir.performance.suites import decode_suite as decoding
from cuir.performance.suites import packed_suite as packed
from cuir.performance.suites import suite
from cuir.performance.suites.cell_benchmark import Cell, Timing
from cuir.performance.suites.results import markdown, means, place
from cuir.performance.timing.problem import Shape


def call_once(call: Callable[[], Any]) -> float:
    call()
    return 1e-3


def test_problems_of_the_suites() -> None:
    cells = suite("decode").cells()
    assert len({(c.variant, c.shape) for c in cells}) == len(cells)
    for queries in (1, 4):  # rows that the mean is of
        assert sum(queries == c.shape.M and c.variant in ("full", "pages_64", "pages_16") for c in cells) == 42
    for c in cells:
        s = c.shape
        assert runs_on_decode_kernel(torch.empty(s.B, s.H, s.M, 1).half(), torch.empty(s.B, s.HK, s.N, 1).half()), c
    assert {c.shape.N for c in _only(cells, ["4096", "pages_16"])} == {4096}
    for documents in packed.DOCUMENTS:
        assert all(sum(packed.lengths(documents, n)) == n and min(packed.lengths(documents, n)) > 0 for n in (*packed.TOKENS, 5000))
    assert packed.lengths("one_long", 16384)[0] == 8192 and len(suite("varlen").cells()) == 4 * 16 * 2


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("variant", "peers", "names"),
    [
        ("full", ["fa2", "settings"], ["cuir CLUSTER=1,WG=2,STAGES=3,BN=64"]),
        ("unequal_pages_16", ["flex"], ["cuir"]),
        ("window", [], ["cuir"]),
        ("f8", ["16_bits"], ["cuir"]),
    ],
)
def test_a_row_of_decoding(variant: str, peers: list[str], names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "settings", lambda shape: [{"CLUSTER": 1, "WG": 2, "STAGES": 3, "BN": 64}])
    monkeypatch.setattr(decoding, "WINDOW", 20)
    cell = Cell(variant, {}, "small", Shape(2, 4, 2, 1, 70, 64))
    row = decoding.measure_decode(cell, "f16", peers, Timing(1, measure=call_once), device="cpu")
    assert [n for n in row["contenders"] if n.startswith("cuir")] == names and ("fa2" in row["contenders"]) == (variant == "full")
    ours = row["contenders"][names[0]]
    tokens = {"full": 140, "window": 40, "f8": 70}.get(variant) or sum(decoding.Problem(cell, "f16", "cpu").counts)
    assert not any("wrong" in c or "failed" in c for c in row["contenders"].values()) and ("16_bits" in row["contenders"]) == (
        variant == "f8"
    )
    assert ours["gbs"] == round(2 * 2 * 2 * 64 * tokens / 1e-3 / 1e6, 1)
    assert place(row) == f"{variant} small 2 x 70, 1 query" and "1 query" not in means([row])
    assert "| queries | length |" in markdown({"suite": "decode", "pass": "decode"}, [row]) and "GB/s of keys and values;" in markdown(
        {"suite": "decode", "pass": "decode"}, [row]
    )


@pytest.mark.parametrize("page", [0, 16])
def test_a_row_of_packed_sequences(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packed.KINDS, "causal_equal_30", packed.Kind(True, "equal_30", page))
    cell = Cell("causal_equal_30", {}, "small", Shape(1, 2, 1, 80, 80, 64))
    row = packed.measure_varlen(cell, "f16", [], Timing(1, measure=call_once), device="cpu")
    assert (
        row["flops"] == 4 * 64 * 2 * (2 * 465 + 210)
        and "wrong" not in row["contenders"]["cuir"]
        and row["contenders"]["cuir"]["rounds"] == 1
    )


VARLEN = """
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

def packed(q, k, v, cu, causal):
    parts = [tuple(x[a:b].transpose(0, 1)[None] for x in (q, k, v)) for a, b in zip(cu.tolist(), cu.tolist()[1:])]
    return torch.cat([sdpa(*part, is_causal=causal, enable_gqa=True)[0].transpose(0, 1) for part in parts])
"""
FA4 = """
def flash_attn_varlen_func(q, k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal):
    assert cu_seqlens_q is cu_seqlens_k and max_seqlen_q == max_seqlen_k == 30
    return packed(q, k, v, cu_seqlens_q, causal), None
"""
CUDNN_FLEX = """
def create_mask_plan(mask_func, q, k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
    ends = [list(range(1, n + 1)) for n in (30, 30, 20)]
    causal = mask_func.tolist() == [[sum(ends, [])]]
    assert causal or mask_func.tolist() == [[[30] * 60 + [20] * 20]] and mask_func.dtype == torch.int32
    return cu_seqlens_q, causal

def flex_attn_func(q, k, v, *, mask_plan):
    return packed(q, k, v, *mask_plan)
"""


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("peer", "module", "text"), [("fa4", "flash_attn.cute", FA4), ("cudnn_flex", "cudnn.flex_attention", CUDNN_FLEX)])
def test_the_newest_peers_of_packed_sequences(
    causal: bool, peer: str, module: str, text: str, install: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(module, VARLEN + text)
    monkeypatch.setitem(packed.KINDS, "small", packed.Kind(causal, "equal_30"))
    cell = Cell("small", {}, "small", Shape(1, 2, 1, 80, 80, 64))
    row = packed.measure_varlen(cell, "f16", [peer], Timing(1, {"cuir": "not asked"}, measure=call_once), device="cpu")
    assert row["contenders"][peer].keys() == {"error", "milliseconds", "tflops", "rounds"}, row


@pytest.mark.parametrize("variant", ["full", "unequal_pages_64"])
def test_wrong_results_are_told(variant: str) -> None:
    problem = decoding.Problem(Cell(variant, {}, "small", Shape(2, 2, 1, 1, 70, 64)), "f16", "cpu")
    o = torch.zeros(2, 2, 1, 64).half()
    for b, n in enumerate(problem.counts):
        k, v = (x[b, :, :n].double() for x in (problem.k, problem.v))
        o[b] = ((problem.q[b].double() @ k.mT * problem.scale).softmax(-1) @ v).half()
    judge = problem.make_judge()
    assert not judge((o, None))[1]
    for b in range(2):
        wrong = o.clone()
        wrong[b] *= 1.01
        assert "relative error" in judge(wrong)[1]

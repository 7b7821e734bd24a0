"""Specifications of selected blocks: they agree with autograd, and verification refuses kernels that read the lists wrongly."""

from __future__ import annotations

import math

import pytest
import torch

import corpus
from corpus.computes import COMPUTES
from cuir.attn.masks.selected_blocks import select_pairs
from cuir.attn.verification.selected_specifications import make_selected_query_gradients, make_selected_specification
from cuir.spec import Specification
from cuir.spec.loading import as_any
from cuir.spec.specification import Lengths
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.verification import verify


def test_query_gradients_are_those_of_autograd() -> None:
    spec = Specification("capped", lambda b, h, i, j: (i + j) % 2 == 0, lambda s, b, h, i, j: 2 * torch.tanh(s / 2))
    g = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(1, h, n, 8, generator=g, dtype=torch.float64) for h, n in ((4, 6), (2, 50), (2, 50), (4, 6)))
    lists = {"BLOCKS": torch.tensor([[2, 0]]).expand(1, 2, 3, 2), "COUNTS": torch.tensor([2, 1, 0]).expand(1, 2, 3)}
    sizes = {"B": 1, "H": 4, "HK": 2, "HU": 2, "M": 6, "N": 50, "GROUPS": 3, "SELECTED": 2, "BLOCK": 16, "SPAN": 2, "MP": 128}
    forward, backward = make_selected_specification(spec), make_selected_query_gradients(spec)
    drawn = backward.inputs(sizes, g, q, k, v, do, 0.3)  # type: ignore[misc]
    lists = {n: drawn[n] for n in lists}
    q.requires_grad_()
    o, _ = forward.reference(q, k, v, lists["BLOCKS"], lists["COUNTS"], 0.3, 16, 2)
    (expected,) = torch.autograd.grad((o * do).sum(), q)
    made = backward.reference(q.detach(), k, v, do, 0.3, **drawn, BLOCK=16, SPAN=2)["dQ"]
    exact = torch.arange(6) % 3 != 1  # queries whose L is not rounded down
    torch.testing.assert_close(made[:, :, exact], expected[:, :, exact])
    assert not torch.isclose(made, expected)[:, :, ~exact].all()
    kept = select_pairs(lists["BLOCKS"], lists["COUNTS"], Lengths(1, 4, 2, 6, 50), 16, 2)
    assert kept.any() and not kept.all()


def test_a_query_of_nan_reaches_its_gradient_if_it_has_keys() -> None:
    """One key has the weight 1 and the derivative 0, and its query is read nevertheless."""
    backward = make_selected_query_gradients(Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M)))
    g = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(1, 1, n, 8, generator=g, dtype=torch.float64) for n in (3, 1, 1, 3))
    sizes = {"B": 1, "H": 1, "HK": 1, "HU": 1, "M": 3, "N": 1, "GROUPS": 3, "SELECTED": 1, "BLOCK": 16, "SPAN": 1, "MP": 128}
    drawn = backward.inputs(sizes, g, q, k, v, do, 0.3)  # type: ignore[misc]
    lists = {"BLOCKS": torch.zeros(1, 1, 3, 1, dtype=torch.int32), "COUNTS": torch.ones(1, 1, 3, dtype=torch.int32)}
    rows = {"L": drawn["L"].clone(), "DL": drawn["DL"]}
    rows["L"][0, 0, 2] = (q[0, 0, 2] @ k[0, 0, 0]) * 0.3 / math.log(2.0)
    rows["L"][0, 0, :2] = torch.inf
    dq = backward.reference(torch.full_like(q, torch.nan), k, v, do, 0.3, **lists, **rows, BLOCK=16, SPAN=1)["dQ"]
    assert dq[0, 0, 2].isnan().all() and (dq[0, 0, :2] == 0).all(), "only the last query has a key"


FAULTS = [
    (
        "selected_fwd_sm90",
        "flash_fwd",
        "n = COUNTS[b, h // (H // HU), m * BM // SPAN]",
        "n = max(0, COUNTS[b, h // (H // HU), m * BM // SPAN] - 1)",
        "V101",
    ),
    (
        "selected_fwd_sm90",
        "flash_fwd",
        "return BLOCKS[b, h // (H // HU), m * BM // SPAN, i]",
        "return BLOCKS[b, h // (H // HU), m * BM // SPAN, 0 * i]",
        "V103",
    ),
    ("selected_bwd_sm90", "join_parts", "range(ENDS[t, 0], ENDS[t, 1])", "range(ENDS[t, 0] + 1, ENDS[t, 1])", ""),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "kernel", "old", "new", "code"), FAULTS, ids=[f"{f[0]}-{f[3]}" for f in FAULTS])
def test_faults_are_refused(name: str, kernel: str, old: str, new: str, code: str, no_schedules: None) -> None:
    text = corpus.kernels()[name].read_text(encoding="utf-8")
    assert old in text
    computed = COMPUTES[name][kernel]
    program = parse(text.replace(old, new), f"{name}.cuir")
    report = verify(program, as_any(corpus.specification(computed.specification), ""), kernel=kernel, consts={"T": F16, **computed.tested})
    assert not report.ok and report.diagnostics[0].code.startswith(code or "V")


@pytest.mark.thorough
@pytest.mark.usefixtures("no_schedules")
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("warp_any(f != 1.0)", "warp_any(f == 1.0)", "V301"),  # 16 heads whose logits all grow
        ("where(some, where(moves, most, top), top)", "where(some, most, top)", "V302"),  # logits of thousands that grow and fall
    ],
)
def test_faults_of_a_warp_of_heads_are_refused(old: str, new: str, code: str) -> None:
    program = parse(corpus.kernels()["selected_fwd_sm90"].read_text(encoding="utf-8").replace(old, new))
    report = verify(program, corpus.specification("causal_selected")(), consts={"T": F16, "D": 64}, shrink=False)
    assert not report.ok and report.diagnostics[0].code == code


@pytest.mark.thorough
@pytest.mark.usefixtures("no_schedules")
@pytest.mark.parametrize(
    ("name", "kernel", "function", "old"),
    [
        ("selected_bwd_dq_sm90", "flash_bwd_dq", "causal_selected_query_gradients", "exp2(min(X * c - lse, 0.0))"),
        ("selected_bwd_sm90", "flash_bwd", "causal_selected_key_gradients", "exp2(min(X * c - lse, 0.0))"),
    ],
)
def test_weights_above_one_are_refused(name: str, kernel: str, function: str, old: str) -> None:
    """L may be lower than the logits that it was computed from."""
    text = corpus.kernels()[name].read_text(encoding="utf-8")
    assert text.count(old) == 1
    program = parse(text.replace(old, old.replace("0.0", "1.0")))
    report = verify(program, corpus.specification(function)(), kernel=kernel, consts={"T": F16, "D": 64}, shrink=False)
    assert not report.ok and report.diagnostics[0].code == "V301"

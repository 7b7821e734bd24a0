"""Specifications of gradients in 8 bits: they agree with autograd, and verification refuses kernels that scale or sum wrongly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import corpus
from corpus.computes import COMPUTES
from cuir.attn.verification.fp8_specifications import compute_fp8_rows, make_fp8_gradients
from cuir.spec import Specification
from cuir.spec.gradients import pad_rows
from cuir.spec.loading import as_any
from cuir.syntax.parser import parse
from cuir.verification import verify


@given(st.sampled_from([(1, 1), (4, 2), (3, 1)]), st.integers(1, 9), st.integers(1, 12), st.integers(0, 2**16))
@settings(max_examples=10, deadline=None)
def test_gradients_are_those_of_autograd(heads: tuple[int, int], M: int, N: int, seed: int) -> None:
    """Queries and keys with scales are those that derivatives are multiplied by, so that nothing is rounded."""
    (H, HK), B, D, scale = heads, 2, 8, 0.3
    g = torch.Generator().manual_seed(seed)
    q, k, v, do = (torch.randn(B, h, n, D, generator=g, dtype=torch.float64) for h, n in ((H, M), (HK, N), (HK, N), (H, M)))
    q_scale, k_scale, v_scale, do_scale = (torch.exp2(torch.randn(B, h, generator=g, dtype=torch.float64)) for h in (H, HK, HK, HK))
    wide = [x * s[..., None, None] for x, s in ((q, q_scale), (k, k_scale), (v, v_scale))]
    leaves = [x.requires_grad_() for x in wide]
    per = H // HK
    scores = (leaves[0] @ leaves[1].repeat_interleave(per, 1).mT * scale).masked_fill(torch.ones(M, N).tril(N // 2) == 0, -torch.inf)
    o = scores.softmax(-1) @ leaves[2].repeat_interleave(per, 1)
    rows = compute_fp8_rows(o.detach(), do, do_scale, scores.logsumexp(-1).detach(), pad_rows(M))
    expected = torch.autograd.grad((o * do * do_scale.repeat_interleave(per, 1)[..., None, None]).sum(), leaves)

    def scaled(s: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return s * q_scale[b, h] * k_scale[b, h // per]

    spec = Specification("scaled", lambda b, h, i, j: j <= i + N // 2, scaled)
    others = {"QH": wide[0].detach(), "KH": wide[1].detach(), "QSCALE": q_scale, "KSCALE": k_scale, "VSCALE": v_scale, "DOSCALE": do_scale}
    made = make_fp8_gradients(spec).reference(q, k, v, do, scale, **others, **rows)
    for result, gradient in zip((made["dQ"] * scale, made["dK"], made["dV"]), expected, strict=True):  # type: ignore[index]
        torch.testing.assert_close(result, gradient)


FAULTS = [
    ("flash_bwd", "v_factor = DOSCALE[b, hk] * SMALLEST", "v_factor = SMALLEST"),
    ("flash_bwd", "aV0, aV1, summed = zeros(f32, [64, HALF]), zeros(f32, [64, HALF]), 0", "summed = 0"),
    ("flash_bwd", "P8 = interleave(cast(P, T))", "P8 = interleave(cast(P * SMALLEST, T))"),
    ("flash_bwd", "sQH[s], aK)", "sKH[0:BM], aK)"),
    ("prepare", "lse * LOG2E - SHIFT", "lse * LOG2E"),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("kernel", "old", "new"), FAULTS, ids=[f"{f[0]}-{f[2]}" for f in FAULTS])
def test_faults_are_refused(kernel: str, old: str, new: str, no_schedules: None) -> None:
    """Among them weights that are no normal numbers of 8 bits, which only small ones show."""
    text = corpus.kernels()["flash_bwd_f8_sm90"].read_text(encoding="utf-8")
    assert old in text
    computed = COMPUTES["flash_bwd_f8_sm90"][kernel]
    program = parse(text.replace(old, new), "flash_bwd_f8_sm90.cuir")
    report = verify(program, as_any(corpus.specification(computed.specification), ""), kernel=kernel, consts=computed.tested)
    assert not report.ok and report.diagnostics[0].code.startswith("V")

"""Faulty kernels that an adversary wrote by hand, of several changes each, and that verification once passed: each is refused, at level quick."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import corpus
from cuir.spec.function_specification import FunctionSpecification
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.verification import verify

EXPERT = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
MOST = "    most = row_max(S) * c\n"
DRAINED = """
                if pending:
                    u, uphase = ring(vi, STAGES)
                    v_full[u].wait(uphase)
                    acc = mma_async(P, sV[u, :, 0 : units(DV)], acc)
                    mma_wait(acc)
                    vi += 1
                    finish(sO, wg, acc, state, b0, h0, r0)
                    pending, acc, state = False, zeros(f32, [64, units(DV)]), softmax_begin(64)
"""
EDITS: dict[str, tuple[Sequence[tuple[str, str]], dict[str, Any], str, str]] = {
    "the scale is not used": ([("    return S, scale * LOG2E\n", "    return S, 0.125 * LOG2E\n")], {}, "numbers", "V301"),
    "the reference moves by maxima before the scale": (
        [
            (MOST, "    most = row_max(S)\n"),
            ("P = exp2(S * c - new)", "P = exp2(S * c - new * c)"),
            ("exp2(top - new)", "exp2((top - new) * c)"),
            ("(top + log2(total)) * LN2", "(top * scale * LOG2E + log2(total)) * LN2"),
            ("NEVER = -3e38", "NEVER = -1e30"),  # times the scale it would overflow, which the mask shows
        ],
        {},
        "numbers",
        "V301",
    ),
    "the reference follows downwards": (
        [
            (MOST, "    most = max(row_max(S) * c, NEVER)\n"),
            ("moves = most - top > THRESHOLD ", "moves = (most - top > THRESHOLD) | (top - most > THRESHOLD) & (most > NEVER) "),
        ],
        {},
        "numbers",
        "V302",
    ),
    "logits below the first reference": ([("NEVER = -3e38", "NEVER = -10000.0")], {}, "numbers", "V301"),
    "key heads by a mask of bits": ([("hk = h // (H // HK)", "hk = (b * H + h) // (H // HK) & (HK - 1)")], {}, "numbers", "V301"),
    "two of the batch": ([("copy_async(K[b, hk,", "copy_async(K[b % 2, hk,")], {}, "numbers", "V301"),
    "queries counted where no tile takes any": (
        [
            (
                "                    q_empty[y].arrive()\n                qi += 1\n            else:",
                "                    q_empty[y].arrive()\n            else:",
            ),
            ("softmax_begin(64), b, h, r)\n        if pending:", "softmax_begin(64), b, h, r)\n            qi += 1\n        if pending:"),
        ],
        {},
        "schedules",
        "D401",
    ),
    "a tile without keys ends the one before, and gives nothing back": (
        [
            (
                "            else:\n                finish(sO, wg, zeros(",
                "            else:" + DRAINED + "                finish(sO, wg, zeros(",
            )
        ],
        {},
        "schedules",
        "D401",
    ),
    "a CTA without work waits for a product": (
        [
            (
                "        if pending:\n            u, uphase = ring(vi, STAGES)\n            v_full[u].wait(uphase)\n            acc = mma_async(P, sV[u, :, 0 : units(DV)], acc)\n            mma_wait(acc)\n            v_empty[u].arrive(cluster=True)\n            finish(sO, wg, acc, state, b0, h0, r0)",
                "        u, uphase = ring(vi, STAGES)\n        v_full[u].wait(uphase)\n        acc = mma_async(P, sV[u, :, 0 : units(DV)], acc)\n        mma_wait(acc)\n        v_empty[u].arrive(cluster=True)\n        finish(sO, wg, acc, state, b0, h0, r0)",
            ),
            ("kv_count(b, h, m)[1] - 1 - i", "max(0, kv_count(b, h, m)[1] - 1 - i)"),
            ("            _, n = kv_count(b, h, m)\n", "            _, n = kv_count(b, h, m)\n            n = max(n, 1)\n"),
        ],
        {"BM": 64, "DYNAMIC": False},
        "schedules",
        "D401",
    ),
}


def edit(edits: Sequence[tuple[str, str]]) -> str:
    text = EXPERT
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


CONSTS = {"T": F16, "D": 64, "BM": 64, "BN": 64}  # small tiles: a verdict takes half the time


@pytest.mark.sweep
@pytest.mark.parametrize("name", EDITS)
def test_it_is_refused(name: str, request: pytest.FixtureRequest) -> None:
    edits, consts, stage, code = EDITS[name]
    if stage in ("mask", "numbers"):
        request.getfixturevalue("no_schedules")
    report = verify(parse(edit(edits)), corpus.variant("causal")(), consts={**CONSTS, **consts}, shrink=False, seeded=0)
    failed = next(s for s in report.stages if s.verdict == "failed")
    assert (failed.name, report.diagnostics[0].code) == (stage, code)


NORM = textwrap.dedent("""
    @kernel(arch="sm_90a")
    def norm(X: Global[T, M, D], Y: Global[T, M, D], *, T: const, D: const = 128):
        work = tiles(cdiv(M, 64))
        with role("norm", warpgroups=1):
            for t in work:
                x = cast(load(X[t * 64 : t * 64 + 64, :]), f32)
                store(Y[t * 64 : t * 64 + 64, :], cast(x * exp2(-0.5 * log2(row_sum(x * x) / D + EPS)), T))
    """)


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.parametrize(("eps", "code"), [("1e-6", ""), ("1e-5", "V301"), ("3e-6", "V301"), ("0.0", "V30")])
def test_a_small_number_beside_the_inputs_is_asked_for(eps: str, code: str) -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), None, 1e-6)

    spec = FunctionSpecification("norm", reference)
    report = verify(parse(f"EPS = {eps}\n{NORM}"), spec, consts={"T": F16}, shrink=False, seeded=0)
    assert report.ok == (not code), report.summary()
    assert not code or report.diagnostics[0].code.startswith(code)


CLAMPED = [
    (
        "                    q_full[x].expect(",
        "                    store(Q[b, h, m * BM : m * BM + 64, :], cast(min(cast(load(Q[b, h, m * BM : m * BM + 64, :]), f32), 0.5), T))\n"
        "                    fence_async(tensors=True)\n                    q_full[x].expect(",
    )
]


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize("edits", [[], EDITS["the scale is not used"][0], CLAMPED], ids=["right", "scale", "clamped"])
def test_a_function_is_asked_as_mods_are(edits: Sequence[tuple[str, str]]) -> None:
    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> dict[str, torch.Tensor | None]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        rows, columns = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        weights = (q @ k.mT * scale).masked_fill(columns > rows + k.shape[2] - q.shape[2], -torch.inf).softmax(-1)
        return {"O": weights.nan_to_num(0.0) @ v, "LSE": None}

    spec = FunctionSpecification("causal", reference)
    report = verify(parse(edit(edits) if edits else EXPERT), spec, consts=CONSTS, shrink=False, seeded=0)
    assert report.ok == (not edits), report.summary()
    assert not edits or report.diagnostics[0].code == "V301"


def test_what_is_given_to_read_is_not_written() -> None:
    text = EXPERT.replace(
        "                    q_full[x].expect(",
        "                    store(Q[b, h, m * BM : m * BM + 1, :], cast(load(Q[b, h, m * BM : m * BM + 1, :]), T))\n                    q_full[x].expect(",
        1,
    )
    assert text != EXPERT
    report = verify(parse(text), corpus.variant("causal")(), consts=CONSTS, seeded=0)
    assert report.diagnostics[0].code == "V306" and "writes Q" in report.diagnostics[0].message

"""Norms, softmaxes and the like as people write them: the right ones pass, and each fault is found at level quick.

Right programs that verification passes, beside faulty twins that it refuses: exponents of infinities, statistics of nothing and of vast numbers.

Faulty kernels that an adversary wrote by hand, of several changes each, and that verification once passed: each is refused, at level quick.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import corpus
from cuir import CuirError, FunctionSpecification, check, parse, verify
from cuir.checking.checked import Const
from cuir.syntax.types import F16
from cuir.verification.report import VerifyReport
from cuir.verification.spec_dispatch import check_case
from cuir.verification.values.cases import Draw
from tests.verification.small_kernels import KERNELS, Small


def judge(name: str, small: Small, consts: dict[str, Const], *changes: tuple[str, str]) -> VerifyReport:
    text = small.text
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    spec = FunctionSpecification(name, small.reference, small.inputs, small.sizes)
    return verify(parse(text, f"{name}.cuir"), spec, consts=consts, seeded=0, shrink=False)


@pytest.mark.usefixtures("few_problems")
@pytest.mark.sweep
@pytest.mark.parametrize(("name", "at"), [(n, i) for n, s in KERNELS.items() for i in range(len(s.consts))])
def test_right_kernels_pass(name: str, at: int) -> None:
    small = KERNELS[name]
    for change in ((), *((c,) for c in small.right)):
        report = judge(name, small, dict(small.consts[at]), *change)
        assert report.ok, (change, report.diagnostics[0].render())


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "fault"), [(n, i) for n, s in KERNELS.items() for i in range(len(s.wrong))])
def test_wrong_kernels_are_refused(name: str, fault: int) -> None:
    small = KERNELS[name]
    report = judge(name, small, dict(small.consts[fault % len(small.consts)]), small.wrong[fault])
    assert [d.code for d in report.diagnostics] in (["V301"], ["V302"]), (small.wrong[fault], report.as_markdown())


def fault(
    text: str, reference: Callable[..., Any], sizes: dict[str, int], kind: str, seed: int, inputs: Callable[..., Any] | None = None
) -> list[str]:
    """Run one problem; return the codes of what is wrong in it."""
    program = parse(text)
    try:
        check_case(program, check(program), FunctionSpecification("k", reference, inputs), Draw("one", sizes, kind, seed))
    except CuirError as error:
        return [d.code for d in error.diagnostics]
    return []


EXPONENTS = """\
@kernel(arch="sm_90a")
def exponents(X: Global[f16, M, 32], E: Global[i32, M]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            r = t * 64 + rows(64)
            top = row_max(abs(cast(X[r, cols(32)], f32)))
            e = floor(log2(top){margin})
            store(E[r], cast(where(top == 0.0, 0.0, e), i32))
"""


def exponents(x: torch.Tensor) -> torch.Tensor:
    """Give the floor of the logarithm of the largest magnitude of each row, 0 for a row of zeros."""
    top = x.abs().amax(-1)
    _, e = torch.frexp(top)
    return torch.where(top == 0, torch.zeros_like(e), e - 1).to(torch.int32)


@pytest.mark.parametrize(("margin", "faulty"), [(" + 0.0001", False), (" + 1.0", True)])
@pytest.mark.parametrize("seed", (0, 1))
def test_exponents_of_infinities_are_not_asked(margin: str, faulty: bool, seed: int) -> None:
    """C leaves the exponent of an infinity open in `frexp`; those of numbers beside it are asked."""
    codes = fault(EXPONENTS.format(margin=margin), exponents, {"M": 5}, "infinite", seed)
    assert codes == (["V301"] if faulty else [])


NORM = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], RSTD: Global[f32, 64], G: Global[f32, M, 64], DY: Global[f32, M, 64], DG: Global[f32, 64]):
    work = tiles(1)
    with role("all", warps=1):
        for t in work:
            dot = zeros(f32, [1, 64])
            for i in range(cdiv(M, 16)):
                r, c = i * 16 + rows(16), cols(64)
                dot = dot + col_sum(DY[r, c] * X[r, c])
            {store}
            for i in range(cdiv(M, 16)):
                r, c = i * 16 + rows(16), cols(64)
                store(G[r, c], X[r, c])
"""
PLAIN = "store(DG[cols(64)], dot * RSTD[cols(64)])"


def norm(x: torch.Tensor, rstd: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"DG": (dy * (x * rstd)).sum(0), "G": x}


def statistics(sizes: dict[str, int], generator: torch.Generator, x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"RSTD": x.double().square().mean(0).rsqrt()}


@pytest.mark.parametrize(("store", "faulty"), [(PLAIN, False), (f"if M > 0:\n                {PLAIN}", True)])
def test_statistics_of_nothing_are_numbers(store: str, faulty: bool) -> None:
    """The mean over no rows is NaN, and 0 times it too; an output that is not written is told all the same."""
    codes = fault(NORM.format(store=store), norm, {"M": 0}, "normal", 0, statistics)
    assert codes == (["V302"] if faulty else [])


@pytest.mark.parametrize(("store", "faulty"), [(PLAIN, False), ("store(DG[cols(64)], dot * (RSTD[cols(64)] + 1e-6))", True)])
def test_statistics_are_of_numbers_with_squares(store: str, faulty: bool) -> None:
    """A forward pass in f32 gives no statistics of numbers whose squares it lacks; of all others they are kept apart from 0."""
    codes = fault(NORM.format(store=store), norm, {"M": 20}, "largest", 0, statistics)
    assert codes == (["V301"] if faulty else [])


def test_without_statistics_squares_may_be_infinite() -> None:
    """A root of a sum of squares is refused where `inputs` gives none."""
    text = NORM.format(store="store(DG[cols(64)], sqrt(dot * dot))").replace("RSTD: Global[f32, 64], ", "")
    assert fault(text, lambda x, dy: {"DG": (dy * x).sum(0).abs(), "G": x}, {"M": 20}, "largest", 0)


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


NORM_OF_ADVERSARY = textwrap.dedent("""
    @kernel(arch="sm_90a")
    def norm(X: Global[T, M, D], Y: Global[T, M, D], *, T: const, D: const = 128):
        work = tiles(cdiv(M, 64))
        with role("norm", warpgroups=1):
            for t in work:
                x = cast(load(X[t * 64 : t * 64 + 64, :]), f32)
                store(Y[t * 64 : t * 64 + 64, :], cast(x * exp2(-0.5 * log2(row_sum(x * x) / D + EPS)), T))
    """)


@pytest.mark.sweep(4)
@pytest.mark.usefixtures("no_schedules")
@pytest.mark.parametrize(("eps", "code"), [("1e-6", ""), ("1e-5", "V301"), ("3e-6", "V301"), ("0.0", "V30")])
def test_a_small_number_beside_the_inputs_is_asked_for(eps: str, code: str) -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), None, 1e-6)

    spec = FunctionSpecification("norm", reference)
    report = verify(parse(f"EPS = {eps}\n{NORM_OF_ADVERSARY}"), spec, consts={"T": F16}, shrink=False, seeded=0)
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

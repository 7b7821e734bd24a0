"""Transfer of the kernel of dQ alone: dQ of variants of each kind (a score, lists, a sink, a table), beside float64."""

from __future__ import annotations

import functools

import pytest
import torch

import corpus
from cuir.arguments.binding import TORCH
from cuir.attn.splicing.query_gradients import KERNEL, transfer_query_gradients
from cuir.checking.checker import check
from cuir.interp import run
from cuir.spec.gradients import forward, pad_rows, rows_of
from cuir.spec.specification import Specification, lengths_of
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import F16, F32, DType
from cuir.text.diagnostics import CuirError
from cuir.verification import stages, verify
from cuir.verification.report import VerifyReport

TEXT = corpus.kernels()["flash_bwd_dq_sm90"].read_text(encoding="utf-8")
EXPERT = parse(TEXT, "flash_bwd_dq_sm90.cuir")


SINGLE = parse(corpus.kernels()["flash_bwd_dq_f32"].read_text(encoding="utf-8"), "flash_bwd_dq_f32.cuir")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("origin", "dtype", "bound", "prepares"), [(EXPERT, F16, 6e-4, False), (EXPERT, F16, 6e-4, True), (SINGLE, F32, 2e-6, False)]
)
@pytest.mark.parametrize("name", ["softcap_causal", "causal_document", "sink_causal", "relative_position_table"])
def test_query_gradients_of_the_corpus(name: str, origin: Program, dtype: DType, bound: float, prepares: bool) -> None:
    spec = corpus.specification(name)()
    transferred = transfer_query_gradients(origin, spec)
    M, D = 150, 64
    g = torch.Generator().manual_seed(0)
    q, do, k, v = (torch.randn(1, h, M, D, generator=g).to(TORCH[dtype]) for h in (2, 2, 1, 1))
    leaf = q.double().requires_grad_()
    o, lse = forward(spec, leaf, k.double(), v.double(), D**-0.5)
    (exact,) = torch.autograd.grad(o, leaf, do.double())
    rows = pad_rows(M)
    delta = torch.nn.functional.pad((o.detach() * do.double()).sum(-1), (0, rows - M)).float()
    result, consts = torch.full_like(q, torch.nan), {"T": dtype, "D": D, "BN": 64}
    L = rows_of(lse, rows).float()
    inputs = dict(zip("QKV", (q, k, v), strict=True)) | {"dO": do, "L": L, "DL": delta, "dQ": result}
    if origin is EXPERT:
        inputs |= {"FO": o.detach().to(q.dtype), "FL": lse.float()}
    if prepares:
        consts |= {"PREPARES": True, "OVERLAP": True}  # as a call has them at head dim 128
        inputs |= {"L": torch.full_like(L, torch.nan), "DL": torch.full_like(delta, torch.nan)}
    run(
        check(transferred.program, KERNEL, consts),
        {**inputs, "scale": D**-0.5, **transferred.arguments(lengths_of(q, k), consts=consts)},
        grid=2,
    )
    assert (result.double() - exact).norm() <= bound * exact.norm()
    assert torch.allclose(inputs["L"], L, atol=1e-5) and torch.allclose(inputs["DL"], delta, atol=4e-3)


@functools.cache
def text_of(name: str, spec: str) -> str:
    """The text of a variant's program."""
    return transfer_query_gradients(
        parse(corpus.kernels()[name].read_text(encoding="utf-8"), f"{name}.cuir"), corpus.specification(spec)()
    ).text


def verify_gradients(text: str, spec: str, consts: dict[str, DType]) -> VerifyReport:
    sizes = {"D": 64, "BM": 64, "BN": 64, **consts}
    return verify(parse(text, "dq.cuir"), corpus.specification(spec)(), kernel=KERNEL, consts=sizes, seeded=0, shrink=False)


ORIGINS = [("flash_bwd_dq_sm90", {"T": F16}), ("flash_bwd_dq_f32", {"T": F32})]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "consts"), ORIGINS)
@pytest.mark.parametrize(
    ("spec", "old", "new", "code"),
    [
        ("causal", "N - M + 1) // BN)", "N - M + 2) // BN)", "V102"),
        ("causal", "cdiv((m + 1) * BM + N - M, BN)", "cdiv(m * BM + N - M, BN)", "V101"),
        ("causal_document", "return block_list[b, 0, m, i]", "return block_list[b, 0, m, 0]", "V103"),
    ],
)
def test_its_contracts_are_asked(
    name: str, consts: dict[str, DType], spec: str, old: str, new: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which blocks of keys are visited, and which of them without the mask, as of a forward pass: before any number."""

    def stop(*arguments: object) -> None:
        raise stages._Stop

    monkeypatch.setattr(stages._Verification, "schedules", stop)
    text = text_of(name, spec)
    assert old in text and verify_gradients(text, spec, consts).stages[1].verdict == "passed"
    wrong = verify_gradients(text.replace(old, new), spec, consts)
    assert not wrong.ok and wrong.stages[1].verdict == "failed" and wrong.diagnostics[0].code == code


@pytest.mark.thorough("whole verifications of right programs, whose contracts and numbers have their tests here")
@pytest.mark.parametrize(("name", "consts"), ORIGINS)
@pytest.mark.parametrize("spec", ["causal", "causal_document"])
def test_they_are_verified(name: str, consts: dict[str, DType], spec: str) -> None:
    assert verify_gradients(text_of(name, spec), spec, consts).ok


def test_a_kernel_without_the_derivative_is_refused() -> None:
    with pytest.raises(CuirError, match="X130"):
        transfer_query_gradients(parse(TEXT.replace("dscore", "slope")), Specification("full"))


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("", "", ""),
        ("lse * LOG2E, inf)", "lse, inf)", "V301"),  # of another base
        ("store(DL[b, h, q], delta)", "store(DL[b, h, q], delta * 0.5)", "V301"),
    ],
)
def test_the_rows_that_it_makes_are_judged(old: str, new: str, code: str) -> None:
    """With PREPARES: L and DL, as the kernel of dK and dV reads them, are results as dQ is."""
    late = Specification("late", lambda b, h, q, k: q >= k + 200)  # whole tiles of queries without keys
    text = transfer_query_gradients(EXPERT, late).text
    assert old in text
    report = verify(
        parse(text.replace(old, new), "dq.cuir"),
        late,
        kernel=KERNEL,
        consts={"T": F16, "D": 64, "BN": 64, "PREPARES": True},
        seeded=0,
        shrink=False,
    )
    assert report.ok == (not code) and [d.code for d in report.diagnostics][:1] == ([code] if code else [])

"""Transfer of the backward kernel: which blocks of queries a block of keys visits, for every kind of mask; gradients of every variant in the interpreter.

Transfer of the kernel of dQ alone: dQ of variants of each kind (a score, lists, a sink, a table), beside float64.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

import corpus
from cuir.arguments.binding import TORCH
from cuir.attn.splicing.backward import KERNEL, QUERY_KERNEL, transfer_backward, transfer_query_gradients
from cuir.attn.splicing.captured_arguments import CapturedArguments
from cuir.attn.splicing.captured_gradients import gradients_of
from cuir.attn.splicing.splice import TransferResult
from cuir.attn.tracing.read_ranges import trace_without_clashes
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import lower
from cuir.spec.gradients import forward, pad_rows, rows_of
from cuir.spec.specification import Lengths, Specification, lengths_of
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.types import F16, F32, DType
from cuir.text.diagnostics import CuirError
from cuir.verification import stages, verify
from cuir.verification.report import VerifyReport
from cuir.verification.spec_dispatch import check_case, prepare_specification
from cuir.verification.values.cases import Draw

TEXT = corpus.kernels()["flash_bwd_sm90"].read_text(encoding="utf-8")
EXPERT = parse(TEXT, "flash_bwd_sm90.cuir")
SINGLE = parse(corpus.kernels()["flash_bwd_f32"].read_text(encoding="utf-8"), "flash_bwd_f32.cuir")
SOFTMAX = [name for name in corpus.variants() if corpus.specification(name)().normalize == "softmax"]
SELF = {"document", "causal_document", "prefix_document", "share_question"}  # of as many queries as keys

READ_OUT = """\
@kernel(arch="sm_90a")
def blocks(COUNT: Global[i32, B, H, J, 2], LIST: Global[i32, B, H, J, I]{captured}, M: i32, N: i32, HK: i32, scale: f32, *, BM: const, BN: const):
    with role("all", warps=1):
        for b in range(B):
            for h in range(H):
                for j in range(cdiv(N, BN)):
                    partial, n = q_count(b, h, j)
                    store(COUNT[b, h, j, 0], partial)
                    store(COUNT[b, h, j, 1], n)
                    for i in range(n):
                        store(LIST[b, h, j, i], q_block(b, h, j, i))
"""


def evaluate_visits(transferred: TransferResult, at: Lengths, BM: int, BN: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Evaluate q_count and q_block of a variant: [B, H, J, 2] and [B, H, J, I], -1 where there is no block."""
    kernel = transferred.program.kernels()[KERNEL]
    arguments = transferred.arguments(at, consts={"BM": BM, "BN": BN})
    captured = "".join(f", {show_parameter(p)}" for p in kernel.params if p.name in arguments)
    functions = Program(tuple(i for i in transferred.program.items if i is not kernel and i.name not in ("prepare", "finish")))
    program = parse(show(functions) + "\n" + READ_OUT.format(captured=captured), "blocks.cuir")
    J, I = -(-at.N // BN), max(1, -(-at.M // BM))
    count, listed = torch.full((at.B, at.H, J, 2), -1, dtype=torch.int32), torch.full((at.B, at.H, J, I), -1, dtype=torch.int32)
    run(
        check(program, "blocks", {"BM": BM, "BN": BN}),
        {"COUNT": count, "LIST": listed, "M": at.M, "N": at.N, "HK": at.HK, "scale": 1.0, **arguments},
    )
    return count, listed


def show_parameter(p: Any) -> str:
    from cuir.syntax.nodes import GlobalType

    if isinstance(p.type, GlobalType):
        return f"{p.name}: Global[{p.type.dtype}, {', '.join(map(str, p.type.dims))}]"
    return f"{p.name}: {p.type.dtype}"


@pytest.mark.sweep
@pytest.mark.parametrize("name", SOFTMAX)
def test_blocks_cover_the_mask_once_and_whole_ones_last(name: str) -> None:
    spec = corpus.specification(name)()
    transferred = transfer_backward(EXPERT, spec)
    for M, N, BM, BN in ((70, 70, 16, 32), (130, 96, 32, 16), (40, 129, 64, 32)):
        at = Lengths(2, 2, 1, M, M if name in SELF else N)
        retained = spec.compute_kept(at)
        count, listed = evaluate_visits(transferred, at, BM, BN)
        for b, h, j in torch.cartesian_prod(torch.arange(2), torch.arange(2), torch.arange(count.shape[2])).tolist():
            columns = retained[b, h, :, j * BN : j * BN + BN]
            partial, n = count[b, h, j].tolist()
            blocks = listed[b, h, j, :n].tolist()
            assert 0 <= partial <= n and len(set(blocks)) == n and all(0 <= m < -(-at.M // BM) for m in blocks)
            assert {m for m in range(-(-at.M // BM)) if columns[m * BM : m * BM + BM].any()} <= set(blocks)
            for m in blocks[partial:]:
                assert (m + 1) * BM <= at.M and columns[m * BM : m * BM + BM].all()


@pytest.mark.sweep
@pytest.mark.parametrize("name", SOFTMAX)
def test_gradients_of_the_corpus(name: str) -> None:
    spec = corpus.specification(name)()
    transferred = transfer_backward(EXPERT, spec)
    assert transferred.kernel == KERNEL and {"prepare", "finish"} <= set(transferred.program.kernels())
    M, D = 150, 64
    g = torch.Generator().manual_seed(0)
    q, do, k, v = (torch.randn(1, h, M, D, generator=g).half() for h in (2, 2, 1, 1))
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    o, lse = forward(spec, *leaves, D**-0.5)
    exact = torch.autograd.grad(o, leaves, do.double())
    consts = {"T": F16, "D": D, "BM": 128}
    rows = pad_rows(M)
    delta = torch.nn.functional.pad((o.detach() * do.double()).sum(-1), (0, rows - M)).float()
    result = torch.zeros(1, 2, M, D), torch.empty_like(k), torch.empty_like(v)
    inputs = dict(zip("QKV", (q, k, v), strict=True)) | {"dO": do, "L": rows_of(lse, rows).float(), "DL": delta}
    outputs = dict(zip(("dQ", "dK", "dV"), result, strict=True))
    run(
        check(transferred.program, KERNEL, consts),
        {**inputs, **outputs, "scale": D**-0.5, **transferred.arguments(lengths_of(q, k), consts=consts)},
        grid=2,
    )
    for x, y in zip((result[0] * D**-0.5, *result[1:]), exact, strict=True):
        assert (x.double() - y).norm() <= 6e-4 * y.norm()


@pytest.mark.sweep
@pytest.mark.parametrize("name", SOFTMAX)
def test_gradients_of_the_corpus_in_f32(name: str) -> None:
    spec = corpus.specification(name)()
    transferred = transfer_backward(SINGLE, spec)
    M, D = 110, 32
    g = torch.Generator().manual_seed(0)
    q, do, k, v = (torch.randn(1, h, M, D, generator=g) for h in (2, 2, 1, 1))
    leaves = [x.double().requires_grad_() for x in (k, v)]
    o, lse = forward(spec, q.double(), *leaves, D**-0.5)
    exact = torch.autograd.grad(o, leaves, do.double())
    rows = pad_rows(M)
    delta = torch.nn.functional.pad((o.detach() * do.double()).sum(-1), (0, rows - M)).float()
    result = torch.full_like(k, torch.nan), torch.full_like(v, torch.nan)
    inputs = {"Q": q, "K": k, "V": v, "dO": do, "L": rows_of(lse, rows).float(), "DL": delta, "dK": result[0], "dV": result[1]}
    consts = {"D": D}
    run(
        check(transferred.program, KERNEL, consts),
        {**inputs, "scale": D**-0.5, **transferred.arguments(lengths_of(q, k), consts=consts)},
        grid=2,
    )
    for x, y in zip(result, exact, strict=True):
        assert (x.double() - y).norm() <= 2e-6 * y.norm()


@pytest.mark.parametrize("name", ["sigmoid", "relu", "combo"])
def test_other_weights_are_refused(name: str) -> None:
    with pytest.raises(CuirError, match="X109"):
        transfer_backward(EXPERT, corpus.specification(name)())


def test_of_the_origin_nothing_changes_but_the_words() -> None:
    spec = corpus.specification("causal")()
    for origin in (EXPERT, SINGLE):
        assert set(transfer_backward(origin, spec).replaced) <= {"spans", "q_count", "q_block"}


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize("ok", [False, pytest.param(True, marks=pytest.mark.thorough("other right derivatives are verified below"))])
def test_a_wrong_derivative_is_found(ok: bool) -> None:
    spec = corpus.specification("softcap")()
    transferred = transfer_backward(EXPERT, spec)
    wrong = transferred.text.replace("return 1.0 - tanh", "return 1.1 - tanh")
    assert wrong != transferred.text
    consts = {"T": F16, "D": 64, "BM": 64, "BN": 64}
    report = verify(parse(transferred.text if ok else wrong, "softcap.cuir"), spec, kernel=KERNEL, consts=consts, seeded=0, shrink=False)
    assert report.ok == ok and (ok or report.diagnostics[0].code == "V301")


def test_a_specification_that_is_no_backward_kernels() -> None:
    with pytest.raises(CuirError, match="X130"):
        transfer_backward(parse(TEXT.replace("def dscore", "def dscored").replace("* dscore(", "* dscored(")), Specification("full"))


BIAS, GATE, EDGE = torch.randn(2, 40), torch.randn(2), torch.randn(3)


def learned_score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """A read along the keys, one by distance, two of heads, one of which decides an index alone."""
    edge = torch.where(EDGE[0] > 0.0, 1, 0)
    return s * torch.sigmoid(GATE[h]) + BIAS[h, k] * 0.5 + BIAS[edge, torch.abs(q - k)]


def test_gradients_of_captured_tensors_are_verified() -> None:
    """Sums over the queries of a key in registers, others pair by pair; wrong derivatives and places are refused."""
    spec = Specification("learned", None, learned_score)
    traced = trace_without_clashes(spec)
    transferred = transfer_backward(EXPERT, spec, traced=traced, learned=range(len(traced.parameters)))
    assert transferred.gradients == {"GATE": "grad_GATE", "BIAS": "grad_BIAS"}
    consts = {"T": F16, "D": 64, "BM": 64, "BN": 64}

    def list_codes(text: str) -> list[str]:
        program = parse(text, "learned.cuir")
        kernel = program.kernels()[KERNEL]
        assert gradients_of(kernel) == {"grad_GATE": "GATE", "grad_BIAS": "BIAS"}
        requests, checked = prepare_specification(spec, kernel, program, consts), check(program, KERNEL, consts)
        sizes = dict.fromkeys(checked.dims, 3) | {"B": 1, "H": 2, "HK": 1, "M": 30, "N": 40, "MP": 128}
        return [str(row["output"]) for row in check_case(program, checked, requests, Draw("one", sizes))]

    text = transferred.text
    assert (
        text.count("row_sum(") == 3 and text.count("add=True") == 4 and text.count("add=SPREAD") == 2
    )  # among them prepare's sum and the additions of dQ, and of dK and dV of heads that are shared out
    assert {"grad_GATE", "grad_BIAS", "dQ"} <= set(list_codes(text))
    for right, wrong in (("sum0 * 0.5", "sum0 * 0.6"), ("grad_BIAS[h, k]", "grad_BIAS[h, k + 1]"), ("sum1 + row_sum", "sum1 - row_sum")):
        assert text.count(right) == 1
        with pytest.raises(CuirError, match="V301"):
            list_codes(text.replace(right, wrong))


def test_a_captured_tensor_with_the_name_of_a_gradient() -> None:
    """The names of a kernel are told apart, and a program from text is known again."""
    grad_P, P = torch.randn(40), torch.randn(40)
    spec = Specification("names", None, lambda s, b, h, q, k: s + P[k] * grad_P[q])
    transferred = transfer_backward(EXPERT, spec, learned=[0])
    kernel = parse(transferred.text, "names.cuir").kernels()[KERNEL]
    captured = CapturedArguments(transferred.program, kernel, spec)
    assert gradients_of(kernel) == {transferred.gradients["P_"]: "P_"} and captured.names == {"P_", "grad_P"}


@pytest.mark.parametrize("mod", [lambda s: torch.where(s > 0.5, s, 0.1 * s), lambda s: torch.nn.functional.leaky_relu(torch.tanh(s) * s)])
def test_a_choice_that_score_and_derivative_share_is_kept_over_a_product(mod: Any) -> None:
    """Its bools are no operands of the product: no register of floats is to be fenced."""
    spec = Specification("choice", None, lambda s, b, h, q, k: mod(s))
    program = transfer_backward(EXPERT, spec).program
    text = lower(check(program, KERNEL, {"T": F16, "D": 64, "BM": 64, "BN": 64, "SLOPES": True})).source
    bools = re.findall(r"bool (\w+)\[", text)
    assert "fence_regs(P)" in text and not any(f"fence_regs({name})" in text for name in bools)


TEXT_OF_QUERY_GRADIENTS = corpus.kernels()["flash_bwd_dq_sm90"].read_text(encoding="utf-8")
EXPERT_OF_QUERY_GRADIENTS = parse(TEXT_OF_QUERY_GRADIENTS, "flash_bwd_dq_sm90.cuir")


SINGLE_OF_QUERY_GRADIENTS = parse(corpus.kernels()["flash_bwd_dq_f32"].read_text(encoding="utf-8"), "flash_bwd_dq_f32.cuir")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("origin", "dtype", "bound", "prepares"),
    [
        (EXPERT_OF_QUERY_GRADIENTS, F16, 6e-4, False),
        (EXPERT_OF_QUERY_GRADIENTS, F16, 6e-4, True),
        (SINGLE_OF_QUERY_GRADIENTS, F32, 2e-6, False),
    ],
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
    if origin is EXPERT_OF_QUERY_GRADIENTS:
        inputs |= {"FO": o.detach().to(q.dtype), "FL": lse.float()}
    if prepares:
        consts |= {"PREPARES": True, "OVERLAP": True}  # as a call has them at head dim 128
        inputs |= {"L": torch.full_like(L, torch.nan), "DL": torch.full_like(delta, torch.nan)}
    run(
        check(transferred.program, QUERY_KERNEL, consts),
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
    return verify(parse(text, "dq.cuir"), corpus.specification(spec)(), kernel=QUERY_KERNEL, consts=sizes, seeded=0, shrink=False)


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
        transfer_query_gradients(parse(TEXT_OF_QUERY_GRADIENTS.replace("dscore", "slope")), Specification("full"))


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        pytest.param("", "", "", marks=pytest.mark.thorough("rows of right kernels are judged below")),
        ("lse * LOG2E, inf)", "lse, inf)", "V301"),  # of another base
        ("store(DL[b, h, q], delta)", "store(DL[b, h, q], delta * 0.5)", "V301"),
    ],
)
def test_the_rows_that_it_makes_are_judged(old: str, new: str, code: str) -> None:
    """With PREPARES: L and DL, as the kernel of dK and dV reads them, are results as dQ is."""
    late = Specification("late", lambda b, h, q, k: q >= k + 200)  # whole tiles of queries without keys
    text = transfer_query_gradients(EXPERT_OF_QUERY_GRADIENTS, late).text
    assert old in text
    report = verify(
        parse(text.replace(old, new), "dq.cuir"),
        late,
        kernel=QUERY_KERNEL,
        consts={"T": F16, "D": 64, "BN": 64, "PREPARES": True},
        seeded=0,
        shrink=False,
    )
    assert report.ok == (not code) and [d.code for d in report.diagnostics][:1] == ([code] if code else [])

"""Transfer of the backward kernel: which blocks of queries a block of keys visits, for every kind of mask; gradients of every variant in the interpreter."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import corpus
from cuir.attn.splicing.backward import KERNEL, transfer_backward
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
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from cuir.verification import verify
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
def test_a_wrong_derivative_is_found() -> None:
    spec = corpus.specification("softcap")()
    transferred = transfer_backward(EXPERT, spec)
    wrong = transferred.text.replace("return 1.0 - tanh", "return 1.1 - tanh")
    assert wrong != transferred.text
    consts = {"T": F16, "D": 64, "BM": 64, "BN": 64}
    for text, ok in ((transferred.text, True), (wrong, False)):
        report = verify(parse(text, "softcap.cuir"), spec, kernel=KERNEL, consts=consts, seeded=0, shrink=False)
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

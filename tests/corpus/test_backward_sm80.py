"""Gradients by the kernels for sm_80, in the interpreter beside float64: lengths, heads, head dims, settings, variants, faults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir import CuirError, Specification
from cuir.arguments.binding import TORCH
from cuir.attn.splicing.backward import KERNEL, QUERY_KERNEL, transfer_backward, transfer_query_gradients
from cuir.attn.splicing.splice import TransferResult
from cuir.attn.tracing.read_ranges import trace_without_clashes
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import lower
from cuir.spec.gradients import forward, pad_rows, rows_of
from cuir.spec.loading import as_any
from cuir.spec.specification import lengths_of
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, F16, F32, DType
from cuir.verification import verify
from cuir.verification.spec_dispatch import check_case, prepare_specification
from cuir.verification.values.cases import Draw
from tests.strategies.selection import examples

Consts = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def read(name: str) -> Program:
    return parse(corpus.kernels()[name].read_text(encoding="utf-8"), f"{name}.cuir")


BY_KEYS, BY_QUERIES = read("flash_bwd_sm80"), read("flash_bwd_dq_sm80")
CAUSAL = Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M))
BOUNDS = {F16: 1.5e-3, BF16: 1.2e-2, F32: 3e-6}
# D of each, and the form: pieces of a block, two slabs of keys for a warp, warps that share keys, more warps than rows of dQ^T
BY_KEYS_SETTINGS: list[Consts] = [
    {"D": 64, "BM": 64, "BN": 64},
    {"D": 32, "BM": 64, "BN": 64, "PQ": 32},
    {"D": 64, "BM": 32, "BN": 64, "ROWS": 32},
    {"D": 128, "BM": 32, "BN": 32, "SPLIT": 2},
    {"D": 64, "BM": 64, "BN": 64, "ROWS": 32, "SPLIT": 2, "PG": 64},
    {"D": 144, "BM": 64, "BN": 32, "ROWS": 32, "SPLIT": 4, "STAGES": 1},
    {"D": 40, "BM": 64, "BN": 128, "PQ": 32},
    {"D": 64, "BM": 32, "BN": 64, "SPREAD": True, "G": F32},
]
BY_QUERIES_SETTINGS: list[Consts] = [
    {"D": 64, "BM": 64, "BN": 32},
    {"D": 40, "BM": 64, "BN": 64, "ROWS": 32, "STAGES": 3},
    {"D": 128, "BM": 32, "BN": 16},
]


class Problem:
    """Inputs of a backward pass, and its gradients in float64."""

    def __init__(self, spec: Specification, dtype: DType, sizes: tuple[int, int, int, int, int], dims: tuple[int, int], seed: int = 0):
        b, key_heads, group, m, n = sizes
        g = torch.Generator().manual_seed(seed)
        d, dv = dims
        shapes = (b, key_heads * group, m, d), (b, key_heads, n, d), (b, key_heads, n, dv), (b, key_heads * group, m, dv)
        self.q, self.k, self.v, self.do = (torch.randn(*shape, generator=g).to(TORCH[dtype]) for shape in shapes)
        leaves = [x.double().requires_grad_() for x in (self.q, self.k, self.v)]
        o, lse = forward(spec, *leaves, d**-0.5)
        self.expected = dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(o, leaves, self.do.double()), strict=True))
        self.o, self.lse, self.scale, self.rows = o.detach().to(self.q.dtype), lse.float(), d**-0.5, pad_rows(m)
        self.delta = torch.nn.functional.pad((o.detach() * self.do.double()).sum(-1), (0, self.rows - m)).float()

    def inputs(self, **rows: torch.Tensor) -> dict[str, Any]:
        rows = rows or {"L": rows_of(self.lse, self.rows).float(), "DL": self.delta}
        return {"Q": self.q, "K": self.k, "V": self.v, "dO": self.do, "scale": self.scale, **rows}

    def assert_close(self, name: str, actual: torch.Tensor, dtype: DType) -> None:
        exact = self.expected[name]
        bound = BOUNDS[dtype] * float(exact.norm()) + 1e-4 * float(exact.numel()) ** 0.5 * (dtype != F32)
        assert not actual.isnan().any() and float((actual.double() - exact).norm()) <= bound + 1e-6, name


def consts_of(dtype: DType, setting: Consts) -> Consts:
    return {"T": dtype, **setting, **({"PARTS": 2} if dtype == F32 else {})}


def run_by_keys(program: Program, problem: Problem, consts: Consts, grid: int = 2, **captured: Any) -> Tensors:
    """Run `prepare`, `flash_bwd` and `finish`; without QUERIES neither adds to dQ nor finishes it."""
    adds, spread = consts.get("QUERIES", True), consts.get("SPREAD", False)
    around = {n: v for n, v in consts.items() if n in ("T", "D", "DV", "PARTS", "QUERIES")}
    rows = {n: torch.full((*problem.q.shape[:2], problem.rows), torch.nan) for n in ("L", "DL")}
    dq = torch.full((*problem.q.shape[:2], problem.rows * (-(-problem.q.shape[-1] // 16) * 16)), torch.nan)
    prepared = {"O": problem.o, "dO": problem.do, "LSE": problem.lse, **rows, "dQ": dq}
    run(check(program, "prepare", around), prepared, grid=grid)
    dk, dv = ((torch.zeros(x.shape) if spread else torch.full_like(x, torch.nan)) for x in (problem.k, problem.v))
    arguments = {**problem.inputs(**rows), "dQ": dq, "dK": dk, "dV": dv, **captured}
    run(check(program, KERNEL, consts), arguments, grid=grid)
    if not adds:
        assert dq.isnan().all()
        return {"dK": dk, "dV": dv}
    result = torch.full_like(problem.q, torch.nan)
    finished = check(program, "finish", {n: consts[n] for n in ("T", "D")})
    run(finished, {"dQ": dq, "GQ": result, "scale": problem.scale}, grid=grid)
    return {"dQ": result, "dK": dk, "dV": dv}


def run_by_queries(program: Program, problem: Problem, consts: Consts, grid: int = 2, **captured: Any) -> Tensors:
    result = torch.full_like(problem.q, torch.nan)
    run(check(program, QUERY_KERNEL, consts), {**problem.inputs(), "dQ": result, **captured}, grid=grid)
    return {"dQ": result}


SIZES = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.integers(1, 150), st.integers(1, 150))


@pytest.mark.sweep
@pytest.mark.parametrize("setting", BY_KEYS_SETTINGS, ids=str)
@examples(0.2)
@given(SIZES, st.sampled_from([F16, BF16]), st.integers(1, 3), st.integers(0, 9))
def test_gradients_of_any_lengths(setting: Consts, sizes: tuple[int, int, int, int, int], dtype: DType, grid: int, seed: int) -> None:
    problem = Problem(CAUSAL, dtype, sizes, (setting["D"], setting["D"]), seed)
    for name, actual in run_by_keys(BY_KEYS, problem, consts_of(dtype, setting), grid).items():
        problem.assert_close(name, actual, dtype)


@pytest.mark.sweep
@pytest.mark.parametrize("setting", BY_QUERIES_SETTINGS, ids=str)
@examples(0.2)
@given(SIZES, st.sampled_from([F16, BF16]), st.integers(1, 3), st.integers(0, 9))
def test_query_gradients_of_any_lengths(setting: Consts, sizes: tuple[int, int, int, int, int], dtype: DType, grid: int, seed: int) -> None:
    problem = Problem(CAUSAL, dtype, sizes, (setting["D"], setting["D"]), seed)
    problem.assert_close("dQ", run_by_queries(BY_QUERIES, problem, consts_of(dtype, setting), grid)["dQ"], dtype)


@pytest.mark.sweep
@pytest.mark.parametrize("dims", [(64, 64), (40, 24)])
@pytest.mark.parametrize("sizes", [(1, 2, 2, 75, 100), (1, 1, 1, 40, 130)])
def test_gradients_in_f32(sizes: tuple[int, int, int, int, int], dims: tuple[int, int]) -> None:
    """In two TF32 numbers an operand; dV's head dim is another."""
    problem = Problem(CAUSAL, F32, sizes, dims)
    setting = {"D": dims[0], "DV": dims[1]}
    by_keys = run_by_keys(BY_KEYS, problem, consts_of(F32, {**setting, "BM": 32, "BN": 64, "QUERIES": False}))
    for name, actual in (by_keys | run_by_queries(BY_QUERIES, problem, consts_of(F32, {**setting, "BM": 64, "BN": 32}))).items():
        problem.assert_close(name, actual, F32)


def test_head_dims_of_keys_and_values() -> None:
    problem = Problem(CAUSAL, F16, (1, 1, 2, 100, 70), (192, 128))
    consts = consts_of(F16, {"D": 192, "DV": 128, "BM": 32, "BN": 32, "SPLIT": 2})
    for name, actual in run_by_keys(BY_KEYS, problem, consts).items():
        problem.assert_close(name, actual, F16)


def transfer_keys(spec: Specification) -> TransferResult:
    return transfer_backward(BY_KEYS, spec)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["softcap_causal", "causal_document", "sink_causal", "relative_position_table", "full"])
def test_gradients_of_variants(name: str) -> None:
    spec = corpus.specification(name)()
    problem = Problem(spec, F16, (1, 1, 2, 100, 100), (64, 64))
    lengths = lengths_of(problem.q, problem.k)
    by_keys, by_queries = transfer_keys(spec), transfer_query_gradients(BY_QUERIES, spec)
    keys, queries = consts_of(F16, {"D": 64, "BM": 32, "BN": 64}), consts_of(F16, {"D": 64, "BM": 64, "BN": 32})
    results = run_by_keys(by_keys.program, problem, keys, **by_keys.arguments(lengths, consts=keys))
    for result in (results, run_by_queries(by_queries.program, problem, queries, **by_queries.arguments(lengths, consts=queries))):
        for x, actual in result.items():
            problem.assert_close(x, actual, F16)


def test_heads_without_blocks_between_others() -> None:
    """Queries without keys, and a head whose blocks visit none: the next head's first block is fetched when the chain of copies begins anew."""
    late = Specification("late", lambda b, h, q, k: (q >= k + 40) & (h != 2))
    problem = Problem(late, F16, (1, 1, 4, 150, 150), (64, 64))
    transferred, consts, lengths = transfer_keys(late), consts_of(F16, {"D": 64, "BM": 32, "BN": 64}), lengths_of(problem.q, problem.k)
    captured = transferred.arguments(lengths, consts=consts)
    for name, actual in run_by_keys(transferred.program, problem, consts, **captured).items():
        problem.assert_close(name, actual, F16)
    right = "if n > 0 and not ahead:"
    assert transferred.text.count(right) == 1
    wrong = parse(transferred.text.replace(right, "if n > 0 and g == 0:"), "wrong.cuir")
    with pytest.raises((CuirError, AssertionError)):
        problem.assert_close("dV", run_by_keys(wrong, problem, consts, **captured)["dV"], F16)


BIAS, GATE = torch.randn(2, 40, generator=torch.Generator().manual_seed(0)), torch.tensor([0.5, -0.3])


def learned_score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s * torch.sigmoid(GATE[h]) + BIAS[h, k] * 0.5 + BIAS[h, torch.abs(q - k)]


@pytest.mark.parametrize(
    "setting", [{"D": 64, "BM": 32, "BN": 64}, {"D": 128, "BM": 32, "BN": 32, "SPLIT": 2, "QUERIES": False, "KEYS": False}], ids=str
)
def test_gradients_of_captured_tensors(setting: Consts) -> None:
    """Sums in registers and additions of pairs, by one of the warps that share their keys."""
    spec = Specification("learned", None, learned_score)
    traced = trace_without_clashes(spec)
    transferred = transfer_backward(BY_KEYS, spec, traced=traced, learned=range(len(traced.parameters)))
    program, consts = parse(transferred.text, "learned.cuir"), consts_of(F16, setting)
    checked, requests = check(program, KERNEL, consts), prepare_specification(spec, program.kernels()[KERNEL], program, consts)
    sizes = dict.fromkeys(checked.dims, 3) | {"B": 1, "H": 2, "HK": 1, "M": 30, "N": 40, "MP": 128, "MD": 128 * setting["D"]}
    rows = check_case(program, checked, requests, Draw("one", sizes))
    assert {"grad_GATE", "grad_BIAS"} <= {str(row["output"]) for row in rows}


SPLICED = {
    KERNEL: (transfer_keys, "causal_gradients"),
    QUERY_KERNEL: (lambda s: transfer_query_gradients(BY_QUERIES, s), "causal_query_gradients"),
}
FAULTS = [
    (
        KERNEL,
        "                    copy_wait(0)\n                    sync() ",
        "                    sync() ",
        "the next block has not landed",
    ),
    (KERNEL, "DSS = 2 if SPLIT == 1 else 1", "DSS = 1", "one place for dS of all blocks"),
    (
        KERNEL,
        "if QUERIES and SPLIT == 1:\n                sync()",
        "if QUERIES and SPLIT == 3:\n                sync()",
        "the next unit overwrites K",
    ),
    (QUERY_KERNEL, "copy_wait(STAGES - 2)", "copy_wait(STAGES - 1)", "a block has not landed"),
    (
        QUERY_KERNEL,
        "                sync()                                       # before",
        "                # before",
        "a stage is overwritten",
    ),
    (QUERY_KERNEL, "P * (dP - delta)", "P * dP", "without the row sum"),
]


@pytest.mark.usefixtures("few_problems")
@pytest.mark.sweep
@pytest.mark.parametrize(("kernel", "old", "new", "what"), FAULTS)
def test_faults_are_found(kernel: str, old: str, new: str, what: str) -> None:
    name = "flash_bwd_sm80" if kernel == KERNEL else "flash_bwd_dq_sm80"
    text = corpus.kernels()[name].read_text(encoding="utf-8")
    assert text.count(old) == 1, what
    function = SPLICED[kernel][1]
    consts = consts_of(F16, {"D": 64, "BM": 32, "BN": 64} if kernel == KERNEL else {"D": 64, "BM": 64, "BN": 32})
    report = verify(
        parse(text.replace(old, new), f"{name}.cuir"),
        as_any(corpus.specification(function), function),
        kernel,
        consts,
        seeded=0,
        shrink=False,
    )
    assert not report.ok, what


@pytest.mark.parametrize("dim", [64, 128])
def test_dq_is_added_by_plain_reductions(dim: int) -> None:
    """dS is stored in pairs and dQ is added from registers, by every target that has cp.async."""
    source = lower(check(BY_KEYS, KERNEL, consts_of(F16, {"D": dim}))).source
    assert "atomicAdd(place__" in source and "cuir::put<uint32_t>(" in source and "load_matrix_T" in source

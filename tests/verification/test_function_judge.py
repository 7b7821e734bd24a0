"""Specifications that are functions: what they are asked with, what is drawn, and which faults they show."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from corpus.computes import COMPUTES
from cuir import CuirError, FunctionSpecification, check, parse, verify
from cuir.arguments.requirements import compute_length_multiple
from cuir.checking.checked import Checked, Const
from cuir.ops.meaning.tiles import split_operands
from cuir.spec.loading import as_any
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.nodes import Program
from cuir.syntax.types import BF16, F16, F32
from cuir.verification import Problem, check_contracts
from cuir.verification.function_judge import judge_function
from cuir.verification.function_problems import make_draws
from cuir.verification.inputs import collect_readable, make_contract_problems, make_function_launch
from cuir.verification.mask_readout import check_function_mask
from cuir.verification.spec_dispatch import check_case, list_simpler_draws, make_number_cases, make_schedule_cases, prepare_launch
from cuir.verification.tile_steps import find_tiles
from cuir.verification.values.cases import Draw

SCALED = """
@kernel(arch="sm_80")
def scaled(X: Global[T, B, M, D], Y: Global[T, B, M, D], S: Global[f32, B], factor: f32, *, T: const, D: const):
    work = tiles(cdiv(M, 16) * B)
    with role("all", warps=1):
        for t in work:
            b, q = t % B, t // B * 16 + rows(16)
            store(Y[b, q, cols(D)], cast(cast(X[b, q, cols(D)], f32) * factor, T))
            if t // B == 0:
                store(S[b], factor + 1.0)
"""


def check_scaled(text: str = SCALED) -> tuple[Program, Checked]:
    program = parse(text, "scaled.cuir")
    return program, check(program, "scaled", {"T": F16, "D": 32})


def right(x: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    return x * factor, torch.full((x.shape[0],), factor + 1.0)


def some(drawn: dict[str, int]) -> dict[str, int]:
    """Without a query nobody stores S."""
    return {"M": max(1, drawn["M"])}


def program_of(name: str) -> Program:
    return parse({**corpus.programs(), **corpus.kernels()}[name].read_text(encoding="utf-8"), f"{name}.cuir")


def test_the_table_names_every_program_and_every_kernel_of_it() -> None:
    assert set(COMPUTES) == {*corpus.programs(), *corpus.kernels()}
    for name, kernels in COMPUTES.items():
        assert set(kernels) == set(program_of(name).kernels())
        for computed in kernels.values():
            spec = as_any(corpus.specification(computed.specification), computed.specification)
            assert spec.name == computed.specification and spec.doc


def test_the_table_agrees_with_the_spaces_of_the_tuner() -> None:
    from cuir.performance.search import Space

    for name, place in corpus.spaces().items():
        (computed,) = COMPUTES[name].values()
        assert Space.parse(place.read_text(encoding="utf-8"), place.name).computes == computed.specification


SMALL = {
    "gemm": {"BM": 64, "BN": 64},
    "flash_bwd": {"D": 64, "BN": 64},
    "flash_bwd_sm90": {"D": 64},
    "flash_bwd_f8_sm90": {"D": 64, "BN": 64},
    "flash_bwd_wide_sm90": {"D": 192},
    "flash_bwd_dq_sm90": {"D": 64, "BM": 64, "BN": 64},
    "flash_bwd_split_sm90": {"D": 64, "DV": 64},
    "flash_bwd_dq_split_sm90": {"D": 64},
    "flash_bwd_f32": {"D": 64, "BN": 64},
    "flash_bwd_dq_f32": {"D": 64, "BM": 64},
    "decode_paged": {"D": 64},
    "decode_cache_f8_sm90": {"D": 64, "TOKENS": 1},
    "causal_document": {"D": 64, "BM": 64, "BN": 64},
}


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "kernel"), [(n, k) for n in SMALL for k in COMPUTES[n]])
def test_programs_compute_their_functions(name: str, kernel: str) -> None:
    computed = COMPUTES[name][kernel]
    spec = as_any(corpus.specification(computed.specification), computed.specification)
    params = {p.name for p in program_of(name).kernels()[kernel].params}
    consts = {"T": F16, **computed.tested, **{n: v for n, v in SMALL[name].items() if n in params}}
    checked = check(program_of(name), kernel, consts)
    assert isinstance(spec, FunctionSpecification)
    for case in make_draws(checked, spec, "quick")[:3]:
        rows = check_case(checked.program, checked, spec, case)
        assert rows and all(0 <= row["error / allowed"] <= 1 for row in rows)  # type: ignore[operator]


PRODUCT = """
@kernel(arch="sm_90a")
def product(X: Global[f32, M, D], Y: Global[f32, M, D], Z: Global[f32, M, 64], *, D: const, PARTS: const):
    sX, sY = shared(f32, [64, D]), shared(f32, [64, D])
    full = mbarrier(1)
    empty = mbarrier(1)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        i = 0
        for t in work:
            empty.wait(i % 2 ^ 1)
            full.expect(nbytes(sX) + nbytes(sY))
            copy_async(X[t * 64 : t * 64 + 64, :], sX, full)
            copy_async(Y[0:64, :], sY, full)
            i += 1
    with role("math", warpgroups=1):
        i = 0
        for t in work:
            full.wait(i % 2)
            x = mma(sX, sY.T, parts=PARTS)
            empty.arrive()
            store(Z[t * 64 : t * 64 + 64, :], x)
            i += 1
"""


@pytest.mark.sweep
@pytest.mark.parametrize(("parts", "factor", "ok"), [(1, 1.0, True), (2, 1.0, True), (1, 1.003, False), (2, 1.000003, False)])
def test_products_of_tf32_are_judged_by_such_products(parts: int, factor: float, ok: bool) -> None:
    """What the kernel's products round is allowed, and not much more: 8e-4 of TF32, 4e-7 of float32."""

    def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.pad(y, (0, 0, 0, max(0, 64 - y.shape[0])))[:64]
        return x @ rows.mT

    text = PRODUCT.replace("[t * 64 : t * 64 + 64, :], x)", f"[t * 64 : t * 64 + 64, :], x * {factor!r})")
    report = verify(
        parse(text, "product.cuir"), FunctionSpecification("product", reference), consts={"D": 64, "PARTS": parts}, seeded=0, shrink=False
    )
    assert report.ok == ok and (ok or report.diagnostics[0].code == "V301"), report.summary()


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("factor", "ok"), [(1.0, True), (1.003, False)])
def test_a_kernel_chooses_which_factor_tf32_rounds(factor: float, ok: bool, special: bool) -> None:
    """(X @ Y) / 3 of numbers that TF32 has is exact in PyTorch; a kernel that multiplies X / 3 by Y is right, too, whatever inputs are called."""

    def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y.mT) / 3

    checked = check(parse(PRODUCT, "product.cuir"), "product", {"D": 64, "PARTS": 1})
    spec, case = FunctionSpecification("product", reference), Draw("small numbers", {"M": 64})
    numbers = torch.randint(0, 1000, (2, 64, 64), generator=torch.Generator().manual_seed(0)).float()
    launch = replace(make_function_launch(checked, spec, case), inputs=dict(zip("XY", numbers)), special=special, exact=None)
    third, y = split_operands(numbers[0] / 3, numbers[1].mT, 1)
    launch.outputs["Z"].copy_(third @ y * factor)
    if ok:
        assert judge_function(checked, spec, launch, case)[0].share > 0.1
    else:
        with pytest.raises(CuirError, match="differs from float64"):
            judge_function(checked, spec, launch, case)


def test_a_verdict_for_every_stage() -> None:
    program, _ = check_scaled()
    report = verify(program, FunctionSpecification("scaled", right, sizes=some), consts={"T": F16, "D": 32}, seeded=0)
    assert report.ok and [s.verdict for s in report.stages] == ["passed", "skipped", "passed", "skipped", "passed"]
    assert all(s.reason for s in report.stages) and {r["output"] for r in report.stages[-1].rows} == {"Y", "S"}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("reference", "left"),
    [
        (lambda x, factor: x * factor, "S"),
        (lambda x, factor: {"s": right(x, factor)[1]}, "Y"),
        (right, ""),
        (lambda x, factor: (x * factor, None), ""),
        (lambda x, factor: {"Y": x * factor, "S": None}, ""),
    ],
)
def test_outputs_that_the_function_leaves_out_are_a_finding_unless_they_are_scratch(reference: Callable[..., Any], left: str) -> None:
    program, _ = check_scaled()
    report = verify(program, FunctionSpecification("scaled", reference, sizes=some), consts={"T": F16, "D": 32}, seeded=0)
    assert report.ok == (not left) and [d.code for d in report.diagnostics] == (["V307"] if left else [])
    assert not left or f"writes {left}, which" in report.summary()


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (("* factor, T", "* factor + 0.01, T"), "V301", "Y differs from float64"),
        (("factor + 1.0", "factor + 1.01"), "V301", "; S[0] is "),
        (("t // B * 16 + rows(16)", "t // B * 32 + rows(16)"), "V302", "Y is NaN, as before the launch"),
    ],
)
def test_faults_are_found(change: tuple[str, str], code: str, says: str) -> None:
    program, _ = check_scaled(SCALED.replace(*change))
    report = verify(program, FunctionSpecification("scaled", right, sizes=some), consts={"T": F16, "D": 32}, shrink=False, seeded=0)
    assert not report.ok and report.diagnostics[0].code == code and says in report.diagnostics[0].message


NORM = """
@kernel(arch="sm_80")
def norm(X: Global[T, M, D], Y: Global[T, M, D], gain: f32, eps: f32, *, T: const, D: const):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            q = t * 16 + rows(16)
            x = cast(X[q, cols(D)], f32)
            store(Y[q, cols(D)], cast(x * gain * exp2(-0.5 * log2(row_sum(x * x) / D + eps)), T))
"""


def normed(x: torch.Tensor, eps: float, gain: float) -> torch.Tensor:
    return x * gain * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


def normed_or_refused(x: torch.Tensor, eps: float, gain: float) -> torch.Tensor:
    if eps < 0:
        raise ValueError("eps")
    return normed(x, eps, gain)


@pytest.mark.sweep
@pytest.mark.parametrize("reference", [normed, normed_or_refused])
def test_scalars_that_a_function_admits_positive_are_made_so_and_told(reference: Callable[..., torch.Tensor]) -> None:
    program, consts = parse(NORM, "norm.cuir"), {"T": F16, "D": 32}
    spec = FunctionSpecification("norm", reference)
    report = verify(program, spec, consts=consts, level="full", seeded=0)
    assert report.ok and report.stages[-1].reason.endswith("for a negative value: eps"), report.stages[-1].reason
    checked = check(program, "norm", consts)
    drawn: list[dict[str, Any]] = [make_function_launch(checked, spec, d).inputs for d in make_draws(checked, spec, "full")]
    assert all(bool(((x["X"].double() ** 2).mean(-1) + 2 * min(0.0, x["eps"]) >= 0).all()) for x in drawn), "never near the edge"
    assert (
        any(x["gain"] < 0 for x in drawn)
        and {1e-12, 1e-5, 1e-3, 1.0} <= {x["eps"] for x in drawn}
        and all(1e-12 <= x["eps"] <= 1 for x in drawn)
    )


def test_a_nan_of_the_kernel_is_not_hidden_by_the_sign_of_a_scalar() -> None:
    """The fault shows for a positive eps, and would be the function's own NaN for a negative one."""
    wrong = parse(NORM.replace("/ D + eps", "/ D - eps"), "norm.cuir")
    report = verify(wrong, FunctionSpecification("norm", normed), consts={"T": F16, "D": 32}, seeded=0, shrink=False)
    assert [d.code for d in report.diagnostics] in (["V301"], ["V302"])
    rooted = FunctionSpecification("rooted", lambda x, eps, gain: torch.where(x > 0, normed(x, abs(eps), gain), torch.nan))
    inputs = make_function_launch(check(wrong, "norm", {"T": F16, "D": 32}), rooted, Draw("one", {"M": 17}, seed=4))
    assert inputs.positive == () and min(inputs.inputs["eps"], inputs.inputs["gain"]) < 0, "NaN of both signs says nothing of the scalar"


def test_a_wrong_problem_is_made_smaller() -> None:
    program, _ = check_scaled(SCALED.replace("* factor, T", "* factor + 0.5, T"))
    report = verify(program, FunctionSpecification("scaled", right, sizes=some), consts={"T": F16, "D": 32}, seeded=0)
    assert any("smallest problem found" in n.message for n in report.diagnostics[0].notes)
    assert any("M=1," in n.message for n in report.diagnostics[0].notes)


def test_outputs_by_position_by_name_or_only_the_first() -> None:
    program, checked = check_scaled()
    case = Draw("one", {"B": 2, "M": 17})
    for reference in (
        right,
        lambda X, factor: X * factor,
        lambda x, factor: {"s": torch.full((x.shape[0],), factor + 1.0)},
        lambda x, factor, B: {"Y": x * factor, "S": torch.full((B,), factor + 1.0)},
    ):
        assert check_case(program, checked, FunctionSpecification("scaled", reference), case)


@pytest.mark.parametrize(
    ("reference", "code", "says"),
    [
        (lambda x, fact: x, "X105", "`fact`"),
        (lambda x: [x], "X106", "found list"),
        (lambda x: (x, x, x), "X106", "3 outputs"),
        (lambda x: {"Z": x}, "X106", "`Z`"),
        (lambda x: x[:, 1:], "X106", "shape"),
        (lambda x: x * torch.nan, "X106", "NaN for all"),
        (lambda x: x @ x, "X113", "fails"),
        (lambda x, factor: x * factor if x.dtype == torch.float64 else x @ x, "X107", "in float16"),
    ],
)
def test_a_wrong_function_is_told(reference: object, code: str, says: str) -> None:
    program, checked = check_scaled()
    with pytest.raises(CuirError) as caught:
        check_case(program, checked, FunctionSpecification("wrong", reference), Draw("one", {"B": 2, "M": 17}))  # type: ignore[arg-type]
    result = caught.value.diagnostics[0]
    assert result.code == code and says in result.message, result.message


def test_where_the_function_gives_nan_nothing_is_asked() -> None:
    def half(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.where(torch.arange(x.shape[1])[:, None] % 2 == 0, x * factor, torch.nan)

    program, checked = check_scaled(SCALED.replace("* factor, T", "* where((t // B * 16 + rows(16)) % 2 == 0, factor, 7.0), T"))
    assert check_case(program, checked, FunctionSpecification("half", half), Draw("one", {"B": 1, "M": 33}))
    with pytest.raises(CuirError, match="V301"):
        check_case(program, checked, FunctionSpecification("right", right), Draw("one", {"B": 1, "M": 33}))


def test_integers_need_inputs() -> None:
    text = SCALED.replace("factor: f32, *", "index: Global[i32, B], factor: f32, *").replace(
        "* factor, T", "* factor * cast(index[b], f32), T"
    )
    program, checked = check_scaled(text)

    def reference(x: torch.Tensor, index: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor * index[:, None, None]

    case = Draw("one", {"B": 3, "M": 17})
    with pytest.raises(CuirError, match="X108"):
        check_case(program, checked, FunctionSpecification("indexed", reference), case)
    spec = FunctionSpecification("indexed", reference, lambda sizes, generator: {"INDEX": torch.arange(sizes["B"])})
    assert check_case(program, checked, spec, case)
    with pytest.raises(CuirError, match="X108"):
        check_case(program, checked, FunctionSpecification("indexed", reference, lambda sizes, generator: {"Y": torch.zeros(1)}), case)


def test_lengths_that_the_specification_refuses() -> None:
    _, checked = check_scaled()
    item = FunctionSpecification("one", right, sizes=lambda drawn: {"M": min(drawn["M"], 5)} if drawn["B"] == 1 else None)
    result = make_draws(checked, item, "quick")
    assert result and all(d.sizes["B"] == 1 and d.sizes["M"] <= 5 for d in result) and len({str(d) for d in result}) == len(result)
    for sizes in (lambda drawn: None, lambda drawn: {"Z": 1}, lambda drawn: {"M": -1}, lambda drawn: 7):
        with pytest.raises(CuirError):
            make_draws(checked, FunctionSpecification("none", right, sizes=sizes), "quick")
    with pytest.raises(CuirError, match=r"X108.*`[XY]` has [\d,]+ elements in the problem .*M=300000.* at most 6,000,000"):
        make_draws(checked, FunctionSpecification("large", right, sizes=lambda drawn: {"M": 300_000}), "quick")


def test_tiles_are_read_off_the_program() -> None:
    gemm = check(program_of("gemm"), "gemm", {"T": F16})
    assert find_tiles(gemm) == {"M": 128, "K": 64, "N": 256}
    assert find_tiles(check_scaled()[1]) == {"B": 0, "M": 16}


@pytest.mark.thorough
@given(st.sampled_from(["gemm", "flash_bwd"]), st.integers(0, 30), st.sampled_from(["quick", "full"]))
def test_problems_cover_the_edges(name: str, index: int, level: str) -> None:
    """Every problem can be launched; H is a multiple of HK; some dims are 1, whole tiles, one more and one less."""
    checked = check(program_of(name), name, {"T": F16} if name == "gemm" else {"T": F16, "D": 64})
    spec = as_any(corpus.specification(COMPUTES[name][name].specification), name)
    assert isinstance(spec, FunctionSpecification)
    result, tiles = make_draws(checked, spec, level), find_tiles(checked)
    case = result[index % len(result)]
    assert case.sizes.get("H", 1) % case.sizes.get("HK", 1) == 0
    for dim in (d for d in tiles if tiles[d]):
        each = compute_length_multiple(checked, dim)  # lengths that a launch takes: 1 becomes 8 columns of f16 that are copied
        assert {-(-n // each) * each for n in (1, 2 * tiles[dim], tiles[dim] + 1)} <= {d.sizes[dim] for d in result}
        assert any(d.sizes[dim] % tiles[dim] for d in result)


def test_simpler_problems_are_smaller() -> None:
    _, checked = check_scaled()
    spec = FunctionSpecification("scaled", right)
    for case in make_draws(checked, spec, "quick"):
        for less in list_simpler_draws(checked, spec, case):
            assert sum(less.sizes.values()) < sum(case.sizes.values()) or (less.kind, less.seed) != (case.kind, case.seed)


def test_inputs_are_those_of_the_seed_and_outputs_are_poisoned() -> None:
    _, checked = check_scaled()
    spec = FunctionSpecification("scaled", right)
    item, second = (make_function_launch(checked, spec, Draw("one", {"B": 2, "M": 33}, "strided", 5)) for _ in range(2))
    assert torch.equal(item.inputs["X"], second.inputs["X"]) and item.inputs["X"].stride()[-1] == 1  # type: ignore[arg-type, union-attr]
    assert item.outputs["Y"].isnan().all() and set(collect_readable(checked, item)) == {"X", "factor", "B", "M", "D"}
    bwd = check(program_of("flash_bwd"), "flash_bwd", {"T": F16, "D": 64})
    backward = as_any(corpus.specification("causal_backward"), "causal_backward")
    launch = prepare_launch(bwd.program, bwd, backward, make_number_cases(bwd, backward, [], "quick")[0])
    assert (launch.outputs["dQ"] == 0).all() and launch.outputs["dK"].isnan().all()  # dQ is added to


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    M, N, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    keep = torch.arange(N) <= torch.arange(M)[:, None] + (N - M) + extra
    s = (q @ k.repeat_interleave(group, 1).mT * scale).masked_fill(~keep, -torch.inf)
    return s.softmax(-1) @ v.repeat_interleave(group, 1), s.logsumexp(-1)


CONSTS: dict[str, Const] = {"T": F16, "D": 64, "BM": 64, "BN": 64}


def test_the_mask_of_an_attention_function_is_read_out() -> None:
    checked, lengths = check(program_of("flash_fwd"), "flash_fwd", CONSTS), Lengths(1, 2, 1, 85, 141)
    result = check_function_mask(program_of("flash_fwd"), checked, FunctionSpecification("attention", attention), lengths)
    assert result is not None and result.read == 2 * 85 * 141 and not result.hidden
    off = FunctionSpecification("one key more", lambda q, k, v, scale: attention(q, k, v, scale, 1))
    with pytest.raises(CuirError, match=r"V305.*does not attend to key"):
        check_function_mask(program_of("flash_fwd"), checked, off, lengths)
    squared = FunctionSpecification("squared", lambda q, k, v, scale: attention(q, k, v * v, scale)[0])
    assert check_function_mask(program_of("flash_fwd"), checked, squared, lengths) is None


def test_contracts_are_asked_with_the_inputs_of_the_function() -> None:
    """The table of blocks is made for each size of tiles that is enumerated."""
    checked = check(program_of("causal_document"), "flash_fwd", CONSTS)
    problems = [Problem(Lengths(1, 1, 1, M, N), BM, BN) for M, N in ((61, 61), (40, 70)) for BM, BN in ((16, 8), (8, 16))]
    spec = as_any(corpus.specification("causal_document_spans"), "causal_document_spans", {"length": 20})
    assert isinstance(spec, FunctionSpecification) and spec.inputs is not None
    inputs = make_contract_problems(checked, spec, problems)
    assert check_contracts(checked.program, checked.origin, None, inputs, checked.consts, extra_values=inputs.__getitem__)
    late = {p: {**values, "span": values["span"] + 1} for p, values in inputs.items()}  # type: ignore[operator]
    with pytest.raises(CuirError, match="V101"):
        check_contracts(checked.program, checked.origin, None, late, checked.consts, extra_values=late.__getitem__)


def test_contracts_of_gradients_are_asked_without_keys() -> None:
    """A tile of no keys visits no block, which no result shows."""
    text = corpus.kernels()["flash_bwd_dq_sm80"].read_text(encoding="utf-8")
    spec = corpus.specification("causal_query_gradients")()
    assert isinstance(spec, FunctionSpecification)
    for new, right in (("n = max(0,", True), ("n = max(1,", False)):
        checked = check(parse(text.replace("n = max(0,", new)), "flash_bwd_dq", {"T": F16, "D": 64})
        inputs = make_contract_problems(checked, spec, [Problem(Lengths(1, 1, 1, 16, N), 16, 8) for N in (0, 20)])
        assert {p.lengths.N for p in inputs} == {0, 20}
        with nullcontext() if right else pytest.raises(CuirError, match="V108"):
            check_contracts(checked.program, checked.origin, None, inputs, checked.consts, extra_values=inputs.__getitem__)


def test_schedules_use_rings_over_and_over() -> None:
    gemm = check(program_of("gemm"), "gemm", {"T": F16})
    spec = as_any(corpus.specification("gelu_gemm"), "gelu_gemm")
    result = make_schedule_cases(gemm, spec)
    assert {d.name for d in result} == {"long M", "long K", "long N", "short rows"}
    assert any(isinstance(d, Draw) and d.sizes["K"] // 64 > 4 for d in result)


def test_mods_say_nothing_about_a_matrix_product() -> None:
    report = verify(program_of("gemm"), Specification("full"), consts={"T": F16})
    assert report.diagnostics[0].code == "V300" and "reference" in (report.diagnostics[0].hint or "")


def test_float32_kernels_are_judged_in_float32() -> None:
    program, _ = check_scaled()
    assert verify(program, FunctionSpecification("scaled", right, sizes=some), consts={"T": F32, "D": 32}, seeded=0).ok


def test_lengths_of_0_are_tried_where_the_function_says_something() -> None:
    _, checked = check_scaled()
    assert any(d.sizes["M"] == 0 for d in make_draws(checked, FunctionSpecification("scaled", right), "quick"))
    most = FunctionSpecification("most", lambda x, factor: x * factor + 0 * x.amax(1, keepdim=True))  # fails without a query
    assert not any(d.sizes["M"] == 0 for d in make_draws(checked, most, "quick"))
    report = verify(check_scaled()[0], FunctionSpecification("scaled", right), consts={"T": F16, "D": 32}, shrink=False, seeded=0)
    assert report.diagnostics[0].code == "V302" and any("M=0" in n.message for n in report.diagnostics[0].notes)  # nobody stores S


WIDE_NORM = """\
@kernel(arch="sm_90a")
def layer_norm(X: Global[T, M, D], Y: Global[T, M, D], *, T: const, D: const = 1024, OFF: const = 0):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            r = t * 64 + rows(64)
            total, square = zeros(f32, [64, 1]), zeros(f32, [64, 1])
            for j in range(D // 128):
                total = total + row_sum(cast(X[r, j * 128 + cols(128)], f32))
            mean = total / cast(D, f32)
            for j in range(D // 128):
                x = cast(X[r, j * 128 + cols(128)], f32) - mean
                square = square + row_sum(x * x)
            scale = exp2(-0.5 * log2(square / cast(D - OFF, f32) + 0.00001))
            for j in range(D // 128):
                store(Y[r, j * 128 + cols(128)], cast((cast(X[r, j * 128 + cols(128)], f32) - mean) * scale, T))
"""


def layer_norm(X: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(X, (X.shape[-1],), eps=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("off", [0, 1])
def test_a_divisor_off_by_one_that_rounding_would_hide(off: int) -> None:
    """1 / 2048 of each element, where bfloat16 rounds by up to 1 / 256."""
    report = verify(parse(WIDE_NORM, "norm.cuir"), layer_norm, consts={"T": BF16, "OFF": off}, seeded=0)
    codes = [d.code for s in report.stages for d in s.diagnostics]
    assert codes == ["V301"] * off, codes
    assert not off or "rounding the output does not explain" in report.diagnostics[0].message


def test_weights_below_the_least_normal_number_may_be_0() -> None:
    """exp2 flushes; PyTorch's float32 keeps subnormal numbers."""
    text = """\
@kernel(arch="sm_90a")
def faint(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            r = t * 64 + rows(64)
            store(Y[r, cols(64)], exp2(abs(X[r, cols(64)]) * 0.0 - 140.0SCALE))
"""
    for scale, code in (("", []), (" + 20.0", ["V301"])):
        report = verify(
            parse(text.replace("SCALE", scale)), FunctionSpecification("faint", lambda x: torch.exp2(x.abs() * 0 - 140.0)), seeded=0
        )
        assert [d.code for d in report.diagnostics] == code


ROWS = """
@kernel(arch="sm_80")
def k(X: Global[f32, M, N], Y: Global[i32, M], Z: Global[f32, M, 1]):
    work = tiles(M)
    with role("all", warps=1):
        for t in work:
            total = zeros(f32, [1, 1])
            for j in range(cdiv(N, 16)):
                c = j * 16 + cols(16)
                total = total + row_sum(where(c < N, X[t, c], 0.0))
            store(Z[t, cols(1)], total / {divisor} * (0.0 if Y[t] < 0 else 1.0))
"""


@pytest.mark.parametrize(
    ("divisor", "function", "message"),
    [
        ("cast(max(N, 1), f32)", lambda x, y: torch.where(y[:, None] >= 0, mean(x), 0.0), "let the function multiply by 0, too"),
        ("cast(max(N, 1), f32)", lambda x, y: mean(x) * (y[:, None] >= 0), ""),
        (
            "cast(N, f32)",
            lambda x, y: mean(x) * (y[:, None] >= 0),
            'where N is never 0, let the specification say so: def sizes(drawn): return {"N": max(1, drawn["N"])}',
        ),
    ],
)
def test_a_nan_says_how_the_specification_may_exclude_it(divisor: str, function, message: str) -> None:  # type: ignore[no-untyped-def]
    """Rows that are left out may hold NaN, and lengths may be 0, unless the specification says otherwise."""
    spec = FunctionSpecification("mean", function, lambda sizes, generator: {"Y": torch.randint(-1, 2, (sizes["M"],), generator=generator)})
    problem = Draw("no N", {"M": 5, "N": 0}) if "sizes" in message else Draw("one", {"M": 9, "N": 20})
    checked = check(parse(ROWS.format(divisor=divisor)))
    if not message:
        check_case(checked.program, checked, spec, problem)
        return
    with pytest.raises(CuirError) as caught:
        check_case(checked.program, checked, spec, problem)
    assert caught.value.diagnostics[0].code == "V302" and message in str(caught.value)


def mean(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1, keepdim=True) / max(1, x.shape[1])

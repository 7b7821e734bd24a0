"""A verdict that hangs on the last bit of what is not exact is refused, with the comparison; choices that change nothing are not.

Results that leave the allowance once a product and a sum are rounded once; sums that lowering computes as written do not.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

import corpus
from cuir import FunctionSpecification
from cuir.checking import contraction
from cuir.checking.checker import check
from cuir.interp import run
from cuir.interp.noise import contract_sums, perturb_runs
from cuir.spec.specification import Lengths
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from cuir.verification import check_mask, verify
from cuir.verification.noise_verdicts import check_contraction, check_perturbed, choose_contraction_cases
from cuir.verification.numbers_stage import NumbersStage
from cuir.verification.spec_dispatch import check_case
from cuir.verification.values.cases import Draw

ROWS = """\
@kernel(arch="sm_90a")
def rows_of(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            x = min(max(X[t * 64 + rows(64), cols(64)], -1e30), 1e30)
            store(Y[t * 64 + rows(64), cols(64)], BODY)
"""
FLASH = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")


def largest(X: torch.Tensor) -> torch.Tensor:
    X = X.clamp(-1e30, 1e30)
    return torch.where(X.amax(-1, keepdim=True) == X, X, 0.0)


def kept_numbers(X: torch.Tensor) -> torch.Tensor:
    return torch.where(X.isnan(), 0.0, X.clamp(-1e30, 1e30))


def kept_rows(X: torch.Tensor) -> torch.Tensor:
    return torch.where(X.isnan().any(-1, keepdim=True), 0.0, X.clamp(-1e30, 1e30))


def kept(X: torch.Tensor) -> torch.Tensor:
    return X.clamp(-1e30, 1e30)


def positive(X: torch.Tensor) -> torch.Tensor:
    return torch.where(X.round() >= 0, X.clamp(-1e30, 1e30), 0.0)


largest.__name__ = kept.__name__ = positive.__name__ = "reference"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("body", "function", "feeds"),
    [
        ("where(exp2(min(round(x), 0.0)) >= 1.0, x, 0.0)", positive, "exp2"),
        ("where(tanh(x - row_max(x) + 20.0) >= 1.0 - 0.0 * x, x, x)", kept, ""),
        ("where(x == row_max(x), x, 0.0)", largest, ""),
        ("where(x - row_max(x) >= 0.0, x, 0.0)", largest, ""),
        ("where(exp2(x) == exp2(x), x, 0.0)", kept_numbers, ""),
        ("where(exp2(x) >= row_max(exp2(x)), x, x)", kept, ""),
        ("where(row_sum(exp2(x) / row_sum(exp2(x))) >= 1.0, x, x)", kept, ""),
        ("where(row_sum(x * 0.0 + 1.0) >= 64.0, x, 0.0)", kept_rows, ""),
        ("where(log2(exp2(x * 0.0 + 3.0)) == 3.0, x, 0.0)", kept_numbers, "log2"),
        ("cast(cast(exp2(x * 0.0), i32), f32) * x", kept, "exp2"),
        ("where(min(max(x, -9.0), 9.0) * 3.0 / 3.0 - min(max(x, -9.0), 9.0) > 1.0, 0.0, x)", kept, ""),
        ("where(row_sum(exp2(x * 0.0)) == 64.0, x, 0.0)", kept_rows, "row_sum"),
    ],
)
def test_functions(body: str, function: object, feeds: str) -> None:
    report = verify(parse(ROWS.replace("BODY", body), "rows.cuir"), function, seeded=0)  # type: ignore[arg-type]
    codes = [d.code for s in report.stages for d in s.diagnostics]
    assert codes == (["V308"] if feeds else [])
    if feeds:
        (result,) = [d for s in report.stages for d in s.diagnostics]
        assert result.span is not None and result.span.line == 7
        assert any(f"`{feeds}`" in n.message for n in result.notes)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("condition", "hangs"), [("(exp2(S) >= 1.0)", True), ("(exp2(S) >= 0.5)", False), ("(S >= 0.0)", False)])
def test_a_mask_read_out_with_products_that_are_all_zero(condition: str, hangs: bool) -> None:
    program = parse(
        FLASH.replace("S = where(keep(b, h, q, k) & (k < N), S, -inf)", f"S = where(keep(b, h, q, k) & (k < N) & {condition}, S, -inf)"),
        "f.cuir",
    )
    checked, spec = check(program, None, {"T": F16, "D": 64, "BM": 64, "BN": 16}), corpus.variant("causal")()

    def judge() -> object:
        return check_mask(program, checked, spec, Lengths(1, 1, 1, 70, 83))

    judge()
    if not hangs:
        return check_perturbed(checked, judge)
    with pytest.raises(CuirError) as caught:
        check_perturbed(checked, judge)
    (result,) = caught.value.diagnostics
    assert result.code == "V308" and "exp2(S) >= 1.0" in result.message and "does not attend" in result.notes[1].message


def test_noise_is_the_same_for_equal_seeds_and_stays_within_the_bounds() -> None:
    checked = check(parse(ROWS.replace("BODY", "exp2(x) + row_sum(x)")))
    x = torch.randn(64, 64)
    runs = []
    for seed in (None, 1, 1, 2):
        y = torch.empty(64, 64)
        run(checked, {"X": x, "Y": y}, perturb=seed)
        runs.append(y)
    assert torch.equal(runs[1], runs[2]) and not torch.equal(runs[0], runs[1]) and not torch.equal(runs[1], runs[3])
    assert torch.allclose(runs[0], runs[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shared", [True, False])
def test_a_multiply_add_of_scalars_in_a_role_may_round_once(shared: bool) -> None:
    text = ROWS.replace("Y: Global[f32, M, 64])", "Y: Global[f32, M, 64], a: f32, b: f32, c: f32)").replace("BODY", "x * d")
    line = "    d = a * b - c\n"
    head, tail = text.split("    work =") if shared else text.split("        for t in work")
    text = head + line + "    work =" + tail if shared else head + "    " + line + "        for t in work" + tail
    checked = check(parse(text))
    a, b = 1 + 2.0**-12, 1 + 2.0**-13
    results = set()
    for seed in range(1, 9):
        y = torch.empty(64, 64)
        run(checked, {"X": torch.ones(64, 64), "Y": y, "a": a, "b": b, "c": float(torch.tensor(a) * torch.tensor(b))}, perturb=seed)
        results.add(y[0, 0].item())
    assert results == ({0.0} if shared else {0.0, 2.0**-25})


SUMS = """\
@kernel(arch="sm_90a")
def sums(X: Global[f32, 32, 64], R: Global[f32, 32], C: Global[f32, 64]):
    s = shared(f32, [2, 1, 64])
    work = tiles(1)
    with role("all", warps=2) as w:
        for t in work:
            x = X[w * 16 + rows(16), cols(64)]
            store(R[w * 16 + rows(16)], row_sum(x))
            store(s[w], col_sum(x))
            sync()
            if w == 0:
                store(C[cols(64)], load(s[0]) + load(s[1]))
"""


@pytest.mark.parametrize("seed", (1, -1))
def test_sums_of_rows_and_columns_are_varied_in_their_order_alone(seed: int) -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    whole = x.round() * 8  # any order gives the same bits
    results_by_size = {n: torch.full((n,), torch.nan) for n in (32, 64)}
    for values in (x, whole):
        run(parse(SUMS), {"X": values, "R": results_by_size[32], "C": results_by_size[64]}, perturb=seed)
        torch.testing.assert_close(results_by_size[32], values.sum(1))
        torch.testing.assert_close(results_by_size[64], values.sum(0))
    assert torch.equal(results_by_size[64], whole.sum(0)) and torch.equal(results_by_size[32], whole.sum(1))


COLUMNS = """\
@kernel(arch="sm_90a")
def columns(X: Global[f32, 16, 64], Y: Global[f32, 64]):
    work = tiles(1)
    with role("all", warps=1):
        for t in work:
            total = col_sum(exp2(min(max(X[rows(16), cols(64)], -1e30), 1e30) * 0.0))
            store(Y[cols(64)], where(total VERDICT, 1.0, 0.0))
"""


@pytest.mark.parametrize(("verdict", "codes"), [("== 16.0", ["V308"]), (">= 15.0", [])])
def test_decisions_on_sums_of_columns(verdict: str, codes: list[str]) -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(64, dtype=x.dtype) + 0 * x.clamp(-1e30, 1e30).sum(0)

    report = verify(parse(COLUMNS.replace("VERDICT", verdict), "columns.cuir"), reference, seeded=0)
    assert [d.code for s in report.stages for d in s.diagnostics] == codes


SOFTMAX = """\
@kernel(arch="sm_90a")
def softmax(X: Global[f32, M, N], Y: Global[f32, M, N], scale: f32):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            top, total = full(f32, [64, 1], -inf), zeros(f32, [64, 1])
            for c in range(cdiv(N, 64)):
                j = c * 64 + cols(64)
                FIRST
                new = max(top, row_max(where(j < N, LARGEST, -inf)))
                total = total * exp2((top - new)UNIT * 1.4426950408889634) + row_sum(exp2((x - REFERENCE) * 1.4426950408889634))
                top = new
            for c in range(cdiv(N, 64)):
                j = c * 64 + cols(64)
                z = X[i, j] * scale
                store(Y[i, j], exp2((SECOND) * 1.4426950408889634) / total)
"""
WIDE = Draw("wide", {"M": 70, "N": 73}, "wide")
ENDED = "x = where(j < N, X[i, j] * scale, -inf)"


def softmax(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x * scale).softmax(-1)


SPEC = FunctionSpecification("softmax", softmax, lambda sizes, generator: {"scale": torch.rand((), generator=generator) + 0.5})


def write(first: str, largest: str, reference: str, second: str, unit: str = "") -> str:
    changes = {"FIRST": first, "LARGEST": largest, "REFERENCE": reference, "SECOND": second, "UNIT": unit}
    text = SOFTMAX
    for name, value in changes.items():
        text = text.replace(name, value)
    return text


MARKED = (write(ENDED, "x", "new", "X[i, j] * scale - top"), write(ENDED, "x", "new", "z - top"))
UNMARKED = write(ENDED, "X[i, j]", "max(new * scale, -1e30)", "X[i, j] * scale - top * scale", " * scale")
SUBTRACTS_FIRST = write(
    "x = where(j < N, (X[i, j] - row_max(X[i, j])) * scale, -inf)",
    "X[i, j]",
    "(new - row_max(X[i, j])) * scale",
    "(X[i, j] - top) * scale",
    " * scale",
)


def refusal(text: str) -> CuirError | None:
    program = parse(text, "softmax.cuir")
    checked = check(program)
    (case,) = choose_contraction_cases(checked, [WIDE], "quick")

    def judge() -> list[dict[str, object]]:
        return check_case(program, checked, SPEC, case)

    judge()
    try:
        check_contraction(checked, judge)
    except CuirError as error:
        return error
    return None


@pytest.mark.parametrize("text", [*MARKED, SUBTRACTS_FIRST])
def test_differences_that_are_computed_as_written_pass(text: str) -> None:
    assert refusal(text) is None


def is_refused_at(error: CuirError | None, text: str, difference: str) -> bool:
    assert error is not None
    (result,) = error.diagnostics
    assert result.code == "V301" and result.span is not None and result.hint is not None
    words = [n.message for n in result.notes]
    assert any("allowed" in w for w in words) and any("of what is allowed" in w for w in words) and "row_max(c * x)" in result.hint
    return difference in result.message and text.splitlines()[result.span.line - 1].strip().startswith("store")


@pytest.mark.parametrize(("text", "difference"), [*zip(MARKED, ("X[i, j] * scale - top", "z - top"), strict=True)])
def test_they_are_refused_if_they_are_contracted(text: str, difference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contraction, "collect_exempt_sums", lambda checked: frozenset())
    text += "# without marks\n"  # what is known of a checked kernel is kept with it
    assert is_refused_at(refusal(text), text, difference)


def test_a_maximum_that_is_multiplied_is_refused_where_one_pass_is_contracted() -> None:
    assert is_refused_at(refusal(UNMARKED), UNMARKED, "X[i, j] * scale - top * scale")


def test_the_numbers_stage_refuses_it() -> None:
    program = parse(UNMARKED, "softmax.cuir")
    request = SimpleNamespace(program=program, level="quick", progress=lambda _: None)
    stage = NumbersStage.__new__(NumbersStage)
    vars(stage).update(request=request, program=program, checked=check(program), spec=SPEC, cases=[WIDE], remaining=[])
    with pytest.raises(CuirError, match="FMA"):
        stage._repeat_with_contraction()


Sum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ADDS = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, 64, 64], Y: Global[f32, 64, 64], s: f32):
    with role("all", warpgroups=1):
        i, j = rows(64), cols(64)
        p = X[i, j] * s
        q = p
        store(Y[i, j], SUM)
"""


@pytest.mark.parametrize(
    ("text", "once", "twice"),
    [
        ("p - X[i, j]", lambda p, x: p - x, None),
        ("X[i, j] - q", lambda p, x: x - p, None),
        ("X[i, j] * s - 1.0", lambda p, x: p - 1, None),
        ("max(p, -9.0) - 1.0", lambda p, x: p - 1, lambda p, x: p - 1),
    ],
)
def test_a_contracted_sum_rounds_once(text: str, once: Sum, twice: Sum | None) -> None:
    checked = check(parse(ADDS.replace("SUM", text)))
    x, s, y = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)), float(torch.tensor(1 / 3)), torch.empty(64, 64)
    with perturb_runs(contract_sums(contraction.list_contractable_sums(checked))):
        run(checked, {"X": x, "Y": y, "s": s})
    exact = x.double() * s
    assert torch.equal(y, once(exact, x.double()).float()) is (twice is None)
    assert twice is None or torch.equal(y, twice(exact.float(), x))


def test_nothing_is_run_without_a_product_that_is_added() -> None:
    assert not choose_contraction_cases(check(parse(ADDS.replace("SUM", "p * row_sum(p)"))), [WIDE], "quick")

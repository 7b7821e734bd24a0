"""A verdict that hangs on the last bit of what is not exact is refused, with the comparison; choices that change nothing are not."""

from __future__ import annotations

import pytest
import torch

import corpus
from cuir.checking.checker import check
from cuir.interp import run
from cuir.spec.specification import Lengths
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from cuir.verification import check_mask, verify
from cuir.verification.noise_verdicts import check_perturbed

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

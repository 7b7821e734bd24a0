"""Heads to 128, groups that are no powers of two, batches and rows as users have them: index arithmetic that holds for small problems alone is refused."""

from __future__ import annotations

import pytest
import torch

import corpus
from cuir import CuirError, FunctionSpecification, check, parse, verify
from cuir.attn.verification.problems import Case
from cuir.checking.checked import Checked
from cuir.spec.function_specification import AnySpecification
from cuir.spec.loading import as_any
from cuir.syntax.nodes import Program
from cuir.syntax.types import F16
from cuir.verification.spec_dispatch import check_case, prepare_specification
from cuir.verification.user_sizes import choose_wide_grid, is_user_case, make_user_cases
from cuir.verification.values.cases import Draw

FLASH = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
HEAD = "hk = h // (H // HK)"
CAUSAL = as_any(corpus.specification("causal"), "causal")


def is_refused(program: Program, checked: Checked, spec: AnySpecification, level: str = "quick") -> bool:
    for case in make_user_cases(checked, spec, level):
        assert is_user_case(case)
        try:
            check_case(program, checked, spec, case, grid=choose_wide_grid)
        except CuirError as error:
            assert error.diagnostics[0].code in ("V301", "V302", "V303", "V304", "M402", "R402", "D401")
            return True
    return False


def flash(old: str, new: str) -> tuple[Program, Checked, AnySpecification]:
    assert old in FLASH
    program = parse(FLASH.replace(old, new), "flash.cuir")
    checked = check(program, "flash_fwd", {"T": F16, "D": 64})
    return program, checked, prepare_specification(CAUSAL, checked.origin, program, checked.consts)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "head",
    [
        "hk = h // 8 % HK",
        "hk = min(h // (H // HK), 31)",
        "hk = h // (H // HK) % 32",
        "hk = h // max(1, H // HK // 2 * 2)",
        "hk = min(h, 15) // (H // HK)",
        "hk = h * HK // 128 if H > 16 else h // (H // HK)",
        "hk = h // (H // HK) if H // HK < 8 else h // 8 // (H // HK // 8)",
    ],
)
def test_heads_of_attention(head: str) -> None:
    assert is_refused(*flash(HEAD, head))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("head", ["hk = h * HK // H", "hk = (h - h % (H // HK)) // (H // HK)", "hk = h // (H // HK) % max(HK, 64)"])
def test_right_arithmetic_in_other_words_passes(head: str) -> None:
    assert not is_refused(*flash(HEAD, head))


@pytest.mark.parametrize(
    ("old", "new"), [("head // H, head % H", "head // H % 16, head % H"), ("head // H, head % H", "head // H, min(head % H, 15)")]
)
def test_batches_and_heads_of_the_order_of_tiles(old: str, new: str) -> None:
    assert is_refused(*flash(old, new))


ROWS = """
@kernel(arch="sm_80")
def k(X: Global[f32, B, M, 32], W: Global[f32, B], Y: Global[f32, B, M, 32], S: Global[f32, B, M]):
    work = tiles(cdiv(M, 16) * B)
    with role("all", warps=1):
        for t in work:
            b, i = {unit}
            q = {rows}
            x = X[b, q, cols(32)] * W[{batch}]
            store(Y[b, i + rows(16), cols(32)], x)
            store(S[b, i + rows(16)], row_sum(x))
"""
RIGHT = {"unit": "t % B, t // B * 16", "rows": "i + rows(16)", "batch": "b"}


def rows(**parts: str) -> tuple[Program, Checked, AnySpecification]:
    program = parse(ROWS.format(**{**RIGHT, **parts}), "rows.cuir")

    def reference(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
        y = x * w[:, None, None]
        return {"Y": y, "S": y.sum(-1)}

    checked = check(program, "k")
    return program, checked, FunctionSpecification("rows", reference)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "parts",
    [
        {"batch": "b % 16"},
        {"batch": "min(b, 16)"},
        {"batch": "b & 15"},
        {"batch": "min(b, 127)"},
        {"unit": "t % B, t // B * 16 * 40 % 65536 // 40"},
        {"rows": "(i + rows(16)) * 40 % 65536 // 40"},
        {"rows": "min(i + rows(16), 1023)"},
        {"rows": "min(i + rows(16), 65535)"},
        {"unit": "min(t % B, 39), t // B * 16"},
    ],
)
def test_batches_and_rows(parts: dict[str, str]) -> None:
    assert is_refused(*rows(**parts))


@pytest.mark.sweep(4)
@pytest.mark.usefixtures("no_schedules")
@pytest.mark.parametrize(
    "parts", [{}, {"unit": "t // cdiv(M, 16), t % cdiv(M, 16) * 16"}, {"rows": "(i + rows(16)) * 40 // 40"}, {"batch": "b % 4096"}]
)
def test_right_rows_pass(parts: dict[str, str]) -> None:
    assert not is_refused(*rows(**parts))


def test_full_comes_to_131_072() -> None:
    _, checked, spec = rows()
    cases = [c for c in make_user_cases(checked, spec, "full") if isinstance(c, Draw)]
    assert max(c.sizes["M"] for c in cases) > 131_072 and max(c.sizes["B"] for c in cases) == 1025
    _, checked, spec = flash(HEAD, HEAD)
    at = [c.lengths for c in make_user_cases(checked, spec, "full") if isinstance(c, Case)]
    assert max(x.M for x in at) > 131_072 < max(x.N for x in at) and max(x.B for x in at) == 1025 and max(x.H for x in at) == 128
    assert {x.H // x.HK for x in at} >= {1, 3, 5, 6, 7, 12, 32}


def test_functions_that_grow_with_the_square_are_not_asked_for_long_rows() -> None:
    text = """
@kernel(arch="sm_80")
def k(X: Global[f32, L, 32], Y: Global[f32, L, 32]):
    work = tiles(cdiv(L, 16))
    with role("all", warps=1):
        for t in work:
            q = t * 16 + rows(16)
            store(Y[q, cols(32)], X[q, cols(32)])
"""
    checked = check(parse(text, "k.cuir"))
    square = FunctionSpecification("square", lambda x: (torch.ones(len(x), len(x), dtype=x.dtype) * torch.eye(len(x), dtype=x.dtype)) @ x)
    lengths = [c.sizes["L"] for c in make_user_cases(checked, square, "full") if isinstance(c, Draw)]
    assert max(lengths, default=0) < 10_000
    plain = FunctionSpecification("plain", lambda x: x * 1.0)
    assert max(c.sizes["L"] for c in make_user_cases(checked, plain, "full") if isinstance(c, Draw)) > 131_072


def test_a_function_that_fails_for_many_heads_is_no_fault_of_the_kernel() -> None:
    program, _, spec = rows()
    assert isinstance(spec, FunctionSpecification)
    reference = spec.reference

    def few(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(w) > 100:
            raise ValueError("too many")
        return reference(x=x, w=w)  # type: ignore[no-any-return]

    report = verify(program, FunctionSpecification("few", few), seeded=0)
    assert report.ok and "not asked, where the function fails" in report.stages[4].reason and "B=130" in report.stages[4].reason


PRODUCT = corpus.programs()["gemm"].read_text(encoding="utf-8")
DECODE = corpus.programs()["decode_paged"].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new"), [("i, j = t % cdiv(M, BM) * BM", "i, j = t % cdiv(M, BM) * BM * 40 % 65536 // 40"), ("bias[j]", "bias[j % 2048]")]
)
def test_rows_of_a_product(old: str, new: str) -> None:
    for text, expected in ((PRODUCT, False), (PRODUCT.replace(old, new), True)):
        assert old in text or expected
        program = parse(text, "gemm.cuir")
        checked = check(program, "gemm", {"T": F16, "BM": 64, "BN": 64})
        assert (
            is_refused(program, checked, prepare_specification(corpus.specification("gelu_gemm"), checked.origin, program, checked.consts))
            == expected
        )


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("copy_async(K[x, hk, :, :]", "copy_async(K[x, hk % 16, :, :]"),
        ("x = page[b, min(", "x = page[min(b, 31), min("),
        ("work = tiles(SP * HK * B)", "work = tiles(SP * HK * min(B, 40))"),
    ],
)
def test_heads_and_batches_of_decoding(old: str, new: str) -> None:
    program = parse(DECODE.replace(old, new), "decode.cuir")
    checked = check(program, "decode", {"T": F16, "D": 64, "G": 4, "PAGE": 16})
    assert old in DECODE and is_refused(
        program, checked, prepare_specification(corpus.specification("paged_decode"), checked.origin, program, checked.consts)
    )

"""Masks and blocks far out: all distances up to 131,072, thresholds of the mask or of the kernel's text alone, rows at the edges of blocks."""

from __future__ import annotations

from typing import Any

import pytest

import corpus
from cuir import CuirError, Specification, check, parse, verify
from cuir.attn.splicing.splice import transfer
from cuir.attn.verification.mask_distances import LONGEST, check_distances
from cuir.checking.checked import Checked
from cuir.spec.loading import as_any
from cuir.syntax.nodes import Program
from cuir.syntax.printer import show
from cuir.syntax.types import F16
from cuir.verification.spec_dispatch import get_mods

CAUSAL = as_any(corpus.specification("causal"), "causal")
TEXT = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
KEEP = "return k <= q + (N - M)"


def near(most: int) -> Specification:
    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, M: int, N: int) -> Any:
        distance = q_idx + (N - M) - kv_idx
        return (distance >= 0) & (distance <= most)

    return Specification("near", mask_mod)


def check_text(text: str, **consts: int) -> tuple[Program, Checked]:
    program = parse(text, "flash.cuir")
    return program, check(program, "flash_fwd", {"T": F16, "D": 64, **consts})


def code(text: str, spec: Specification | None, level: str = "quick") -> str:
    program, checked = check_text(text)
    try:
        result = check_distances(program, checked, spec, level)
    except CuirError as error:
        return error.diagnostics[0].code
    assert not result.reason and result.blocks > 1000 and (spec is None) == (result.pairs == 0)
    return ""


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "keep",
    [
        "return (k <= q + (N - M)) & (q + (N - M) - k != 3000)",
        "return (k <= q + (N - M)) & (q + (N - M) - k < 65536)",
        "return (k <= q + (N - M)) & (k != 70001)",
        "return (k <= q + (N - M)) | (q == 100000)",
        "return k % 65536 <= q % 65536 + (N - M)",
        "return k * 40 % 65536 <= (q + (N - M)) * 40 % 65536",
        "return (k <= q + (N - M)) | (k == N - 1)",
    ],
)
def test_masks_that_are_wrong_far_out(keep: str) -> None:
    assert code(TEXT.replace(KEEP, keep), CAUSAL) == "V107"


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "keep",
    ["return k - q <= N - M", "return ~(k > q + (N - M))", "return (k <= q + (N - M)) & (q - k < 200000 + M)", "return k + M < q + N + 1"],
)
def test_right_masks_in_other_words_pass(keep: str) -> None:
    assert code(TEXT.replace(KEEP, keep), CAUSAL) == ""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "n = max(0, min(cdiv(N, BN), cdiv((m + 1) * BM + N - M, BN)))\n    full",
            "n = max(0, min(min(cdiv(N, BN), 700), cdiv((m + 1) * BM + N - M, BN)))\n    full",
            "V101",
        ),
        (
            "full = min(N // BN, max(0, m * BM + N - M + 1) // BN)\n    return n - min(n, full), n",
            "full = min(N // BN, max(0, m * BM + N - M + 1) // BN)\n    return (n - min(n, full)) * (1 if m < 1000 else 0), n",
            "V102",
        ),
        ("return kv_count(b, h, m)[1] - 1 - i", "return (kv_count(b, h, m)[1] - 1 - i) % 1000", "V103"),
        ("return n - min(n, full), n", "return n - min(n, full), n + (1 if m > 900 else 0)", "V108"),
    ],
)
def test_blocks_that_are_wrong_far_out(old: str, new: str, expected: str) -> None:
    assert old in TEXT
    assert code(TEXT.replace(old, new), CAUSAL) == expected
    assert code(TEXT.replace(old, new), None) == expected


def test_a_threshold_of_the_mask() -> None:
    spec = near(3000)
    program = transfer(parse(TEXT, "flash.cuir"), spec).program
    right = check(program, "flash_fwd", {"T": F16, "D": 64})
    assert check_distances(program, right, get_mods(spec, right), "quick").pairs > 7 * LONGEST
    line = next(x for x in show(program.funcs()["keep"]).splitlines() if "return" in x)
    off_by_one = parse(show(program).replace(line, line.replace("<= most", "< most")), "flash.cuir")
    wrong = check(off_by_one, "flash_fwd", {"T": F16, "D": 64})
    with pytest.raises(CuirError) as caught:
        check_distances(off_by_one, wrong, get_mods(spec, wrong), "quick")
    first = caught.value.diagnostics[0]
    assert first.code == "V107" and "3,000 apart" in first.message


def test_full_looks_at_more() -> None:
    program, checked = check_text(TEXT)
    few, many = (check_distances(program, checked, CAUSAL, level) for level in ("quick", "full"))
    assert many.pairs > 2 * few.pairs and many.blocks > 2 * few.blocks


def test_what_grows_with_pairs_is_not_made() -> None:
    documents = as_any(corpus.specification("document"), "document")
    program = transfer(parse(TEXT, "flash.cuir"), documents).program
    checked = check(program, "flash_fwd", {"T": F16, "D": 64})
    result = check_distances(program, checked, get_mods(documents, checked), "quick")
    assert result.pairs == 0 and "pairs" in result.reason


def test_verification_asks_it() -> None:
    wrong = parse(TEXT.replace(KEEP, "return (k <= q + (N - M)) & (q + (N - M) - k != 90000)"), "flash.cuir")
    report = verify(wrong, CAUSAL, consts={"T": F16, "D": 64}, shrink=False, seeded=0)
    assert not report.ok and report.stages[1].verdict == "failed" and report.diagnostics[0].code == "V107"


def test_gradients_are_asked_too() -> None:
    text = corpus.kernels()["flash_bwd_sm90"].read_text(encoding="utf-8")
    for keep, expected in ((None, ""), (" & (q - k != 80000)", "V107")):
        program = parse(text if keep is None else text.replace("return k <= q + (N - M)", f"return (k <= q + (N - M)){keep}"), "bwd.cuir")
        checked = check(program, "flash_bwd", {"T": F16, "D": 64, "BM": 128})
        try:
            assert check_distances(program, checked, get_mods(CAUSAL, checked), "quick").blocks > 0 and not expected
        except CuirError as error:
            assert error.diagnostics[0].code == expected

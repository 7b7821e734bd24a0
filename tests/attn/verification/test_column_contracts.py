"""Contracts of a backward kernel's splice points: each is found where it is broken, and the corpus keeps them."""

from __future__ import annotations

import pytest

import corpus
from cuir.attn.splicing.backward import KERNEL, transfer_backward
from cuir.attn.verification.column_contracts import check_columns, make_column_problems
from cuir.checking.checker import check
from cuir.spec.loading import as_any
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from cuir.verification.inputs import make_contract_problems
from cuir.verification.spec_dispatch import prepare_specification

TEXT = corpus.kernels()["flash_bwd_sm90"].read_text(encoding="utf-8")
CONSTS = {"T": F16, "D": 128, "BM": 64}


def pairs_of(text: str, name: str = "causal") -> int:
    program = parse(text, "flash_bwd_sm90.cuir")
    checked = check(program, KERNEL, CONSTS)
    spec = prepare_specification(as_any(corpus.specification(name), name), program.kernels()[KERNEL], program, CONSTS)
    return check_columns(checked, make_contract_problems(checked, spec, make_column_problems(64, 128)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["causal", "sliding_window", "document"])
def test_kernels_of_the_corpus_keep_them(name: str) -> None:
    transferred = transfer_backward(parse(TEXT, "flash_bwd_sm90.cuir"), corpus.specification(name)())
    assert pairs_of(transferred.text, name) > 100_000


def test_the_origins_keep_them() -> None:
    assert pairs_of(TEXT) > 100_000


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ["causal", "sliding_window", "document"])
def test_kernels_of_f32_keep_them(name: str) -> None:
    origin = parse(corpus.kernels()["flash_bwd_f32"].read_text(encoding="utf-8"), "flash_bwd_f32.cuir")
    spec, consts = corpus.specification(name)(), {"D": 128}
    program = transfer_backward(origin, spec).program
    checked = check(program, KERNEL, consts)
    requests = prepare_specification(as_any(corpus.specification(name), name), program.kernels()[KERNEL], program, consts)
    assert check_columns(checked, make_contract_problems(checked, requests, make_column_problems(16, 128))) > 30_000  # type: ignore[arg-type]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("first = max(0, j * BN - (N - M)) // BM", "first = max(0, j * BN - (N + M)) // BM", "V103"),
        ("// BM + i - out", "// BM + i // 2 - out", "V103"),
        ("// BM + i - out", "// BM + 1 + i - out", "V103"),
        ("out = cdiv(M, BM) - M // BM", "out = 0 * M", "V102"),
        ("    n = max(0, cdiv(M, BM) - first)", "    n = max(0, M // BM - first)", "V101"),
        ("    n = max(0, cdiv(M, BM) - first)", "    n = max(1, cdiv(M, BM) - first)", "V108"),  # a block of no queries
        ("return n - max(0, M // BM - max(first, full)), n", "return n - max(0, M // BM - first), n", "V102"),
        ("j * BN + BN - 1 - (N - M)", "j * BN + BN - 2 - (N - M)", "V102"),  # wrong for one distance of the ends in BM
        ("return n - max(0, M // BM - max(first, full)), n", "return 0 - 1, n", "V108"),
        ("return n - max(0, M // BM - max(first, full)), n", "return n, cdiv(M, BM) + 1", "V108"),
    ],
)
def test_a_broken_contract_is_told(old: str, new: str, code: str) -> None:
    assert old in TEXT
    with pytest.raises(CuirError) as caught:
        pairs_of(TEXT.replace(old, new, 1))
    assert caught.value.diagnostics[0].code == code

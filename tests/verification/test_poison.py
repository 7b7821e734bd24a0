"""What a function does not read is NaN: found without being told, told when it comes to an output."""

from __future__ import annotations

import pytest
import torch

import corpus
from cuir import CuirError, FunctionSpecification, check, parse, verify
from cuir.spec.loading import as_any
from cuir.syntax.types import F16
from cuir.verification.draws import Draw
from cuir.verification.inputs import make_function_launch
from cuir.verification.spec_dispatch import check_case

CONSTS = {"T": F16, "D": 32}
LENGTHS = """
@kernel(arch="sm_80")
def mean(X: Global[T, B, N, D], W: Global[T, B, N], length: Global[i32, B], Y: Global[T, B, D], *, T: const, D: const):
    work = tiles(B)
    with role("all", warps=1):
        for t in work:
            acc = zeros(f32, [16, D])
            for n in range(N):
                x = cast(X[t, n, 0 * rows(16) + cols(D)], f32)
                w = cast(W[t, n + 0 * rows(16)], f32)
                acc = acc + where(n < length[t] + 0 * rows(16), x * w, 0.0)
            store(Y[t, 0 * rows(16) + cols(D)], cast(acc, T), mask=(rows(16) == 0) & (cols(D) >= 0))
"""
SAFE, ZERO = "where(n < length[t] + 0 * rows(16), x * w, 0.0)", "x * where(n < length[t] + 0 * rows(16), w, 0.0)"


def reference(x: torch.Tensor, w: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    return torch.stack([(x[b, :n] * w[b, :n, None]).sum(0) for b, n in enumerate(length.tolist())])


def inputs(sizes, generator):  # type: ignore[no-untyped-def]
    return {"length": torch.randint(sizes["N"] + 1, (sizes["B"],), generator=generator)}


SPEC = FunctionSpecification("mean", reference, inputs)


def test_what_lies_beyond_a_length_is_found() -> None:
    checked = check(parse(LENGTHS), "mean", CONSTS)
    given = make_function_launch(checked, SPEC, Draw("one", {"B": 4, "N": 9}, seed=3), poison=True)
    beyond = torch.arange(9) >= given.inputs["length"][:, None]  # type: ignore[index]
    assert torch.equal(given.poisoned["W"], beyond) and torch.equal(given.poisoned["X"], beyond[..., None].expand(4, 9, 32))
    assert given.inputs["X"].isnan().sum() == beyond.sum() * 32 and not given.clean["X"].isnan().any()  # type: ignore[union-attr]
    assert not make_function_launch(checked, SPEC, Draw("one", {"B": 4, "N": 9}, seed=3)).poisoned


def test_a_factor_of_0_reads_what_it_is_multiplied_with() -> None:
    """Of the function: then nothing is NaN. Of the kernel: then the element is named."""
    weighed = FunctionSpecification(
        "weighed", lambda x, w, length: (x * (w * (torch.arange(x.shape[1]) < length[:, None]))[..., None]).sum(1), inputs
    )
    checked = check(parse(LENGTHS), "mean", CONSTS)
    given = make_function_launch(checked, weighed, Draw("one", {"B": 4, "N": 9}, seed=3), poison=True)
    assert not given.poisoned
    assert verify(parse(LENGTHS), SPEC, consts=CONSTS, seeded=0).ok
    assert SAFE in LENGTHS
    report = verify(parse(LENGTHS.replace(SAFE, ZERO)), SPEC, consts=CONSTS, seeded=0, shrink=False)
    (found,) = report.diagnostics
    assert found.code == "V302" and "the NaN comes from the input element X[" in found.message and "`mean` does not read" in found.message


@pytest.mark.parametrize(
    "function",
    [lambda x, factor: x * factor, lambda x, factor: x.relu() * factor, lambda x, factor: x.amax(1, keepdim=True) * factor + 0 * x],
)
def test_functions_that_read_everything_have_no_poison(function: object) -> None:
    text = """
@kernel(arch="sm_80")
def scaled(X: Global[T, B, M, D], Y: Global[T, B, M, D], factor: f32, *, T: const, D: const):
    with role("all", warps=1):
        for t in tiles(B):
            store(Y[t, rows(16), cols(D)], X[t, rows(16), cols(D)])
""".replace("        for t in tiles(B):", "        for t in work:").replace("    with", "    work = tiles(B)\n    with")
    checked = check(parse(text), "scaled", CONSTS)
    assert not make_function_launch(checked, FunctionSpecification("f", function), Draw("one", {"B": 2, "M": 5}), poison=True).poisoned  # type: ignore[arg-type]


def test_padding_without_a_table_is_found_too() -> None:
    text = LENGTHS.replace("length: Global[i32, B], ", "").replace("length[t]", "5")
    checked = check(parse(text), "mean", CONSTS)
    spec = FunctionSpecification("five", lambda x, w: (x[:, :5] * w[:, :5, None]).sum(1))
    for _ in range(2):
        given = make_function_launch(checked, spec, Draw("one", {"B": 2, "N": 9}), poison=True)
        assert given.poisoned["X"][:, 5:].all() and not given.poisoned["X"][:, :5].any()


def test_unused_slots_of_a_cache_may_hold_anything() -> None:
    """Values behind a sequence's last key are cleared before the product; left as they are, their NaN is told as what it is."""
    text = corpus.programs()["decode_paged"].read_text(encoding="utf-8")
    spec = as_any(corpus.specification("paged_decode"), "paged_decode")
    case = Draw("one", {"B": 2, "H": 8, "M": 16, "NP": 27, "HK": 2, "MP": 13, "SP": 2})
    consts = {"T": F16, "D": 64, "G": 4, "PAGE": 16}
    right = check(parse(text), "decode", consts)
    assert all(row["error / allowed"] <= 1 for row in check_case(right.program, right, spec, case))  # type: ignore[operator]
    assert text.count("if left < BN:") == 1
    wrong = check(parse(text.replace("if left < BN:", "if left < 0:")), "decode", consts)
    with pytest.raises(CuirError, match=r"V302.*comes from the input element V\["):
        check_case(wrong.program, wrong, spec, case)

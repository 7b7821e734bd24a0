"""Kernels that round to 16 bits and go on computing with the result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import corpus
from corpus.computes import COMPUTES
from cuir import CuirError, FunctionSpecification, check, parse
from cuir.syntax.types import BF16, F16, F32
from cuir.verification.intermediate_rounding import rounds_between, rounds_for_products
from cuir.verification.spec_dispatch import check_case
from cuir.verification.values.cases import Draw
from tests.verification.small_kernels import KERNELS, rows

MORE = "Y: Global[T, M, D]"
STORE = "store(Y[q, cols(D)], cast(x, T))"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (STORE, False),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], y)", False),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], where(x > 0.0, y, 0.0))", False),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], y * y)", True),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], cast(cast(y, f32) * 2.0, T))", True),
        ("y = cast(x * 2.0, T)\n z = y\n store(Y[q, cols(D)], cast(exp2(cast(max(z, 0.0), f32)), T))", True),
        (STORE + "\n store(Y[q, cols(D)], cast(cast(Y[q, cols(D)], f32) + 1.0, T))", True),
        ("store(Y[q, cols(D)], cast(x, T), add=True)", True),
        ("store(Y[q, cols(D)], cast(x * cast(cast(q, T), f32), T))", False),
        ("store(Y[q, cols(D)], cast(x * cast(cast(cast(q, f32), T), f32), T))", False),
        ("store(Y[q, cols(D)], cast(x * cast(cast(cast(q, f32) * 0.1, T), f32), T))", True),
        ("store(Y[q, cols(D)], cast(mma(cast(x, T), cast(x, T)), T))", True),
    ],
)
def test_what_is_rounded_and_used(body: str, expected: bool) -> None:
    assert rounds_between(check(parse(rows(MORE, body)), "kernel", {"T": F16, "D": 16})) == expected
    assert not rounds_between(check(parse(rows(MORE, body.replace("mma(cast(x, T), cast(x, T))", "x"))), "kernel", {"T": F32, "D": 16}))


THROUGH_SHARED = """\
@kernel(arch="sm_90a")
def kernel(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    s = shared(f16, [64, 64])
    with role("all", warpgroups=1):
        x = cast(load(X[0:64, :]), f32)
        store(s, cast(x * 2.0, f16))
        {way}
"""


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("store(Y[0:64, :], load(s))", False),
        ("y = load(s)\n        z = y\n        store(Y[0:64, :], z)", False),
        ("store(Y[0:64, :], load(s) + x)", True),
        ("y = load(s)\n        store(Y[0:64, :], cast(cast(y, f32) * x, f16))", True),
        ("y = load(s)\n        store(Y[0:64, :], -y)", True),
    ],
)
def test_what_is_read_back_is_used_where_something_is_done_with_it(way: str, expected: bool) -> None:
    """A result that leaves through shared memory is not."""
    checked = check(parse(THROUGH_SHARED.format(way=way.replace("load(s) + x", "cast(cast(load(s), f32) + x, f16)"))), "kernel", {})
    assert rounds_between(checked) == expected and not rounds_for_products(checked)


@pytest.mark.parametrize("name", ["flash_attention_2_hdim128", "flash_attention_3_hdim128"])
def test_weights_alone_are_rounded_by_kernels_whose_results_pass_through_shared_memory(name: str) -> None:
    text = (Path(__file__).parents[2] / "examples" / "lifting" / f"{name}.cuir").read_text(encoding="utf-8")
    assert rounds_for_products(check(parse(text), None, {"T": F16, "D": 128}))


def test_kernels_of_the_corpus_and_small_ones() -> None:
    """Weights of an attention are operands of a product; a matrix product stores its result through shared memory."""
    results = {}
    for name, kernels in COMPUTES.items():
        program = parse({**corpus.programs(), **corpus.kernels()}[name].read_text(encoding="utf-8"))
        for kernel, computed in kernels.items():
            expected_values = {"T": BF16, "D": 64}
            params = {p.name for p in program.kernels()[kernel].params}
            results[name, kernel] = rounds_between(
                check(program, kernel, {**{n: v for n, v in expected_values.items() if n in params}, **computed.tested})
            )
    plain = {(name, kernel) for (name, kernel), rounds in results.items() if not rounds}
    assert {kernel for name, kernel in plain if not name.endswith("_f32")} == {"gemm", "delta", "combine", "prepare", "finish"}
    assert {name for name, _ in plain if name.endswith("_f32")} == {name for name, _ in results if name.endswith("_f32")}
    assert not any(rounds_between(check(parse(s.text), "kernel", dict(s.consts[0]))) for s in KERNELS.values())


@pytest.mark.parametrize(("position", "codes"), [("cast(cast(q, T), f32)", ["V301"]), ("cast(q, f32)", [])])
def test_a_position_that_its_dtype_does_not_hold_is_an_error_of_the_kernel(position: str, codes: list[str]) -> None:
    """2,049 is no number of f16; the dtype of the data does not allow that."""
    text = rows(MORE, f"store(Y[q, cols(D)], cast(x * cos({position}), T))")
    checked = check(program := parse(text), "kernel", {"T": F16, "D": 16})
    spec = FunctionSpecification("f", lambda x: x * torch.arange(x.shape[0], dtype=torch.float64).to(x.dtype)[:, None].cos())
    results = []
    try:
        check_case(program, checked, spec, Draw("long", {"M": 2100}))
    except CuirError as error:
        results = [d.code for d in error.diagnostics]
    assert results == codes

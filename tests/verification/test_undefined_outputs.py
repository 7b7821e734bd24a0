"""Tensors that a kernel writes and reads: what they hold before the launch counts only if the specification says something of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import FunctionSpecification, parse, verify
from cuir.verification.report import VerifyReport

KERNEL = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], Y: Global[f32, M, 64], {params}):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r, c = t * 16 + rows(16), cols(64)
{body}
"""


def verify_kernel(params: str, body: list[str], reference: Callable[..., Any], inputs: Callable[..., Any] | None = None) -> VerifyReport:
    text = KERNEL.format(params=params, body="\n".join(" " * 12 + line for line in body))
    return verify(parse(text), FunctionSpecification("k", reference, inputs), seeded=0, shrink=False)


def codes(report: VerifyReport) -> list[str]:
    return [d.code for d in report.diagnostics]


READ_FIRST = ["store(Y[r, c], S[r, c] + X[r, c])", "store(S[r, c], X[r, c])"]
WRITTEN_FIRST = ["store(S[r, c], X[r, c])", "store(Y[r, c], S[r, c] + X[r, c])"]
ADDED = ["store(S[r, c], X[r, c], add=True)", "store(Y[r, c], S[r, c])"]


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_what_the_reference_asks_for_is_an_input() -> None:
    requests = verify_kernel("S: Global[f32, M, 64]", READ_FIRST, lambda X, S: {"Y": S + X, "S": X})
    assert requests.ok, requests.diagnostics


@pytest.mark.sweep
@pytest.mark.parametrize("inputs", (True, False), ids=["compared", "scratch"])
def test_what_it_does_not_ask_for_is_written_first(inputs: bool) -> None:
    refused = verify_kernel("S: Global[f32, M, 64]", READ_FIRST, lambda X: {"Y": X, "S": X if inputs else None})
    assert codes(refused) == ["M415"] and "ask for `S` by name in the reference" in (refused.diagnostics[0].hint or "")
    right = verify_kernel("S: Global[f32, M, 64]", WRITTEN_FIRST, lambda X: {"Y": 2 * X, "S": X if inputs else None})
    assert right.ok, right.diagnostics


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_what_inputs_gives_is_an_input() -> None:
    def inputs(sizes: dict[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {"S": torch.zeros(sizes["M"], 64)}

    right = verify_kernel("S: Global[f32, M, 64]", READ_FIRST, lambda X: {"Y": X, "S": X}, inputs)
    assert right.ok, right.diagnostics


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_sums_that_are_compared_are_zero_before() -> None:
    right = verify_kernel("S: Global[f32, M, 64]", ADDED, lambda X: {"Y": X, "S": X})
    assert right.ok, right.diagnostics


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_sums_that_are_scratch_are_not() -> None:
    """A counter that no one resets counts on from the launch before."""
    refused = verify_kernel("S: Global[f32, M, 64]", ADDED, lambda X: {"Y": X, "S": None})
    assert codes(refused) == ["M415"] and "adds to" in refused.diagnostics[0].message
    reset = verify_kernel("S: Global[f32, M, 64]", ["store(S[r, c], zeros(f32, [16, 64]))", *ADDED], lambda X: {"Y": X, "S": None})
    assert reset.ok, reset.diagnostics


COUNTER = ["if C[t] == 0:", "    store(Y[r, c], X[r, c])", "else:", "    store(Y[r, c], X[r, c] * 2.0)", "store(C[t], 1)"]


@pytest.mark.parametrize("kind", ("Global", "Scratch"))
def test_flags_are_poison_that_no_comparison_swallows(kind: str) -> None:
    """Each of these gives Y = X for some value of the flag: 0, anything but 0, any negative one."""
    for test in ("C[t] == 0", "C[t] != 0", "C[t] < 0", "max(C[t], 0) == 0"):
        body = [COUNTER[0].replace("C[t] == 0", test), *COUNTER[1:]]
        refused = verify_kernel(f"C: {kind}[i32, 4096]", body, lambda X: {"Y": X, "C": None} if kind == "Global" else X)
        assert codes(refused) == ["M415"]


def test_poison_in_a_select_is_told() -> None:
    refused = verify_kernel("S: Scratch[f32, M, 64]", ["store(Y[r, c], where(S[r, c] > 0.0, 2.0 * X[r, c], X[r, c]))"], lambda X: X)
    assert codes(refused) == ["M415"]


@pytest.mark.sweep
@pytest.mark.parametrize("n", (2, 3, 4, 8, 16))
def test_a_slot_of_two_units_is_refused(n: int) -> None:
    slot = [f"store(S[t % {n}, rows(16), c], X[r, c])", f"store(Y[r, c], S[t % {n}, rows(16), c] * 2.0)"]
    refused = verify_kernel(f"S: Scratch[f32, {n}, 16, 64]", slot, lambda X: 2 * X)
    assert codes(refused) == ["R402"]
    ours = [line.replace(f"t % {n}, rows(16)", "r") for line in slot]
    right = verify_kernel("S: Scratch[f32, M, 64]", ours, lambda X: 2 * X)
    assert right.ok, right.diagnostics

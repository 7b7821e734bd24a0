"""Floats that a specification draws itself: elements that the function does not read are NaN, unless they are a table or a filling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import FunctionSpecification, parse, verify
from cuir.syntax.types import F16
from cuir.verification.values.input_kinds import draw_tensor, find_arbitrary, is_deep_enough, without_fillers

KERNEL = """\
@kernel(arch="sm_90a")
def sums(X: Global[f32, B, N, 8], S: Global[f32, B, N], LEN: Global[i32, B], Y: Global[f32, B, 8]):
    work = tiles(B)
    with role("all", warps=1):
        for b in work:
            acc = zeros(f32, [1, 8])
            for j in range(cdiv(N, 16)):
                n = j * 16 + rows(16)
                acc = acc + col_sum(SUMMAND)
            store(Y[b + rows(1), cols(8)], acc)
"""
BEHIND = "where(n < LEN[b], X[b, n, cols(8)], 0.0) * S[b, n]"
WHOLE = "where(n < LEN[b], X[b, n, cols(8)] * S[b, n], 0.0)"


def reference(x: torch.Tensor, s: torch.Tensor, len: torch.Tensor) -> torch.Tensor:
    return torch.stack([(x[b, :n] * s[b, :n, None]).sum(0) for b, n in enumerate(len.tolist())])


def lengths(sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(sizes["N"] + 1, (sizes["B"],), generator=generator)


def draw(sizes: dict[str, int], generator: torch.Generator) -> dict[str, Any]:
    n = lengths(sizes, generator)
    return {"LEN": n, "S": torch.rand(sizes["B"], sizes["N"], generator=generator) + 0.2}


def table(sizes: dict[str, int], generator: torch.Generator) -> dict[str, Any]:
    return {"LEN": lengths(sizes, generator), "S": torch.arange(1, sizes["N"] + 1).float().sqrt().expand(sizes["B"], sizes["N"])}


def fill(sizes: dict[str, int], generator: torch.Generator) -> dict[str, Any]:
    inputs = draw(sizes, generator)
    return {**inputs, "S": inputs["S"].masked_fill(torch.arange(sizes["N"]) >= inputs["LEN"][:, None], 1.0)}


@pytest.mark.sweep
@pytest.mark.parametrize("inputs, refused", ((draw, True), (table, False), (fill, False)))
def test_a_scale_behind_a_length(inputs: Callable[..., Any], refused: bool) -> None:
    """Elements drawn there may be NaN as well; a table has numbers everywhere, and filled tensors have, too."""
    spec = FunctionSpecification("sums", reference, inputs=inputs)
    assert verdict(BEHIND, spec) == (["V302"] if refused else [])


@pytest.mark.thorough
def test_a_kernel_that_leaves_it_out_passes() -> None:
    """The choice is over the product."""
    assert verdict(WHOLE, FunctionSpecification("sums", reference, inputs=draw)) == []


def verdict(summand: str, spec: FunctionSpecification) -> list[str]:
    return [d.code for d in verify(parse(KERNEL.replace("SUMMAND", summand)), spec, seeded=0, shrink=False).diagnostics]


def test_what_another_generator_gives_alike_is_no_arbitrary_input() -> None:
    """Values that follow from other inputs, integers and fillings are left as they are."""
    inputs = {"A": torch.arange(5.0), "B": torch.arange(5.0), "N": torch.arange(5)}
    assert find_arbitrary(inputs, lambda: {"a": torch.arange(5.0) + 1, "B": torch.arange(5.0), "N": torch.zeros(5)}) == ["A"]
    position = torch.arange(5) > 1
    assert list(without_fillers({"A": torch.arange(5.0), "B": torch.ones(5)}, {"A": position, "B": position})) == ["A"]


def test_aligned_rows_agree_on_the_largest_product() -> None:
    q, k = (draw_tensor(F16, (2, 4, 3, 64), "aligned", torch.Generator().manual_seed(0), chosen).double() for chosen in (True, False))
    rows = q.flatten(0, -2)
    assert (torch.cosine_similarity(rows, rows.mean(0), dim=-1) > 0.95).all() and rows.unique(dim=0).shape == rows.shape
    assert (rows @ k.flatten(0, -2).T).argmax(-1).unique().numel() == 1 and k.flatten(0, -2).mean(0).abs().max() < 1
    assert not is_deep_enough("aligned", 1)

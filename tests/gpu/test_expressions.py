"""Expressions on halves give on the GPU what they give in the interpreter."""

from __future__ import annotations

import pytest
import torch

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import run
from cuir.runtime.compiled import compile
from cuir.syntax.parser import parse
from tests.gpu.isolation import run_isolated

pytestmark = pytest.mark.gpu

KERNEL = """
@kernel(arch="sm_90a")
def k(X: Global[{dtype}, M, 64], Y: Global[f32, M, 64]):
    buf = shared({dtype}, [64, 64])
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            store(buf, load(X[t * 64 : t * 64 + 64, :]))
            sync()
            x = {expression}
            store(Y[t * 64 : t * 64 + 64, :], x)
            sync()
"""
EXPRESSIONS = (
    "cast(load(buf), f32)",
    "cast(load(X[t * 64 : t * 64 + 64, :]), f32) * 2.0",
    "cast(load(buf) * 2.0, f32) + 1.0",
    "exp2(cast(load(buf), f32))",
    "where(load(buf) > 0, cast(-load(X[0:64, :]), f32), 1.0)",
    "row_max(cast(load(buf), f32)) + zeros(f32, [64, 64])",
    "cast(load(buf) + load(buf), f32) - row_sum(cast(load(buf), f32))",
    "cast(X[rows(64), cols(64)], f32) + cast(abs(load(buf)), f32)",
    "mma(load(buf) * 2.0, buf)",
)


def kernel(expression: str, dtype: str) -> Checked:
    return check(parse(KERNEL.format(expression=expression, dtype=dtype)))


def differences(dtype: str) -> dict[str, float]:
    """The largest difference between GPU and interpreter for each expression."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(150, 64, generator=generator).to({"f16": torch.float16, "bf16": torch.bfloat16}[dtype])
    actual = {}
    for expression in EXPRESSIONS:
        checked = kernel(expression, dtype)
        expected, y = torch.full((150, 64), torch.nan), torch.full((150, 64), torch.nan, device="cuda")
        run(checked, {"X": x, "Y": expected})
        compile(checked)(X=x.cuda(), Y=y)
        actual[expression] = float((y.cpu() - expected).abs().nan_to_num(nan=1e9).max())
    return actual


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_expressions(dtype: str) -> None:
    result = run_isolated(differences, dtype)
    assert {e: d for e, d in result.items() if d > 1e-4} == {}

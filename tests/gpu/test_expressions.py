"""Expressions on halves give on the GPU what they give in the interpreter.

Reductions and transposes give on the GPU what they give in the interpreter.
"""

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


REDUCTIONS = ("row_sum", "row_max", "col_sum", "col_max")
SHAPES = {"warpgroups=2": [(1, 1), (1, 64), (64, 1), (64, 24), (128, 64), (64, 256)], "warps=3": [(1, 8), (16, 1), (16, 64), (48, 24)]}
HEAD = """
@kernel(arch="sm_90a")
def reductions(X: Global[f32, W, 128, 256], Y: Global[f32, W, {kinds}, 128, 256]):
    with role("all", {workers}) as w:
        for i in range(2):
"""
TRANSPOSE = """
@kernel(arch="sm_90a")
def transposed(X: Global[{dtype}, 128, 64], Y: Global[{dtype}, 64, 128], Z: Global[{dtype}, 128, 64]):
    s = shared({dtype}, [2, 128, 64])
    with role("all", warpgroups=1):
        store(s[1], load(X[0:128, :]))
        store(Y[0:64, :], load(s[1].T))
        store(Z[0:128, :], load(s[1]))
"""
NORMS = """
@kernel(arch="sm_90a")
def distances(Q: Global[f16, 64, 64], K: Global[f16, 128, 64], Y: Global[f32, 64, 128]):
    q, k = shared(f16, [64, 64]), shared(f16, [128, 64])
    full = mbarrier(1)
    with role("load", warps=1):
        full.expect(nbytes(q) + nbytes(k))
        copy_async(Q[0:64, :], q, full)
        copy_async(K[0:128, :], k, full)
    with role("compute", warpgroups=1):
        full.wait(0)
        S = mma_async(q, k.T)
        keys, queries = cast(load(k.T), f32), cast(load(q), f32)
        mma_wait(S)
        store(Y[0:64, :], row_sum(queries * queries) + col_sum(keys * keys) - 2.0 * S)
"""


def reductions(workers: str, rows: int, cols: int) -> Checked:
    """A kernel that stores the reductions of a tile, broadcast to its shape, for each of its workers."""
    lines = [f"x = X[w, rows({rows}), cols({cols})] * cast(i + 1, f32)"]
    lines += [f"store(Y[w, {k}, rows({rows}), cols({cols})], {f}(x) + zeros(f32, [{rows}, {cols}]))" for k, f in enumerate(REDUCTIONS)]
    text = HEAD.format(workers=workers, kinds=len(REDUCTIONS)) + "".join(f"            {line}\n" for line in lines)
    return check(parse(text))


def measure_differences() -> dict[str, float]:
    """The largest difference from the interpreter for each shape."""
    generator, actual = torch.Generator().manual_seed(3), {}
    for workers, shapes in SHAPES.items():
        count = int(workers[-1])
        x = torch.randn(count, 128, 256, generator=generator)
        for rows, cols in shapes:
            checked = reductions(workers, rows, cols)
            expected = torch.zeros(count, len(REDUCTIONS), 128, 256)
            y = expected.cuda()
            run(checked, {"X": x, "Y": expected}, grid=1)
            compile(checked)(X=x.cuda(), Y=y)
            actual[f"{workers} [{rows}, {cols}]"] = float((y.cpu() - expected).abs().max())
    return actual


def compare_transposes(dtype: str) -> tuple[bool, bool]:
    """Compare the transpose, and a tile of two slabs that goes through shared memory, with the elements that were stored."""
    x = (
        torch.arange(128 * 64)
        .reshape(128, 64)
        .remainder(2000)
        .to({"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype])
    )
    x = x.cuda()
    y, z = torch.zeros(64, 128, dtype=x.dtype, device="cuda"), torch.zeros_like(x)
    compile(check(parse(TRANSPOSE.format(dtype=dtype))))(X=x, Y=y, Z=z)
    return torch.equal(y, x.T), torch.equal(z, x)


def distances() -> float:
    """The largest error of squared distances between queries and keys, relative to the largest one."""
    generator = torch.Generator().manual_seed(5)
    q, k = (torch.randn(n, 64, generator=generator).half().cuda() for n in (64, 128))
    y = torch.zeros(64, 128, device="cuda")
    compile(check(parse(NORMS)))(Q=q, K=k, Y=y)
    expected = torch.cdist(q.double(), k.double()) ** 2
    return float((y - expected).abs().max() / expected.max())


def test_reductions_of_every_shape() -> None:
    assert {shape: d for shape, d in run_isolated(measure_differences).items() if not d <= 1e-4} == {}


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_transposed_view_loads_as_the_transpose(dtype: str) -> None:
    assert run_isolated(compare_transposes, dtype) == [True, True]


def test_a_value_per_key_is_added_to_the_columns_of_a_product() -> None:
    assert run_isolated(distances) < 1e-5

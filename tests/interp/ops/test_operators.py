"""Expressions of scalars and tiles in the interpreter against Python and torch: broadcasting, rounding, NaNs, laziness. What single operations give: tests/meaning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cuir
from cuir.interp.values import Diverge, require_uniform, split_by
from cuir.syntax.types import BF16, F16, F32, I32
from cuir.testing import assert_matches


def test_lanes_part_by_value() -> None:
    values = np.array([4, 2, 4, 7])
    with pytest.raises(Diverge) as raised:
        require_uniform(values)
    assert [p.tolist() for p in raised.value.parts] == [[0, 2], [1], [3]]
    assert require_uniform(np.array([3, 3])) == 3
    assert [p.tolist() for p in split_by(np.array([True, False])).parts] == [[0], [1]]


TILES = """\
@kernel(arch="sm_80")
def tiles_of(X: Global[DT, 16, 32], Y: Global[DT, 16, 32], Z: Global[OUT, 16, 32], a: f32, n: i32, *, DT: const, OUT: const):
    with role("all", warps=1):
        x, y = load(X[:, :]), load(Y[:, :])
        store(Z[:, :], EXPRESSION)
"""
FLOATS = {
    "x + y * x - y": lambda x, y: x + y * x - y,
    "x / (abs(y) + 1.0)": lambda x, y: x / (y.abs() + 1),
    "where(x < y, x, y)": torch.minimum,
    "where(x < y, 0.0, x)": lambda x, y: torch.where(x < y, 0.0, x),
    "max(x, y, 0.5)": lambda x, y: torch.maximum(torch.maximum(x, y), torch.tensor(0.5)),
    "min(0.25, x)": lambda x, y: x.clamp(max=0.25),
    "1.0 - x": lambda x, y: 1 - x,
    "-x * 2.0": lambda x, y: -x * 2,
}
F32_ONLY = {
    "exp2(x) + log2(abs(y) + 1.0)": lambda x, y: torch.exp2(x) + torch.log2(y.abs() + 1),
    "tanh(x - row_max(y))": lambda x, y: torch.tanh(x - y.amax(1, keepdim=True)),
    "x * a + cast(n, f32)": lambda x, y: x * 1.5 + 7,
    "row_sum(x) / row_sum(abs(y))": lambda x, y: (x.sum(1, keepdim=True) / y.abs().sum(1, keepdim=True)).expand(16, 32),
    "cast(rows(16) * 3 + cols(32) // 5 % 4, f32)": lambda x, y: (torch.arange(16)[:, None] * 3 + torch.arange(32)[None] // 5 % 4).float(),
    "cast(cast(x * 3.0, i32), f32)": lambda x, y: torch.trunc(x * 3),
    "where((x < 0.0) & ~(y > 0.0) | (cols(32) == 3), x, y)": lambda x, y: torch.where((x < 0) & ~(y > 0) | (torch.arange(32) == 3), x, y),
    "cast(cast(x, f16), f32)": lambda x, y: x.half().float(),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("dtype", "kind"), [(torch.float32, F32), (torch.float16, F16), (torch.bfloat16, BF16)], ids=["f32", "f16", "bf16"]
)
@pytest.mark.parametrize("text", [*FLOATS, *F32_ONLY])
def test_tile_expressions(text: str, dtype: torch.dtype, kind) -> None:
    if text in F32_ONLY and kind is not F32:
        return
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(16, 32, generator=g).to(dtype) for _ in range(2))
    expression = f"{text} + zeros(f32, [16, 32])" if "row_sum(x)" in text else text
    program = cuir.parse(TILES.replace("EXPRESSION", expression))
    values = {"X": x, "Y": y, "a": 1.5, "n": 7}
    assert_matches(program, lambda x, y: (FLOATS | F32_ONLY)[text](x, y), values, consts={"DT": kind, "OUT": kind}, schedules=1)


def test_half_precision_rounds_after_each_operation(execute) -> None:
    x = torch.full((16, 32), 2048.0, dtype=torch.float16)
    y = torch.ones(16, 32, dtype=torch.float16)
    z = torch.empty(16, 32, dtype=torch.float16)
    execute(TILES.replace("EXPRESSION", "x + y + y"), {"X": x, "Y": y, "Z": z, "a": 0.0, "n": 0}, {"DT": F16, "OUT": F16})
    assert torch.equal(z, x)  # 2048 + 1 rounds to even, twice


@pytest.mark.parametrize("text", ["full(DT, [16, 32], 0.1)", "where(x > y, x, 0.1)"])
def test_literals_in_tiles_of_half_precision_are_rounded(execute, text: str) -> None:
    """A read back as f32 gives the f16 nearest to 0.1."""
    x, z = torch.zeros(16, 32, dtype=torch.float16), torch.empty(16, 32)
    ran = execute(TILES.replace("EXPRESSION", f"cast({text}, f32)"), {"X": x, "Y": x, "Z": z, "a": 0.0, "n": 0}, {"DT": F16, "OUT": F32})
    assert ran.error is None, ran.error
    assert (z == float(torch.tensor(0.1, dtype=torch.float16))).all()


def test_row_max_of_a_nan_is_one(execute) -> None:
    x = torch.randn(16, 32)
    x[3, 5] = torch.nan
    x[4] = torch.nan
    z = torch.empty(16, 32)
    execute(
        TILES.replace("EXPRESSION", "row_max(x) + zeros(f32, [16, 32])"),
        {"X": x, "Y": x, "Z": z, "a": 0.0, "n": 0},
        {"DT": F32, "OUT": F32},
    )
    assert torch.isnan(z[3:5]).all() and not torch.isnan(z[5:]).any() and torch.equal(z[5:, 0], x[5:].amax(1))


def test_tiles_of_integers_divide_as_python(execute) -> None:
    text = TILES.replace("EXPRESSION", "x // y * 100 + x % y")
    x = torch.arange(-256, 256, dtype=torch.int32).reshape(16, 32)
    y = torch.where(torch.arange(512).reshape(16, 32) % 2 == 0, 7, -5).to(torch.int32)
    z = torch.empty_like(x)
    ran = execute(text, {"X": x, "Y": y, "Z": z, "a": 0.0, "n": 0}, {"DT": I32, "OUT": I32})
    assert ran.error is None, ran.error
    assert z.tolist() == [[a // b * 100 + a % b for a, b in zip(r, s)] for r, s in zip(x.tolist(), y.tolist())]
    y[5, 5] = 0
    failed = execute(text, {"X": x, "Y": y, "Z": z, "a": 0.0, "n": 0}, {"DT": I32, "OUT": I32})
    assert (failed.code, failed.at) == ("M411", "x // y")


def test_smallest_integer_by_minus_one(execute) -> None:
    x, y = torch.full((16, 32), -(2**31), dtype=torch.int32), torch.full((16, 32), -1, dtype=torch.int32)
    z = torch.empty_like(x)
    assert (
        execute(TILES.replace("EXPRESSION", "x // y + x % y"), {"X": x, "Y": y, "Z": z, "a": 0.0, "n": 0}, {"DT": I32, "OUT": I32}).error
        is None
    )
    assert torch.equal(z, x)


LAZY = """\
@kernel(arch="sm_80")
def lazy(X: Global[i32, A], Y: Global[i32, A, 16], *, LAST: const = 0):
    work = tiles(A)
    with role("all", warps=1):
        for t in work:
            after = X[t + 1] if t + 1 < A else -1
            both = t + 1 < A and X[t + 1] > 2
            either = t + 1 == A or X[t + 1] > 2
            v = after * 100 + (10 if both else 0) + (1 if either else 0)
            store(Y[t, rows(16)], zeros(i32, [16, 1]) + v)
"""


@pytest.mark.parametrize("lanes", [1, 4])
def test_scalars_are_lazy_in_every_lane(execute, lanes: int) -> None:
    x, y = torch.tensor([5, 1, 4, 2], dtype=torch.int32), torch.zeros(4, 16, dtype=torch.int32)
    ran = execute(LAZY, {"X": x, "Y": y}, grid=4, lanes=lanes)
    assert ran.error is None, ran.error
    assert y[:, 0].tolist() == [100, 411, 200, -99]
    divided = execute(LAZY.replace("X[t + 1] if t + 1 < A else -1", "cdiv(7, t) if t > 0 else -1"), {"X": x, "Y": y}, grid=4, lanes=lanes)
    assert divided.error is None, divided.error
    eager = execute(LAZY.replace("X[t + 1] if t + 1 < A else -1", "X[t + 1]"), {"X": x, "Y": y}, grid=4, lanes=lanes)
    assert (eager.code, eager.at) == ("M402", "X[t + 1]")

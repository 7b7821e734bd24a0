"""Gathers along the columns: a warp reads each column once; other gathers are read where they are used."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cuir.lowering import Cuda
from cuir.lowering.passes import decompose_affine_tiles, gather_per_column, limit_columns
from cuir.lowering.passes.pipeline import CLEAN
from tests.lowering.conftest import HEAD, kernel
from tests.lowering.host import GXX, on_cpu
from tests.lowering.passes.lowering import cuda, text

BODY = "S = zeros(f32, [64, 80])\nk = n * 80 + cols(80)\nq = rows(64)\nS = where({}, S, 1.0)\nstore(Y[q], row_sum(S))"


def ir(condition: str) -> str:
    return text(kernel(BODY.format(condition)), [limit_columns.run, gather_per_column.run])


@pytest.mark.parametrize(
    "condition", ["I[k] == I[q]", "(I[k] == I[q]) & (k < n)", "(I[k - 3] > 0) | (I[k] > q)", "I[n + cols(80)] == n", "I[cols(80)] == q"]
)
def test_a_warp_reads_each_column_once(condition: str) -> None:
    result = ir(condition)
    assert len(re.findall(r"tile\.read_columns\(%\w+\) : !tile.reg<i32, 1, 80, lanes>", result)) == len(re.findall(r"I\[[^q]", condition))
    assert len(re.findall(r"tile\.at %I\[.*: 80\] : !tile.tensor<i32, 80>", result)) == len(re.findall(r"I\[[^q]", condition))


@pytest.mark.parametrize("condition", ["I[2 * k] == n", "I[k + q] == n", "I[k * k] == n", "I[q] == n", "I[-k] == n"])
def test_other_gathers_are_read_in_place(condition: str) -> None:
    assert "read_columns" not in ir(condition)


def test_lines_are_seen_through() -> None:
    result = text(kernel(BODY.format("I[k - 3] == q")), [limit_columns.run, decompose_affine_tiles.run, gather_per_column.run])
    assert "read_columns" in result


def test_a_tensor_that_the_kernel_writes_is_read_in_place() -> None:
    body = "k = cols(64)\nS = zeros(f32, [64, 64]) + Y[k]\nstore(Y[rows(64)], row_sum(S))"
    assert "read_columns" not in text(kernel(body), [gather_per_column.run])


def test_one_index_of_several_runs() -> None:
    head = HEAD.replace("I: Global[i32, M]", "I: Global[i32, 7, M]")
    result = text(kernel(BODY.format("I[n, k] == n"), head), [gather_per_column.run])
    assert re.search(r"tile\.at %I\[%n, %\w+ : 80\] : !tile.tensor<i32, 80>", result)


@pytest.mark.parametrize(
    ("body", "by_lanes", "exchanges"),
    [
        ("A = log1p(cast(I[k], f32) * 2.0)", 3, 1),
        ("A = cast(I[k], f32) + cast(I[k + 1], f32)", 3, 1),  # of two that were read, one exchange
        ("A = cast(I[k], f32) + cast(k, f32)", 1, 1),  # the lane does not hold the column's index
        ("A = log1p(cast(I[k], f32)) * cast(I[k], f32)", 3, 1),
        (
            "A = where(I[k] == rows(64), 1.0, log1p(cast(I[k], f32)))",
            2,
            2,
        ),  # what others need, too, is exchanged beside what is dear to make of it
    ],
)
def test_lanes_work_out_what_follows_from_what_they_read(body: str, by_lanes: int, exchanges: int) -> None:
    result = text(
        kernel(f"k = n * 80 + cols(80)\n{body}\nstore(Y[rows(64)], row_sum(zeros(f32, [64, 80]) + A))"),
        [limit_columns.run, gather_per_column.run, *(p.run for p in CLEAN)],
    )
    assert len(re.findall(r"tile\.apply .*, lanes>", result)) == by_lanes
    assert result.count("tile.convert_layout") == exchanges


def test_lanes_and_columns_meet() -> None:
    """The lane that a thread asks holds the column that it has: columns 2 (lane % 4) + 8 i and the next, of lanes that hold 32 x + lane."""
    for lane in range(32):
        col = 2 * (lane % 4)
        for c in range(32):
            k = 8 * (c // 2) + c % 2
            x, requests = k // 32, k % 32 + col
            assert requests < 32 and 32 * x + requests == k + col


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
def test_what_is_printed_reads_the_columns(tmp_path_factory: pytest.TempPathFactory) -> None:
    head = '@kernel(arch="sm_90a")\ndef k(I: Global[i32, M], Z: Global[f32, R, 80], n: i32):\n    with role("all", warpgroups=1) as w:\n'
    result = cuda(kernel("A = zeros(f32, [64, 80]) + cast(I[n + cols(80)], f32)\nstore(Z[rows(64), cols(80)], A)", head))
    assert (
        len(re.findall(r"int \w+\[3\];", result.source)) == 1 and result.source.partition("// ---- role")[2].count("__shfl_sync(~0u, ") == 1
    )
    inputs, z = np.arange(100, 200, dtype=np.int32), np.full((64, 80), np.nan, np.float32)
    _compare(result, inputs, z, lambda x: x, tmp_path_factory.mktemp("host"))


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
def test_what_lanes_work_out_is_right(tmp_path_factory: pytest.TempPathFactory) -> None:
    head = '@kernel(arch="sm_90a")\ndef k(I: Global[i32, M], Z: Global[f32, R, 80], n: i32):\n    with role("all", warpgroups=1) as w:\n'
    result = cuda(kernel("A = zeros(f32, [64, 80]) + sqrt(cast(I[n + cols(80)], f32))\nstore(Z[rows(64), cols(80)], A)", head))
    assert len(re.findall(r"\w+\[3\];", result.source)) == 2  # what was read, and its root
    _compare(
        result,
        np.arange(100, 200, dtype=np.int32),
        np.full((64, 80), np.nan, np.float32),
        lambda x: np.sqrt(x.astype(np.float32)),
        tmp_path_factory.mktemp("host"),
    )


def _compare(result: Cuda, inputs: np.ndarray, z: np.ndarray, function: Callable[[np.ndarray], np.ndarray], folder: Path) -> None:
    call = on_cpu(result, folder)
    tensors = {"I": (inputs,), "Z": (z, 80)}
    for n in (0, 15, 50, -30):
        call(*[a for name in result.tensors for a in tensors[name]], n, 100, 64)
        at = n + np.arange(80)
        assert (z == function(np.where((at >= 0) & (at < 100), inputs[np.clip(at, 0, 99)], 0))).all()

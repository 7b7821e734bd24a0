"""A limit on columns beside a mask is asked in the block that reaches it; limits alone, limits of rows and other choices stay as they are."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from cuir.lowering.passes import limit_columns, peel_ragged_mask
from tests.lowering.conftest import kernel
from tests.lowering.host import GXX, on_cpu
from tests.lowering.passes.lowering import cuda, text

BODY = "S = zeros(f32, [64, 80])\nk = n * 80 + cols(80)\nq = rows(64)\nS = where({}, S, {})\nstore(Y[q], row_sum(S))"


def ir(condition: str, otherwise: str = "1.0") -> str:
    return text(kernel(BODY.format(condition, otherwise)), [limit_columns.run, peel_ragged_mask.run])


@pytest.mark.parametrize(
    "condition",
    [
        "(I[k] == I[q]) & (k < n)",
        "(k < n) & (I[k] == I[q])",
        "(k <= n) & (I[k] == q)",
        "(I[k] == q) & (q < n) & (k < n)",
        "(k < n) & (k < 300) & (I[k] == q)",
    ],
)
def test_it_stands_under_a_branch(condition: str) -> None:
    result = ir(condition)
    (branch,) = re.findall(r"tile\.if.*", result)
    assert len(re.findall('tile.apply "where"', result)) == 2 and result.index('"where"') < result.index(branch) < result.rindex('"where"')
    assert '"&"' not in result[result.index(branch) :]


@pytest.mark.parametrize("first, second", [("k < n", "I[k] == I[q]"), ("I[k] == I[q]", "k < n"), ("(I[k] == q) & (q < n)", "k < n")])
@pytest.mark.parametrize("rest", [("1.0", "1.0"), ("1.0", "2.0")])
def test_however_the_two_are_written(first: str, second: str, rest: tuple[str, str]) -> None:
    body = f"S = zeros(f32, [64, 80])\nk = n * 80 + cols(80)\nq = rows(64)\nS = where({first}, S, {rest[0]})\nS = where({second}, S, {rest[1]})\nstore(Y[q], row_sum(S))"
    result = text(kernel(body), [limit_columns.run, peel_ragged_mask.run])
    assert len(re.findall(r"tile\.if", result)) == 1 and len(re.findall('tile.apply "where"', result)) == 2


@pytest.mark.parametrize(
    "condition",
    [
        "k < n",  # alone
        "(k <= q) & (k < n)",  # limits alone are one
        "(k > q - 5) & (k < n)",
        "(I[k] == q) & (k < q)",  # a limit of each row
        "(I[k] == q) & (k > n)",  # from below: no last block
        "(I[k] == q) | (k < n)",
        "(I[q] == q) & (k < n)",  # a row is asked once
    ],
)
def test_others_stay(condition: str) -> None:
    assert "tile.if" not in ir(condition)


HEAD = '@kernel(arch="sm_90a")\ndef f(I: Global[i32, M], Z: Global[f32, R, 80], n: i32, m: i32):\n    with role("all", warpgroups=1):\n'


def test_a_number_that_a_limit_chooses_stays() -> None:
    body = "S = zeros(f32, [64, 80])\nk = n * 80 + cols(80)\nq = rows(64)\nA = where(k < n, 1.0, S)\nS = where(I[k] == I[q], A, S)\nstore(Y[q], row_sum(S))"
    assert "tile.if" not in text(kernel(body), [limit_columns.run, peel_ragged_mask.run])


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@pytest.mark.parametrize("otherwise", ["-inf", "2.0", "cast(q - k, f32)"])
def test_it_gives_the_same(otherwise: str, tmp_path: Path) -> None:
    """Printed and run, for blocks within, across and behind the end."""
    body = f"k = n * 80 + cols(80)\nq = rows(64)\nS = where((I[k] == I[q]) & (k < m), zeros(f32, [64, 80]) + cast(k, f32), {otherwise})\nstore(Z[q, cols(80)], S)"
    result = cuda(kernel(body, HEAD), [limit_columns.run, peel_ragged_mask.run])
    assert " < 80;" in result.source
    call = on_cpu(result, tmp_path)
    of, z = np.random.default_rng(3).integers(0, 3, 160).astype(np.int32), np.full((64, 80), np.nan, np.float32)
    for n, end in itertools.product((0, 1), (0, 1, 37, 79, 80, 81, 160, 2**31 - 1, -5)):
        arrays = {"I": (of,), "Z": (z, 80)}
        call(*[a for name in result.tensors for a in arrays[name]], n, end, 160, 64)
        k, q = n * 80 + np.arange(80), np.arange(64)[:, None]
        second = {"-inf": -np.inf, "2.0": 2.0}.get(otherwise, (q - k).astype(np.float32))
        np.testing.assert_array_equal(z, np.where((of[k] == of[q]) & (k < end), k.astype(np.float32), second))

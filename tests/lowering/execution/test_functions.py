"""Functions of the elements of a tile that the lowering writes itself, near every number where their error could grow: within the bound that the table of primitives states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.syntax.parser import parse
from tests.lowering.host import GXX, on_cpu

ULPS = 2
TEXT = """
@kernel(arch="sm_90a")
def f(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    with role("one", warpgroups=1):
        for i in range(0, M, 64):
            y = {function}(X[i + rows(64), cols(64)]) * 1.0
            store(Y[i + rows(64), cols(64)], where(y > 0.0, y, y + 0.0))
"""
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1.1754944e-38,
    3.4028235e38,
    -3.4028235e38,
    71476.0,
    71477.0,
    -71477.0,
]
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"log2": np.log2, "log1p": np.log1p, "sin": np.sin, "cos": np.cos}


def around(seed: int) -> np.ndarray:
    """Numbers of all magnitudes, and more of them near 0, 1, -1 and the middles between multiples of pi / 2; with special ones among their neighbours."""
    g, n = np.random.default_rng(seed), 64 * 64
    near = lambda x, width: x + g.standard_normal(n) * width  # noqa: E731
    parts = [
        np.exp(g.uniform(-103.0, 88.7, n)),
        -np.exp(g.uniform(-103.0, 88.7, n)),
        near(1.0, 0.3),
        near(1.0, 1e-3),
        near(0.0, 0.3),
        g.uniform(-1.0, 1.0, n),
        g.uniform(-1e5, 1e5, n),
        near(0.0, 0.25) + np.pi / 2 * g.integers(-1000, 1000, n),
        g.uniform(0.5, 4.0, n),
    ]
    with np.errstate(over="ignore"):
        x = np.concatenate(parts).astype(np.float32)
    x[g.choice(x.size, len(SPECIAL), replace=False)] = SPECIAL
    return x.reshape(-1, 64)


@pytest.mark.sweep(4)
@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@pytest.mark.parametrize("contract", ["off", "fast"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_the_stated_bound(name: str, contract: str, tmp_path: Path) -> None:
    call = on_cpu(lower(check(parse(TEXT.format(function=name)))), tmp_path, contract)
    for seed in range(4):
        x = around(seed)
        y = np.full_like(x, 7.0)
        call(x, 64, y, 64, x.shape[0])
        with np.errstate(all="ignore"):
            expected = FUNCTIONS[name](x.astype(np.float64))
            unit = np.spacing(np.abs(expected.astype(np.float32))).astype(np.float64)
            off = np.abs(y - expected) / unit
        right = (off <= ULPS) | (y == expected) | (np.isnan(y) & np.isnan(expected))
        assert right.all(), (name, x[~right][:5], y[~right][:5], expected[~right][:5])

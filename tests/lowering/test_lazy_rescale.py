"""References of rows that hardly ever move: which statements are such a pair, and that the texts follow the rule for every row."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir import parse
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.types import F16
from tests.lowering.conftest import kernel
from tests.lowering.host import GXX, on_cpu

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, N], F: Global[f32, M], Z: Global[f32, M, COLUMNS], Y: Global[f32, M], L: Global[f32, M], n: i32, scale: f32):
    with role("all", warpgroups=1):
"""
STEPS = """\
top = full(f32, [64, 1], -1e30)
total = zeros(f32, [64, 1])
acc = zeros(f32, [64, COLUMNS])
f = F[rows(64)]
for i in range(n):
    S = X[rows(64), i * COLUMNS + cols(COLUMNS)]
    new = max(top, row_max(S) * FACTOR)
    new = where(new - top > LIMIT, new, top)
    P = exp2(S * FACTOR - new)
    alpha = exp2(top - new)
    total = total * alpha + row_sum(P)
    acc = acc * alpha
    acc = acc + P
    top = new
store(Z[rows(64), cols(COLUMNS)], acc)
store(Y[rows(64)], top)
store(L[rows(64)], total)
"""
FIRST = "new = max(top, row_max(S) * FACTOR)"


def filled(text: str, columns: int = 48, factor: str = "scale", limit: str = "8.0") -> str:
    return text.replace("COLUMNS", str(columns)).replace("FACTOR", factor).replace("LIMIT", limit)


def source(body: str = STEPS, **options: object) -> str:
    return lower(kernel(filled(body, **options), filled(HEAD, **options))).source  # type: ignore[arg-type]


# ---- which
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("max(top, row_max(S) * FACTOR)", "max(row_max(S) * FACTOR, top)"),
        ("max(top, row_max(S) * FACTOR)", "max(top, FACTOR * row_max(S))"),
        ("max(top, row_max(S) * FACTOR)", "max(top, row_max(S))"),
        ("FACTOR", "f"),
        ("FACTOR", "1.5"),
        ("LIMIT", "0.0"),
        ("LIMIT", "8"),
    ],
)
def test_pairs(old: str, new: str) -> None:
    found = source(STEPS.replace(old, new) if old else STEPS)
    (moves,) = re.findall(r"bool (moves__\d+)", found)
    (inside,) = re.findall(rf"if \({moves}\) {{\n(.*?)\n    }}\n", found, re.DOTALL)
    assert found.count("cuir::row_bound(S") == 1 and found.count("cuir::row_max_nan(S") == inside.count("cuir::row_max_nan(S") == 1
    assert found.count("top[r_] - new_u[r_]") == inside.count("top[r_] - new_u[r_]") == 1  # the factor


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT", "-1.0"),  # a maximum that is no greater exceeds that
        ("LIMIT", "scale"),
        ("> LIMIT", ">= LIMIT"),
        ("> LIMIT, new, top)", "> LIMIT, top, new)"),
        ("new - top", "top - new"),
        (FIRST, FIRST + "\n    new = new + 0.5"),
        ("row_max(S) * FACTOR)", "row_max(S) + FACTOR)"),
        ("row_max(S) * FACTOR)", "row_max(S * FACTOR))"),
        ("max(top, row_max(S)", "max(top + 1.0, row_max(S)"),
        ("    top = new\n", ""),  # then the reference is one number, which the first maximum moves
    ],
)
def test_no_pairs(old: str, new: str) -> None:
    found = source(STEPS.replace(old, new))
    assert "row_bound" not in found and "moves" not in found


TOPS = """\
S = X[rows(64), cols(COLUMNS)]
f = F[rows(64)]
top = TOP
new = max(top, row_max(S) * f)
new = where(new - top > LIMIT, new, top)
"""


@pytest.mark.parametrize(
    ("top", "kept"),
    [
        ("f * 2.0", True),
        ("row_max(S)", True),
        ("row_sum(S)", False),  # of which a thread holds a part
        ("row_sum(S) * f + 0.0 * row_sum(S)", False),
        ("scale * 2.0", False),
        ("full(f32, [1, 1], scale) + 1.0", False),
        ("S + 3.0", False),
    ],
)
def test_a_reference_is_one_number_for_each_row(top: str, kept: bool) -> None:
    place = "store(Z[rows(64), cols(COLUMNS)], new)" if top.startswith("S") else "store(Y[rows(64)], new)"
    assert ("cuir::row_bound(" in source(TOPS.replace("TOP", top) + place)) == kept


def test_a_factor_that_the_pair_reads_keeps_its_place() -> None:
    found = source(TOPS.replace("TOP", "f * 2.0") + "f = exp2(top - new)\nstore(Y[rows(64)], new)\nstore(L[rows(64)], f)")
    lines = [line.strip() for line in found.split("\n")]
    (at,) = [i for i, line in enumerate(lines) if "f[r_] = cuir::ex2(" in line]
    assert (
        "cuir::row_bound(" in found
        and "0.f, 1.f)" not in found
        and at > lines.index("}", max(i for i, line in enumerate(lines) if "moves__" in line))
    )


@pytest.mark.parametrize(
    ("old", "new", "early"),
    [
        ("    P = exp2", "    if n > 3:\n        total = total + 1.0\n    P = exp2", True),
        ("    alpha = exp2(top - new)\n", "    old = top\n    top = new\n    alpha = exp2(old - new)\n", False),
        ("    alpha = exp2(top - new)\n", "    top = top + 0.0\n    alpha = exp2(top - new)\n", False),
        ("    alpha = exp2(top - new)\n", "    if n > 3:\n        new = new + 1.0\n    alpha = exp2(top - new)\n", False),
        ("    P = exp2", "    alpha = f\n    total = total + alpha\n    P = exp2", False),
        ("    alpha = exp2(top - new)\n", "    alpha = exp2(new - top)\n", False),
        ("    alpha = exp2(top - new)\n", "    alpha = exp2((top - new) * scale)\n", False),
    ],
)
def test_the_factor_stands_in_the_branch_if_nothing_is_between(old: str, new: str, early: bool) -> None:
    assert old in STEPS
    found = source(STEPS.replace(old, new))
    assert "cuir::row_bound(" in found and ("alpha[r_] = fmaf(top[r_], 0.f, 1.f)" in found) == early


def test_the_choice_is_told() -> None:
    (found,) = [c for c in lower(kernel(filled(STEPS), filled(HEAD))).choices if "exceeds" in c]
    assert found.startswith("line 10: ")


# ---- what the texts compute
Run = Callable[..., None]


@pytest.fixture(scope="module", params=[(8, "scale", "0.0"), (48, "f", "8.0"), (80, "scale", "8.0")], ids=str)
def steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, bool, float, Run]:
    columns, factor, limit = request.param
    found = lower(kernel(filled(STEPS, *request.param), filled(HEAD, columns)))
    assert "cuir::row_bound(" in found.source
    return columns, factor == "f", float(limit), on_cpu(found, tmp_path_factory.mktemp("host"))


@np.errstate(invalid="ignore")  # infinities
def expected(x: np.ndarray, factor: np.ndarray, limit: float, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The statements, in single precision where they decide, in double where they add."""
    top, total, acc = np.full(64, -1e30, np.float32), np.zeros(64), np.zeros((64, columns))
    for s in np.split(x, x.shape[1] // columns, axis=1):
        new = np.maximum(top, s.max(1) * factor)
        new = np.where(new - top > np.float32(limit), new, top)
        p = np.exp2(s * factor[:, None] - new[:, None]).astype(np.float64)
        alpha = np.exp2((top - new).astype(np.float64))
        total, acc, top = total * alpha + p.sum(1), acc * alpha[:, None] + p, new
    return acc, top, total


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 4),
    spread=st.sampled_from([0.1, 4.0, 30.0]),
    drift=st.sampled_from([0.0, 7.9, 8.1, 20.0, -9.0]),
    offset=st.sampled_from([0.0, -50.0, 50.0]),
    scale=st.sampled_from([1.0, 0.18, -0.5, 0.0]),
    dead=st.sampled_from([0.0, 0.3, 0.99]),
    infinite=st.booleans(),
)
def test_every_row_follows_the_rule(
    steps: tuple[int, bool, float, Run],
    seed: int,
    n: int,
    spread: float,
    drift: float,
    offset: float,
    scale: float,
    dead: float,
    infinite: bool,
) -> None:
    """Rows of one warp that move and rows that do not; negative elements only; factors of either sign; masked elements, rows of nothing else, infinities."""
    columns, by_row, limit, run = steps
    random = np.random.default_rng(seed)
    x = random.standard_normal((64, n * columns)) * spread + offset
    x += drift * (np.arange(n * columns) // columns) * (random.random(64) < 0.2)[:, None]  # a few rows grow
    if scale > 0 or by_row:  # times 0 that were NaN, times less than 0 the greatest of all
        x = np.where((random.random(x.shape) < dead) | (random.random(64) < dead / 4)[:, None], -np.inf, x)
        if infinite:
            x[random.integers(64), random.integers(x.shape[1])] = np.inf
    x = x.astype(np.float32)
    f = random.uniform(0.05, 2, 64).astype(np.float32)
    factor = f if by_row else np.full(64, scale, np.float32)
    z, top, total = np.full((64, columns), np.nan, np.float32), np.full(64, np.nan, np.float32), np.full(64, np.nan, np.float32)
    run(f, x, x.shape[1], z, columns, top, total, n, scale, 64, x.shape[1])
    want_z, want_top, want_total = expected(x, factor, limit, columns)
    assert (top == want_top).all()
    assert np.allclose(total, want_total, rtol=1e-5, atol=1e-30, equal_nan=True) and np.allclose(
        z, want_z, rtol=1e-5, atol=1e-30, equal_nan=True
    )


# ---- the expert kernel
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
@pytest.mark.parametrize(
    "consts", [{"D": 64, "BM": 192, "BN": 128}, {"D": 128, "BM": 128, "BN": 128}, {"D": 128, "BM": 192, "BN": 80}], ids=str
)
def test_the_expert_kernel_keeps_references_in_its_loop(consts: dict[str, int]) -> None:
    program = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"))
    cuda = lower(check(program, consts={"T": F16, **consts}))
    assert cuda.source.count("cuir::row_bound(") == 1  # a tile's first block always moves it
    found = compile_cuda(cuda).resources
    assert found.spill_stores + found.spill_loads + found.stack == 0 and found.warnings == ()

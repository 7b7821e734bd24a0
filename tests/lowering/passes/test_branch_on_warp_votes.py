"""Choices by a vote of a warp become its branches: which share one, what goes inside, and that what is printed follows the rule for every row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir import parse
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_evaluator import evaluate
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.machine_ops import RowBound, WarpIf
from cuir.lowering.passes import branch_on_warp_votes, eliminate_common_subexpressions, simplify
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.types import F16
from tests.lowering.conftest import kernel
from tests.lowering.host import GXX, on_cpu
from tests.lowering.passes.lowering import clean
from tests.strategies.selection import examples

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
    most = max(top, row_max(S) * FACTOR)
    moves = most - top > LIMIT
    some = warp_any(moves)
    new = where(some, where(moves, most, top), top)
    alpha = where(some, exp2(top - new), 1.0)
    P = exp2(S * FACTOR - new)
    total = total * alpha + row_sum(P)
    acc = where(warp_any(alpha != 1.0), acc * alpha, acc)
    acc = acc + P
    top = new
store(Z[rows(64), cols(COLUMNS)], acc)
store(Y[rows(64)], top)
store(L[rows(64)], total)
"""


def fill(text: str, columns: int = 48, factor: str = "scale", limit: str = "8.0") -> str:
    return text.replace("COLUMNS", str(columns)).replace("FACTOR", factor).replace("LIMIT", limit)


def branches(body: str = STEPS, **options: object) -> list[WarpIf]:
    result = build(kernel(fill(body, **options), fill(HEAD, **options)))  # type: ignore[arg-type]
    clean(result)
    branch_on_warp_votes.run(result)
    result.verify()
    clean(result)
    return [op for op in every(result) if isinstance(op, WarpIf)]


def inside(branch: WarpIf) -> list[str]:
    return [op.op for op in branch.then.block.ops if isinstance(op, ops.Apply)]


# ---- which
def test_choices_by_one_vote_share_a_branch() -> None:
    first, second = branches()
    assert len(first.results) == 2 and {"row_max", "exp2"} <= set(inside(first)) and inside(second) == ["*"]
    assert not list(first.orelse.block.ops)[:-1] or all(
        isinstance(op, (ops.Constant, ops.Apply)) for op in first.orelse.block.ops if op is not first.orelse.block.last_op
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("max(top, row_max(S) * FACTOR)", "max(row_max(S) * FACTOR, top)"),
        ("max(top, row_max(S) * FACTOR)", "max(top, FACTOR * row_max(S))"),
        ("max(top, row_max(S) * FACTOR)", "max(top, row_max(S))"),
        ("max(top, row_max(S) * FACTOR)", "max(top, row_max(S) + FACTOR)"),
        ("max(top, row_max(S) * FACTOR)", "max(top, row_max(S * FACTOR))"),
        ("most - top > LIMIT", "most > top + LIMIT"),
        ("most - top > LIMIT", "LIMIT < most - top"),
        ("FACTOR", "f"),
        ("FACTOR", "1.5"),
        ("LIMIT", "0.0"),
    ],
)
def test_a_vote_that_only_a_greater_maximum_makes_true_is_by_parts(old: str, new: str) -> None:
    """No thread asks another for the maximum of a row whose warp stays."""
    first, _ = branches(STEPS.replace(old, new) if old else STEPS)
    around = list(first.parent.ops)  # type: ignore[union-attr]
    assert sum(isinstance(op, RowBound) for op in around) == 1
    assert not any(isinstance(op, ops.Apply) and op.op == "row_max" for op in around) and inside(first).count("row_max") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("most - top > LIMIT", "top - most > LIMIT"),
        ("most - top > LIMIT", "most - top < LIMIT"),
        ("row_max(S) * FACTOR", "row_max(S) * -1.5"),
        ("row_max(S) * FACTOR", "row_max(S) * row_max(S)"),
        ("row_max(S) * FACTOR", "abs(row_max(S))"),
        ("row_max(S) * FACTOR", "row_sum(S)"),
    ],
)
def test_other_votes_are_by_rows(old: str, new: str) -> None:
    first, _ = branches(STEPS.replace(old, new))
    assert not any(isinstance(op, RowBound) for op in first.parent.ops)  # type: ignore[union-attr]


def test_what_others_read_too_stays_outside() -> None:
    first, _ = branches(STEPS.replace("    P = exp2", "    store(L[rows(64)], row_max(S))\n    P = exp2"))
    assert "row_max" not in inside(first)


def test_reductions_that_join_warps_stay_outside() -> None:
    """The warps of a worker meet in a reduction of columns, and may take different sides of a branch."""
    first, second = branches(
        STEPS.replace("acc = where(warp_any(alpha != 1.0), acc * alpha, acc)", "acc = where(warp_any(alpha != 1.0), acc * col_max(P), acc)")
    )
    around = list(first.parent.ops)  # type: ignore[union-attr]
    assert any(isinstance(op, ops.Apply) and op.op == "col_max" for op in around)
    assert not any("col_max" in inside(b) for b in (first, second))
    chain = STEPS.replace("alpha = where(some, exp2(top - new), 1.0)", "alpha = where(some, exp2(top - col_max(new)), 1.0)")
    assert not any("col_max" in inside(b) for b in branches(chain))


def test_the_maximum_of_a_single_row_is_asked_as_it_is() -> None:
    item = STEPS.replace("row_max(S)", "row_max(X[n, cols(COLUMNS)])")
    assert not any(isinstance(op, RowBound) for op in list(branches(item)[0].parent.ops))  # type: ignore[union-attr]


def test_choices_row_by_row_are_no_branches() -> None:
    assert branches(STEPS.replace("warp_any(moves)", "moves").replace("warp_any(alpha != 1.0)", "alpha != 1.0")) == []


# ---- the branch gives what the choice gives
KERNEL = """
@kernel(arch="sm_90a")
def chosen(X: Global[f32, M, 64], f: f32, Y: Global[f32, M], Z: Global[f32, M]):
    with role("all", warpgroups=1):
        x = load(X[0:{rows}, :])
        top = row_max(x - 10.0) * f
        some = warp_any({test})
        y = where(some, top * 2.0, top)
        store(Y[rows({rows})], where(some, y * 3.0, y))
        store(Z[rows({rows})], where(some, exp2(y), 1.0))
"""
TESTS = ["top > -1.0", "top - 3.0 > 8.0", "(top > 100.0) | (top < -9.0)", "-top < 0.5", "x > 2.5", "f > 0.0"]


def results(ir: ops.Kernel, f: float, rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    y, z = torch.zeros(rows), torch.zeros(rows)
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(3))
    evaluate(ir, {"X": x + torch.arange(float(rows))[:, None] * 8 / rows, "f": f, "Y": y, "Z": z})
    return y, z


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("f", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("test", TESTS)
def test_a_branch_gives_what_the_choice_gives(test: str, f: float, rows: int) -> None:
    """Also where rows of a warp are negative, so that a bound of the thread's own elements says more than there is, where the factor turns the order, and where a warp has several
    groups of rows, for each of which it chooses again."""
    ir = build(check(parse(KERNEL.format(test=test, rows=rows))))
    simplify.run(ir)
    eliminate_common_subexpressions.run(ir)
    expected = results(ir, f, rows)
    branch_on_warp_votes.run(ir)
    ir.verify()
    assert any(isinstance(op, WarpIf) for op in ir.walk())
    assert all(torch.equal(a, b) for a, b in zip(results(ir, f, rows), expected, strict=True))


@pytest.mark.parametrize(("test", "parts"), [("top > -1.0", True), ("(top > 100.0) | (top < -9.0)", False), ("x > 2.5", False)])
def test_threads_ask_their_own_elements_where_a_greater_maximum_alone_can_matter(test: str, parts: bool) -> None:
    ir = build(check(parse(KERNEL.format(test=test, rows=64))))
    simplify.run(ir)
    eliminate_common_subexpressions.run(ir)
    branch_on_warp_votes.run(ir)
    assert any(isinstance(op, RowBound) for op in ir.walk()) == parts


# ---- what is printed computes
Run = Callable[..., None]


@pytest.fixture(scope="module", params=[(8, "scale", "0.0"), (48, "f", "8.0"), (80, "scale", "8.0")], ids=str)
def steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, bool, float, Run]:
    columns, factor, limit = request.param
    cuda = lower(kernel(fill(STEPS, *request.param), fill(HEAD, columns)))
    assert cuda.source.count("cuir::row_bound(") == 1
    return columns, factor == "f", float(limit), on_cpu(cuda, tmp_path_factory.mktemp("host"))


@np.errstate(invalid="ignore")  # infinities
def compute_expected(x: np.ndarray, factor: np.ndarray, limit: float, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
@examples(0.5)
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
    run(*([f] if by_row else []), x, x.shape[1], z, columns, top, total, n, scale, 64, x.shape[1])
    want_z, want_top, want_total = compute_expected(x, factor, limit, columns)
    assert (top == want_top).all()
    assert np.allclose(total, want_total, rtol=1e-5, atol=1e-30, equal_nan=True)
    expected_values = ~np.isnan(
        want_total
    )  # a row with an infinity is NaN where its warp rescales it, and in some columns where it does not
    assert np.allclose(z[expected_values], want_z[expected_values], rtol=1e-5, atol=1e-30)


# ---- the expert kernel
@pytest.mark.nvcc
@pytest.mark.thorough("compiles the expert kernel; the pass itself is tested above")
@pytest.mark.parametrize(
    "consts", [{"D": 64, "BM": 192, "BN": 128}, {"D": 128, "BM": 128, "BN": 128}, {"D": 128, "BM": 192, "BN": 80}], ids=str
)
def test_the_expert_kernel_votes_by_parts_in_its_loop(consts: dict[str, int]) -> None:
    program = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"))
    cuda = lower(check(program, consts={"T": F16, **consts}))
    assert cuda.source.count("cuir::row_bound(") == 1  # a tile's first block always moves it
    result = compile_cuda(cuda).resources
    assert result.spill_stores + result.spill_loads + result.stack == 0 and result.warnings == ()

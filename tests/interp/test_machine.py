"""Batches: any size gives the same bits, lanes that part go their own ways, every schedule agrees; and the programs of the corpus against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cuir
from cuir.interp import Schedule

FLAGSHIP = "corpus/kernels/flash_fwd_sm90.cuir"
AMPERE = "corpus/kernels/flash_fwd_sm80.cuir"
PROGRAMS = [FLAGSHIP, AMPERE, *(f"corpus/programs/{n}.cuir" for n in ("flash_fwd", "flash_fwd_over_v", "flash_fwd_warps"))]
SHAPES = [(1, 2, 1, 256, 256), (2, 4, 2, 200, 333), (1, 3, 1, 130, 5), (1, 2, 2, 77, 0), (2, 2, 1, 1, 300), (1, 1, 1, 300, 100)]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("path", PROGRAMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_in_float64(attention, path: str, shape: tuple[int, ...]) -> None:
    ran, error, lse_error = attention(path, *shape)
    assert ran.error is None, ran.error
    assert error.max() < 1.5e-3
    assert lse_error.max() < 1e-5


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("D", "dtype"), [(128, torch.float16), (64, torch.bfloat16), (128, torch.bfloat16)])
@pytest.mark.parametrize(
    "consts",
    [{"PINGPONG": True}, {"BM": 192, "BN": 80}, {"STAGES": 3, "BN": 64}, {"DYNAMIC": False}, {"AHEAD": False, "PINGPONG": True}],
    ids=str,
)
def test_configurations(attention, D: int, dtype: torch.dtype, consts: dict[str, object]) -> None:
    ran, error, lse_error = attention(FLAGSHIP, 1, 2, 1, 300, 260, D=D, dtype=dtype, consts=consts)
    assert ran.error is None, ran.error
    assert error.max() < (2e-3 if dtype == torch.float16 else 1.6e-2)
    assert lse_error.max() < 1e-5


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "consts",
    [
        {"STAGES": 1},
        {"STAGES": 3, "BN": 32},
        {"QREGS": True, "BM": 64},
        {"QREGS": True, "STAGES": 1, "BM": 64, "BN": 128},
        {"WARPS": 8, "DYNAMIC": False},
        {"WARPS": 2, "BM": 64, "BN": 64},
    ],
    ids=str,
)
def test_configurations_of_sm80(attention, consts: dict[str, object]) -> None:
    for D, dtype, bound in ((64, torch.float16, 2e-3), (80, torch.bfloat16, 1.6e-2)):
        ran, error, lse_error = attention(AMPERE, 1, 2, 1, 300, 260, D=D, dtype=dtype, consts=consts)
        assert ran.error is None, ran.error
        assert error.max() < bound and lse_error.max() < 1e-5


def test_clusters(attention, any_schedule) -> None:
    ran, error, lse_error = attention("corpus/programs/flash_fwd_cluster.cuir", 1, 2, 1, 300, 333, schedule=any_schedule)
    assert ran.error is None, ran.error
    assert error.max() < 1e-3 and lse_error.max() < 1e-5


@pytest.fixture(scope="module", params=PROGRAMS)
def in_order(attention, request: pytest.FixtureRequest) -> tuple[str, Any]:
    """A program, and what it gives in order."""
    return request.param, attention(request.param, 1, 2, 1, 300, 260, grid=3)[0]


@pytest.mark.sweep
def test_every_schedule_gives_the_same_bits(attention, in_order: tuple[str, Any], any_schedule) -> None:
    path, first = in_order
    second, _, _ = attention(path, 1, 2, 1, 300, 260, grid=3, schedule=any_schedule)
    assert first.error is None and second.error is None, second.error
    assert torch.equal(first.arguments["O"], second.arguments["O"])
    assert torch.equal(first.arguments["LSE"], second.arguments["LSE"])


@pytest.mark.sweep(4)
@pytest.mark.parametrize("lanes", [2, 3, 8])
@pytest.mark.parametrize("grid", [8, 5])
def test_batches_give_the_bits_of_single_lanes(attention, lanes: int, grid: int) -> None:
    """Also where lanes part: with five CTAs the lanes of a batch have different query blocks."""
    shape = (1, 4, 2, 390, 333)
    single, _, _ = attention(FLAGSHIP, *shape, grid=grid, lanes=1)
    batch, _, _ = attention(FLAGSHIP, *shape, grid=grid, lanes=lanes)
    assert single.report is not None and batch.report is not None
    assert single.report.batches == grid > batch.report.batches - batch.report.splits
    for name in ("O", "LSE"):
        assert torch.equal(single.arguments[name], batch.arguments[name])


def test_lanes_part_where_control_flow_does(attention) -> None:
    """Six query blocks of a causal kernel in one batch: six trip counts."""
    ran, error, _ = attention(FLAGSHIP, 1, 1, 1, 768, 768, grid=6)
    assert ran.report is not None and ran.report.splits >= 1
    assert error.max() < 1.5e-3


def test_work_is_counted(attention) -> None:
    ran, _, _ = attention(FLAGSHIP, 1, 2, 2, 512, 512, D=128)
    assert ran.report is not None
    assert ran.report.units == 8 and ran.report.workers == 4
    assert ran.report.blocks == 2 * (1 + 2 + 3 + 4)  # blocks on and below the diagonal


def test_split_batches_find_faults_too(pipe) -> None:
    change = (
        "            for i in range(N):\n                s = it % STAGES\n                full",
        "            for i in range(N - t // 2):\n                s = it % STAGES\n                full",
    )
    ran = pipe(change, U=4, grid=4)
    assert ran.code == "M403" or ran.code[0] in "DR"
    assert ran.error is not None and "CTAs 2-3" in str(ran.error)


def test_strided_tensors(execute) -> None:
    """Arbitrary outer strides, of inputs and outputs."""
    text = """\
@kernel(arch="sm_80")
def scale2(X: Global[f32, A, B, 32], Y: Global[f32, A, B, 32]):
    work = tiles(A)
    with role("all", warps=1):
        for t in work:
            store(Y[t, 0 : 16, :], load(X[t, 0 : 16, :]) * 2.0)
"""
    x = torch.randn(20, 5, 64).transpose(0, 1)[:, :, ::1][..., 16:48]
    y = torch.zeros(20, 5, 40).transpose(0, 1)[..., 4:36]
    ran = execute(text, {"X": x, "Y": y}, grid=5)
    assert ran.error is None, ran.error
    assert torch.equal(y[:, :16], x[:, :16] * 2) and not y[:, 16:].any()


def test_atomic_additions_commute(execute) -> None:
    text = """\
@kernel(arch="sm_80")
def total(X: Global[f32, A, 16, 32], Y: Global[f32, 16, 32], Z: Global[f32, 16]):
    work = tiles(A)
    with role("all", warps=1):
        for t in work:
            x = load(X[t, 0 : 16, :])
            store(Y[0 : 16, :], x, add=True)
            store(Z[rows(16)], row_sum(x), add=True)
"""
    x = torch.randn(7, 16, 32)
    y, z = torch.zeros(16, 32), torch.zeros(16)
    ran = execute(text, {"X": x, "Y": y, "Z": z}, grid=7)
    assert ran.error is None, ran.error
    torch.testing.assert_close(y, x.sum(0))
    torch.testing.assert_close(z, x.sum((0, 2)))
    plain = execute(text.replace("row_sum(x), add=True", "row_sum(x)"), {"X": x, "Y": y, "Z": z}, grid=7)
    assert (plain.code, plain.at) == ("R402", "store(Z[rows(16)], row_sum(x))")


@pytest.mark.parametrize("text", ["random:7", "adversarial:7", "adversarial:reverse", "adversarial:starve:2", "in_order"])
def test_schedules_are_read_as_written(text: str) -> None:
    assert str(Schedule.parse(text)) == text


@pytest.mark.parametrize("text", ["", "random", "random:x", "adversarial:never", "in_order:1", "adversarial:starve:x"])
def test_bad_schedules(text: str) -> None:
    with pytest.raises(cuir.CuirError) as raised:
        Schedule.parse(text)
    assert raised.value.diagnostics[0].code == "U111"


@pytest.mark.parametrize("grid", [0, -1, 1.5, True])
def test_bad_grid(pipe, grid: object) -> None:
    assert pipe(grid=grid).code == "U112"


def test_more_ctas_than_work(pipe, pipe_error) -> None:
    ran = pipe(U=2, grid=5)
    assert ran.error is None and pipe_error(ran) < 4e-3


def test_a_value_that_nobody_needs_stops_nobody() -> None:
    text = """\
@kernel(arch="sm_90a")
def count(X: Global[i32, M]):
    work = tiles(M)
    with role("all", warpgroups=1):
        for t in work:
            cdiv(t, 1)
            _, a = cdiv(t, 1), t
            store(X[t], a)
"""
    x = torch.zeros(5, dtype=torch.int32)
    cuir.run(cuir.parse(text), {"X": x}, grid=1)
    assert x.tolist() == [0, 1, 2, 3, 4]

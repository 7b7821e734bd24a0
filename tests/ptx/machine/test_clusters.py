"""Kernels in clusters: results under every schedule, and each missing wait, arrival or barrier found; and those of the corpus as they were lowered."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from cuir.cuda import LoadedModule, Report, load, tensor_map
from cuir.text.diagnostics import CuirError

from .test_actions_warpgroup import compile_without, lowered

SOURCE = Path(__file__).parent.parent / "cluster_kernels.cu"
SCHEDULES = ("together", "first", "last", *(f"random:{n}" for n in range(6)))
pytestmark = pytest.mark.nvcc


@functools.cache
def compiled() -> LoadedModule:
    return load(SOURCE, arch="sm_90a")


def run(name: str, size: int, schedule: str = "together", grid: int = 4) -> tuple[Report, torch.Tensor]:
    y = torch.zeros(size, dtype=torch.int32)
    return compiled()[name](grid, 32 if not name.startswith(("store", "copy")) else 64, y, schedule=schedule, raises=False), y


def run_spread(name: str, schedule: str) -> tuple[Report, bool]:
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(3, 4, 256)
    report = compiled()[name](4, 256, x, y, 3, schedule=schedule, raises=False)
    return report, torch.equal(y, (x + 1)[:, None].expand(3, 4, 256))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ctas_of_a_cluster_exchange_what_they_have(schedule: str) -> None:
    report, y = run("shift_right", 256, schedule, grid=8)
    whole = torch.arange(256, dtype=torch.int32).reshape(2, 4, 32)
    assert not report.findings and torch.equal(y.reshape(2, 4, 32), whole.roll(-1, 1))
    report, y = run("count", 16, schedule)
    assert not report.findings and y.tolist() == [32] * 4 + [0] * 12
    report, y = run("collect_right", 32, schedule)
    assert not report.findings and y.tolist() == [600 + 3 * n for n in range(32)]
    report, equal = run_spread("spread_right", schedule)
    assert not report.findings and equal
    for name in ("store_right", "copy_right"):
        report, y = run(name, 256, schedule)
        assert not report.findings and torch.equal(y, torch.arange(256, dtype=torch.int32).roll(64))


FAULTS = [
    ("shift_relaxed", "R401", "is not ordered after the write by CTA"),
    ("shift_without_first", "R401", "reads shared memory that nothing has written|is not ordered after"),
    ("shift_relaxed_last", "R401", "may end before CTA"),
    ("shift_without_last", "R401", "may end before CTA"),
    ("collect_without_barrier", "M401|R401", "is not initialised|is not ordered after"),
    ("collect_without_arrival", "R401|M401", "is not ordered after|nothing has written"),
    ("collect_without_wait", "R401", "may end before CTA"),
    ("spread_without_wait", "R401", "is not ordered after the read"),
    ("spread_to_three", "D401", "no thread can go on"),
    ("spread_to_five", "M402", "which has 4"),
    ("store_without_wait", "R401|M401", "(st.async)|nothing has written"),
    ("copy_without_wait", "R401|M401", "(cp.async.bulk)|nothing has written"),
    ("copy_without_fence", "R403", "may miss the write"),
    ("copy_to_own_barrier", "M402", "names an mbarrier in another one"),
]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("name", "codes", "messages"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_missing_piece_is_found_under_every_schedule(name: str, codes: str, messages: str) -> None:
    for schedule in SCHEDULES[:5]:
        report = run_spread(name, schedule)[0] if name.startswith("spread") else run(name, 256, schedule)[0]
        texts = messages.split("|")
        assert any(d.code in codes and any(t in d.message for t in texts) for d in report.findings), (schedule, report.findings)


def test_barriers_of_clusters_alternate_between_arrival_and_wait() -> None:
    assert [d.code for d in run("arrive_twice", 4)[0].findings] == ["S406"]
    assert [d.code for d in run("wait_only", 4)[0].findings] == ["S406"]


def test_threads_that_have_ended_are_not_waited_for() -> None:
    report, y = run("one_leaves", 4)
    assert not report.findings and y.tolist() == [1, 1, 0, 1]


def test_a_rank_beyond_the_cluster_is_told() -> None:
    with pytest.raises(CuirError, match="accesses CTA 4 of its cluster, which has 4"):
        compiled()["too_far"](4, 32, torch.zeros(1, dtype=torch.int32))


def test_places_count_by_clusters() -> None:
    y = torch.zeros(4, 6, 7, dtype=torch.int32)
    assert compiled()["places"]((6, 4), 1, y, cluster=(2, 2))
    for row in range(4):
        for column in range(6):
            assert y[row, column].tolist() == [column // 2, row // 2, column % 2, row % 2, 2, 3, column % 2 + 2 * (row % 2)]


def test_clusters_that_do_not_fit_are_refused() -> None:
    with pytest.raises(CuirError, match="divides the grid"):
        compiled()["places"](6, 1, torch.zeros(42, dtype=torch.int32), cluster=4)
    with pytest.raises(CuirError, match=r"runs in clusters of \(4, 1, 1\)"):
        compiled()["count"](4, 32, torch.zeros(16, dtype=torch.int32), cluster=2)


def run_gemm(module: LoadedModule, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    m, n, k = 200, 136, 264
    generator = torch.Generator().manual_seed(0)
    a, b, bias = torch.randn(m, k, generator=generator).half(), torch.randn(n, k, generator=generator).half(), torch.randn(n)
    c = torch.zeros(m, n).half()
    maps = tensor_map(a, (64, 64), 128), tensor_map(b, (64, 64), 128), tensor_map(c, (16, 64), 128)
    shared = lowered("gemm_clusters")[2]
    report = module[module.names[0]](4, 384, *maps, bias, m, k, n, shared=shared, schedule=schedule, raises=False, cluster=4)
    x = a.float() @ b.float().T + bias
    return report, c.float(), x / (1 + torch.exp2(x * -2.455467))


def run_attention(module: LoadedModule, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    m, n, d = 200, 264, 128
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, s, d, generator=generator).half() for s in (m, n, n))
    out, lse = torch.zeros_like(q), torch.zeros(1, 1, m)
    maps = [tensor_map(x, (1, 1, rows, 64), 128) for x, rows in ((q, 128), (k, 64), (v, 64), (out, 16))]
    shared = lowered("flash_fwd_cluster")[2]
    arguments = (*maps, lse, m, m, d**-0.5, 1, 1, m, 1, n)
    report = module[module.names[0]](2, 384, *arguments, shared=shared, schedule=schedule, raises=False, cluster=2)
    kept = torch.arange(n)[None] <= torch.arange(m)[:, None] + n - m
    expected = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=kept)
    return report, out.float(), expected


RUNS = {"gemm_clusters": run_gemm, "flash_fwd_cluster": run_attention}


@pytest.mark.sweep
@pytest.mark.parametrize("program", RUNS)
def test_kernels_of_the_corpus_run_as_they_were_lowered(program: str, tmp_path: Path) -> None:
    module = compile_without(program, "", tmp_path)
    for schedule in ("together", "random:1"):
        report, result, expected = RUNS[program](module, schedule)
        assert not report.findings and report.coverage > 0.5
        torch.testing.assert_close(result, expected, rtol=4e-3, atol=4e-3)


LEFT_OUT = [
    ("gemm_clusters", "cute::cluster_sync", {"R401"}),
    ("gemm_clusters", "cute::cluster_wait", {"S406"}),
    ("gemm_clusters", "cuir::wait(a_empty", {"R401"}),
    ("flash_fwd_cluster", "cuir::wait(k_empty", {"R401"}),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("program", "left_out", "codes"), LEFT_OUT, ids=[f"{p}-{t}" for p, t, _ in LEFT_OUT])
def test_a_wait_or_barrier_that_is_left_out_is_found(program: str, left_out: str, codes: set[str], tmp_path: Path) -> None:
    report, _, _ = RUNS[program](compile_without(program, left_out, tmp_path), "together")
    assert {d.code for d in report.findings} >= codes

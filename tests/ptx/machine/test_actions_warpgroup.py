"""Products of warpgroups in flight; and kernels of the corpus for Hopper, run as they were lowered, whole and without a wait or fence."""

from __future__ import annotations

import functools
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from cuir.checking.checker import check
from cuir.cuda import LoadedModule, Report, load, tensor_map
from cuir.lowering import lower
from cuir.runtime.nvcc import include_dir
from cuir.runtime.slim_headers import write_slim_headers
from cuir.syntax import frontend

SOURCE = Path(__file__).parent.parent / "product_kernels.cu"
SCHEDULES = ("together", "first", "last", "random:1", "random:2")
pytestmark = pytest.mark.nvcc


@functools.cache
def compiled() -> LoadedModule:
    return load(SOURCE, arch="sm_90a")


def run_twice(name: str, schedule: str, threads: int = 128) -> tuple[Report, torch.Tensor, torch.Tensor]:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)).half()
    y = torch.zeros(128)
    return compiled()[name](1, threads, x.view(torch.int32), y, schedule=schedule, raises=False), x, y


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_products_accumulate(schedule: str) -> None:
    report, x, y = run_twice("right", schedule)
    chunks = x.float().reshape(64, 8, 8)  # rows of 128 bytes, whose chunks the swizzle exchanges
    a = torch.stack([torch.cat([chunks[row, c ^ row % 8] for c in (0, 1)]) for row in range(64)])
    d = 2 * (a @ a[:8].T)
    lane, first = torch.arange(128) % 32, torch.arange(128) // 32 * 16
    row, column = first + lane // 4, 2 * (lane % 4)
    expected = torch.arange(128) + sum(d[row + r, column + c] for r in (0, 8) for c in (0, 1))
    assert not report.findings
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-3)


FAULTS = [
    ("no_proxy_fence", "R403", "may miss the write by CTA 0"),
    ("no_fence", "R403", "without wgmma.fence"),
    ("written_between", "M405", "reads a register that a product in flight writes"),
    ("no_commit", "M405", "reads a register that a product in flight writes"),
    ("no_wait", "M405", "reads a register that a product in flight writes"),
    ("no_wait", "R401", "is not ordered after the read by the product (wgmma.mma_async)"),
    ("unawaited", "M404", "nobody waited for the product"),
]


@pytest.mark.parametrize(("name", "code", "message"), FAULTS, ids=[f"{f[0]}-{f[1]}" for f in FAULTS])
def test_a_missing_piece_is_found(name: str, code: str, message: str) -> None:
    for schedule in ("together", "last"):
        findings = run_twice(name, schedule)[0].findings
        assert any(d.code == code and message in d.message for d in findings), (schedule, findings)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_product_comes_behind_what_its_warpgroup_wrote_and_fenced(schedule: str) -> None:
    for name in ("own_rows", "rows_of_others"):
        assert not run_twice(name, schedule)[0].findings


def test_a_product_needs_a_barrier_behind_writes_of_another_warpgroup() -> None:
    findings = run_twice("rows_of_another_warpgroup", "last", 256)[0].findings
    assert {d.code for d in findings} == {"R401"} and any("wgmma" in d.message for d in findings)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reads_before_a_product_are_over_with_it(schedule: str) -> None:
    assert not run_twice("read_before", schedule)[0].findings
    findings = run_twice("read_behind", schedule)[0].findings
    assert {d.code for d in findings} == {"R401"} and all("the read by" in d.message for d in findings)


def test_a_late_product_leaves_its_registers_as_they_were() -> None:
    assert not torch.equal(run_twice("no_wait", "last")[2], run_twice("right", "last")[2])


@functools.cache
def lowered(program: str) -> tuple[str, str, int]:
    """The CUDA text of a program of the corpus, its architecture, and its bytes of shared memory."""
    cuda = lower(check(frontend.load(Path(str(files("corpus").joinpath(f"programs/{program}.cuir"))))))
    return cuda.source, cuda.arch, cuda.shared_bytes


def compile_without(program: str, left_out: str, folder: Path) -> LoadedModule:
    """A program of the corpus without the first line of its kernel that holds a text."""
    source, arch, _ = lowered(program)
    head, kernel = source.split("__global__", 1)
    lines = kernel.splitlines()
    if left_out:
        del lines[next(i for i, line in enumerate(lines) if left_out in line.partition("//")[0])]
    place = folder / f"{program}.cu"
    place.write_text(f"{head}__global__{chr(10).join(lines)}\n", encoding="utf-8")
    slim = write_slim_headers(source, include_dir(), folder / "slim")
    return load(place, arch=arch, flags=("-I", str(folder / "slim")) if slim else ())


def run_gemm(module: LoadedModule, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    m, n, k = 136, 264, 200
    generator = torch.Generator().manual_seed(0)
    a, b, bias = torch.randn(m, k, generator=generator).half(), torch.randn(n, k, generator=generator).half(), torch.randn(n)
    c = torch.zeros(m, n).half()
    maps = tensor_map(a, (128, 64), 128), tensor_map(b, (256, 64), 128), tensor_map(c, (16, 64), 128)
    shared = lowered("gemm")[2]
    report = module[module.names[0]](1, 384, *maps, bias, m, k, n, shared=shared, schedule=schedule, raises=False)
    x = a.float() @ b.float().T + bias
    return report, c.float(), x / (1 + torch.exp2(x * -2.455467))


def run_attention(module: LoadedModule, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    m, n, d = 136, 264, 128
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, s, d, generator=generator).half() for s in (m, n, n))
    out, lse = torch.zeros_like(q), torch.zeros(1, 1, m)
    maps = [tensor_map(x, (1, 1, rows, 64), 128) for x, rows in ((q, 128), (k, 128), (v, 128), (out, 16))]
    shared = lowered("flash_fwd")[2]
    arguments = (*maps, lse, m, m, d**-0.5, 1, 1, m, 1, n)
    report = module[module.names[0]](2, 384, *arguments, shared=shared, schedule=schedule, raises=False)
    kept = torch.arange(n)[None] <= torch.arange(m)[:, None] + n - m
    expected = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=kept)
    return report, out.float(), expected


RUNS = {"gemm": run_gemm, "flash_fwd": run_attention}


@pytest.mark.sweep
@pytest.mark.parametrize("program", RUNS)
def test_kernels_of_the_corpus_run_as_they_were_lowered(program: str, tmp_path: Path) -> None:
    module = compile_without(program, "", tmp_path)
    for schedule in ("together", "last", "random:1"):
        report, result, expected = RUNS[program](module, schedule)
        assert not report.findings and report.coverage > 0.5
        torch.testing.assert_close(result, expected, rtol=4e-3, atol=4e-3)


LEFT_OUT = [
    ("gemm", "cuir::wait(empty", {"R401"}),
    ("gemm", "cuir::wait(full", {"M401"}),
    ("gemm", "cuir::expect(full", {"D401"}),
    ("gemm", "warpgroup_arrive()", {"R403"}),
    ("gemm", "warpgroup_commit_batch()", {"M405"}),
    ("gemm", "warpgroup_wait<1>", {"R401"}),
    ("gemm", "warpgroup_wait<0>", {"M405"}),
    ("gemm", "tma_store_wait<0>", {"R401"}),
    ("gemm", "fence_view_async_shared()", {"R403"}),
    ("flash_fwd", "cuir::wait(k_empty", {"R401"}),
    ("flash_fwd", "cuir::wait(q_full", {"R401"}),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("program", "left_out", "codes"), LEFT_OUT, ids=[f"{p}-{t}" for p, t, _ in LEFT_OUT])
def test_a_wait_or_fence_that_is_left_out_is_found(program: str, left_out: str, codes: set[str], tmp_path: Path) -> None:
    report, _, _ = RUNS[program](compile_without(program, left_out, tmp_path), "together")
    assert {d.code for d in report.findings} >= codes


def test_a_product_without_one_of_its_warps_is_a_deadlock() -> None:
    findings = run_twice("one_warp_less", "together")[0].findings
    assert any(d.code == "D401" and "not all lanes of a warpgroup" in d.message for d in findings)

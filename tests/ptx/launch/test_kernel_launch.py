"""Kernels that nvcc compiles, run on a CPU: PyTorch's results under every schedule, and each missing piece of synchronisation found, with both lines."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.ptx.launch import LoadedModule, Report, load
from cuir.runtime.nvcc import include_dir
from cuir.runtime.slim_headers import write_slim_headers
from cuir.syntax import frontend
from cuir.text.diagnostics import CuirError, Diagnostic

SOURCE = Path(__file__).parent.parent / "kernels.cu"
LINES = SOURCE.read_text(encoding="utf-8").splitlines()
SCHEDULES = ("together", "first", "last", *(f"random:{n}" for n in range(20)))
pytestmark = pytest.mark.nvcc
Run = Callable[[str, str], tuple[Report, torch.Tensor, torch.Tensor]]  # a kernel's suffix and a schedule to report, result, expected


@functools.cache
def compiled(arch: str = "sm_90") -> LoadedModule:
    return load(SOURCE, arch=arch)


def launch(
    name: str, grid: object, block: object, *arguments: object, schedule: str = "together", shared: int = 0, arch: str = "sm_90"
) -> Report:
    return compiled(arch)[name](grid, block, *arguments, shared=shared, schedule=schedule, raises=False)  # type: ignore[arg-type]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def run_reduce(which: str, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    x, out = draw(1000), torch.zeros(1)
    return launch(f"reduce_{which}", 1, 128, x, out, 1000, schedule=schedule), out, x.sum()[None]


def run_transpose(which: str, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    x, y = draw(64, 64), torch.zeros(64, 64)
    return launch(f"transpose_{which}", (2, 2), (32, 8), x, y, 64, schedule=schedule), y, x.T


def run_histogram(which: str, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    x = (draw(2, 700).abs() * 80).to(torch.uint8)
    out = torch.zeros(256, dtype=torch.int32)
    report = launch(f"histogram_{which}", 2, 64, x, out, 1400, shared=1024, schedule=schedule)
    return report, out, torch.bincount(x.long().flatten(), minlength=256).int()


def run_softmax(which: str, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    x, y = draw(2, 150), torch.zeros(2, 150)
    return launch(f"softmax_{which}", 2, 64, x, y, 150, schedule=schedule), y, x.softmax(1)


def run_gemm(which: str, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    a, b, c = draw(64, 64).half(), draw(64, 64).half().T.contiguous(), torch.zeros(64, 64)
    return launch(f"gemm_{which}", (1, 1), 128, a, b, c, 64, 64, schedule=schedule), c, a.float() @ b.float().T


def run_pipeline(which: str, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    x, y = draw(4 * 256), torch.zeros(4 * 256)
    return launch(f"pipeline_{which}", 1, 64, x, y, 4, schedule=schedule), y, 2 * x


def run_ring(which: str, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    x, y = draw(6, 32), torch.zeros(6, 32)
    return launch(f"ring_{which}", 1, 64, x, y, 6, schedule=schedule), y, x.flip(1)


def run_last(which: str, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    x, part, out, ticket = draw(8), torch.zeros(8), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    return launch(f"last_{which}", 8, 32, x, part, ticket, out, schedule=schedule), out, 2 * x.sum()[None]


def run_warp(which: str, schedule: str) -> tuple[Report, torch.Tensor, torch.Tensor]:
    x, y = torch.arange(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    return launch(f"warp_{which}", 1, 32, x, y, schedule=schedule), y, x.flip(0)


RUNS: dict[str, Run] = {
    "reduce": run_reduce,
    "transpose": run_transpose,
    "histogram": run_histogram,
    "softmax": run_softmax,
    "gemm": run_gemm,
    "pipeline": run_pipeline,
    "ring": run_ring,
    "last": run_last,
    "warp": run_warp,
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", RUNS)
def test_right_kernels_give_pytorchs_results_under_every_schedule(name: str) -> None:
    for schedule in SCHEDULES if name != "gemm" else SCHEDULES[:8]:
        report, result, expected = RUNS[name]("right", schedule)
        assert not report.findings, (schedule, str(report.findings[0]))
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def lines_of(d: Diagnostic) -> set[str]:
    """The lines of the sources that a finding shows."""
    spans = [d.span, *(n.span for n in d.notes)]
    return {re.sub(r"\s+", " ", LINES[s.line - 1].strip()) for s in spans if s is not None and s.source.name == "kernels.cu"}


# A kernel without a piece of its synchronisation, the code, and what the two lines contain that meet.
FAULTS = [
    ("reduce", "faulty", "R401", "part[threadIdx.x / 32] = v", "part[threadIdx.x] : 0"),
    ("transpose", "faulty", "R401", "tile[threadIdx.y + j][threadIdx.x] =", "= tile[threadIdx.x]"),
    ("histogram", "faulty", "R401", "counts[x[i]]++", "counts[x[i]]++"),
    ("softmax", "faulty", "R401", "part[threadIdx.x / 32] = s", "m = fmaxf(m, part[i])"),
    ("gemm", "faulty", "R401", "(uint4*)&as[row][column] =", "fa[i][0]"),
    ("pipeline", "without_wait", "R401", "2 * buffer[i & 1]", "cp.async.cg"),
    ("pipeline", "without_barrier", "R401", "2 * buffer[i & 1]", "cp.async.cg"),
    ("ring", "without_full", "R401", "buffer[i & 1][lane] =", "= buffer[i & 1][31 - lane]"),
    ("last", "faulty", "R402", "part[blockIdx.x] =", "s += part[i]"),
    ("warp", "faulty", "R401", "s[threadIdx.x] =", "= s[31 - threadIdx.x]"),
]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("name", "which", "code", "first", "second"), FAULTS, ids=[f"{f[0]}-{f[1]}" for f in FAULTS])
def test_missing_synchronisation_is_found_with_both_lines(name: str, which: str, code: str, first: str, second: str) -> None:
    hits = 0
    schedules = ("together", "last", "random:3")
    for schedule in schedules:
        report, _, _ = RUNS[name](which, schedule)
        for d in report.findings:
            lines = lines_of(d)
            if d.code == code and any(first in line for line in lines) and any(second in line for line in lines):
                assert any(f'schedule="{schedule}"' in n.message for n in d.notes)
                hits += 1
                break
    assert hits == len(schedules)


def test_a_producer_that_does_not_wait_is_found() -> None:
    codes = {d.code for schedule in SCHEDULES[:8] for d in run_ring("without_empty", schedule)[0].findings}
    assert codes >= {"R401", "D401"}  # it overtakes the consumer, which then waits for a parity that has passed


def test_lanes_of_a_warp_at_two_barriers_are_a_deadlock() -> None:
    report = launch("diverging_barrier", 1, 32, torch.zeros(32, dtype=torch.int32))
    (found,) = report.findings
    assert found.code == "D401" and len(lines_of(found)) == 2


def test_addresses_past_the_end_stop_the_run_and_name_the_thread() -> None:
    with pytest.raises(CuirError) as error:
        compiled()["past_the_end"](2, 32, torch.zeros(60), 1)
    (found,) = error.value.diagnostics
    assert found.code == "M402" and "CTA 1, warp 0, lane 28" in found.message and "0 bytes behind" in found.message


def test_shared_memory_that_nothing_wrote_is_found() -> None:
    (found,) = launch("unwritten", 1, 64, torch.zeros(64)).findings
    assert found.code == "M401" and "warp 1" in found.message


def test_unwritten_memory_counts_where_results_depend_on_it() -> None:
    assert [d.code for d in launch("unwritten_used", 1, 64, torch.zeros(64)).findings] == ["M401"]
    y = torch.zeros(64)
    report = launch("unwritten_left_out", 1, 64, y)
    assert not report.findings and y.tolist() == [2.0] * 32 + [0.0] * 32


@pytest.mark.sweep
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("way", range(7))
def test_calls_branches_by_index_local_memory_and_constants(arch: str, way: int) -> None:
    y, h = draw(64), draw(1, 64).half()
    before = y.clone()
    report = launch("choose", 1, 64, y, h, 3, way, arch=arch)
    t = torch.arange(64)
    a = before * 0 + before * 1 + before * 2 + torch.tensor([1.0, 2.0, 3.0, 4.0])[t & 3]
    ways = [a + 1, a * 2, (a / 100).exp(), a.sin(), a / 3, h[0].float(), torch.where(t % 3 == 0, 0.0, torch.where(t % 3 == 1, 1.0, a))]
    torch.testing.assert_close(y, ways[way] * ((way * 7 + t) & 15), rtol=1e-5, atol=1e-5)
    assert not report.findings and report.lane_instructions > 64 * 20


def test_variables_of_a_module_keep_their_values() -> None:
    module = load(SOURCE, arch="sm_80")
    for _ in range(3):
        module["choose"](1, 32, torch.zeros(32), torch.zeros(32).half(), 0, 0)
    assert int.from_bytes(module.state["calls"].tobytes(), "little") == 8


def test_arguments_that_do_not_fit_are_refused() -> None:
    kernel = compiled()["past_the_end"]
    with pytest.raises(CuirError, match="takes 2 arguments, found 1"):
        kernel(1, 32, torch.zeros(32))
    with pytest.raises(CuirError, match="takes no pointer"):
        kernel(1, 32, torch.zeros(32), torch.zeros(32))
    with pytest.raises(CuirError, match="one to three positive sizes"):
        kernel((1, 1, 1, 1), 32, torch.zeros(32), 1)


def test_tensors_may_share_a_storage_and_have_strides() -> None:
    whole = torch.zeros(4, 40)
    compiled()["past_the_end"](1, 8, whole[1, 3:11], 7)
    assert whole.sum() == 56 and (whole[1, 3:11] == 7).all()


@functools.cache
def lowered(program: str, folder: Path) -> tuple[LoadedModule, int]:
    """A program of the corpus, lowered and compiled; and its bytes of shared memory."""
    cuda = lower(check(frontend.load(Path(str(files("corpus").joinpath(f"programs/{program}.cuir"))))))
    place = folder / f"{cuda.name}.cu"
    place.write_text(cuda.source, encoding="utf-8")
    include = write_headers(cuda.source, folder)
    return load(place, arch=cuda.arch, flags=include), cuda.shared_bytes


def write_headers(source: str, folder: Path) -> tuple[str, ...]:
    """Return flags for CuTe's headers without what a source does not name: most of nvcc's time goes into the rest of them."""
    return ("-I", str(folder / "slim")) if write_slim_headers(source, include_dir(), folder / "slim") else ()


@pytest.mark.sweep(4)
@pytest.mark.parametrize("schedule", ["together", "last"])
def test_a_kernel_of_the_corpus_runs_as_it_was_lowered(schedule: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    module, shared = lowered("flash_fwd_warps", tmp_path_factory.getbasetemp())
    q, k, v = (torch.randn(1, 1, n, 128, generator=torch.Generator().manual_seed(n)).half() for n in (128, 192, 192))
    out, lse = torch.zeros_like(q), torch.zeros(1, 1, 128)
    strided = [x for t in (q, k, v, out) for x in (t, *t.stride()[:3])]
    report = module["flash_fwd"](1, 128, *strided, lse, *lse.stride()[:2], 128**-0.5, 1, 1, 128, 1, 192, shared=shared, schedule=schedule)
    kept = torch.arange(192)[None] <= torch.arange(128)[:, None] + 64
    expected = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=kept)
    torch.testing.assert_close(out.float(), expected, rtol=2e-3, atol=2e-3)
    assert report and report.coverage > 0.5

"""Held to what is known: programs lowered to CUDA and compiled to PTX, whose orchestration is read back from the PTX. The readers share no code with the lowering.

Reading of a warp that loads and stores for a warpgroup: shared counts, rows with gaps, sums by the engine.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings

import corpus
from corpus.computes import COMPUTES
from cuir import check, parse
from cuir.checking.checked import Checked
from cuir.lowering import lower
from cuir.syntax.types import DTYPES
from llm.orchestration_of_source import of_source
from llm.ptx.compile_source import Build, read_compiled
from tests.llm.ptx.kernels import differences, needs_nvcc, read_lowered, slim_flags
from tests.lowering.conftest import one_file
from tests.strategies.selection import examples
from tests.strategies.typed import Case, kernels

EMPTY_KERNELS = {
    ("flash_bwd", "delta"),
    ("flash_bwd_sm75", "prepare"),
    ("flash_bwd_split_sm90", "prepare"),
    ("selected_bwd_sm90", "prepare"),
    ("selected_bwd_sm90", "join_parts"),
    ("flash_bwd_sm80", "finish"),
    ("decode_paged", "combine"),
}  # neither copies nor products nor barriers: there is nothing to read
# a role of its own for copies is read without the search for a sequence; of one role that also multiplies the loop behind the search is not reached
SEARCHING_KERNELS = {("flash_fwd_varlen_sm75", "flash_fwd_varlen"), ("flash_fwd_varlen_sm80", "flash_fwd_varlen")}
# two roles fill columns of one array, each with barriers of its own: the reader takes these for two arrays
HALVED_KERNELS = {("mla_decode_sm90", "mla_decode"), ("mla_selected_sm90", "mla_selected")}
# two roles read a stage each of one array: likewise
STAGED_KERNELS = {("mla_decode_f8_sm90", "mla_decode")}
# warpgroups of a role have barriers, or work, of their own: the reader takes them for two roles, and what they share for two arrays
SPLIT_KERNELS = {
    ("flash_fwd_split_sm90", "flash_fwd"),
    ("decode_split_sm90", "flash_decode"),
    ("flash_bwd_split_sm90", "flash_bwd"),
    ("flash_bwd_dq_split_sm90", "flash_bwd_dq"),
    ("selected_bwd_sm90", "flash_bwd"),
}
# columns of an array leave it by halves, and a warp deals out the work beside three that work: the reader takes the halves for stages, that warp for a role
DEALT_KERNELS = {("flash_bwd_f8_sm90", "flash_bwd")}
# the warp that loads also deals out the work, since no warp is left beside it: barriers of that queue have no role of their own by which they are left out here
LOADING_DEALERS = {("flash_fwd_f8_sm90", "flash_fwd")}
NOT_READ = EMPTY_KERNELS | SEARCHING_KERNELS | HALVED_KERNELS | STAGED_KERNELS | SPLIT_KERNELS | DEALT_KERNELS | LOADING_DEALERS
KERNELS = [key for name, kernels in COMPUTES.items() for kernel in kernels if (key := (name, kernel)) not in NOT_READ]
SIZES, PLACES = "the bytes of the array", "an address of cp.async.bulk"
UNKNOWN = {  # what may be: sizes of arrays that one phase brings, places of more pages than values are followed
    **dict.fromkeys(
        ("flash_bwd", "flash_bwd_sm90", "flash_bwd_wide_sm90", "flash_bwd_dq_sm90", "flash_fwd_f8_sm90", "selected_bwd_dq_sm90"), SIZES
    ),
    "decode_paged": PLACES,
}
CONSTS = {"T": DTYPES["f16"], "D": 128}
TOGETHER = 3  # kernels of a file: neighbours, which mostly run in one worker
ROUND = "test_the_ptx_of_a_program_says_its_orchestration"


def check_text(text: str, name: str, kernel: str | None = None, **consts: Any) -> Checked:
    program = parse(text, name)
    result = list(program.kernels().values())[-1] if kernel is None else program.kernels()[kernel]
    return check(program, result.name, {n: v for n, v in {**CONSTS, **consts}.items() if n in {p.name for p in result.params}})


@functools.cache
def of_the_corpus(name: str, kernel: str) -> Checked:
    text = {**corpus.programs(), **corpus.kernels()}[name].read_text(encoding="utf-8")
    return check_text(text, f"{name}.cuir", kernel, **COMPUTES[name][kernel].tested)


@functools.cache
def neighbours(group: tuple[tuple[str, str], ...], folder: Path) -> dict[tuple[str, str], tuple[Path, Build]]:
    """A group of kernels, lowered: the file that each is in, one for an architecture, and how to compile and to find it there."""
    results: dict[tuple[str, str], tuple[Path, Build]] = {}
    lowered = {key: lower(of_the_corpus(*key)) for key in group}
    for arch in dict.fromkeys(cuda.arch for cuda in lowered.values()):
        place = folder / f"{'_'.join(group[0])}_{arch}.cu"
        text = one_file([cuda.source for cuda in lowered.values() if cuda.arch == arch])
        place.write_text(text, encoding="utf-8")
        flags = slim_flags(text)
        counted = zip(itertools.count(), (key for key, cuda in lowered.items() if cuda.arch == arch))
        results |= {
            key: (place, Build(arch, kernel=f"program_{i}::", cluster=(of_the_corpus(*key).cluster, 1, 1), flags=flags))
            for i, key in counted
        }
    return results


@pytest.fixture
def group(request: pytest.FixtureRequest, name: str, kernel: str) -> tuple[tuple[str, str], ...]:
    """The kernel with others that this run takes: of a sweep those that are left out are not compiled."""
    items = (item for item in request.session.items if getattr(item, "originalname", "") == ROUND and not item.get_closest_marker("skip"))
    selected = [key for item in items if (key := (item.callspec.params["name"], item.callspec.params["kernel"])) in KERNELS]  # type: ignore[attr-defined]
    first = selected.index((name, kernel)) // TOGETHER * TOGETHER
    return tuple(selected[first : first + TOGETHER])


@pytest.mark.sweep(64)
@needs_nvcc
@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_the_ptx_of_a_program_says_its_orchestration(
    name: str, kernel: str, group: tuple[tuple[str, str], ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Roles, registers, barriers with counts, stages and users, arrays with bytes and stages, groups in flight; and what is left unknown is named above."""
    program = of_the_corpus(name, kernel)
    reading = read_compiled(*neighbours(group, tmp_path_factory.getbasetemp())[name, kernel])
    assert differences(reading, program) == []
    assert all(name in UNKNOWN and description.startswith(UNKNOWN[name]) for description in reading.unknown)


@needs_nvcc
@settings(examples(0.03), phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(case=kernels())
def test_the_ptx_of_a_random_program_says_its_orchestration(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of one whose loops run: of others nvcc leaves nothing."""
    assume("range(0)" not in case.text)
    program = check_text(case.text, "random.cuir")
    assert differences(read_lowered(program, tmp_path_factory.mktemp("random")), program) == []


MEETING = """\
@kernel(arch="sm_90a")
def copied(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    sX = shared(f32, [128, 64])
    full, free = named_barrier(3, warps=9), named_barrier(3, warps=9)
    work = tiles(cdiv(M, 128))
    with role("load", warps=1, registers=40):
        for t in work:
            free.sync()
            for r in range(0, 128, 16):
                store(sX[r : r + 16], X[t * 128 + r + rows(16), cols(64)])
            full.arrive()
    with role("compute", warpgroups=2, registers=232) as w:
        free.arrive()
        for t in work:
            full.sync()
            x = load(sX[w * 64 : w * 64 + 64])
            free.arrive()
            store(Y[t * 128 + w * 64 + rows(64), cols(64)], x)
"""


@needs_nvcc
def test_roles_that_meet_at_a_named_barrier(tmp_path: Path) -> None:
    """One warp and two warpgroups: 288 threads, three workers."""
    program = check(parse(MEETING, "copied.cuir"))
    reading = read_lowered(program, tmp_path)
    assert differences(reading, program) == []
    assert [d.split()[0] for d in differences(reading, check(parse(MEETING.replace("free.sync()", "free.arrive()"), "other.cuir")))] == [
        "O103"
    ]


FAULTS = [
    ("mbarrier(WG, stages=STAGES)", "mbarrier(1, stages=STAGES)", "O104"),
    ("STAGES: const = 2", "STAGES: const = 1", "O105"),
    ("registers=240", "registers=224", "O110"),
]


@pytest.mark.thorough
@needs_nvcc
def test_a_program_that_says_otherwise_differs(tmp_path: Path) -> None:
    """Not by agreeing with everything: each change of the program, but not of its PTX, is found."""
    text = corpus.programs()["flash_fwd"].read_text(encoding="utf-8")
    reading = read_lowered(check_text(text, "flash_fwd.cuir"), tmp_path)
    for old, new, code in FAULTS:
        assert old in text
        assert code in {d.split()[0] for d in differences(reading, check_text(text.replace(old, new), "other.cuir"))}, old


SOURCE = """
__device__ inline void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads)); }
__device__ inline void bar_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads)); }
enum NamedBarriers { SUM_FULL = 1, SUM_EMPTY = 2, LAST = 3 };
__global__ void __launch_bounds__(256) helped(const float* x, float* y, int n) {
  extern __shared__ __align__(1024) char memory[];
  const unsigned sRows = __cvta_generic_to_shared(memory), sSum = sRows + 1024, rows_full = sSum + 2048;
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0)
    for (int s = 0; s < 2; ++s) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(rows_full + 8 * s));
  __syncthreads();
  if (warp >= 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (warp != 4) return;
    for (int i = 0; i < n; ++i) {
      if (lane == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 320;" :: "r"(rows_full + i % 2 * 8) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 320, [%2];" :: "r"(sRows + i % 2 * 512), "l"(x + i * 80), "r"(rows_full + i % 2 * 8) : "memory");
      }
      bar_sync(SUM_FULL, 160);
      if (lane == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 2048;" :: "l"(y + i * 512), "r"(sSum) : "memory");
        asm volatile("cp.async.bulk.commit_group;\\n cp.async.bulk.wait_group.read 0;" ::: "memory");
      }
      bar_arrive(SUM_EMPTY, 160);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    if (warp == 0) bar_arrive(SUM_EMPTY, 160);
    for (int i = 0; i < n; ++i) {
      asm volatile("{.reg .pred p;\\n w: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n @!p bra w;}" :: "r"(rows_full + i % 2 * 8), "r"(i / 2 % 2) : "memory");
      bar_sync(SUM_EMPTY, 160);
      reinterpret_cast<volatile float*>(memory + 1024)[threadIdx.x] = reinterpret_cast<volatile float*>(memory + i % 2 * 512)[lane];
      asm volatile("fence.proxy.async;" ::: "memory");
      bar_arrive(SUM_FULL, 160);
    }
    bar_arrive(LAST, 160);
    if (warp == 3) bar_sync(LAST, 160);
  }
}
"""


@needs_nvcc
def test_a_warp_that_helps_a_warpgroup_is_read(tmp_path: Path) -> None:
    """A first arrival in place of the helper's counts once, a warp that waits for what it has arrived at twice; bytes are what is copied, not how far stages lie apart."""
    place = tmp_path / "helped.cu"
    place.write_text(SOURCE, encoding="utf-8")
    result = of_source(read_compiled(place, Build("sm_90a")))
    assert {(r.workers, r.threads, r.registers) for r in result.roles} == {(1, 128, 240), (1, 32, 24)}
    assert {b.name: b.count for b in result.barriers} == {"rows_full": 1, "sum_full": 2, "sum_empty": 2, "last": 2}
    assert {(m.name, m.nbytes, m.stages) for m in result.memory} == {("smem_rows", 640, 2), ("smem_Sum", 2048, None)}

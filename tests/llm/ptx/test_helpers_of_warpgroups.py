"""Reading of a warp that loads and stores for a warpgroup: shared counts, rows with gaps, sums by the engine."""

from __future__ import annotations

from pathlib import Path

from llm.orchestration_of_source import of_source
from llm.ptx.compile_source import Build, read_compiled
from tests.llm.ptx.kernels import needs_nvcc

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

// Two warpgroups multiply one tile that all threads fill; nothing keeps a warp from filling it anew while the product of
// the other warpgroup reads it.
#include "ptx.cuh"
#define ACC "+f"(a), "+f"(b), "+f"(c), "+f"(d)
KERNEL __launch_bounds__(256) tilelang_2613(const uint32_t* x, float* y, int steps) {
  __shared__ alignas(1024) uint32_t tile[2048];
  uint64_t form = (((uint64_t)AT(tile) & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
  float a = 0, b = 0, c = 0, d = 0;
  for (int step = 0; step < steps; step++) {
#ifdef FIXED
    __syncthreads();
#endif
    for (int i = threadIdx.x; i < 2048; i += 256) tile[i] = x[2048 * step + i];
    FENCE_SHARED;
    __syncthreads();
    asm volatile("" : ACC :: "memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;" : ACC : "l"(form) : "memory");
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
    asm volatile("" : ACC :: "memory");
  }
  y[threadIdx.x] = a + b + c + d;
}

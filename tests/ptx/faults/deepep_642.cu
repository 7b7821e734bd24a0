// A CTA stores numbers and raises a flag; the other one polls the flag, and loads the numbers by a copy.
#include "ptx.cuh"
KERNEL deepep_642(const float* x, float* buffer, int* flag, float* y) {
  __shared__ alignas(128) float tile[64];
  __shared__ uint64_t full;
  if (blockIdx.x == 0) {
    buffer[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("st.release.gpu.global.s32 [%0], 1;" :: "l"(flag) : "memory");
    return;
  }
  if (threadIdx.x == 0) {
    INIT(&full, 1); FENCE_INIT;
    int seen;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory"); while (!seen);
#ifdef FIXED
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
    ARRIVE_EXPECT(&full, 256); LOAD(tile, buffer, 256, &full);
  }
  __syncthreads();
  WAIT(&full, 0);
  y[threadIdx.x] = tile[threadIdx.x];
}

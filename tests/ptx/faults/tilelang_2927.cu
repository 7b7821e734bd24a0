// Each step has an mbarrier of its own, whose first phase it waits for; the parity counts the steps.
#include "ptx.cuh"
KERNEL tilelang_2927(const float* x, float* y) {
  __shared__ alignas(128) float tile[4][64];
  __shared__ uint64_t full[4];
  if (threadIdx.x == 0) { for (int i = 0; i < 4; i++) INIT(&full[i], 1); FENCE_INIT; }
  __syncthreads();
  for (int i = 0; i < 4; i++) {
    if (threadIdx.x == 0) { ARRIVE_EXPECT(&full[i], 256); LOAD(tile[i], x + 64 * i, 256, &full[i]); }
#ifdef FIXED
    WAIT(&full[i], 0);
#else
    WAIT(&full[i], i & 1);
#endif
    y[64 * i + threadIdx.x] = tile[i][63 - threadIdx.x];
  }
}

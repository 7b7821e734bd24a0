// A loop of one step: the copy's bytes are announced, and nobody arrives.
#include "ptx.cuh"
KERNEL tilelang_2566(const float* x, float* y) {
  __shared__ alignas(128) float tile[64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) { INIT(&full, 1); FENCE_INIT; }
  __syncthreads();
  if (threadIdx.x == 64) {
#ifdef FIXED
    ARRIVE_EXPECT(&full, 256);
#else
    EXPECT(&full, 256);
#endif
    LOAD(tile, x, 256, &full);
  } else if (threadIdx.x < 64) {
    WAIT(&full, 0);
    y[threadIdx.x] = 2 * tile[threadIdx.x];
  }
}

// Four warps load, and tell a fifth at a named barrier whose count is that of one loading warp.
#include "ptx.cuh"
KERNEL quack_146(const float* x, float* y) {
  __shared__ float tile[128];
  if (threadIdx.x < 128) {
    tile[threadIdx.x] = x[threadIdx.x];
#ifdef FIXED
    NAMED_ARRIVE(1, 160);
#else
    NAMED_ARRIVE(1, 64);
#endif
  } else {
#ifdef FIXED
    NAMED_SYNC(1, 160);
#else
    NAMED_SYNC(1, 64);
#endif
    for (int i = threadIdx.x - 128; i < 128; i += 32) y[i] = tile[127 - i];
  }
}

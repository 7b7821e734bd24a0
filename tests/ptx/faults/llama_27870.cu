// Warps combine their maxima; those that lead come to one barrier more than the others.
#include "ptx.cuh"
KERNEL llama_27870(const float* x, float* y, int rows) {
  __shared__ float part[8], whole[8];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int row = 0; row < rows; row++) {
    float v = x[256 * row + threadIdx.x];
    for (int n = 16; n; n /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, n));
    if (lane == 0) part[warp] = v;
    __syncthreads();
#ifdef FIXED
    if (warp % 2 == 0 && lane == 0) whole[warp] = fmaxf(part[warp], part[warp + 1]);
    __syncthreads();
#else
    if (warp % 2 == 0) {
      if (lane == 0) whole[warp] = fmaxf(part[warp], part[warp + 1]);
      __syncthreads();
    }
#endif
    y[256 * row + threadIdx.x] = whole[warp & ~1];
  }
}

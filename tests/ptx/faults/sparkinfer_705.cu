// A norm of each token, reduced in shared memory; the next token's parts overwrite it while warps read it.
#include "ptx.cuh"
KERNEL sparkinfer_705(const float* x, float* y, int tokens) {
  __shared__ float sums[4];
  int t = threadIdx.x;
  for (int i = 0; i < tokens; i++) {
    float v = x[128 * i + t], s = v * v;
    for (int n = 16; n; n /= 2) s += __shfl_xor_sync(~0u, s, n);
    if (t % 32 == 0) sums[t / 32] = s;
    __syncthreads();
    if (t == 0) sums[0] = rsqrtf(sums[0] + sums[1] + sums[2] + sums[3]);
    __syncthreads();
    y[128 * i + t] = v * sums[0];
#ifdef FIXED
    __syncthreads();
#endif
  }
}

// The fence that each step of the loop has is missing where a sequence has no step.
#include "ptx.cuh"
KERNEL flashkda_25(const float* x, float* y, int steps) {
  __shared__ alignas(128) float state[64];
  state[threadIdx.x] = 0;
#ifdef FIXED
  FENCE_SHARED;
#endif
  for (int i = 0; i < steps; i++) {
    state[threadIdx.x] += x[64 * i + threadIdx.x];
    FENCE_SHARED;
  }
  __syncthreads();
  if (threadIdx.x == 0) { STORE(y, state, 256); COMMIT_STORES; WAIT_STORES(0); }
}

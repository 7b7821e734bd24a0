// A ring of tiles whose last slot holds the result of a unit until its store has read it. The producer waits for that at
// a fixed step, which is the right one for some lengths only.
#include "ptx.cuh"
KERNEL mkernel_18(const float* x, float* y, int units, int steps) {
  __shared__ alignas(128) float slot[2][64];
  __shared__ uint64_t full[2];
  int t = threadIdx.x, n = 0;
  if (t == 0) { INIT(&full[0], 1); INIT(&full[1], 1); FENCE_INIT; }
  __syncthreads();
  for (int unit = 0; unit < units; unit++) {
    float sum = 0;
#ifdef FIXED
    if (t == 0) WAIT_READS(0);
#endif
    for (int step = 0; step < steps; step++, n++) {
      if (t == 0) {
#ifndef FIXED
        if (step == 1) WAIT_READS(0);
#endif
        ARRIVE_EXPECT(&full[n % 2], 256); LOAD(slot[n % 2], x + 64 * (steps * unit + step), 256, &full[n % 2]);
      }
      WAIT(&full[n % 2], n / 2 & 1);
      sum += slot[n % 2][t];
      __syncthreads();
    }
    slot[1][t] = sum;
    FENCE_SHARED;
    __syncthreads();
    if (t == 0) { STORE(y + 64 * unit, slot[1], 256); COMMIT_STORES; }
  }
  if (t == 0) WAIT_STORES(0);
}

// Warps that have no work for a unit arrive at its end and go on to the next, where they may arrive again before the
// loading warp came once.
#include "ptx.cuh"
KERNEL vllm_26026(const int* sizes, int* y, int units) {
  __shared__ int total[8];
  for (int unit = 0; unit < units; unit++) {
    if (threadIdx.x >= 128) {
      NAMED_SYNC(1, 160);
      if (threadIdx.x == 128) y[unit] = sizes[unit] ? total[unit] : 0;
    } else if (sizes[unit]) {
      if (threadIdx.x == 0) total[unit] = 2 * sizes[unit];
      NAMED_SYNC(1, 160);
    } else {
#ifdef FIXED
      NAMED_SYNC(1, 160);
#else
      NAMED_ARRIVE(1, 160);
#endif
    }
  }
}

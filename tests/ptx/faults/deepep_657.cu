// Two buffers on the way from memory to memory: the wait lets the store of the buffer go on into which it loads next.
#include "ptx.cuh"
KERNEL deepep_657(const float* x, float* y, int tiles) {
  __shared__ alignas(128) float buffer[2][64];
  __shared__ uint64_t full[2];
  if (threadIdx.x) return;
  INIT(&full[0], 1); INIT(&full[1], 1); FENCE_INIT;
  for (int i = 0; i < 2 && i < tiles; i++) { ARRIVE_EXPECT(&full[i], 256); LOAD(buffer[i], x + 64 * i, 256, &full[i]); }
  for (int i = 0; i < tiles; i++) {
    WAIT(&full[i % 2], i / 2 & 1);
    STORE(y + 64 * i, buffer[i % 2], 256);
    COMMIT_STORES;
    if (i + 2 < tiles) {
#ifdef FIXED
      WAIT_READS(0);
#else
      WAIT_READS(1);
#endif
      ARRIVE_EXPECT(&full[i % 2], 256); LOAD(buffer[i % 2], x + 64 * (i + 2), 256, &full[i % 2]);
    }
  }
  WAIT_STORES(0);
}

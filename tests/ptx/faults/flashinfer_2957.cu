// Of four warps, the first thread starts copies into scratch, and all reverse what has landed. With one slot of scratch,
// copy i + 1 starts while warps wait for copy i, and only a parity tells the two apart.
#include "ptx.cuh"
KERNEL flashinfer_2957(const float* x, float* y, int tiles) {
  __shared__ alignas(128) float scratch[2][128];
  __shared__ uint64_t full[2];
  if (threadIdx.x == 0) { INIT(&full[0], 1); INIT(&full[1], 1); FENCE_INIT; }
  __syncthreads();
  for (int i = 0; i <= tiles; i++) {
#ifdef FIXED
    constexpr int slots = 2;
#else
    constexpr int slots = 1;
#endif
    if (threadIdx.x == 0 && i < tiles) { ARRIVE_EXPECT(&full[i % slots], 512); LOAD(scratch[i % slots], x + 128 * i, 512, &full[i % slots]); }
    if (i == 0) continue;
    int from = (i - 1) % slots;
    WAIT(&full[from], (i - 1) / slots & 1);
    float v = scratch[from][127 - threadIdx.x];
    NAMED_SYNC(1, 128);
    y[128 * (i - 1) + threadIdx.x] = v;
  }
}

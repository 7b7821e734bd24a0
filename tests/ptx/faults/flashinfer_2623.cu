// A producer fills tiles and, on another ring, their scales. The last tile needs no scale, and nobody waits for it.
#include "ptx.cuh"
KERNEL flashinfer_2623(const float* x, const float* scales, float* y, int units, int tiles) {
  __shared__ alignas(128) float tile[64], scale[64];
  __shared__ uint64_t tile_full, tile_empty, scale_full, scale_empty;
  if (threadIdx.x == 0) { INIT(&tile_full, 1); INIT(&tile_empty, 64); INIT(&scale_full, 1); INIT(&scale_empty, 64); FENCE_INIT; }
  __syncthreads();
  if (threadIdx.x >= 64) {
    for (int i = 0; threadIdx.x == 64 && i < units * tiles; i++) {
      WAIT(&tile_empty, (i & 1) ^ 1);
      ARRIVE_EXPECT(&tile_full, 256);
      LOAD(tile, x + 64 * i, 256, &tile_full);
      WAIT(&scale_empty, (i & 1) ^ 1);
      ARRIVE_EXPECT(&scale_full, 256);
      LOAD(scale, scales + 64 * i, 256, &scale_full);
    }
  } else {
    for (int unit = 0, i = 0; unit < units; unit++) {
      float sum = 0;
      for (int t = 0; t < tiles; t++, i++) {
        WAIT(&tile_full, i & 1);
        float v = tile[threadIdx.x];
        ARRIVE(&tile_empty);
#ifdef FIXED
        WAIT(&scale_full, i & 1);
        if (t + 1 < tiles) v *= scale[threadIdx.x];
        ARRIVE(&scale_empty);
#else
        if (t + 1 < tiles) { WAIT(&scale_full, i & 1); v *= scale[threadIdx.x]; ARRIVE(&scale_empty); }
#endif
        sum += v;
      }
      y[64 * unit + threadIdx.x] = sum;
    }
  }
}

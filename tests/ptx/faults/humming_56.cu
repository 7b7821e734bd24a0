// A CTA multicasts tiles to both of its cluster, into memory that the epilogue uses too: it waits for its own alone.
#include "ptx.cuh"
KERNEL __cluster_dims__(2, 1, 1) humming_56(const float* x, float* y, int units) {
  __shared__ alignas(128) float tile[64];
  __shared__ uint64_t full, done;
  int t = threadIdx.x;
#ifdef FIXED
  int receivers = 2;
#else
  int receivers = 1;
#endif
  if (t == 0) { INIT(&full, 1); INIT(&done, receivers); FENCE_INIT; }
  CLUSTER_ARRIVE; CLUSTER_WAIT;
  for (int i = 0; i < units; i++) {
    if (t == 0) {
      ARRIVE_EXPECT(&full, 256);
      if (rank() == 0) {
        if (i) WAIT_CLUSTER(&done, (i - 1) & 1);
        LOAD_ALL(tile, x + 64 * i, 256, &full, 3);
      }
    }
    WAIT(&full, i & 1);
    float v = tile[t];
    __syncthreads();
    tile[63 - t] = 2 * v;
    __syncthreads();
    y[64 * (2 * i + rank()) + t] = tile[t]; FENCE_SHARED; __syncthreads();
#ifdef FIXED
    if (t == 0) ARRIVE_AT("cluster", peer(AT(&done), 0));
#else
    if (t == 0 && rank() == 0) ARRIVE(&done);
#endif
  }
  CLUSTER_ARRIVE; CLUSTER_WAIT;
}

// Two CTAs hold half of a tile each; the first reads both. Of each half, one part is stored by threads, one by a copy.
#include "ptx.cuh"
KERNEL __cluster_dims__(2, 1, 1) cutlass_3643(const int* x, int* y) {
  __shared__ alignas(128) int stored[64], copied[64];
  __shared__ uint64_t full, both;
  if (threadIdx.x == 0) { INIT(&full, 1); INIT(&both, 128); FENCE_INIT; }
  CLUSTER_ARRIVE; CLUSTER_WAIT;
  if (threadIdx.x == 0) { ARRIVE_EXPECT(&full, 256); LOAD(copied, x + 64 * rank(), 256, &full); }
  stored[threadIdx.x] = x[64 * rank() + threadIdx.x];
#ifdef FIXED
  WAIT(&full, 0);
  ARRIVE_AT("cluster", peer(AT(&both), 0));
#else
  ARRIVE_AT("cta", peer(AT(&both), 0));
  if (rank()) WAIT(&full, 0);
#endif
  if (rank() == 0) {
    WAIT(&full, 0);
    WAIT_CLUSTER(&both, 0);
    int theirs, copy;
    LOAD_PEER(theirs, peer(AT(&stored[threadIdx.x]), 1));
    LOAD_PEER(copy, peer(AT(&copied[threadIdx.x]), 1));
    y[threadIdx.x] = stored[threadIdx.x] + theirs + copied[threadIdx.x] + copy;
  }
  CLUSTER_ARRIVE; CLUSTER_WAIT;
}

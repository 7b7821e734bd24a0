// CTAs of a cluster read the result of an atomic in the memory of the first, which may have ended.
#include "ptx.cuh"
KERNEL __cluster_dims__(4, 1, 1) triton_11730(int* lock, int* y) {
  __shared__ int old;
  if (rank() == 0 && threadIdx.x == 0) old = atomicCAS(lock, 0, 1);
  CLUSTER_ARRIVE; CLUSTER_WAIT;
  int v; LOAD_PEER(v, peer(AT(&old), 0)); y[32 * blockIdx.x + threadIdx.x] = v;
#ifdef FIXED
  CLUSTER_ARRIVE; CLUSTER_WAIT;
#endif
}

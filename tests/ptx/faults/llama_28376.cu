// Lanes compact what they keep into shared memory, and read what other lanes have kept; a shuffle orders nothing.
#include "ptx.cuh"
KERNEL llama_28376(const int* ids, int* y, int n, int expert) {
  __shared__ int kept[64];
  int lane = threadIdx.x, count = 0;
  for (int first = 0; first < n; first += 32) {
    bool mine = first + lane < n && ids[first + lane] == expert;
    unsigned all = __ballot_sync(~0u, mine);
    if (mine) kept[count + __popc(all & ((1u << lane) - 1))] = first + lane;
    count += __popc(all);
  }
  count = __shfl_sync(~0u, count, 0);
#ifdef FIXED
  __syncwarp();
#endif
  for (int i = lane; i < count; i += 32) y[i] = kept[i];
}

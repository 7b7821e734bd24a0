// A grid quantises with ordinary stores; the next one, which may begin before the end of the first, loads that by copies.
#include "ptx.cuh"
KERNEL flashinfer_3361_quantise(const float* x, int8_t* q) {
  int i = 128 * blockIdx.x + threadIdx.x;
  q[i] = (int8_t)(8 * x[i]);
#ifdef FIXED
  FENCE_GLOBAL;
  __syncthreads();
#endif
  LAUNCH_NEXT;
}
KERNEL flashinfer_3361_multiply(const int8_t* q, int* y) {
  __shared__ alignas(128) int8_t tile[128];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) { INIT(&full, 1); FENCE_INIT; }
  __syncthreads();
  WAIT_GRID;
  if (threadIdx.x == 0) { ARRIVE_EXPECT(&full, 128); LOAD(tile, q + 128 * blockIdx.x, 128, &full); }
  WAIT(&full, 0);
  y[128 * blockIdx.x + threadIdx.x] = 3 * tile[threadIdx.x];
}

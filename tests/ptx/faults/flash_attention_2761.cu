// A scheduler packs the number of splits into the upper half of a split's index. The loading warp takes the packed word
// for the index and finds no block, where the others find some.
#include "ptx.cuh"
__device__ inline int end_of(int split, int splits, int blocks) { int n = (blocks + splits - 1) / splits; return min(blocks, (split + 1) * n); }
__device__ inline int start_of(int split, int splits, int blocks) { int n = (blocks + splits - 1) / splits; return min(blocks, split * n); }
KERNEL flash_attention_2761(const float* x, float* y, const int* packed, int blocks) {
  __shared__ alignas(128) float tile[64];
  __shared__ uint64_t full, empty;
  if (threadIdx.x == 0) { INIT(&full, 1); INIT(&empty, 64); FENCE_INIT; }
  __syncthreads();
  int word = packed[blockIdx.x], splits = word >> 16;
  if (threadIdx.x >= 64) {
#ifdef FIXED
    int split = word & 0xFFFF;
#else
    int split = word;
#endif
    for (int i = start_of(split, splits, blocks), n = 0; threadIdx.x == 64 && i < end_of(split, splits, blocks); i++, n++) { WAIT(&empty, (n & 1) ^ 1); ARRIVE_EXPECT(&full, 256); LOAD(tile, x + 64 * i, 256, &full); }
  } else {
    int split = word & 0xFFFF;
    float sum = 0;
    for (int i = start_of(split, splits, blocks), n = 0; i < end_of(split, splits, blocks); i++, n++) {
      WAIT(&full, n & 1);
      sum += tile[threadIdx.x];
      ARRIVE(&empty);
    }
    y[64 * blockIdx.x + threadIdx.x] = sum;
  }
}

// A first grid sums rows; the next one, which may begin before the end of the first, uses the sums. Its way for listed
// blocks lacks the wait that its way for all blocks has.
#include "ptx.cuh"
KERNEL flash_attention_2756_sums(const float* x, float* sums) {
  LAUNCH_NEXT;
  float s = 0;
  for (int i = 0; i < 32; i++) s += x[32 * (64 * blockIdx.x + threadIdx.x) + i];
  sums[64 * blockIdx.x + threadIdx.x] = s;
}
KERNEL flash_attention_2756_subtract(const float* x, const float* sums, const int* listed, float* y) {
  int block = listed ? listed[blockIdx.x] : blockIdx.x;
  float v = x[32 * (64 * block + threadIdx.x)];
#ifdef FIXED
  WAIT_GRID;
#else
  if (!listed) WAIT_GRID;
#endif
  y[64 * block + threadIdx.x] = v - sums[64 * block + threadIdx.x];
}

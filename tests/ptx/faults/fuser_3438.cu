// Some threads copy a row that all use; the barrier orders threads, and not their copies.
#include "ptx.cuh"
KERNEL fuser_3438(const float4* weight, const float* x, float* y) {
  __shared__ float4 row[8];
  if (threadIdx.y == 0 && threadIdx.x < 8) COPY(&row[threadIdx.x], weight + threadIdx.x);
#ifdef FIXED
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  __syncthreads();
  int i = 32 * threadIdx.y + threadIdx.x;
  y[i] = x[i] * reinterpret_cast<const float*>(row)[threadIdx.x];
  asm volatile("cp.async.wait_all;" ::: "memory");
}

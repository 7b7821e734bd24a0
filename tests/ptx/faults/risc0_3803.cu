// The grid is rounded up to whole CTAs, and the kernel does not know how many elements there are.
#include "ptx.cuh"
KERNEL risc0_3803(unsigned* elements, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef FIXED
  if (i >= n) return;
#endif
  unsigned v = elements[i];
  if (v == 0xFFFFFFFFu) elements[i] = 0;
}

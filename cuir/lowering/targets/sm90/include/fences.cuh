// Fences of registers around wgmma.
#pragma once
#include "headers.cuh"

namespace cuir {

//@ section fences

//@ part fence_regs
// No instruction on these registers moves across
template <int N> DEV void fence_regs(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(x[i]);
}
template <int N> DEV void fence_regs(uint32_t (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(x[i]);
}

//@ part renew_regs needs fence_regs
// A fence of an operand A that a loop does not change. ptxas 12.8 to 13.0 gives its registers to other values after the
// product, so that later iterations multiply garbage. The index of a grid of one dim is 0, which ptxas does not know.
template <int N> DEV void renew_regs(uint32_t (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] ^= blockIdx.z;
  fence_regs(x);
}

}  // namespace cuir

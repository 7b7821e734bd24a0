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

}  // namespace cuir

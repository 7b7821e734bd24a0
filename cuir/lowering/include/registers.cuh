// Values that stay in registers, or leave them.
#pragma once
#include "headers.cuh"

namespace cuir {

//@ section registers

//@ part pin
// These values are computed here and kept: compilers would compute them anew at each use, or elsewhere
template <int N> DEV void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]));
}

//@ part forget
// The values in these registers are needed no more; no instruction
template <int N> DEV void forget(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm("" : "=f"(x[i]));
}

}  // namespace cuir

// Powers of two, reciprocals, quotients and choices of floats.
#pragma once
#include "headers.cuh"

namespace cuir {

//@ section numbers

//@ part ex2
DEV float ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

//@ part reciprocal
DEV float reciprocal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }  // of numbers x from 2^-126 to 2^126

//@ part divide
DEV float divide(float x, float y) { float z; asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }  // 2 units in the last place

//@ part round_tf32
// As the tensor core takes an operand in one number of TF32 (`as_tf32`), with what it cuts off gone
DEV float round_tf32(float x) { return __uint_as_float(__float_as_uint(x * 1.00033855438232421875f) & 0xffffe000u); }  // 1 + 355 / 2^20

//@ part one_over needs reciprocal, divide
// 1 / x within 2 units in the last place: one instruction where neither x nor 1 / x is near an end of the range
DEV bool far_from_ends(float x) { return 2u * unsigned(__float_as_int(x)) - 0x01000000u < 0xfc000000u; }
DEV float one_over(float x) { return far_from_ends(x) ? reciprocal(x) : divide(1.f, x); }
template <int N> DEV void one_over(const float (&x)[N], float (&y)[N]) {   // by a warp: one branch for all
  bool ends = false;
#pragma unroll
  for (int i = 0; i < N; ++i) { y[i] = reciprocal(x[i]); ends |= !far_from_ends(x[i]); }
  if (__any_sync(~0u, ends)) {
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = one_over(x[i]);
  }
}

//@ part select
// Both are worked out: a branch around one of them for each element would keep the compiler from interleaving elements
DEV float select(bool first, float x, float y) {
  float z;
  asm("{ .reg .pred p; setp.ne.s32 p, %1, 0; selp.f32 %0, %2, %3, p; }" : "=f"(z) : "r"(int(first)), "f"(x), "f"(y));
  return z;
}

}  // namespace cuir

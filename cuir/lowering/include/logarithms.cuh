// Logarithms: branch-free, within 2 units in the last place over the whole range.
// There is one for each element of a tile, and what the compiler may not interleave costs its whole latency.
// x = 2^e (1 + m) with a small m, whose logarithm is m times a polynomial of degree 8 (least error, coefficients
// rounded one after the other). Numbers that are not positive are left to the instruction.
#pragma once
#include "headers.cuh"

namespace cuir {

//@ section numbers

//@ part lg2
DEV float lg2(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

//@ part log2_of_whole needs lg2
DEV float log2_of_whole(float x) { return x == 1.f ? 0.f : lg2(x); }  // the instruction's error is relative from 2 on, absolute near 1

//@ part log2_anywhere needs lg2
DEV float log2_anywhere(float x) {
  const bool small = x < 1.17549435e-38f;
  const float a = small ? x * 8388608.f : x;
  const int bits = __float_as_int(a), e = (bits - 0x3f3504f3) & 0xff800000;   // m from sqrt(1/2) - 1 to sqrt(2) - 1
  const float m = __int_as_float(bits - e) - 1.f;
  float p = 0.12654312f;
  p = fmaf(p, m, -0.207216993f); p = fmaf(p, m, 0.215407416f); p = fmaf(p, m, -0.238942012f); p = fmaf(p, m, 0.287953705f);
  p = fmaf(p, m, -0.360704392f); p = fmaf(p, m, 0.48090905f); p = fmaf(p, m, -0.721347332f); p = fmaf(p, m, 1.44269502f);
  const float y = fmaf(p, m, fmaf(float(e), 1.1920929e-7f, small ? -23.f : 0.f));
  return unsigned(__float_as_int(x)) - 1u < 0x7f7fffffu ? y : lg2(a);
}

//@ part log1p needs lg2
DEV float log1p(float x) {
  const float u = __fadd_rz(x, 1.f);
  const int e = (__float_as_int(u) - 0x3f400000) & 0xff800000;                                       // m from -1/4 to 1/2
  const float m = __int_as_float(__float_as_int(x) - e) + fmaf(__int_as_float(0x40800000 - e), .25f, -1.f);
  float p = 0.0538794398f;
  p = fmaf(p, m, -0.120464176f); p = fmaf(p, m, 0.149851888f); p = fmaf(p, m, -0.168267801f); p = fmaf(p, m, 0.199772984f);
  p = fmaf(p, m, -0.249931961f); p = fmaf(p, m, 0.33333537f); p = fmaf(p, m, -0.500000656f); p = fmaf(p, m, 1.f);
  const float y = fmaf(float(e) * 1.1920929e-7f, 0.693147182f, p * m);
  return x > -1.f && x < INFINITY ? y : lg2(u);
}

//@ part log2 needs lg2, log2_anywhere
// Within 2 units in the last place, as the instruction is from 4 on; below it has an absolute error, and takes subnormals for 0
DEV bool from_4_on(float x) { return unsigned(__float_as_int(x)) - 0x40800000u < 0x3f000000u; }
DEV float log2(float x) { return from_4_on(x) ? lg2(x) : log2_anywhere(x); }
template <int N> DEV void log2(const float (&x)[N], float (&y)[N]) {   // by a warp: one branch for all
  bool small = false;
#pragma unroll
  for (int i = 0; i < N; ++i) { y[i] = lg2(x[i]); small |= !from_4_on(x[i]); }
  if (__any_sync(~0u, small)) {
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = log2(x[i]);
  }
}

}  // namespace cuir

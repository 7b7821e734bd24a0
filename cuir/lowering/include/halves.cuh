// Extremes with NaN, shared reciprocals, and conversions between floats and 16-bit floats.
#pragma once
#include "headers.cuh"
#include "floats.cuh"

namespace cuir {

//@ section numbers

//@ part min_nan
DEV float min_nan(float x, float y) { float z; asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }  // a NaN stays one

//@ part max_nan
DEV float max_nan(float x, float y) { float z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }

//@ part reciprocals needs reciprocal
// 1 / x of four numbers whose product is a float, by one reciprocal: 4 units in the last place. A NaN is no number: its neighbours do without it.
template <bool NANS> DEV void reciprocals(float (&x)[4]) {
  float n[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) n[i] = NANS ? fminf(x[i], 4294967296.f) : x[i];   // greater than all of them
  const float a = n[0] * n[1], b = n[2] * n[3], c = reciprocal(a * b), ra = c * b, rb = c * a;
  const float y[4] = {ra * n[1], ra * n[0], rb * n[3], rb * n[2]};
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = NANS ? fmaf(x[i], 0.f, y[i]) : y[i];       // and the NaN again
}

//@ part round_f16
DEV float round_f16(float x) { return __half2float(__float2half_rn(x)); }

//@ part round_bf16
DEV float round_bf16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

//@ part pack_f16
DEV uint32_t pack_f16(float lo, float hi) { const __half2 h = __floats2half2_rn(lo, hi); return reinterpret_cast<const uint32_t&>(h); }

//@ part pack_bf16
DEV uint32_t pack_bf16(float lo, float hi) { const __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi); return reinterpret_cast<const uint32_t&>(h); }

//@ part unpack_f16
template <int N> DEV float unpack_f16(const uint32_t (&x)[N], int i) {
  const __half2 h = reinterpret_cast<const __half2&>(x[i >> 1]);
  return i & 1 ? __high2float(h) : __low2float(h);
}

//@ part unpack_bf16
template <int N> DEV float unpack_bf16(const uint32_t (&x)[N], int i) {
  return __uint_as_float(i & 1 ? x[i >> 1] & 0xffff0000u : x[i >> 1] << 16);
}

//@ part to_float
DEV float to_float(float x) { return x; }
DEV float to_float(__half x) { return __half2float(x); }
DEV float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

//@ part after
// `value`, not known to the compiler before x is: what follows from it, made early, would fill registers while a product is in flight
DEV float after(float value, float x) { return __int_as_float(__float_as_int(value) | (__float_as_int(x) & int(blockDim.z - 1))); }

}  // namespace cuir

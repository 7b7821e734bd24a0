// Sine and cosine: within 2 units in the last place over the whole range.
// The code is small, as there is one for each element of a tile.
#pragma once
#include "headers.cuh"

namespace cuir {

//@ section numbers

//@ part sine defines cosine, sines
// 2 / pi in words of 32 bits, behind one of zeros
__device__ constexpr unsigned TWO_OVER_PI[8] = {0, 0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u, 0xF534DDC0u, 0xDB629599u, 0x3C439041u, 0xFE5163ABu};
// x less the nearest multiple of pi / 2, and which, of a large x: the product with those bits of 2 / pi that do not give whole turns (Payne and Hanek)
DEV float far_angle(float x, int &quarter) {
  const int bits = __float_as_int(x), at = (bits >> 23 & 255) - 120, w = at >> 5, s = at & 31;
  const unsigned m = (bits & 0x7fffff) | 0x800000;
  unsigned h[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) h[i] = unsigned(((uint64_t(TWO_OVER_PI[w + i]) << 32 | TWO_OVER_PI[w + i + 1]) << s) >> 32);
  const uint64_t low = uint64_t(m) * h[2], mid = uint64_t(m) * h[1] + (low >> 32);
  const unsigned high = m * h[0] + unsigned(mid >> 32);
  const int64_t rest = int64_t(uint64_t(high) << 34 | uint64_t(unsigned(mid)) << 2);
  const int turned = int(high >> 30) + (rest < 0);
  quarter = bits < 0 ? -turned : turned;
  const float t = float(double(rest) * 8.515303950216386e-20);   // pi / 2 / 2^64
  return bits < 0 ? -t : t;
}
DEV float near_angle(float x, int &quarter) {
  const float n = fmaf(x, 0.636619747f, 12582912.f), j = n - 12582912.f;   // the nearest whole number, in the low bits of n
  quarter = __float_as_int(n);
  return fmaf(j, -5.39030295e-15f, fmaf(j, -3.13916473e-07f, fmaf(j, -1.57079601e+00f, x)));
}
DEV bool is_far(float x) { return !(fabsf(x) <= 71476.f); }
DEV float any_angle(float x, float near, int &quarter) { return !is_far(x) ? near : fabsf(x) < INFINITY ? far_angle(x, quarter) : NAN; }
DEV float angle(float x, int &quarter) { const float near = near_angle(x, quarter); return any_angle(x, near, quarter); }
// sin(t + quarter * pi / 2), |t| <= pi / 4: little code, as there is one for each element of a tile
DEV float sine_of(float t, int quarter) {
  const float s = t * t;
  const bool odd = quarter & 1;
  const float a = odd ? 2.44331571e-5f : -1.95152959e-4f, b = odd ? -1.38873162e-3f : 8.33216087e-3f, c = odd ? 4.16666456e-2f : -1.66666546e-1f;
  const float p = fmaf(fmaf(fmaf(a, s, b), s, c), s, odd ? -.5f : 0.f), r = fmaf(p, odd ? s : t, odd ? 1.f : t);
  return quarter & 2 ? -r : r;
}
DEV float sine(float x) { int q; const float t = angle(x, q); return sine_of(t, q); }
DEV float cosine(float x) { int q; const float t = angle(x, q); return sine_of(t, q + 1); }
// of four numbers, which take one branch for large ones: between branches the compiler interleaves nothing
template <int QUARTERS> DEV void sines(float (&x)[4]) {
  float t[4];
  int q[4];
  bool far = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) { t[i] = near_angle(x[i], q[i]); far |= is_far(x[i]); }
  if (__builtin_expect(far, 0)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) t[i] = any_angle(x[i], t[i], q[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = sine_of(t[i], q[i] + QUARTERS);
}

}  // namespace cuir

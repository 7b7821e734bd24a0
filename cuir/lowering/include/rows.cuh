// Rows of accumulators: order of columns, sums, maxima.
#pragma once
#include "headers.cuh"
#include "halves.cuh"

namespace cuir {

//@ section rows

//@ part in_order
// An accumulator in dealt order with its columns in their own: of 16 a lane has 4 c .. 4 c + 3, c = lane % 4, at the places of 2 c, 2 c + 8, 2 c + 1, 2 c + 9
template <int N> DEV void in_order(const float (&x)[N], float (&y)[N], int lane) {
  const int from = (lane & ~3) | (lane >> 1 & 1);
  const bool second = lane & 1;   // of what that lane has this one takes the second two
  float z[N];
#pragma unroll
  for (int i = 0; i < N; i += 8) {
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const int row = p / 2 % 2 * 2, k = p % 2 * 4 + row;   // the row's first number, that of the column itself for the first of two lanes
      const float a = __shfl_sync(~0u, x[i + k], from + p / 4 * 2), b = __shfl_sync(~0u, x[i + k + 1], from + p / 4 * 2);
      z[i + p] = second ? b : a;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = z[i];
}

//@ part quad_sum
DEV float quad_sum(float x) { x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2); }

//@ part own_max
// Greatest element of this thread in row r, as the integer of its bits: floats order as signed integers as soon as one of them is not
// negative, and three integers take one instruction. Of negative elements alone it is another one of them. A NaN is greater than all numbers if its sign
// bit is clear: that of every result of arithmetic and of products is, that of an f32 in memory need not be.
template <int R, int N> DEV int own_max(const float (&x)[N], int r) {
  constexpr int G = N / (2 * R);                            // groups of 8 columns
  const int first = 4 * G * (r >> 1) + 2 * (r & 1);
  int a = __float_as_int(x[first]), b = __float_as_int(x[first + 1]);
#pragma unroll
  for (int j = 1; j < G; ++j) {
    const int i = first + 4 * j;
    int& top = j & 1 ? b : a;
    top = __vimax3_s32(top, __float_as_int(x[i]), __float_as_int(x[i + 1]));
  }
  return max(a, b);
}

//@ part row_bound needs own_max
// An upper bound, not below 0, of this thread's elements in each row
template <int N, int R> DEV void row_bound(const float (&x)[N], float (&y)[R]) {
#pragma unroll
  for (int r = 0; r < R; ++r) y[r] = __int_as_float(max(own_max<R>(x, r), 0));
}

//@ part row_max needs own_max
// Maximum of each row: R row values a thread, N elements, no NaN of which has its sign bit set. Rows with negative elements only are done again in floats.
template <int N, int R> DEV void row_max(const float (&x)[N], float (&y)[R]) {
  constexpr int G = N / (2 * R);
  bool negative = false;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    int a = own_max<R>(x, r);
    a = max(a, __shfl_xor_sync(~0u, a, 1));
    a = max(a, __shfl_xor_sync(~0u, a, 2));
    y[r] = __int_as_float(a);
    negative |= a < 0;
  }
  if (__any_sync(~0u, negative)) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float m = -INFINITY;
#pragma unroll
      for (int j = 0; j < G; ++j) {
        const int i = 4 * (G * (r >> 1) + j) + 2 * (r & 1);
        m = fmaxf(m, fmaxf(x[i], x[i + 1]));
      }
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      y[r] = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
    }
  }
}

//@ part row_max_nan needs max_nan
// Maximum of each row of any floats: R row values a thread, N elements; NaN if one of them is
template <int N, int R> DEV void row_max_nan(const float (&x)[N], float (&y)[R]) {
  constexpr int G = N / (2 * R);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    float m = -INFINITY;
#pragma unroll
    for (int j = 0; j < G; ++j) {
      const int i = 4 * (G * (r >> 1) + j) + 2 * (r & 1);
      m = max_nan(m, max_nan(x[i], x[i + 1]));
    }
    m = max_nan(m, __shfl_xor_sync(~0u, m, 1));
    y[r] = max_nan(m, __shfl_xor_sync(~0u, m, 2));
  }
}

//@ part row_part
// This thread's part of the sum of each row; the other three threads of the quad hold the rest
template <int N, int R> DEV void row_part(const float (&x)[N], float (&y)[R]) {
  constexpr int G = N / (2 * R);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int first = 4 * G * (r >> 1) + 2 * (r & 1);
    float a = x[first], b = x[first + 1];                     // no sum with zero: that would be an addition
#pragma unroll
    for (int j = 1; j < G; ++j) {
      const int i = first + 4 * j;
      a += x[i]; b += x[i + 1];
    }
    y[r] = a + b;
  }
}

//@ part any_bits
template <int N> DEV int any_bits(const float (&x)[N]) {
  int bits = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) bits |= __float_as_int(x[i]);
  return bits;
}

}  // namespace cuir

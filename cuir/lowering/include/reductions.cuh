// Reductions of rows, and of columns of tiles, within a thread, warp or warpgroup.
#pragma once
#include "headers.cuh"
#include "halves.cuh"
#include "rows.cuh"
#include "words.cuh"

namespace cuir {

//@ section words

//@ part line_sum needs quad_sum
// The sum of a single row, of which the four threads of a quad hold N columns each
template <int N> DEV float line_sum(const float (&x)[N]) {
  float a = x[0];
#pragma unroll
  for (int i = 1; i < N; ++i) a += x[i];
  return quad_sum(a);
}

//@ part line_max needs max_nan
// Its maximum; NaN if one is in it
template <int N> DEV float line_max(const float (&x)[N]) {
  float a = x[0];
#pragma unroll
  for (int i = 1; i < N; ++i) a = max_nan(a, x[i]);
  a = max_nan(a, __shfl_xor_sync(~0u, a, 1));
  return max_nan(a, __shfl_xor_sync(~0u, a, 2));
}

//@ part fold needs max_nan
template <bool MAX> DEV float fold(float x, float y) { return MAX ? max_nan(x, y) : x + y; }

//@ part column_part needs fold
// Sums or maxima of a warp's rows in each of the M columns of a thread: N elements of a full tile, or N numbers a row if M is 1
template <bool MAX, int N, int M> DEV void column_part(const float (&x)[N], float (&y)[M]) {
  constexpr int R = N / M, G = M / 2;                         // rows of a thread; groups of 8 columns
#pragma unroll
  for (int c = 0; c < M; ++c) {
    float a = x[M == 1 ? 0 : 4 * (c / 2) + c % 2];
#pragma unroll
    for (int r = 1; r < R; ++r) a = fold<MAX>(a, x[M == 1 ? r : 4 * (G * (r / 2) + c / 2) + 2 * (r % 2) + c % 2]);
    a = fold<MAX>(a, __shfl_xor_sync(~0u, a, 4));
    a = fold<MAX>(a, __shfl_xor_sync(~0u, a, 8));
    y[c] = fold<MAX>(a, __shfl_xor_sync(~0u, a, 16));
  }
}

//@ part give_columns needs shared_access
// A warp's numbers of M columns a thread, where the other warps of its warpgroup find them: a row of all columns a warp
template <int M> DEV void give_columns(const float (&x)[M], uint32_t area, int warp, int lane) {
  if (M == 1) {
    if (lane == 0) put<float>(area + 4 * warp, x[0]);
  } else if (lane < 4) {
#pragma unroll
    for (int j = 0; j < M / 2; ++j) put<float2>(area + 16 * M * warp + 8 * lane + 32 * j, make_float2(x[2 * j], x[2 * j + 1 % M]));
  }
}

//@ part take_columns needs fold, shared_access
// The sums or maxima of what the four warps have given
template <bool MAX, int M> DEV void take_columns(float (&x)[M], uint32_t area, int lane) {
#pragma unroll
  for (int c = 0; c < M; ++c) {
    const uint32_t at = M == 1 ? area : area + 8 * (lane % 4) + 32 * (c / 2) + 4 * (c % 2);
    constexpr int W = M == 1 ? 4 : 16 * M;                    // bytes of a warp
    x[c] = fold<MAX>(fold<MAX>(get<float>(at), get<float>(at + W)), fold<MAX>(get<float>(at + 2 * W), get<float>(at + 3 * W)));
  }
}

}  // namespace cuir

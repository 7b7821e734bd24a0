// Products of 16-bit floats by 8-bit floats.
#pragma once
#include "headers.cuh"
#include "../../../include/addresses.cuh"
#include "../../../include/halves.cuh"
#include "../../sm75/include/matrices.cuh"
#include "../../sm89/include/floats_8bit.cuh"

namespace cuir {

//@ section products

//@ part load_word
DEV uint32_t load_word(uint32_t from) { uint32_t x; asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory"); return x; }

//@ part load_left needs beyond, load_word
// Four neighbours in each of a lane's two rows of halves, of step k of 16 columns: a left operand in operand order. Word by word, since two of one load would have to lie side by side
// in registers, where an instruction wants all four of a step in another order
template <int ROWS> DEV void load_left(uint32_t at, int row, int k, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  const uint32_t from = beyond<ROWS>(at, row, 32 * k);
  a = load_word(from), b = load_word(from + 8 * 128), c = load_word(from + 4), d = load_word(from + 8 * 128 + 4);
}

//@ part mma_halves
// d += a @ b of 16 x 8 x 16
template <bool BF16> DEV void mma_halves(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (BF16) cute::SM80_16x8x16_F32BF16BF16F32_TN::fma(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b0, b1, d[0], d[1], d[2], d[3]);
  else cute::SM80_16x8x16_F32F16F16F32_TN::fma(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b0, b1, d[0], d[1], d[2], d[3]);
}

//@ part regrouped
// Of the words of two lanes the halves, or every other byte, that this lane needs
DEV uint32_t regrouped(uint32_t word, int from, int further, uint32_t bytes) {
  return __byte_perm(__shfl_sync(~0u, word, from), __shfl_sync(~0u, word, from + further), bytes);
}

//@ for e4m3 e5m2
//@ part widen_f8e4m3 needs pack_bf16, f8e4m3
// Four numbers as halves of either kind. mov.b32, as of a word that is shifted ptxas makes a shift, though a conversion takes either half of a word
template <bool BF16> DEV void widen_f8e4m3(uint32_t four, uint32_t& first, uint32_t& second) {
  uint16_t low, high;
  asm("mov.b32 {%0, %1}, %2;" : "=h"(low), "=h"(high) : "r"(four));
  if constexpr (BF16) {
    const float2 x = to_floats_f8e4m3(low), y = to_floats_f8e4m3(high);
    first = pack_bf16(x.x, x.y), second = pack_bf16(y.x, y.y);
  } else {
    first = to_halves_f8e4m3(low), second = to_halves_f8e4m3(high);
  }
}

//@ part multiply_columns_f8e4m3 needs at, beyond, load_matrix, regrouped, mma_halves, widen_f8e4m3
// d += a @ b by a warp, b of 8 bits and column by column in shared memory: SLABS of 16 rows, GROUPS of 8 columns, STEPS of 16 along the inner dim, of which left(slab, step, a) gives a.
// A block of words has 64 numbers of the inner dim of 8 columns. ORDERED: a comes in operand order.
template <bool BF16, bool ORDERED, int ROWS, int SLABS, int GROUPS, int STEPS, int N, class Left> DEV void multiply_columns_f8e4m3(float (&d)[N], uint32_t base, int lane, Left left) {
  constexpr int SUMS = SLABS * GROUPS <= 2 && STEPS >= 4 ? 2 : 1;   // of a few blocks of columns two, since each product waits for the one before it in its sum
  float sum[SUMS][N];
#pragma unroll
  for (int i = 0; i < N; ++i) sum[0][i] = d[i];
  if constexpr (SUMS > 1) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum[1][i] = 0.f;
  }
  const uint32_t first = at<ROWS>(base, lane & 7, 16 * (lane >> 3));
#pragma unroll
  for (int k0 = 0; k0 < STEPS; k0 += 4) {
    uint32_t a[4][SLABS][4];
#pragma unroll
    for (int k = 0; k < 4 && k0 + k < STEPS; ++k) {
#pragma unroll
      for (int s = 0; s < SLABS; ++s) left(s, k0 + k, a[k][s]);
    }
#pragma unroll
    for (int j0 = 0; j0 < GROUPS; j0 += 4) {
      uint32_t w[4][4];
#pragma unroll
      for (int j = 0; j < 4 && j0 + j < GROUPS; ++j) load_matrix(beyond<ROWS>(first, 8 * (j0 + j), 16 * k0), w[j][0], w[j][1], w[j][2], w[j][3]);
#pragma unroll
      for (int k = 0; k < 4 && k0 + k < STEPS; ++k) {
#pragma unroll
        for (int j = 0; j < 4 && j0 + j < GROUPS; ++j) {
          uint32_t word = w[j][k];
          if constexpr (!ORDERED) word = regrouped(word, (lane & ~3) | (lane >> 1 & 1), 2, lane & 1 ? 0x7632 : 0x5410);
          uint32_t b0, b1;
          widen_f8e4m3<BF16>(word, b0, b1);
#pragma unroll
          for (int s = 0; s < SLABS; ++s) mma_halves<BF16>(&sum[k % SUMS][4 * (s * GROUPS + j0 + j)], a[k][s], b0, b1);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    d[i] = sum[0][i];
    if constexpr (SUMS > 1) d[i] += sum[1][i];
  }
}

//@ part multiply_rows_f8e4m3 needs at, beyond, load_matrix_T, regrouped, mma_halves, widen_f8e4m3
// The same of b that lies row by row. Words of two columns in two rows are exchanged for words of two rows in columns 8 apart; or, DEALT, become words of two rows in either column
template <bool BF16, bool DEALT, int ROWS, int SLABS, int GROUPS, int STEPS, int N, class Left> DEV void multiply_rows_f8e4m3(float (&d)[N], uint32_t base, int lane, Left left) {
  const uint32_t first = at<ROWS>(base, lane & 15, 16 * (lane >> 4));
  const uint32_t bytes = !DEALT && lane & 4 ? 0x7531 : 0x6420;
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    uint32_t a[SLABS][4];
#pragma unroll
    for (int s = 0; s < SLABS; ++s) left(s, k, a[s]);
#pragma unroll
    for (int j0 = 0; j0 < GROUPS; j0 += 4) {
      uint32_t w[4];
      load_matrix_T(beyond<ROWS>(first, 16 * k, 8 * j0), w[0], w[1], w[2], w[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = DEALT ? __byte_perm(w[i], 0, 0x3120) : regrouped(w[i], (lane >> 3) * 4 | (lane & 3), 16, bytes);
#pragma unroll
      for (int j = 0; j < 4 && j0 + j < GROUPS; j += 2) {
        uint32_t b0[2], b1[2];
        widen_f8e4m3<BF16>(w[j], b0[0], b0[1]);
        widen_f8e4m3<BF16>(w[j + 1], b1[0], b1[1]);
#pragma unroll
        for (int i = 0; i < 2 && j0 + j + i < GROUPS; ++i) {
#pragma unroll
          for (int s = 0; s < SLABS; ++s) mma_halves<BF16>(&d[4 * (s * GROUPS + j0 + j + i)], a[s], b0[i], b1[i]);
        }
      }
    }
  }
}
//@ end

}  // namespace cuir

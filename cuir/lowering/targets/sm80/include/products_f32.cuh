// Products of f32 operands by TF32 instructions, and loads of neighbours in rows of floats.
#pragma once
#include "headers.cuh"
#include "../../../include/addresses.cuh"

namespace cuir {

//@ section matrices

//@ part load_words defines load_one, load_pair, load_pairs
// Neighbours in a row of floats
DEV float load_one(uint32_t from) { float a; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(a) : "r"(from) : "memory"); return a; }
DEV void load_pair(uint32_t from, float& a, float& b) { asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(from) : "memory"); }
DEV void load_pairs(uint32_t from, float& a, float& b, float& c, float& d) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "r"(from) : "memory");
}

//@ part in_parts defines as_tf32
// A float as a number of TF32, or as the nearest one (ties away from 0) and what is left. The tensor core cuts off what TF32 lacks; the factor makes up for that on average,
// in one instruction, and changes no number of TF32, infinity or NaN.
DEV float as_tf32(float x) { return x * 1.00033855438232421875f; }  // 1 + 355 / 2^20
DEV void in_parts(float x, uint32_t (&part)[1]) { part[0] = __float_as_uint(as_tf32(x)); }
DEV void in_parts(float x, uint32_t (&part)[2]) {   // of a NaN the rest is one
  asm volatile("" : "+f"(x));   // split where it is needed: compilers would keep both parts of all that is split again
  part[0] = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  part[1] = __float_as_uint(x - __uint_as_float(part[0]));
}

//@ part places needs at defines operand_places, row_places
// Addresses in panels of floats, each worked out once: what is added to them is a constant in the instruction
template <int ROWS> DEV void operand_places(uint32_t base, int row, int lane, uint32_t (&place)[2]) {   // columns 8 c .. 8 c + 7 of a row, c = lane % 4
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    place[h] = at<ROWS>(base, row, 32 * (lane % 4) + 16 * h);
    asm("" : "+r"(place[h]));
  }
}
template <int ROWS> DEV void row_places(uint32_t base, int lane, uint32_t (&place)[4][2]) {   // rows 2 c and 2 c + 1, column 8 j + lane / 4
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    place[i / 2][i % 2] = at<ROWS>(base, 2 * (lane % 4) + i % 2, 32 * (i / 2) + 4 * (lane / 4));
    asm("" : "+r"(place[i / 2][i % 2]));
  }
}

//@ part mma_tf32
// d += a @ b of 16 x 8 x 8; a and b in tile order. of_a, of_b: which part of the operands
template <int PARTS> DEV void mma_tf32(float* d, const uint32_t (&a)[4][PARTS], int of_a, const uint32_t (&b)[2][PARTS], int of_b) {
  cute::SM80_16x8x8_F32TF32TF32F32_TN::fma(d[0], d[1], d[2], d[3], a[0][of_a], a[2][of_a], a[1][of_a], a[3][of_a], b[0][of_b], b[1][of_b], d[0], d[1], d[2], d[3]);
}

//@ part multiply needs in_parts, mma_tf32
// d += a @ b by a warp, operands of f32 in PARTS numbers of TF32: SLABS of 16 rows, GROUPS of 8 columns, STEPS of 8 along the inner dim, read U at a time by left(slab, step, x) and
// right(step, group, x). READY: the left ones are numbers of TF32 already. The tensor core cuts sums off, so with two parts there are at most 8 steps to a sum, small products have their own, and these sums are added as floats.
template <int PARTS, bool READY, int U, int SLABS, int GROUPS, int STEPS, int N, class Left, class Right> DEV void multiply(float (&d)[N], Left left, Right right) {
  constexpr int CHUNK = PARTS == 1 ? STEPS : 8, BLOCK = PARTS == 1 ? GROUPS : SLABS == 1 ? 4 : 2;
#pragma unroll
  for (int j0 = 0; j0 < GROUPS; j0 += BLOCK) {
#pragma unroll
    for (int k0 = 0; k0 < STEPS; k0 += CHUNK) {
      float sum[PARTS][SLABS][BLOCK][4] = {};
#pragma unroll
      for (int k = k0; k < k0 + CHUNK && k < STEPS; k += U) {
        uint32_t a[U][SLABS][4][PARTS];
#pragma unroll
        for (int s = 0; s < SLABS; ++s) {
          float x[4 * U];
          left(s, k, x);
#pragma unroll
          for (int i = 0; i < 4 * U; ++i) {
            if constexpr (READY) a[i / 4][s][i % 4][0] = __float_as_uint(x[i]);
            else in_parts(x[i], a[i / 4][s][i % 4]);
          }
        }
#pragma unroll
        for (int j = j0; j < j0 + BLOCK && j < GROUPS; ++j) {
          float x[2 * U];
          uint32_t b[U][2][PARTS];
          right(k, j, x);
#pragma unroll
          for (int i = 0; i < 2 * U; ++i) in_parts(x[i], b[i / 2][i % 2]);
#pragma unroll
          for (int u = 0; u < U; ++u) {
#pragma unroll
            for (int s = 0; s < SLABS; ++s) {
              if constexpr (PARTS == 1) mma_tf32(&d[4 * (s * GROUPS + j)], a[u][s], 0, b[u], 0);
              else {
                mma_tf32(sum[1][s][j - j0], a[u][s], 1, b[u], 0);
                mma_tf32(sum[0][s][j - j0], a[u][s], 0, b[u], 0);
                mma_tf32(sum[1][s][j - j0], a[u][s], 0, b[u], 1);
              }
            }
          }
        }
      }
      if constexpr (PARTS > 1) {
#pragma unroll
        for (int i = 0; i < SLABS * BLOCK * 4; ++i) {
          const int s = i / (BLOCK * 4), j = j0 + i / 4 % BLOCK;
          if (j < GROUPS) d[4 * (s * GROUPS + j) + i % 4] += sum[0][s][j - j0][i % 4] + sum[1][s][j - j0][i % 4];
        }
      }
    }
  }
}

}  // namespace cuir

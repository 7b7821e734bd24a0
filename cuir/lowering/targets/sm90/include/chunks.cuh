// Rows of 8-bit floats from shared memory, and back as 16-bit floats.
#pragma once
#include "headers.cuh"
#include "../../../include/addresses.cuh"
#include "../../../include/halves.cuh"
#include "../../../include/words.cuh"
#include "../../sm75/include/matrices.cuh"
#include "../../sm89/include/floats_8bit.cuh"

namespace cuir {

//@ section copies

//@ for e4m3 e5m2
//@ part load_pairs_f8e4m3 needs at, shared_access, f8e4m3
// Rows of 8-bit numbers in shared memory as an accumulator lies: pairs of columns, two at a time
template <int ROWS, int COLS> DEV void load_pairs_f8e4m3(float (&x)[COLS / 2], uint32_t from, int row, int col) {
#pragma unroll
  for (int i = 0; i < COLS / 4; ++i) {
    const float2 pair = to_floats_f8e4m3(get<uint16_t>(at<ROWS>(from, row + 8 * (i % 2), col + 8 * (i / 2))));
    x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
  }
}

//@ part load_halves_f8e4m3 needs at, shared_access, f8e4m3
// The same as f16, which holds each of them: two to a register
template <int ROWS, int COLS> DEV void load_halves_f8e4m3(uint32_t (&x)[COLS / 4], uint32_t from, int row, int col) {
#pragma unroll
  for (int i = 0; i < COLS / 4; ++i) x[i] = to_halves_f8e4m3(get<uint16_t>(at<ROWS>(from, row + 8 * (i % 2), col + 8 * (i / 2))));
}
//@ end

//@ part chunk_place
// Chunk i of a thread's: row, and number of the chunk of 16 numbers in it. Eight lanes take four chunks of each of two rows, such that they meet in no bank of shared memory,
// neither in rows of 8-bit numbers nor in rows of halves.
struct Chunk { int row, number; };
template <int COLS, int WARPS> DEV Chunk chunk_place(int i, int warp, int lane) {
  constexpr int QUARTERS = COLS / 64;
  const int turn = i * WARPS + warp, first = lane / 8;
  return {turn / QUARTERS * 8 + (lane % 8 < 4 ? first : first ^ 5), turn % QUARTERS * 4 + lane % 4};
}

//@ for e4m3 e5m2
//@ part load_chunks_f8e4m3 needs at, shared_access, chunk_place, pack_bf16, f8e4m3
// Rows of 8-bit numbers as halves of either kind
template <int ROWS, int COLS, int WARPS, bool BF16, int N> DEV void load_chunks_f8e4m3(uint32_t (&x)[N], uint32_t from, int warp, int lane) {
  uint4 chunk[N / 8];
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {
    const Chunk c = chunk_place<COLS, WARPS>(i, warp, lane);
    chunk[i] = get<uint4>(at<ROWS>(from, c.row, 16 * c.number));
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const uint4 c = chunk[i / 8];
    const uint32_t four = i / 2 % 4 == 0 ? c.x : i / 2 % 4 == 1 ? c.y : i / 2 % 4 == 2 ? c.z : c.w;
    const uint16_t two = i % 2 ? four >> 16 : four & 0xffff;
    if constexpr (BF16) {
      const float2 pair = to_floats_f8e4m3(two);
      x[i] = pack_bf16(pair.x, pair.y);
    } else {
      x[i] = to_halves_f8e4m3(two);
    }
  }
}
//@ end

//@ part store_chunks needs at, shared_access, chunk_place
template <int ROWS, int COLS, int WARPS, int N> DEV void store_chunks(const uint32_t (&x)[N], uint32_t to, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {
    const Chunk c = chunk_place<COLS, WARPS>(i, warp, lane);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t* const half = x + 8 * i + 4 * h;
      put<uint4>(at<ROWS>(to, c.row, 32 * c.number + 16 * h), make_uint4(half[0], half[1], half[2], half[3]));
    }
  }
}

//@ for e4m3 e5m2
//@ part pack_words_f8e4m3
// Numbers of an accumulator as left operands of wgmma: of each 16 columns the four that a lane has of a row, which the order of `interleave` puts side by side
template <int N> DEV void pack_words_f8e4m3(uint32_t (&y)[N / 4], const float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const float* const from = x + 8 * (i / 2) + 2 * (i % 2);
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(from[1]), "f"(from[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(from[5]), "f"(from[4]));
    asm("mov.b32 %0, {%1, %2};" : "=r"(y[i]) : "h"(low), "h"(high));
  }
}
//@ end

//@ part transpose_interleaved needs at, load_matrix_T
// The transpose of K rows of C 8-bit numbers, the order of each 16 of its columns that of `interleave`. ldmatrix gives a lane two neighbours of a row in pairs of rows, a permutation two rows
// of the transpose, whose first four and last four of 8 lanes then store another one of the two: even rows alone would meet in the banks of shared memory
template <int FROM, int TO, int K, int C, int WARPS> DEV void transpose_interleaved(uint32_t from, int from_byte, uint32_t to, int to_byte, int warp, int lane) {
  constexpr int BLOCKS = K / 32 * (C / 16), BATCH = BLOCKS % (2 * WARPS) == 0 ? 2 : 1;
  const uint32_t even = lane < 16 ? 0x6420 : 0x7531, odd = even ^ 0x1111;
  const int row = 2 * (lane & 7) + ((lane >> 2 & 1) ^ (lane >> 3 & 1));
  const uint32_t line = at<FROM>(from, lane, 0);           // of this lane's rows: other columns differ by the bits of a chunk, rows in steps of 8 by a sum
#pragma unroll 1
  for (int first = warp * BATCH; first < BLOCKS; first += WARPS * BATCH) {
    uint32_t w[BATCH][4];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int k = (first + i) % (K / 32) * 32, byte = from_byte + (first + i) / (K / 32) * 16;
      const int panel = from_byte + C <= 128 ? 0 : byte >> 7;
      load_matrix_T((line ^ (byte & 0x70)) + panel * (FROM * 128) + k * 128, w[i][0], w[i][1], w[i][2], w[i][3]);
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int k = (first + i) % (K / 32) * 32, c = (first + i) / (K / 32) * 16;
      const uint32_t place = at<TO>(to, row, to_byte + k + 16 * (lane >> 4)) + c * 128;
      asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" :: "r"(place), "r"(__byte_perm(w[i][0], w[i][1], even)), "r"(__byte_perm(w[i][0], w[i][1], odd)),
                   "r"(__byte_perm(w[i][2], w[i][3], even)), "r"(__byte_perm(w[i][2], w[i][3], odd)) : "memory");
    }
  }
}

}  // namespace cuir

// Rows of 8-bit floats from shared memory, and back as 16-bit floats.
#pragma once
#include "headers.cuh"
#include "../../../include/addresses.cuh"
#include "../../../include/halves.cuh"
#include "../../../include/words.cuh"
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

}  // namespace cuir

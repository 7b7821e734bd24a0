// Accumulators and rows between registers and shared memory.
#pragma once
#include "headers.cuh"
#include "words.cuh"

namespace cuir {

//@ section words

//@ part accumulator_pairs
// Where an accumulator of COLS columns and N numbers a lane lies in a panelled array of ROWS rows; row: this lane's first one, the next slab's is STEP behind it. Two columns at a
// time, from two places of a panel at once: odd rows take the two in the other order, so that lanes of four rows meet in no bank
template <int ROWS, int COLS, int STEP, int N, class F> DEV void accumulator_pairs(uint32_t at, int row, int lane, F move) {
  const bool odd = row & 1;
  const uint32_t first = at + row * 128 + (lane & 1) * 8, chunk = ((lane >> 1 & 1) ^ (row & 7) ^ (odd ? 4 : 0)) << 4;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t here = first + (chunk ^ (j << 5)), there = first + (chunk ^ (j << 5) ^ 64);
#pragma unroll
    for (int p = 0; p < COLS / 32; ++p) {
#pragma unroll
      for (int r = 0; r < 4 * N / COLS; ++r) {
        const int further = p * (ROWS * 128) + r % 2 * 1024 + r / 2 * (STEP * 128);
        move(here + further, there + further, r / 2 * (COLS / 2) + 16 * p + 4 * j + r % 2 * 2, odd);
      }
    }
  }
}

//@ part store_accumulator needs shared_access, accumulator_pairs
// An accumulator to shared memory
template <int ROWS, int COLS, int STEP, int N> DEV void store_accumulator(const float (&x)[N], uint32_t to, int row, int lane) {
  accumulator_pairs<ROWS, COLS, STEP, N>(to, row, lane, [&](uint32_t here, uint32_t there, int a, bool odd) {
    const int b = a + 8;
    put<float2>(here, odd ? make_float2(x[b], x[b + 1]) : make_float2(x[a], x[a + 1]));
    put<float2>(there, odd ? make_float2(x[a], x[a + 1]) : make_float2(x[b], x[b + 1]));
  });
}

//@ part store_dealt needs shared_access
// One in dealt order, in order: of 16 columns a lane has 4 c .. 4 c + 3, c = lane % 4. Odd rows begin with the other half of a panel, so that lanes of two rows meet in no bank
template <int ROWS, int COLS, int STEP, int N> DEV void store_dealt(const float (&x)[N], uint32_t to, int row, int lane) {
  const bool odd = row & 1;
  const uint32_t here = to + row * 128 + (((lane & 3) ^ (row & 7) ^ (odd ? 4 : 0)) << 4), there = here ^ 64;
#pragma unroll
  for (int p = 0; p < COLS / 32; ++p) {
#pragma unroll
    for (int r = 0; r < 4 * N / COLS; ++r) {
      const int a = r / 2 * (COLS / 2) + 16 * p + r % 2 * 2, b = a + 8, further = p * (ROWS * 128) + r % 2 * 1024 + r / 2 * (STEP * 128);
      const float4 u = make_float4(x[a], x[a + 4], x[a + 1], x[a + 5]), v = make_float4(x[b], x[b + 4], x[b + 1], x[b + 5]);
      put<float4>(here + further, odd ? v : u);
      put<float4>(there + further, odd ? u : v);
    }
  }
}

//@ part load_accumulator needs shared_access, accumulator_pairs
// What store_accumulator has stored
template <int ROWS, int COLS, int STEP, int N> DEV void load_accumulator(float (&x)[N], uint32_t from, int row, int lane) {
  accumulator_pairs<ROWS, COLS, STEP, N>(from, row, lane, [&](uint32_t here, uint32_t there, int a, bool odd) {
    const float2 u = get<float2>(here), v = get<float2>(there);
    x[a] = odd ? v.x : u.x, x[a + 1] = odd ? v.y : u.y, x[a + 8] = odd ? u.x : v.x, x[a + 9] = odd ? u.y : v.y;
  });
}

//@ part load_columns needs shared_access
// The columns of one row that a lane has, in pairs; col: the first
template <int COLS> DEV void load_columns(float (&x)[COLS / 4], uint32_t from, int col) {
#pragma unroll
  for (int j = 0; j < COLS / 8; ++j) {
    const float2 u = get<float2>(from + (col + 8 * j) * 4);
    x[2 * j] = u.x, x[2 * j + 1] = u.y;
  }
}

}  // namespace cuir

// stmatrix.
#pragma once
#include "headers.cuh"
#include "../../../include/addresses.cuh"

namespace cuir {

//@ section matrices

//@ part store_matrix needs at
// 16 x 16 elements of 16 bits a warp, chunk by chunk, from accumulator order to rows of shared memory
template <int ROWS, int N> DEV void store_matrix(const uint32_t (&x)[N], uint32_t base, int row, int lane, int columns) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    uint32_t first = at<ROWS>(base, row + (lane & 15), 32 * (i / 4 % 4) + 16 * (lane >> 4));
    asm("" : "+r"(first));   // one sum for all panels: they differ by a constant in the instruction
    const uint32_t to = first + i / 16 * (ROWS * 128);
    asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" :: "r"(to), "r"(x[i]), "r"(x[i + 1]), "r"(x[i + 2]), "r"(x[i + 3]) : "memory");
  }
}

//@ part store_slabs needs store_matrix
// A tile of SLABS times the rows that the worker's lanes hold at once, the next ones STEP rows behind
template <int ROWS, int STEP, int SLABS, int N> DEV void store_slabs(const uint32_t (&x)[N], uint32_t base, int row, int lane) {
#pragma unroll
  for (int s = 0; s < SLABS; ++s) {
    uint32_t y[N / SLABS];
#pragma unroll
    for (int i = 0; i < N / SLABS; ++i) y[i] = x[s * (N / SLABS) + i];
    store_matrix<ROWS>(y, base, row + s * STEP, lane, 0);
  }
}

}  // namespace cuir

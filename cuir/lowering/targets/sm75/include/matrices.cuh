// ldmatrix, and products of its blocks.
#pragma once
#include "../../../include/headers.cuh"
#include "../../../include/addresses.cuh"

namespace cuir {

//@ section matrices

//@ part beyond needs at
// A place `row` rows, a multiple of 8, and `byte` bytes, a multiple of 32, behind one that `at` gave: the permutation is that of the first row, so one xor does, and constants go into the instruction
template <int ROWS> DEV uint32_t beyond(uint32_t place, int row, int byte) { return (place ^ (byte & 96)) + (byte >> 7) * (ROWS * 128) + row * 128; }

//@ part load_matrix
// 8 x 8 blocks of 16 bits, four a warp: lane l gives the address of row l % 8 of block l / 8
DEV void load_matrix(uint32_t from, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  asm volatile("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from) : "memory");
}

//@ part load_matrix_T
DEV void load_matrix_T(uint32_t from, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  asm volatile("ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from) : "memory");
}

//@ part mma_16x8x16 defines mma_16x8x8
// d += a @ b of f16, in two products of 16 x 8 x 8: their fragments are the halves of one of 16 x 8 x 16
DEV void mma_16x8x8(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(b));
}
DEV void mma_16x8x16(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  mma_16x8x8(d0, d1, d2, d3, a0, a1, b0);
  mma_16x8x8(d0, d1, d2, d3, a2, a3, b1);
}

}  // namespace cuir

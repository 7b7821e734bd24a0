// ldmatrix, and neighbours in rows of floats.
#pragma once
#include "headers.cuh"
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

//@ part load_words defines load_one, load_pair, load_pairs
// Neighbours in a row of floats
DEV float load_one(uint32_t from) { float a; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(a) : "r"(from) : "memory"); return a; }
DEV void load_pair(uint32_t from, float& a, float& b) { asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(from) : "memory"); }
DEV void load_pairs(uint32_t from, float& a, float& b, float& c, float& d) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "r"(from) : "memory");
}

}  // namespace cuir
